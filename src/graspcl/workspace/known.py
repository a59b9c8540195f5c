"""The classes of samples by id, in sorted arrays: millions are found and added to quickly, in 16 bytes each."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from graspcl.checks import Array

Run = tuple[Array, Array]  # ids [n], ascending, and their labels [n]


class Known:
    """Labels of samples by id, in `runs`.

    A run has more than twice as many samples as the next. So there are few, adding n samples in small parts takes
    about n log n steps, and long runs hardly ever change.

    >>> known = Known()
    >>> known.add(np.array([7, 3]), np.array([1, 0]))
    >>> known.labels_of(np.array([3, 4, 7])).tolist()
    [0, -1, 1]
    """

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.runs = [*runs]  # the arrays are never changed, so they may be shared

    def __len__(self) -> int:
        return sum(len(ids) for ids, _ in self.runs)

    @property
    def ids(self) -> Array:
        """All ids [n]."""
        return np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in self.runs)])

    @property
    def labels(self) -> Array:
        """The labels of all ids [n]."""
        return np.concatenate([np.empty(0, np.int64), *(labels for _, labels in self.runs)])

    def labels_of(self, ids: Array) -> Array:
        """Return the labels of `ids` [m]; -1 for one that is not known."""
        found = np.full(len(ids), -1)
        for own, labels in self.runs:
            place = np.minimum(np.searchsorted(own, ids), len(own) - 1)
            found = np.where(own[place] == ids, labels[place], found)
        return found

    def add(self, ids: Array, labels: Array) -> None:
        """Add distinct `ids` [m] with their labels [m]. One that is known keeps its label."""
        new = self.labels_of(ids) < 0
        run = _sorted(ids[new], labels[new])
        while self.runs and len(self.runs[-1][0]) <= 2 * len(run[0]):
            last = self.runs.pop()
            run = _sorted(np.concatenate([last[0], run[0]]), np.concatenate([last[1], run[1]]))
        if len(run[0]):
            self.runs.append(run)

    def without(self, ids: Array) -> Known:
        """Return all but these `ids` [m]."""
        kept = ((own[stay], labels[stay]) for own, labels in self.runs for stay in [~np.isin(own, ids)])
        found = Known()
        for own, labels in kept:
            found.add(own, labels)
        return found

    def relabelled(self, old: int, new: int) -> Known:
        """Return the same ids, those with the label `old` with the label `new`."""
        return Known((ids, np.where(labels == old, new, labels)) for ids, labels in self.runs)


def _sorted(ids: Array, labels: Array) -> Run:
    order = np.argsort(ids, kind="stable")  # fast for runs one after the other
    return np.asarray(ids[order], np.int64), np.asarray(labels[order], np.int64)
