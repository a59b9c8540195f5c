"""Samples in slots 0 … n-1: columns of arrays and a class index. How many there may be is the buffer's business."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from graspcl.buffer import checks
from graspcl.buffer.classindex import ClassIndex
from graspcl.buffer.repeats import last_owner
from graspcl.buffer.storage import Storage
from graspcl.errors import GraspError, nearest

Array = np.ndarray[Any, Any]

# What is kept of every sample beside its code and the user's columns.
OWN: checks.Columns = {"labels": ((), np.int32), "ids": ((), np.int64), "births": ((), np.int64)}


class Slots:
    """Columns over slots 0 … n-1, where n is what is stored; `ragged` ones also keep the length of each code."""

    def __init__(self, columns: checks.Columns | None, folder: str | Path | None, ragged: bool) -> None:
        self.index = ClassIndex()
        self.seen = 0  # samples offered so far, kept or not
        self._storage = Storage(folder)
        self._ragged = ragged
        self._extra = dict(columns or {})
        if clash := {"codes", "lengths", *OWN} & self._extra.keys():
            raise GraspError(f"a column cannot be called {clash.pop()!r}: the buffer has its own of that name")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def labels(self) -> Array:
        """Class of each stored sample [n], int32, a view."""
        return self._view("labels")

    @property
    def ids(self) -> Array:
        """The user's number of each stored sample [n], int64, a view."""
        return self._view("ids")

    @property
    def births(self) -> Array:
        """When each stored sample arrived, counted in samples offered [n], int64, a view."""
        return self._view("births")

    @property
    def columns(self) -> checks.Columns:
        """The columns the buffer was made with, as name -> (shape, dtype)."""
        return self._extra

    @property
    def classes(self) -> Array:
        """Labels of the classes stored, sorted."""
        return self.index.classes

    @property
    def sizes(self) -> Array:
        """Samples of each of `classes`."""
        return self.index.sizes

    def slots_of(self, label: int) -> Array:
        """Slots of one class, a view."""
        return self.index.slots_of(label)

    def __getitem__(self, column: str) -> Array:
        """A named column [n, …], a view that may be written to."""
        if column not in self._storage and column not in {**self._extra, **OWN}:
            raise GraspError(f"the buffer has no column {column!r}; {nearest(column, [*self._extra, 'codes', *OWN])}")
        return self._view(column)

    def append(self, labels: Array) -> Array:
        """For maintenance rules: take new slots for `labels` [n] at the end."""
        slots = np.arange(self._count, self._count + len(labels))
        self.index.assign(slots, labels, np.full(len(labels), -1))
        self._storage["labels"][slots] = labels
        self._storage["births"][slots] = self.seen + np.arange(len(labels))
        self._count += len(labels)
        self.seen += len(labels)
        return slots

    def overwrite(self, slots: Array, labels: Array) -> None:
        """For maintenance rules: put `labels` [n] into occupied `slots` [n], in turn; a slot may come twice."""
        order = np.argsort(slots, kind="stable")
        again = np.flatnonzero(slots[order][1:] == slots[order][:-1]) + 1
        old = self._storage["labels"][slots].astype(np.int64)
        old[order[again]] = labels[order[again - 1]]
        self.index.assign(slots, labels, old)
        final = last_owner(slots)
        self._storage["labels"][final[final >= 0]] = labels[final >= 0]

    def _view(self, name: str) -> Array:
        if name not in self._storage:
            shape, dtype = self._declared[name]
            return np.empty((0, *shape), dtype)
        return self._storage[name][: self._count]

    @property
    def _declared(self) -> checks.Columns:
        """All columns but the codes."""
        return {**OWN, **({"lengths": ((), np.int64)} if self._ragged else {}), **self._extra}

    def _close_gaps(self, gone: Array) -> None:
        left = self._count - len(gone)
        stays = np.ones(self._count, bool)
        stays[gone] = False
        source = left + np.flatnonzero(stays[left:])
        target = np.flatnonzero(~stays[:left])
        self.index.rename(source, target, self.labels[source].astype(np.int64))
        for name in self._storage:
            self._storage[name][target] = self._storage[name][source]
        if self._ragged and self._count:
            self._storage["codes"][left : self._count] = None  # else what is gone would stay in memory
        self._count = left


def positions(births: Array, wanted: Array) -> Array:
    """Where each of `wanted` [m] stands in `births` [n], whose values are all different; -1 where it does not."""
    if not len(births):
        return np.full(len(wanted), -1)
    order = np.argsort(births)
    place = order[np.searchsorted(births, wanted, sorter=order).clip(max=len(births) - 1)]
    return np.where(births[place] == wanted, place, -1)
