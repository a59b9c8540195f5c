"""Rows that lie elsewhere: in files, or packed. They are read when they are indexed, and look like an array."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from graspcl.checks import Array


class Rows:
    """Rows [n, …], of which `rows[which]` reads some: a number, a slice, integers [m] or a mask [n].

    Args:
        read: returns the rows [m, …] at positions [m].
        shape: of all rows.
        dtype: of a number in them.

    >>> squares = Rows(lambda which: which**2, (5,), np.int64)
    >>> squares[[4, 1]].tolist(), int(squares[-1]), squares.at(np.array([3, 2]))[:].tolist(), squares.nbytes
    ([16, 1], 16, [9, 4], 40)
    """

    def __init__(self, read: Callable[[Array], Array], shape: tuple[int, ...], dtype: Any) -> None:
        self._read, self.shape, self.dtype = read, shape, np.dtype(dtype)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, if they were in memory."""
        return math.prod(self.shape) * int(self.dtype.itemsize)

    def __getitem__(self, which: Any) -> Array:
        if isinstance(which, slice):
            chosen = np.arange(*which.indices(len(self)))
        else:
            chosen = np.asarray(which) if np.size(which) else np.empty(0, np.int64)
            if chosen.dtype == bool:
                chosen = np.flatnonzero(chosen)
            if chosen.size and not -len(self) <= chosen.min() <= chosen.max() < len(self):
                raise IndexError(f"there are {len(self)} rows, got {chosen.min()} … {chosen.max()}")
            chosen = np.where(chosen < 0, chosen + len(self), chosen)
        found = self._read(chosen.reshape(-1)).reshape((*chosen.shape, *self.shape[1:]))
        return found if chosen.ndim else found[()]  # an image file is no array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)

    def at(self, which: Array) -> Rows:
        """Return the rows at positions `which` [m], which are still read when they are indexed."""
        return Rows(lambda some: self._read(which[some]), (len(which), *self.shape[1:]), self.dtype)
