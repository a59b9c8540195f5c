"""The family of rules in which the largest class makes room and a score decides which of its samples goes."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from graspcl.buffer.maintenance import Maintenance
from graspcl.errors import GraspError

if TYPE_CHECKING:
    from graspcl.buffer.buffer import Buffer

Array = np.ndarray[Any, Any]


class ByClass(Maintenance):
    """As often as the buffer is over its capacity, the largest class (newcomers counted) loses one of its samples.

    A batch is taken as a whole: what is stored and what comes in stand side by side, every class's losses are counted
    first, and each class that loses any is asked once for its `victims`. Class sizes end as they would one by one, up
    to ties, which are broken uniformly. A new rule names its one column in `columns` and defines `victims`.
    """

    one_by_one: ClassVar[bool] = False

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        """Which `number` (0 < number < n) samples of class `label` go, as positions in `values` [n, …], float64.

        `values` is the rule's column for what the class has stored, followed by its newcomers in order of arrival.
        """
        raise GraspError(f"{type(self).__name__} must define victims(label, values, number, rng)")

    def place(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        stored = len(buffer)
        room = len(labels) if buffer.capacity is None else buffer.capacity - stored
        if room >= len(labels):
            return buffer.append(labels)
        (column,) = self.columns
        goes = np.zeros(stored + len(labels), bool)
        goes[self._leaving(buffer, labels, buffer.incoming[column], len(labels) - room, rng)] = True
        stay, freed = np.flatnonzero(~goes[stored:]), np.flatnonzero(goes[:stored])
        slots = np.full(len(labels), -1, np.int64)
        slots[stay[:room]] = buffer.append(labels[stay[:room]])
        slots[stay[room:]] = freed
        buffer.overwrite(freed, labels[stay[room:]])
        return slots

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        (column,) = self.columns
        gone = self._leaving(buffer, np.empty(0, np.int64), buffer[column][:0], excess, rng)
        buffer.index.discard(gone, buffer.labels[gone].astype(np.int64))
        return gone

    def _leaving(self, buffer: Buffer, labels: Array, incoming: Array, number: int, rng: np.random.Generator) -> Array:
        """The slots that `number` samples leave; newcomers, of `labels`, are numbered on from the last slot."""
        (column,) = self.columns
        known = np.concatenate([buffer.classes, labels])
        sizes = np.bincount(labels, minlength=int(known.max(initial=-1)) + 1)
        sizes[buffer.classes] += buffer.sizes
        lost, gone = losses(sizes, number, rng), [np.empty(0, np.int64)]
        for label in np.flatnonzero(lost).tolist():
            slots, new = buffer.slots_of(label), np.flatnonzero(labels == label)
            members = np.concatenate([slots, len(buffer) + new]).astype(np.int64)
            if lost[label] < len(members):
                values = np.concatenate([buffer[column][slots], incoming[new]]).astype(np.float64)
                members = members[self.victims(label, values, int(lost[label]), rng)]
            gone.append(members)
        return np.concatenate(gone)


def losses(sizes: Array, number: int, rng: np.random.Generator) -> Array:
    """How many samples each class [K] loses if `number` times the largest loses one; ties are broken uniformly.

    >>> losses(np.array([5, 1, 9]), 8, np.random.default_rng(0)).tolist()
    [2, 0, 6]
    """
    keep = int(sizes.sum()) - number
    # The most that every class may have. One more fits for some of the classes that have more than that.
    level = bisect_right(range(int(sizes.max(initial=0)) + 1), keep, key=lambda top: np.minimum(sizes, top).sum()) - 1
    kept = np.minimum(sizes, level)
    larger = rng.permutation(np.flatnonzero(sizes > level))
    kept[larger[: keep - int(kept.sum())]] += 1
    return sizes - kept


def squared_distances(a: Array, b: Array) -> Array:
    """Squared Euclidean distances [n, m] between the rows of a [n, d] and b [m, d]."""
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.asarray(np.maximum(squares, 0))


def unit(vectors: Array) -> Array:
    """Vectors [n, d] at length 1; a vector of zeros stays as it is."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)
