"""A buffer whose codes are divided among the ranks: each holds some of them, and the capacity is that of all.

Codes are nearly all of what a buffer stores. What rules and policies decide by is on every rank: labels, ids, births,
the class index (32 bytes per sample) and columns. So every rank makes the same decisions as one process, and slots
mean the same everywhere. A sample stays where it is when its slot changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from graspcl.buffer import Buffer
from graspcl.buffer.buffer import Codes
from graspcl.buffer.columns import Storage, pack, unpack
from graspcl.buffer.sequences import Sequences
from graspcl.buffer.threads import alone
from graspcl.checks import Array
from graspcl.distributed.ranks import Ranks, positions
from graspcl.errors import GraspError

_NOBODY = -1
_CHUNK = 1024  # texts that are divided at a time
_PIECE = 1 << 16  # codes that are copied at a time


class Shares:
    """Which rank gets which new sample: the one that holds the fewest by then."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._levels = np.zeros(ranks.world, np.int64)  # how many samples each rank holds

    def _give(self, number: int) -> Array:
        """Return the ranks of `number` new samples, int16, which hold them from now on.

        Ranks that hold the fewest take turns until they hold as many as the next one. Of several, those come first that
        held more before, then those of lower numbers.
        """
        before, begin = self._levels.copy(), 0
        turns = np.argsort(-before, kind="stable")
        chosen = np.empty(number, np.int16)
        for level, following in pairwise([*np.unique(before).tolist(), math.inf]):
            fewest = turns[before[turns] <= level]
            end = int(min(begin + (following - level) * len(fewest), number))
            for place, rank in enumerate(fewest.tolist()):
                own = chosen[begin + place : end : len(fewest)]
                own[:] = rank
                self._levels[rank] += len(own)
            begin = end
        return chosen

    def _take(self, holders: Array) -> None:
        self._levels -= np.bincount(holders, minlength=self.ranks.world)


def _pieces(values: Array, rows: Array) -> Iterator[tuple[slice, Array]]:
    """Yield some of the `rows` [m] of an array at a time: their positions in `rows`, and the rows themselves."""
    for begin in range(0, len(rows), _PIECE):
        some = slice(begin, begin + _PIECE)
        yield some, values[rows[some]]


def _gathered(ranks: Ranks, own: Array, holders: Array) -> Array:
    """Return codes [m, …], of which each rank has its `own`; rank `holders[i]` has the i-th. Apart, return `own`."""
    if ranks.separate:
        return own
    order, counts = positions(holders, ranks.world)
    found = np.empty((len(holders), *own.shape[1:]), own.dtype)
    if own.dtype == object:
        found[order] = _gathered_files(ranks, own, counts)
    else:  # as bytes, which every backend can exchange
        width = int(np.prod(own.shape[1:], dtype=np.int64))
        flat = torch.from_numpy(own.reshape(len(own), width).view(np.uint8))
        found[order] = ranks.gather(flat, counts, "codes").numpy().view(own.dtype).reshape(found.shape)
    return found


def _gathered_files(ranks: Ranks, own: Array, counts: list[int]) -> Array:
    packed = pack(own)
    about = np.column_stack([np.diff(packed["ends"], prepend=0), packed["paths"]])
    sizes, paths = ranks.gather(torch.from_numpy(about), counts, "codes").numpy().T
    begins = np.cumsum([0, *counts[:-1]])
    of_ranks = [int(sizes[begin : begin + count].sum()) for begin, count in zip(begins, counts, strict=True)]
    content = ranks.gather(torch.from_numpy(packed["bytes"].copy()), of_ranks, "codes").numpy()
    return unpack({"bytes": content, "ends": np.cumsum(sizes), "paths": paths.astype(bool)})


