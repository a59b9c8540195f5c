"""GRASP: gradually select less prototypical samples (section 3). This is Algorithm 1 of the paper:

    R, c = [], 0                                  # the selected samples, and their number
    while c < U:                                  # the budget U = updates · batch_size
        for k in classes:
            p = normalise(1 / (D[k] + ε))         # D[k]: distances of class k to its prototype
            m = sample one of class k by p        # prototypical samples are likely, hard ones are not
            D[k][m] += max(D[k])                  # virtual update: m becomes the farthest of its class
            R, c = R + [(k, m)], c + 1            # stop when c = U

The selected samples R are the order of rehearsal. So a session starts with prototypical samples and gradually adds
harder ones. The small ε gives a distance of 0 a finite weight.

A draw costs O(J) in a class of J samples. `graspcl.policy.race` draws from the same distribution in O(log J).
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from graspcl.checks import Array, Natural, Positive, checked
from graspcl.errors import GraspError
from graspcl.machine import cores
from graspcl.policy.drawing import Groups, draws_per_class, group_by_class, keyed_exponentials, round_robin
from graspcl.policy.policy import policies
from graspcl.policy.prototype import ByDistance
from graspcl.policy.session import Session

# Chunks of classes have generators of their own, so that draws do not depend on the number of threads.
_CHUNKS = 16


@policies.register("grasp")
@dataclass
class Grasp(ByDistance):
    """Prototypical samples first, then gradually harder ones, class by class (Algorithm 1, in the module's docstring).

    Distances to the class prototypes are measured once per session ("fresh", as in the paper) or "remembered" from when
    samples were last seen, which needs no forward pass over the buffer (see `ByDistance`). A drawn sample is unlikely
    to come again before the others of its class.

    `draws` selects how chance numbers are assigned. Both have the distribution of Algorithm 1.
    - "in_order": one generator per group of classes gives them to samples in the order of slots.
    - "by_sample": a sample's number follows from the seed and from when the sample arrived. So the draws do not depend
      on where samples lie, and ranks that hold parts of the buffer exchange only the earliest arrivals (docs/scale.md).

    Follows: the paper, Algorithm 1; ε and new distances in each session are those of the reference program.
    """

    eps: Positive = 1e-7
    draws: Literal["in_order", "by_sample"] = field(default="in_order", kw_only=True)

    source = "Harun et al. 2024, Algorithm 1"

    def warm_up(self) -> None:
        grasp_order(np.ones(2), np.zeros(2, np.int64), 2, np.random.default_rng(0))

    def plan(self, session: Session) -> Array:
        if self.draws == "by_sample" and self.distances == "fresh" and session.race is not None:
            return session.race(self.eps)
        births = session.births if self.draws == "by_sample" else None
        given = session.groups, session.budget.samples, session.rng, self.eps, births
        return grasp_draws(self.measured(session), *given)


def grasp_order(distances: Array, labels: Array, budget: int, rng: np.random.Generator, eps: float = 1e-7) -> Array:
    """Return the first `budget` draws of Algorithm 1, indices [budget], round-robin over the sorted classes present.

    Args:
        distances: distance of each sample to its class prototype [N] ≥ 0.
        labels: class of each sample [N], integers.
        budget: number of draws; any number of passes over the samples is exact.
        rng: source of the draws.
        eps: added to distances, so that a distance of 0 has a finite weight.

    >>> grasp_order(np.array([0.0, 0.9, 0.9, 0.0]), np.array([0, 0, 1, 1]), budget=2, rng=np.random.default_rng(0))
    array([0, 3])
    """
    distances, labels = np.asarray(distances, np.float64), np.asarray(labels)
    if distances.ndim != 1 or distances.shape != labels.shape:
        raise GraspError(f"distances and labels must be [N], got shapes {distances.shape} and {labels.shape}")
    if len(labels) and labels.dtype.kind not in "iub":
        raise GraspError(f"labels must be integers, got {labels.dtype}")
    return grasp_draws(distances, group_by_class(labels.astype(np.int64)), budget, rng, eps)


@checked
def grasp_draws(
    distances: Array,
    groups: Groups,
    budget: Natural,
    rng: np.random.Generator,
    eps: Positive,
    births: Array | None = None,
) -> Array:
    """As `grasp_order`, for samples that are already grouped by class; with `births` [N], chance is by sample."""
    if budget and not len(distances):
        raise GraspError(f"cannot draw {budget} samples from an empty buffer")
    bad = np.flatnonzero(~(distances >= 0) | ~np.isfinite(distances))
    if len(bad):
        which = f"{len(bad)} of {len(distances)} distances"
        raise GraspError(f"{which} are negative or not finite (rows {bad[:5].tolist()})")
    if budget == 0:
        return np.empty(0, np.int64)
    from graspcl.policy.race import race_classes  # compiled code is loaded where it is used

    d, draws = distances[groups.members], draws_per_class(groups.number, budget)
    drawn = np.empty(budget, np.int64)
    ends = np.concatenate(([0], np.cumsum(draws)))
    bounds = np.linspace(0, groups.number, min(_CHUNKS, groups.number) + 1).astype(int)
    keys = None if births is None else race_keys(rng)

    def race(chunk: tuple[tuple[int, int], int]) -> None:
        (low, high), seed = chunk
        exponential = np.random.default_rng(seed).standard_exponential
        offsets = groups.offsets[low : high + 1]
        part = drawn[ends[low] : ends[high]]
        if births is None or keys is None:
            first, again = exponential(offsets[-1] - offsets[0]), exponential(len(part))
        else:
            first = keyed_exponentials(keys[0], births[groups.members[offsets[0] : offsets[-1]]])
            again = keyed_exponentials(keys[1], np.arange(ends[low], ends[high]))
        race_classes(d, offsets, draws[low:high], eps, first, again, part)

    seeds = rng.integers(2**63, size=len(bounds) - 1) if births is None else np.zeros(len(bounds) - 1, np.int64)
    chunks = zip(pairwise(bounds), seeds, strict=True)
    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(race, chunks))
    return round_robin(groups.members[drawn], groups.number)


def race_keys(rng: np.random.Generator) -> tuple[int, int]:
    """Draw the keys of a session whose chance is by sample: for first arrivals, by the birth of a sample, and for
    returns, by the number of the draw, counted class after class."""
    first, again = rng.integers(2**63, size=2).tolist()
    return first, again
