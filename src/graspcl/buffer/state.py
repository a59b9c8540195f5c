"""The state of a buffer as arrays, numbers and strings; see `Buffer.state_dict`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from graspcl.buffer.columns import pack, unpack
from graspcl.buffer.ledger import CHECKS
from graspcl.buffer.sequences import padded
from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.random import restore_rng, rng_state

if TYPE_CHECKING:
    from graspcl.buffer.buffer import Buffer

_OF_STORAGE = {CHECKS, "code_starts"}  # columns that tell where and how samples are stored, not what


def saved_state(buffer: Buffer, without: str = "", copy: bool = True) -> dict[str, Any]:
    """Return the state of a buffer.

    Args:
        buffer: the buffer.
        without: a column that is saved elsewhere.
        copy: whether columns are copies; else the state is valid until the buffer changes.
    """
    names = [name for name in buffer._storage if name not in {*_OF_STORAGE, without}]
    columns: dict[str, Any] = {name: np.array(buffer[name]) if copy else buffer[name] for name in names}
    if columns and without != "codes" and buffer._sized is not None:
        columns["codes"] = _packed(buffer, np.arange(len(buffer)))
    return {
        "count": buffer._count,
        "seen": buffer.seen,
        "since": buffer.since,
        "overfull": buffer._overfull,
        "capacity": buffer.capacity,
        "bound": buffer._bound,
        "shape": None if buffer._shape is None else list(buffer._shape),
        "columns": columns,
        "index": buffer.index.state_dict(),
        "maintenance": buffer.maintenance.state_dict(),
        "codec": None if buffer.codec is None else buffer.codec.state_dict(),
        "codec_kind": type(buffer.codec).__name__,
        "rule": repr(buffer.maintenance),
        "rng": rng_state(buffer._rng),
    }


def restore_state(buffer: Buffer, state: Mapping[str, Any], copy: bool = True) -> None:
    """Restore a state from `saved_state`; refuse that of a buffer made otherwise.

    Without `copy`, its columns become those of the buffer.
    """
    # States of earlier versions have neither "bound" nor "rule".
    bound = state.get("bound", buffer._bound if buffer._limit else state["capacity"])
    for part, own, saved in (
        ("codec", type(buffer.codec).__name__, state["codec_kind"]),
        ("rule", repr(buffer.maintenance), state.get("rule", repr(buffer.maintenance))),
        ("capacity", buffer._bound, bound),
    ):
        if own != saved:
            hint = f"make it with the same {part}"
            raise GraspError(f"the state is of a buffer with {part} {saved}, this one has {own}; {hint}")
    columns = dict(state["columns"])
    sequences = buffer._sequences
    former = sequences is not None and isinstance(columns.get("codes"), np.ndarray)  # with padding
    wanted = {"codes", *buffer._declared} - _OF_STORAGE - ({"lengths"} if former else set())
    if columns and (differ := wanted ^ columns.keys()):
        raise GraspError(f"the buffer and the state differ in columns: {', '.join(sorted(differ))}")
    if buffer.codec is not None and state["codec"] is not None:
        buffer.codec.load_state_dict(state["codec"])
    if columns and buffer._ragged and isinstance(columns["codes"], Mapping):
        columns["codes"] = unpack(dict(columns["codes"]))
    if columns and sequences is not None:
        codes, shape = columns.pop("codes"), tuple(state["shape"])
        if former:
            columns["lengths"] = sequences.lengths(codes)
            codes = sequences.packed(codes, columns["lengths"])
        columns["code_starts"] = sequences.restore_state(codes, shape, columns["lengths"])
    if columns and buffer._ledger is not None:
        columns[CHECKS] = np.zeros(int(state["count"]), np.uint64)
    buffer._storage = buffer._storage.like(columns, copy=copy)
    buffer._count, buffer.seen, buffer._overfull = int(state["count"]), int(state["seen"]), bool(state["overfull"])
    buffer.since = int(state.get("since", 0))  # states of earlier versions have it in the learner
    buffer.capacity = state["capacity"]
    buffer._shape = None if state["shape"] is None else tuple(state["shape"])
    buffer.index.load_state_dict(state["index"])
    assumed = buffer.maintenance.assumed(buffer._count, buffer.seen)
    buffer.maintenance.load_state_dict({**assumed, **state["maintenance"]})
    restore_rng(buffer._rng, state["rng"])
    if buffer._ledger is not None and columns:
        buffer._ledger.describe(buffer)
        buffer._ledger.commit(buffer, np.arange(buffer._count))


# -- codes by slots ----------------------------------------------------------------------------------------------------


class PackedCodes:
    """The codes of a buffer, as a state has them: `codes[slots]` are those of `slots` [m].

    They are arrays, in which codes of different lengths lie one after the other. `unpacked` makes them codes again.

    Args:
        buffer: the buffer.
        within: entered while codes are read.
    """

    def __init__(self, buffer: Buffer, within: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._buffer, self._within = buffer, within
        codes = buffer["codes"]
        self.shape: tuple[int, ...] = codes.shape
        self.dtype: np.dtype[Any] = codes.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, slots: Array) -> Any:
        with self._within():
            return _packed(self._buffer, slots)

    def sizes(self, slots: Array) -> Array:
        """Return the bytes [m] that the codes of `slots` [m] take in memory while they are read."""
        if not self._buffer._ragged:
            return np.full(len(slots), math.prod(self.shape[1:]) * self.dtype.itemsize)
        with self._within():
            return np.fromiter(map(len, self._buffer._codes_of(slots)), np.int64, len(slots))


def _packed(buffer: Buffer, slots: Array) -> Any:
    if buffer._sequences is not None:
        return buffer._sequences.saved_state(buffer["code_starts"][slots])
    codes = buffer._codes_of(slots)
    return pack(codes) if buffer._ragged else codes


def unpacked(codes: Any, shape: tuple[int, ...]) -> Array:
    """Return the codes [m, …] of `shape` that `PackedCodes` returned."""
    if not isinstance(codes, Mapping):
        return np.asarray(codes)
    return unpack(dict(codes)) if "bytes" in codes else padded(codes, shape)