class ShardedCodes(Shares):
    """The codes of all slots, of which this rank holds some. It takes the place of an array [slots, …] in a storage.

    Reading `codes[slots]` gives a `Reference`, whose rows are exchanged when they are asked for. Assigning arrays
    stores them where the fewest samples are; assigning a reference moves samples between slots, not between ranks.
    Assigning None removes them.
    """

    def __init__(self, ranks: Ranks, shape: tuple[int, ...], dtype: Any) -> None:
        super().__init__(ranks)
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.holders = np.full(shape[0], _NOBODY, np.int16)  # the rank that holds the sample in each slot
        self._places = np.zeros(shape[0], np.int64)  # its row in `_own`, if this rank holds it
        self._own = Storage(columns={"codes": np.empty((0, *shape[1:]), dtype)})
        self._free = np.empty(0, np.int64)  # unused rows

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, slots: Any) -> Reference:
        return Reference(self, np.arange(len(self))[slots])

    def __setitem__(self, slots: Any, values: Any) -> None:
        slots = np.arange(len(self))[slots]
        self._release(slots)
        if isinstance(values, Reference):
            self.holders[slots], self._places[slots] = self.holders[values.slots], self._places[values.slots]
            self.holders[values.slots] = _NOBODY
        elif values is not None:
            self.holders[slots] = given = self._give(len(slots))
            own = np.flatnonzero(given == self.ranks.rank)
            self._places[slots[own]] = places = self._room(len(own))
            parts = getattr(values, "parts", None)  # of codes that lie in files
            for some, codes in _pieces(values, own) if parts is None else parts(own):
                self._own["codes"][places[some]] = codes

    def grow(self, rows: int) -> None:
        """Make room for `rows` samples in all."""
        more = rows - len(self)
        self.holders = np.append(self.holders, np.full(more, _NOBODY, np.int16))
        self._places = np.append(self._places, np.zeros(more, np.int64))
        self.shape = (rows, *self.shape[1:])

    def rows(self, slots: Array) -> Array:
        """Return the codes [m, …] of `slots` [m]. Every rank asks for the same; apart, a rank has those it holds."""
        holders = self.holders[slots]
        own: Array = self._own["codes"][self._places[slots[holders == self.ranks.rank]]]
        return _gathered(self.ranks, own, holders)

    def _release(self, slots: Array) -> None:
        holders = self.holders[slots]
        self._take(holders[holders != _NOBODY])
        unused = self._places[slots[holders == self.ranks.rank]]
        if self.dtype == object:
            self._own["codes"][unused] = None  # release the memory
        self._free = np.append(self._free, unused)
        self.holders[slots] = _NOBODY

    def _room(self, number: int) -> Array:
        """Return unused rows [number]; make more if there are too few."""
        if (missing := number - len(self._free)) > 0:
            before = self._own.rows
            self._own.reserve(before + missing)
            self._free = np.append(self._free, np.arange(before, self._own.rows))
        taken, self._free = self._free[:number], self._free[number:]
        return taken


class Reference:
    """The samples in some slots of `ShardedCodes`. As an array, it is their codes, exchanged by all ranks."""

    def __init__(self, codes: ShardedCodes, slots: Array) -> None:
        self.codes, self.slots, self.dtype = codes, slots, codes.dtype
        self.shape = (len(slots), *codes.shape[1:])

    def __len__(self) -> int:
        return len(self.slots)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.codes.rows(self.slots).astype(dtype or self.dtype, copy=False)


class _ShardedStorage(Storage):
    def __init__(self, ranks: Ranks, columns: Mapping[str, Array]) -> None:
        self.ranks = ranks
        super().__init__(columns=columns)

    def like(self, columns: Mapping[str, Array], copy: bool = True) -> Storage:
        return _ShardedStorage(self.ranks, columns)

    def _resized(self, name: str, rows: int) -> bool:
        if name != "codes":
            return super()._resized(name, rows)
        codes: Any = self[name]
        if growing := isinstance(codes, ShardedCodes):
            codes.grow(rows)
        return growing

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if name == "codes":
            return ShardedCodes(self.ranks, shape, dtype)  # type: ignore[return-value]
        return super()._allocate(name, shape, dtype)


