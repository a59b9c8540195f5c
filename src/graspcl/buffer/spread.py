"""Rules that keep an even spread from easy to hard: Rainbow over uncertainty, GRASP over distance to the prototype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from graspcl.buffer.byclass import ByClass, unit
from graspcl.buffer.maintenance import rules

Array = np.ndarray[Any, Any]


@rules.register("rainbow")
@dataclass
class Rainbow(ByClass):
    """Rainbow Memory (Bang et al. 2021): the largest class keeps samples evenly spread from certain to uncertain.

    The original takes every ⌊n/m⌋-th of the samples sorted by uncertainty once per task; for one sample at a time that
    stride is 1 and would drop the most uncertain ones. So here the densest place is thinned (`thinned`), as often as a
    sample must go. The learner's current uncertainties count: it may write to buffer["uncertainty"] at any time.
    """

    columns: ClassVar[frozenset[str]] = frozenset({"uncertainty"})

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        return thinned(values, number, rng)


@rules.register("grasp")
@dataclass
class Grasp(ByClass):
    """GRASP's order as a rule: the largest class keeps samples evenly spread from prototypical to atypical.

    d = 1 - cos(z, q), q the class mean of what is stored and the batch's newcomers; the densest place along d is
    thinned (`thinned`), so that a session finds easy and hard samples to go through. (Harun et al. name the choice of
    what to store by prototypicality as future work; the rule is this library's.)
    """

    columns: ClassVar[frozenset[str]] = frozenset({"embedding"})

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        return thinned(1 - unit(values) @ unit(values.mean(0)), number, rng)


def thinned(scores: Array, number: int, rng: np.random.Generator) -> Array:
    """Which `number` of scores [n] go so that the others stay evenly spread.

    One after the other goes the score whose neighbours, one below and one above, are closest to each other; so the
    smallest and the largest stay to the last. Ties are broken uniformly.

    >>> thinned(np.array([0.0, 0.5, 0.55, 1.0]), 1, np.random.default_rng(0)).tolist()
    [2]
    """
    left, gone = np.argsort(scores, kind="stable"), []
    for _ in range(number):
        gaps = np.full(len(left), np.inf)
        gaps[1:-1] = scores[left[2:]] - scores[left[:-2]]
        out = rng.choice(np.flatnonzero(gaps == gaps.min()))
        gone.append(left[out])
        left = np.delete(left, out)
    return np.array(gone)
