"""A buffer whose codes are divided among the ranks: each holds some of them, and the capacity is that of all.

Codes are nearly all of what a buffer stores. What rules and policies decide by is on every rank: labels, ids, births,
the class index (32 bytes per sample) and columns. So every rank makes the same decisions as one process, and slots
mean the same everywhere. A sample stays where it is when its slot changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from graspcl.buffer import Buffer
from graspcl.buffer.columns import Storage
from graspcl.buffer.threads import alone
from graspcl.checks import Array
from graspcl.distributed.ranks import Ranks, positions
from graspcl.errors import GraspError

_NOBODY = -1


class ShardedCodes:
    """The codes of all slots, of which this rank holds some. It takes the place of an array [slots, …] in a storage.

    Reading `codes[slots]` gives a `Reference`, whose rows are exchanged when they are asked for. Assigning arrays
    stores them where the fewest samples are; assigning a reference moves samples between slots, not between ranks.
    """

    def __init__(self, ranks: Ranks, shape: tuple[int, ...], dtype: Any) -> None:
        self.ranks, self.shape, self.dtype = ranks, shape, np.dtype(dtype)
        self.holders = np.full(shape[0], _NOBODY, np.int16)  # the rank that holds the sample in each slot
        self._places = np.zeros(shape[0], np.int64)  # its row in `_own`, if this rank holds it
        self._own = Storage(columns={"codes": np.empty((0, *shape[1:]), dtype)})
        self._free = np.empty(0, np.int64)  # unused rows
        self._levels = np.zeros(ranks.world, np.int64)  # how many samples each rank holds

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, slots: Any) -> Reference:
        return Reference(self, np.arange(len(self))[slots])

    def __setitem__(self, slots: Any, values: Any) -> None:
        slots = np.arange(len(self))[slots]
        self._release(slots)
        if isinstance(values, ShardedCodes):  # a storage that grows
            self.__dict__.update(vars(values), shape=self.shape)
            self.holders = np.append(values.holders, np.full(len(self) - len(values), _NOBODY, np.int16))
            self._places = np.append(values._places, np.zeros(len(self) - len(values), np.int64))
        elif isinstance(values, Reference):
            self.holders[slots], self._places[slots] = self.holders[values.slots], self._places[values.slots]
            self.holders[values.slots] = _NOBODY
        else:
            self.holders[slots] = chosen = self._fewest(len(slots))
            self._levels += np.bincount(chosen, minlength=self.ranks.world)
            own = np.flatnonzero(self.holders[slots] == self.ranks.rank)
            self._places[slots[own]] = places = self._room(len(own))
            self._own["codes"][places] = values[own]

    def rows(self, slots: Array) -> Array:
        """Return the codes [m, …] of `slots` [m]. Every rank asks for the same; apart, a rank has those it holds."""
        holders = self.holders[slots]
        own: Array = self._own["codes"][self._places[slots[holders == self.ranks.rank]]]
        if self.ranks.separate:
            return own
        order, counts = positions(holders, self.ranks.world)
        # As bytes, which every backend can exchange.
        width = int(np.prod(self.shape[1:], dtype=np.int64))
        flat = torch.from_numpy(own.reshape(len(own), width).view(np.uint8))
        found = np.empty((len(slots), *self.shape[1:]), self.dtype)
        gathered = self.ranks.gather(flat, counts, "codes").numpy()
        found[order] = gathered.view(self.dtype).reshape(found.shape)
        return found

    def _release(self, slots: Array) -> None:
        holders = self.holders[slots]
        self._levels -= np.bincount(holders[holders != _NOBODY], minlength=self.ranks.world)
        self._free = np.append(self._free, self._places[slots[holders == self.ranks.rank]])
        self.holders[slots] = _NOBODY

    def _fewest(self, number: int) -> Array:
        """Return the ranks of `number` new samples: each goes where the fewest are by then."""
        after = self._levels[:, None] + np.arange(number)
        return np.argsort(after.T, axis=None, kind="stable")[:number] % self.ranks.world

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

    def like(self, columns: Mapping[str, Array]) -> Storage:
        return _ShardedStorage(self.ranks, columns)

    def _allocate(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if name == "codes":
            return ShardedCodes(self.ranks, shape, dtype)  # type: ignore[return-value]
        return super()._allocate(name, shape, dtype)


class ShardedBuffer(Buffer):
    """A buffer whose codes are divided among the ranks. Every rank calls the same methods with the same arguments.

    `insert` keeps a rank's part of the given codes. `fetch`, `copied` and `state_dict` exchange the codes that are
    asked for.
    """

    ranks: Ranks
    equal_codes = False

    @classmethod
    def of(cls, buffer: Buffer, ranks: Ranks) -> ShardedBuffer:
        """Take over a buffer that all ranks have, filled or empty; each keeps its part."""
        if buffer.codec is not None and buffer.codec.ragged:
            why = "image files differ in length, and ranks cannot divide them"
            raise GraspError(f"buffer.shards: {why}; leave out --buffer.shards, or set --rehearsal latent")
        if buffer._sequences is not None:
            why = "texts are stored without padding, and ranks cannot divide codes of different lengths"
            raise GraspError(
                f"buffer.shards: {why}; leave out --buffer.shards, or in Python make the Buffer without padding"
            )
        if buffer._ledger is not None:
            raise GraspError("buffer.shards: a buffer in a folder cannot be divided among ranks; use storage='ram'")
        made = cls.__new__(cls)
        vars(made).update(vars(buffer), ranks=ranks)
        made._storage = _ShardedStorage(ranks, {name: buffer[name] for name in buffer._storage})
        return made

    def holders(self, slots: Array) -> Array:
        """Return the rank [m] that holds the code of each of `slots` [m]."""
        codes: Any = self._storage["codes"]
        return np.asarray(codes.holders[slots])

    @alone
    def copied(self, slots: Any) -> tuple[torch.Tensor, torch.Tensor]:
        slots = np.asarray(slots, np.int64)
        if len(slots) and not 0 <= slots.min() <= slots.max() < len(self):
            raise GraspError(f"slots must be in 0 … {len(self) - 1}, got {slots.min()} … {slots.max()}")
        codes: Any = self._storage["codes"]
        return torch.from_numpy(codes.rows(slots)), torch.from_numpy(self.labels[slots])

    def shard(self) -> dict[str, Array]:
        """Return the slots [m] and codes [m, …] that this rank holds; nothing is exchanged."""
        if self._shape is None:
            return {"slots": np.empty(0, np.int64), "codes": np.empty(0, np.uint8)}
        codes: Any = self._storage["codes"]
        slots = np.flatnonzero(codes.holders[: len(self)] == self.ranks.rank)
        with self.ranks.apart():
            return {"slots": slots, "codes": codes.rows(slots)}
