"""Gradient-based sample selection: keep samples whose gradients point in many directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from graspcl.buffer.byclass import unit
from graspcl.buffer.maintenance import Maintenance, rules
from graspcl.errors import GraspError

if TYPE_CHECKING:
    from graspcl.buffer.buffer import Buffer

Array = np.ndarray[Any, Any]

_FIRST = 0.1  # the score of samples that come into an empty buffer, as in the original


@rules.register("gss")
@dataclass
class Gss(Maintenance):
    """GSS-greedy (Aljundi et al. 2019): a sample whose gradient resembles others' is likelier to go.

    Score C = the largest cosine of a sample's gradient with those of `references` random stored samples, taken once,
    when it comes, and kept in the column "similarity". In a full buffer the newcomers draw distinct victims i with
    probability proportional to (C_i - min C)/(max C - min C + 0.01), and each takes its victim's place with probability
    C_i'/(c' + C_i'), where z' = (z + 1)/2 and c is its own score; else it is not kept. With overflow, `compress` draws
    all that go in this way. Classes play no part.

    The gradient is whatever vector the learner gives. The original's references are gradients of mini-batches, and it
    considers only batches whose mean gradient scores below `threshold` 0; the default 1 considers all.
    """

    references: int = 10
    threshold: float = 1.0
    columns: ClassVar[frozenset[str]] = frozenset({"gradient", "similarity"})
    fills: ClassVar[frozenset[str]] = frozenset({"similarity"})
    one_by_one: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.references < 1:
            raise GraspError(f"Gss needs references of at least 1, not {self.references}")

    def arriving(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> None:
        score = self._similarity(buffer, buffer.incoming["gradient"], len(buffer), rng)
        buffer.incoming["similarity"] = score.astype(buffer["similarity"].dtype)

    def replace(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        score = buffer.incoming["similarity"].astype(np.float64)
        placed = len(score) - len(labels)  # the first of the batch found free slots at the end
        stored = buffer["similarity"].astype(np.float64)
        stored[len(stored) - placed :] = score[:placed]
        slots, mean = np.full(len(labels), -1, np.int64), buffer.incoming["gradient"].mean(0, keepdims=True)
        if self._similarity(buffer, mean, len(buffer) - placed, rng)[0] > self.threshold:
            return slots
        for begin in range(0, len(labels), len(buffer)):  # victims are distinct, so a buffer at a time
            c = score[placed + begin :][: len(buffer)]
            victims = rng.choice(len(buffer), len(c), replace=False, p=_chances(stored))
            ours, theirs = (c + 1) / 2, (stored[victims] + 1) / 2
            enters = rng.random(len(c)) * (ours + theirs) < theirs
            slots[begin : begin + len(c)][enters] = victims[enters]
            stored[victims[enters]] = c[enters]
        buffer.overwrite(slots[slots >= 0], labels[slots >= 0])
        return slots

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        score = buffer["similarity"].astype(np.float64)
        gone = rng.choice(len(buffer), excess, replace=False, p=_chances(score)) if excess else np.empty(0, np.int64)
        buffer.index.discard(gone, buffer.labels[gone].astype(np.int64))
        return gone

    def _similarity(self, buffer: Buffer, gradients: Array, stored: int, rng: np.random.Generator) -> Array:
        """The largest cosine [n] of gradients [n, d] with those of random samples in the first `stored` slots."""
        if not stored:
            return np.full(len(gradients), _FIRST)
        drawn = rng.choice(stored, min(self.references, stored), replace=False)
        cosines = unit(gradients.astype(np.float64)) @ unit(buffer["gradient"][drawn].astype(np.float64)).T
        return np.asarray(cosines.max(1)).clip(-1, 1)


def _chances(score: Array) -> Array:
    """With which probability each sample is the first to be drawn as a victim."""
    weights = (score - score.min()) / (score.max() - score.min() + 0.01)
    weights += 1e-9  # so that equal scores are drawn from uniformly, and the smallest when no other is left
    return np.asarray(weights / weights.sum())