class ShardedSequences(Sequences, Shares):
    """A pool of which each rank has the codes it holds. On every other rank such a code starts at -1 - its holder."""

    def __init__(self, sequences: Sequences, ranks: Ranks) -> None:
        Shares.__init__(self, ranks)
        Sequences.__init__(self, sequences._codec, sequences.latent)

    def create(self, shape: tuple[int, ...]) -> None:
        self._levels[:] = 0  # whatever the pool held before
        super().create(shape)

    def holders(self, starts: Array) -> Array:
        """Return the ranks [m] that hold the codes that start at `starts` [m]."""
        return np.where(starts < 0, -1 - starts, self.ranks.rank)

    def read(self, starts: Array) -> Array:
        return _gathered(self.ranks, super().read(starts[starts >= 0]), self.holders(starts))

    def release(self, starts: Array) -> None:
        self._take(self.holders(starts))
        super().release(starts[starts >= 0])

    def reserve(self, size: int, within: int | None = None) -> None:
        """Do nothing: room is made when it is known which codes this rank gets."""

    def saved_state(self, starts: Array) -> dict[str, Any]:
        if self.ranks.separate:
            return super().saved_state(starts)
        codes = self.read(starts)
        return self.packed(codes, self.lengths(codes))

    def _store(self, locations: Array, lengths: Array) -> Array:
        holders = self._give(len(lengths))
        own = holders == self.ranks.rank
        starts = (-1 - holders).astype(np.int32)
        super().reserve(int(lengths[own].sum()))
        starts[own] = super()._store(locations[np.repeat(own, lengths // self._each)], lengths[own])
        return starts


class ShardedBuffer(Buffer):
    """A buffer whose codes are divided among the ranks. Every rank calls the same methods with the same arguments.

    `insert` keeps a rank's part of the given codes. `fetch`, `copied` and `state_dict` exchange the codes that are
    asked for.
    """

    ranks: Ranks
    divided = True

    @classmethod
    def of(cls, buffer: Buffer, ranks: Ranks) -> ShardedBuffer:
        """Take over a buffer that all ranks have, filled or empty; each keeps its part."""
        if buffer._ledger is not None:
            raise GraspError("buffer.shards: a buffer in a folder cannot be divided among ranks; use storage='ram'")
        made = cls.__new__(cls)
        vars(made).update(vars(buffer), ranks=ranks)
        made._storage = _ShardedStorage(ranks, {name: buffer[name] for name in buffer._storage})
        if buffer._sequences is not None:
            made._sequences = made._sized = sequences = ShardedSequences(buffer._sequences, ranks)
            if buffer._shape is not None:
                sequences.create(buffer._shape)
            for some in np.array_split(np.arange(len(buffer)), len(buffer) // _CHUNK + 1) if len(buffer) else ():
                made["code_starts"][some] = sequences.write(buffer._codes_of(some), buffer["lengths"][some])
        return made

    def holders(self, slots: Array) -> Array:
        """Return the rank [m] that holds the code of each of `slots` [m]."""
        if isinstance(self._sequences, ShardedSequences):
            return self._sequences.holders(self["code_starts"][slots])
        codes: Any = self._storage.get("codes")  # none before the first sample
        return np.empty(0, np.int16) if codes is None else np.asarray(codes.holders[slots])

    @property
    def held(self) -> Array:
        """The slots [m] whose codes this rank holds."""
        return np.flatnonzero(self.holders(np.arange(len(self))) == self.ranks.rank)

    @alone
    def copied(self, slots: Any) -> tuple[Codes, torch.Tensor]:
        slots = np.asarray(slots, np.int64)
        if len(slots) and not 0 <= slots.min() <= slots.max() < len(self):
            raise GraspError(f"slots must be in 0 … {len(self) - 1}, got {slots.min()} … {slots.max()}")
        codes = self._codes_of(slots)
        return codes if self._ragged else torch.from_numpy(codes), torch.from_numpy(self.labels[slots])

    def _codes_of(self, slots: Array) -> Array:
        if self._sequences is not None:
            return super()._codes_of(slots)
        codes: Any = self._storage["codes"]
        return np.asarray(codes.rows(slots))
