"""Columns of arrays, in memory or in memory-mapped .npy files, that grow by rows."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from graspcl.checks import Array
from graspcl.errors import GraspError


class Storage:
    """Named columns with the same number of rows, copied from `columns` to begin with.

    >>> storage = Storage(columns={"codes": np.ones((3, 8), np.uint8)})
    >>> storage.reserve(100)
    >>> storage.rows, int(storage["codes"].sum())
    (100, 24)
    """

    def __init__(self, folder: str | Path | None = None, columns: Mapping[str, Array] | None = None) -> None:
        self.folder = None if folder is None else Path(folder)
        self._columns = {name: value[:0] for name, value in (columns or {}).items()}
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise GraspError(f"the buffer cannot be stored in {self.folder}: {error.strerror}") from error
        self.reserve(max((len(value) for value in (columns or {}).values()), default=0), exactly=True)
        for name, value in (columns or {}).items():
            self[name][: len(value)] = value

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

    def reserve(self, rows: int, exactly: bool = False) -> None:
        """Make room for `rows` rows; unless `exactly`, with half as much again to come, so that growth is amortised."""
        if rows <= self.rows:
            return
        rows = rows if exactly else max(rows, self.rows + self.rows // 2, 64)
        grown: dict[str, Array] = {}
        try:
            for name, old in self._columns.items():
                grown[name] = self._allocate(name, (rows, *old.shape[1:]), old.dtype)
                grown[name][: len(old)] = old
        except GraspError:
            for file in self._growing():
                file.unlink()  # what did fit must not fill the disk
            raise
        for file in self._growing():
            os.replace(file, file.with_suffix(""))
        self._columns = grown

    def _growing(self) -> list[Path]:
        """Files that columns are copied to while they grow; they take the old ones' place when all are written."""
        files = [] if self.folder is None else [self.folder / f"{name}.npy.new" for name in self._columns]
        return [file for file in files if file.exists()]

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        need = math.prod(shape) * dtype.itemsize
        if self.folder is None or not need:  # a file of no bytes cannot be mapped
            try:
                return np.zeros(shape, dtype)
            except (MemoryError, ValueError) as error:
                raise GraspError(f"there is no memory for {need:,} bytes of {name}; lower the capacity") from error
        path = self.folder / f"{name}.npy.new"
        try:
            with open(path, "wb") as file:
                npy.write_array_header_2_0(
                    file, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                )
                # Claim the blocks now: a full disk is then an error here, not a fatal signal at some later write.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, file.tell() + need)
                else:
                    file.truncate(file.tell() + need)
        except OSError as error:
            raise GraspError(
                f"the buffer's file {path.with_suffix('')} could not grow to {need:,} bytes: {error.strerror}"
            ) from error
        return npy.open_memmap(path, mode="r+")


def pack(codes: Array) -> dict[str, Array]:
    """Objects [n] as plain arrays, fit to be saved: all bytes in a row, where each code ends, and which are paths.

    >>> codes = np.array([b"abc", "d.jpg"], dtype=object)
    >>> pack(codes)["ends"].tolist(), unpack(pack(codes)).tolist()
    ([3, 8], [b'abc', 'd.jpg'])
    """
    raw = [code if isinstance(code, bytes) else code.encode("utf-8", "surrogateescape") for code in codes]
    return {
        "bytes": np.frombuffer(b"".join(raw), np.uint8),
        "ends": np.cumsum([len(code) for code in raw], dtype=np.int64),
        "paths": np.array([isinstance(code, str) for code in codes], bool),
    }


def unpack(packed: dict[str, Any]) -> Array:
    """The objects [n] that `pack` was given."""
    raw, ends = np.asarray(packed["bytes"], np.uint8).tobytes(), np.asarray(packed["ends"]).tolist()
    codes = np.empty(len(ends), object)
    for i, (begin, end, path) in enumerate(zip([0, *ends], ends, np.asarray(packed["paths"]).tolist(), strict=False)):
        codes[i] = raw[begin:end].decode("utf-8", "surrogateescape") if path else raw[begin:end]
    return codes
