"""Columns of arrays, in memory or in memory-mapped .npy files, that grow by rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from graspcl.errors import GraspError

Array = np.ndarray[Any, Any]


class Storage:
    """Named columns with the same number of rows.

    >>> storage = Storage()
    >>> storage.add_column("codes", (8,), np.uint8)
    >>> storage.reserve(100)
    >>> storage["codes"].shape[0] >= 100
    True
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._columns: dict[str, Array] = {}
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise GraspError(f"the buffer cannot be stored in {self.folder}: {error.strerror}") from error

    def __getitem__(self, name: str) -> Array:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    @property
    def rows(self) -> int:
        """Rows that there is room for."""
        return min((len(column) for column in self._columns.values()), default=0)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all columns."""
        return sum(column.dtype.itemsize * int(np.prod(column.shape[1:])) for column in self._columns.values())

    def add_column(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        """A new column, zero in the rows that exist already."""
        self._columns[name] = self._allocate(name, (self.rows, *shape), np.dtype(dtype))

    def reserve(self, rows: int, exactly: bool = False) -> None:
        """Make room for `rows` rows; unless `exactly`, with half as much again to come, so that growth is amortised."""
        if rows <= self.rows:
            return
        rows = rows if exactly else max(rows, self.rows + self.rows // 2, 64)
        grown = {}
        for name, old in self._columns.items():
            grown[name] = self._allocate(name, (rows, *old.shape[1:]), old.dtype)
            grown[name][: len(old)] = old
        for name in grown:
            self._commit(name)
        self._columns = grown

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if self.folder is None:
            return np.zeros(shape, dtype)
        path = self.folder / f"{name}.npy"
        target = path.with_suffix(".npy.new") if path.exists() else path
        if not np.prod(shape):
            return np.zeros(shape, dtype)  # a file of no bytes cannot be mapped
        try:
            with open(target, "wb") as file:
                npy.write_array_header_2_0(
                    file, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                )
                # Claim the blocks now: a full disk is then an error here, not a fatal signal at some later write.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, file.tell() + int(np.prod(shape)) * dtype.itemsize)
                else:
                    file.truncate(file.tell() + int(np.prod(shape)) * dtype.itemsize)
        except OSError as error:
            target.unlink(missing_ok=True)
            need = int(np.prod(shape)) * dtype.itemsize
            raise GraspError(f"the buffer's file {path} could not grow to {need:,} bytes: {error.strerror}") from error
        return npy.open_memmap(target, mode="r+")

    def _commit(self, name: str) -> None:
        if self.folder is not None:
            new = self.folder / f"{name}.npy.new"
            if new.exists():
                os.replace(new, self.folder / f"{name}.npy")
