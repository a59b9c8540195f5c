"""Columns of arrays that grow by rows, in memory or in .npy files; and checks of what an insertion puts there."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy

from graspcl.checks import Array
from graspcl.errors import GraspError, nearest
from graspcl.files import check_regular

if TYPE_CHECKING:
    import torch

    from graspcl.buffer.maintenance import Maintenance

Columns = Mapping[str, tuple[tuple[int, ...], Any]]  # name -> (shape of one value, dtype)

_LARGEST_LABEL = 2**24 - 1  # the class index holds arrays as long as the largest label


class Storage(dict[str, Array]):
    """Named columns with the same number of rows, initialised with copies of `columns`, or in memory with themselves.

    >>> storage = Storage(columns={"codes": np.ones((3, 8), np.uint8)})
    >>> storage.reserve(100)
    >>> storage.rows, int(storage["codes"].sum())
    (100, 24)
    """

    def __init__(
        self, folder: str | Path | None = None, columns: Mapping[str, Array] | None = None, copy: bool = True
    ) -> None:
        columns = columns or {}
        if folder is None and not copy:
            super().__init__(columns)
            self.folder = None
            return
        super().__init__({name: value[:0] for name, value in columns.items()})
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise GraspError(f"the buffer cannot be stored in {self.folder}: {error.strerror}") from error
        self.reserve(max(map(len, columns.values()), default=0), exactly=True)
        for name, value in columns.items():
            read_into = getattr(value, "read_into", None)  # rows that lie in files
            if read_into is None or type(self[name]) not in (np.ndarray, np.memmap):
                self[name][: len(value)] = value
            else:
                read_into(self[name])

    def like(self, columns: Mapping[str, Array], copy: bool = True) -> Storage:
        """Return a storage of the same kind with copies of `columns`, or where they are in memory with themselves."""
        return Storage(self.folder, columns, copy)

    @classmethod
    def attach(cls, folder: Path, columns: Columns) -> Storage:
        """Map the existing files of `columns` in a folder. Some may be longer, if a process died while they grew."""
        storage = cls(folder)
        try:
            for name, (shape, dtype) in columns.items():
                found = map_array(folder / f"{name}.npy")
                if (found.shape[1:], found.dtype) != (shape, np.dtype(dtype)):
                    raise GraspError(f"{folder / name}.npy must hold rows of {np.dtype(dtype)} {list(shape)}")
                storage[name] = found
        except (OSError, ValueError) as error:
            raise GraspError(f"the buffer in {folder} cannot be opened: {name}.npy is damaged ({error})") from error
        for file in storage._growing():
            file.unlink()
        storage.update({name: column[: storage.rows] for name, column in storage.items()})
        return storage

    @property
    def rows(self) -> int:
        """Number of rows that fit."""
        return min(map(len, self.values()), default=0)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row over all columns."""
        return sum(column.dtype.itemsize * math.prod(column.shape[1:]) for column in self.values())

    def reserve(self, rows: int, exactly: bool = False, most: int | None = None) -> None:
        """Make room for `rows` rows; unless `exactly`, for more in advance, so that growth is amortised.

        Files are copied when they grow, and grow by half. Columns in memory grow where they are, and by an eighth. More
        than `most` rows are never made in advance.
        """
        if rows <= self.rows:
            return
        ahead = max(self.rows + self.rows // (8 if self.folder is None else 2), 64)
        rows = rows if exactly else max(rows, ahead if most is None else min(ahead, most))
        grown: dict[str, Array] = {}
        now = self.rows
        try:
            for name in self:
                if self._resized(name, rows):
                    continue
                old = self[name][:now]  # some columns may have more rows, if memory ran out the last time
                grown[name] = self._allocate(name, (rows, *old.shape[1:]), old.dtype)
                grown[name][: len(old)] = old
        except GraspError:
            for file in self._growing():
                file.unlink()  # leave no half-grown copies on the disk
            raise
        for file in self._growing():
            os.replace(file, file.with_suffix(""))
        self.update(grown)

    def _resized(self, name: str, rows: int) -> bool:
        """Let a column in memory grow without a copy, and return whether it has grown.

        A copy would need the memory twice. It is made if there are views of the column, which must not change.
        """
        if self.folder is None and type(self[name]) is np.ndarray:
            shape = rows, *self[name].shape[1:]
            with contextlib.suppress(ValueError, MemoryError):
                self[name].resize(shape)  # numpy refuses if anything but this dictionary refers to the array
        return len(self[name]) == rows

    def flush(self) -> None:
        """Write mapped columns to the disk."""
        for column in self.values():
            mapped = column if isinstance(column, np.memmap) else column.base
            if isinstance(mapped, np.memmap):
                mapped.flush()

    def _growing(self) -> list[Path]:
        """Files that columns are copied to while they grow. They replace the old ones when all are written."""
        files = [] if self.folder is None else [self.folder / f"{name}.npy.new" for name in self]
        return [file for file in files if file.exists()]

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        need = math.prod(shape) * dtype.itemsize
        if self.folder is None or not need:  # a file of no bytes cannot be mapped
            try:
                return np.zeros(shape, dtype)
            except (MemoryError, ValueError) as error:
                raise GraspError(f"not enough memory for {need:,} bytes of {name}; lower the capacity") from error
        path = self.folder / f"{name}.npy.new"
        try:
            column = npy.open_memmap(path, "w+", dtype, shape)
            # Claim the blocks now: a full disk is then an error here, not a fatal signal at a later write.
            if hasattr(os, "posix_fallocate"):
                with open(path, "r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            grown = f"{path.with_suffix('')} could not grow to {need:,} bytes"
            raise GraspError(f"the buffer's file {grown}: {error.strerror}") from error
        return column


def map_array(file: Path) -> Array:
    """Map an existing .npy file to be written to.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged.
    """
    try:
        check_regular(file, os.stat(file))  # a pipe would be waited for
        found = npy.open_memmap(file, "r")  # "r+" would add what is missing at its end
        whole = found.offset + found.nbytes == file.stat().st_size
        found = npy.open_memmap(file, "r+") if whole else found
    except FileNotFoundError:
        raise
    except Exception as error:  # numpy reads headers by Python's own parser, which fails in many ways
        raise ValueError(str(error) or type(error).__name__) from error
    if not whole:
        raise ValueError("its header and its size differ")
    return found


def pack(codes: Array) -> dict[str, Array]:
    """Turn objects [n] into plain arrays that can be saved: all bytes, the end of each code, and which are paths.

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
    """Return the objects [n] that were given to `pack`."""
    raw, ends = np.asarray(packed["bytes"], np.uint8).tobytes(), np.asarray(packed["ends"]).tolist()
    codes = np.empty(len(ends), object)
    for i, (begin, end, path) in enumerate(zip([0, *ends], ends, np.asarray(packed["paths"]).tolist(), strict=False)):
        codes[i] = raw[begin:end].decode("utf-8", "surrogateescape") if path else raw[begin:end]
    return codes


# -- what an insertion may bring --------------------------------------------------------------------------------------


def finite_tensor(inputs: Any) -> torch.Tensor:
    """Return inputs [n, …] as a tensor; refuse NaN and infinity."""
    import torch

    if isinstance(inputs, np.ndarray) and not inputs.flags.carray:
        inputs = inputs.copy()  # torch shares no read-only or reversed array
    try:
        tensor = torch.as_tensor(inputs)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise GraspError(f"inputs must be numbers [n, …], and all rows of one shape: {error}") from error
    if tensor.is_meta or tensor.is_nested or tensor.layout is not torch.strided:
        kind = "nested" if tensor.is_nested else "meta" if tensor.is_meta else tensor.layout
        raise GraspError(f"inputs must be a dense tensor in memory, got a {kind} tensor")
    if tensor.ndim == 0:
        raise GraspError("inputs must have one row per sample, got a single number")
    if tensor.is_floating_point() and not math.isfinite(tensor.detach().sum()):  # a finite sum has finite parts
        finite = tensor.isfinite().reshape(len(tensor), math.prod(tensor.shape[1:])).all(1)
        rows = (~finite).nonzero()[:, 0].tolist()
        if rows:
            shown = f"{rows[:5]}".replace("]", ", …]" if len(rows) > 5 else "]")
            count = f"{len(rows)} of {len(tensor)}"
            raise GraspError(f"{count} inputs are NaN or infinite (rows {shown}); nothing was stored")
    return tensor


def finite_array(inputs: Any) -> Array | None:
    """Return finite inputs [n, …] in the computer's memory as an array; None for others, which need `finite_tensor`."""
    try:
        given = inputs if isinstance(inputs, np.ndarray) else inputs.detach().numpy()
    except (AttributeError, TypeError, RuntimeError):  # no tensor, or on another device
        return None
    if not given.ndim or not given.dtype.isnative or given.dtype.kind not in "fiub" or given.itemsize > 8:
        return None
    if given.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            return given if math.isfinite(given.sum()) else None  # a finite sum has finite parts
    return given


def slot_array(slots: Any) -> Array:
    """Return slots as integers [m]; refuse numbers with fractions, and masks, which would be read as slots 0 and 1."""
    found = np.asarray(slots)
    if found.dtype.kind not in "iu" and found.size:
        hint = "for a mask use np.flatnonzero(mask)" if found.dtype.kind == "b" else "give whole numbers"
        raise GraspError(f"slots must be integers, got {found.dtype}; {hint}")
    return found.astype(np.int64, copy=False)


def label_array(labels: Any) -> Array:
    """Return labels [n] as int64; refuse negative and huge ones."""
    given = integer_array(labels, "labels")
    if given.view(np.uint64).max(initial=0) > _LARGEST_LABEL:  # read as unsigned, negative ones are huge
        found = f"{given.min()} … {given.max()}"
        raise GraspError(f"labels must be in 0 … {_LARGEST_LABEL}, got {found}; number classes from 0")
    return given


def integer_array(values: Any, what: str) -> Array:
    """Return integers [n] as int64."""
    try:
        given = np.asarray(_numpy(values))
    except (TypeError, ValueError) as error:  # ragged
        raise GraspError(f"{what} must be a vector of integers: {error}") from error
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iu"):
        raise GraspError(f"{what} must be a vector of integers, got {given.dtype} of shape {given.shape}")
    if given.dtype == np.uint64 and len(given) and given.max() >= 2**63:
        raise GraspError(f"{what} must be below 2^63, got {given.max()}; give hashes of 64 bits as int64, or >> 1")
    return given.astype(np.int64)


def code_array(codes: Any, number: int, stored: Array | None, ragged: bool = False) -> Array:
    """Return the codes of `number` samples; they must have the shape and type of those already `stored`."""
    if ragged:
        given = np.empty(len(codes), object)
        given[:] = list(codes)
    else:
        given = np.ascontiguousarray(_numpy(codes))
    if len(given) != number:
        raise GraspError(f"there must be one label per input, got {len(given)} inputs and {number} labels")
    if stored is None:
        return given
    if given.shape[1:] != stored.shape[1:]:
        raise GraspError(f"the buffer stores codes of shape {stored.shape[1:]}, got {given.shape[1:]}")
    if given.dtype == stored.dtype:
        return given
    if not np.can_cast(given.dtype, stored.dtype, "same_kind"):
        raise GraspError(f"the buffer stores codes of type {stored.dtype}, got {given.dtype}")
    if len(given) and not np.can_cast(given.dtype, stored.dtype):
        limits = np.finfo(stored.dtype) if stored.dtype.kind == "f" else np.iinfo(stored.dtype)
        low, high = given.min(), given.max()
        if low < limits.min or high > limits.max:
            raise GraspError(f"the buffer stores codes of type {stored.dtype}, which cannot hold {low} … {high}")
    return given


def column_arrays(columns: Mapping[str, Any], declared: Columns, number: int, rule: Maintenance) -> dict[str, Array]:
    """Return values of every declared column for `number` samples: zeros where none are given or wanted."""
    if unknown := sorted(columns.keys() - declared.keys()):
        hint = nearest(unknown[0], declared) if declared else "it was made without columns"
        raise GraspError(f"the buffer has no column {unknown[0]!r}; {hint}")
    values = {}
    for name, (shape, dtype) in declared.items():
        zeros = np.zeros((number, *shape), dtype)
        value = _column_values(name, columns[name], zeros.dtype) if name in columns else zeros
        if value.shape != (number, *shape):
            raise GraspError(f"column {name!r} takes values of shape {(number, *shape)}, got {value.shape}")
        # Zeros or NaN in a column that the rule decides by would silently keep the wrong samples.
        if number and name in rule.wanted:
            if name not in columns:
                user, example = type(rule).__name__, f"columns={{{name!r}: …}}"
                raise GraspError(f"{user} reads the column {name!r}; insert with {example}, a value per sample")
            if bad := int((~np.isfinite(value)).reshape(number, -1).any(1).sum()):
                raise GraspError(f"{bad} of {number} values of column {name!r} are NaN or infinite; nothing was stored")
        values[name] = value
    return values


def _column_values(name: str, given: Any, dtype: np.dtype[Any]) -> Array:
    """Return the values of a column as its type; refuse what this type cannot hold. Floats may be rounded."""
    try:
        values = np.asarray(_numpy(given))
        with np.errstate(over="ignore", invalid="ignore"):
            stored = values.astype(dtype, copy=False)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # ragged, or no numbers
        raise GraspError(f"the values of column {name!r} must be of type {dtype}: {error}") from error
    if np.can_cast(values.dtype, dtype, "same_kind" if dtype.kind == "c" else "safe") or not values.size:
        return stored
    lost = np.isfinite(values) & ~np.isfinite(stored) if dtype.kind == "f" else stored != values
    if bad := np.asarray(lost).sum():
        example = values[lost].flat[0]
        what = f"{bad} of {values.size} values of column {name!r} do not fit its type {dtype}"
        raise GraspError(f"{what}, such as {example}; nothing was stored")
    return stored


def _numpy(values: Any) -> Any:
    """Return a tensor as an array."""
    if not hasattr(values, "numpy"):
        return values
    try:
        return values.numpy(force=True)
    except (TypeError, RuntimeError) as error:
        kind = f"{values.dtype} ({values.layout}, {values.device})"
        raise GraspError(f"a tensor of {kind} cannot be stored: convert it, as with .float() or .to_dense()") from error
