"""Samples in slots 0 … n-1: columns of arrays, a class index, a maintenance rule and a bound on samples or bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from graspcl.buffer.arguments import Closed, check_folder, check_parts, made_columns, made_folder, made_rng, made_rule
from graspcl.buffer.capacity import METADATA_BYTES, capacity_in_samples, parse_bytes
from graspcl.buffer.class_index import ClassIndex
from graspcl.buffer.columns import (
    Columns,
    Storage,
    code_array,
    column_arrays,
    finite_array,
    finite_tensor,
    integer_array,
    label_array,
    slot_array,
)
from graspcl.buffer.ledger import CHECKS, OWN, Ledger, reopen
from graspcl.buffer.maintenance import Maintenance, last_owner
from graspcl.buffer.sequences import PER_CODE, POOL, Sequences
from graspcl.buffer.state import restore_state, saved_state
from graspcl.buffer.threads import Guarded, alone
from graspcl.buffer.views import Views
from graspcl.checks import Array
from graspcl.errors import GraspError, nearest

if TYPE_CHECKING:
    import torch

    from graspcl.codec import Codec

Values: TypeAlias = Mapping[str, Any]  # of columns, by name
Codes: TypeAlias = "torch.Tensor | Array"  # objects, if the codec is ragged


class Placed(NamedTuple):
    """What an insertion did: the slot of each incoming sample (-1: not kept), and the slots it evicted from."""

    slots: Array
    evicted: Array


class Buffer(Guarded, Views):
    """Stored samples in slots 0 … n-1, with a class index, a maintenance rule and a bound on samples or bytes.

    Threads may share a buffer. `fetch` returns each input with its own label, also while another thread inserts or
    removes samples; a slot that no longer exists is an error. Views such as `labels` follow every change at once.

    Args:
        capacity: number of samples, a size such as "1.5GB", or None for no bound. Codes, labels, ids, columns, metadata
            and the codec's tables all count as bytes.
        codec: how inputs are stored; unmodified by default.
        maintenance: the rule that evicts samples, or its name; by default the paper's, `largest_class`.
        columns: named values per sample, as name -> (shape, dtype).
        storage: "ram", or a folder for memory-mapped .npy files, which one buffer owns; `open` reopens it.
        rng: a generator or a seed that decides what is evicted.
        padding: `network.padding`: latents [n, C, L] of texts are stored without the padding at their end.

    >>> buffer = Buffer(capacity=3, columns={"loss": ((), np.float32)})
    >>> placed = buffer.insert(np.eye(4, dtype=np.float32), labels=[0, 0, 0, 1])
    >>> len(buffer), buffer.sizes.tolist(), buffer.fetch([0])[0].shape
    (3, [2, 1], torch.Size([1, 4]))
    """

    divided = False  # whether several processes hold a part each

    def __init__(
        self,
        capacity: int | str | None = None,
        codec: Codec | None = None,
        maintenance: Maintenance | str | None = None,
        columns: Columns | None = None,
        storage: str | Path = "ram",
        rng: np.random.Generator | int = 0,
        padding: torch.Tensor | None = None,
    ) -> None:
        check_parts(codec, padding)
        super().__init__()
        self.codec, self.maintenance = codec, made_rule(maintenance)
        self.index = ClassIndex()
        taken = {"codes", "counts", CHECKS, *OWN, *PER_CODE, *POOL}
        self.columns = made_columns(columns or {}, taken, self.maintenance)
        self.seen = 0  # samples offered so far, kept or not
        self.since = 0  # samples offered before this count are old
        self.incoming: dict[str, Array] = {}  # the batch's column values during an insertion, for maintenance rules
        self.unbounded = capacity is None
        self.given = capacity
        self._limit = parse_bytes(capacity) if isinstance(capacity, str) else None  # in bytes
        # Number of samples that fit. If given in bytes, it is known from the first insertion on.
        self.capacity = None if isinstance(capacity, str) else capacity_in_samples(capacity, 0, 0)
        self._ragged = codec is not None and codec.ragged
        folder = made_folder(storage)
        self.padding, self._sequences = padding, None if padding is None else Sequences(codec, padding, folder)
        self._sized = codec if self._ragged else self._sequences  # what knows the lengths of codes, if these differ
        self._rng = made_rng(rng)
        self._count = 0
        self._shape: tuple[int, ...] | None = None  # of one code, known from the first insertion on
        self._overfull = False
        if folder is not None:
            check_folder(folder, self._ragged)
        self._storage = Storage(folder)
        self._ledger = None if folder is None else Ledger(folder)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        codec: Codec | None = None,
        maintenance: Maintenance | str | None = None,
        rng: np.random.Generator | int = 0,
        padding: torch.Tensor | None = None,
    ) -> Buffer:
        """Reopen a buffer that was stored in a folder, also after a crash.

        Every sample that was stored completely is there, and is verified. One that was being written, or is damaged, is
        left out. The columns of the user are not verified. The rule starts again from what is stored.

        Args:
            folder: the `storage` of the buffer.
            codec: as the buffer was made with.
            maintenance: as the buffer was made with.
            rng: a generator or a seed that decides what is evicted from now on.
            padding: as the buffer was made with.

        Raises:
            GraspError: there is no buffer, it was made with another codec or rule, or another buffer owns the folder.
        """
        return reopen(cls, folder, codec, maintenance, rng, padding)

    def close(self) -> None:
        """Write memory-mapped columns to the disk and give up their folder. The buffer cannot be used any more."""
        if self._ledger is None or isinstance(self._ledger, Closed):
            return
        self._storage.flush()
        if self._sequences is not None:
            self._sequences.flush()
        self._ledger.close()
        closed: Any = Closed(self._ledger.folder)
        self._storage = self._ledger = closed
        self._sequences = None if self._sequences is None else closed

    # -- reading ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, column: str) -> Array:
        """Return a named column [n, …], a view that may be written to."""
        if column in self._storage:
            return self._storage[column][: self._count]
        if column == "codes" and self._sequences is not None and self._shape is not None:
            return self._sequences.rows(self._count, self._codes_of)  # type: ignore[return-value]
        if column not in self._declared:
            raise GraspError(f"the buffer has no column {column!r}; {nearest(column, [*self._declared, 'codes'])}")
        shape, dtype = self._declared[column]
        return np.empty((0, *shape), dtype)

    @alone
    def settle(self) -> None:
        """Count everything stored as old, as at the end of a rehearsal session."""
        self.since = self.seen
        if self._ledger is not None:
            self._ledger.commit(self)

    @property
    def nbytes(self) -> int:
        """Bytes that count against the capacity: codes, columns and metadata of what is stored, and the codec."""
        lengths = 0 if self._sized is None else int(self["lengths"].sum())
        return self._tables + lengths + (self._count * (self._sample_bytes + METADATA_BYTES) if self._count else 0)

    def fetch(self, slots: Any, device: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs [m, …] and labels [m] of `slots` [m]. Codes are decoded on the device."""
        import torch

        if self._shape is None:
            raise GraspError("the buffer is empty: insert samples before fetching")
        codes, labels = self.copied(slots)
        return self.decode(codes, device), labels.to(device, torch.int64)

    @alone
    def copied(self, slots: Any) -> tuple[Codes, torch.Tensor]:
        """Return the codes [m, …] and labels [m] of `slots` [m], as they are stored."""
        import torch

        slots = torch.as_tensor(slot_array(slots))
        try:
            labels = torch.from_numpy(self.labels).index_select(0, slots)
        except IndexError:
            found = f"{int(slots.min())} … {int(slots.max())}"
            raise GraspError(f"slots must be in 0 … {self._count - 1}, got {found}") from None
        if self._sized is None:
            return torch.from_numpy(self._storage["codes"]).index_select(0, slots), labels
        codes = self._codes_of(slots.numpy())
        return codes if self._ragged else torch.from_numpy(codes), labels

    @alone
    def _codes_of(self, slots: Array) -> Array:
        return self["codes"][slots] if self._sequences is None else self._sequences.read(self["code_starts"][slots])

    def encode(self, inputs: Any) -> Codes:
        """Return the codes [n, …] of inputs [n, …], as they would be stored."""
        inputs = inputs if self._ragged else finite_tensor(inputs)
        return inputs.detach().cpu() if self.codec is None else self.codec.encode(inputs)  # type: ignore[no-any-return]

    def decode(self, codes: Codes, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return the inputs [n, …] of codes [n, …] on the device. Tensor codes are decoded there."""
        import torch

        if self.codec is None:
            return torch.as_tensor(codes).to(device, non_blocking=True)
        codes = codes if self._ragged else torch.as_tensor(codes).to(device, non_blocking=True)
        return self.codec.decode(codes).to(device, non_blocking=True)

    def mean_bytes(self, codes: Any) -> int:
        """Return the bytes that each of codes [n, …], also `Rows`, takes in the buffer, the mean rounded up."""
        if self._sized is None:
            return int(codes[0].nbytes)
        beside = 16 if self._ragged else 12  # a length, and a pointer or a start
        return beside + int(np.ceil(self._sized.lengths(codes if self._ragged else np.asarray(codes)).mean()))

    def draw_seed(self) -> int:
        """Draw a seed from the buffer's own generator, for callers without a generator."""
        return int(self._rng.integers(2**63))

    # -- writing ---------------------------------------------------------------------------------------------------

    def insert(
        self, inputs: Any, labels: Any, ids: Any = None, columns: Values | None = None, overflow: bool = False
    ) -> Placed:
        """Store a batch. Anything wrong with it is found before anything stored changes.

        Args:
            inputs: tensor or array [n, …], or what the codec takes.
            labels: integers [n].
            ids: the user's integer for each sample [n]; by default the count of samples offered.
            columns: values of the buffer's columns by name [n, …].
            overflow: keep all samples, even beyond the capacity, until `compress` (the offline setting).
        """
        codes = finite_array(inputs) if self.codec is None else None
        return self.insert_codes(self.encode(inputs) if codes is None else codes, labels, ids, columns, overflow)

    @alone
    def insert_codes(
        self, codes: Any, labels: Any, ids: Any = None, columns: Values | None = None, overflow: bool = False
    ) -> Placed:
        """As `insert`, for a batch that is already encoded (`encode`)."""
        labels = label_array(labels)
        codes = code_array(codes, len(labels), None if self._shape is None else self["codes"], self._ragged)
        births = self.seen + np.arange(len(labels))
        ids = births if ids is None else integer_array(ids, "ids")
        if len(ids) != len(labels):
            raise GraspError(f"there must be one id per sample, got {len(ids)} ids and {len(labels)} labels")
        extra = column_arrays(columns or {}, self.columns, len(labels), self.maintenance)
        if not len(labels):
            return Placed(np.empty(0, np.int64), np.empty(0, np.int64))
        if self._overfull and not overflow:
            raise GraspError("the last insertion had overflow=True: call compress() before inserting without it")
        if self._sized is not None:
            extra["lengths"] = self._sized.lengths(codes)
        self._make_room(codes, extra.get("lengths"), overflow)
        held, self.incoming = self._count, extra
        self.maintenance.arriving(self, labels, self._rng)
        append = overflow or self.by_length
        slots = self.append(labels) if append else last_owner(self.maintenance.place(self, labels, self._rng))
        self.seen, self._overfull, self.incoming = int(births[-1]) + 1, overflow, {}
        values, taken = {"codes": codes, "labels": labels, "ids": ids, "births": births, **extra}, slots
        if slots.min() < 0:
            kept = np.flatnonzero(slots >= 0)
            taken, values = slots[kept], {name: value[kept] for name, value in values.items()}
        if self._sequences is not None:
            self._sequences.release(self["code_starts"][taken[taken < held]])
            values["code_starts"] = self._sequences.write(values.pop("codes"), values["lengths"])
        for name, value in values.items():
            self._storage[name][taken] = value
        if append and not overflow:
            taken, slots = self._shrink(), np.full(len(labels), -1)
            _, where, which = np.intersect1d(self.births, births, assume_unique=True, return_indices=True)
            slots[which] = where
        if self._ledger is not None:
            self._ledger.commit(self, slots[slots >= 0])
        return Placed(slots, np.sort(taken[taken < held]))

    @alone
    def compress(self) -> Array:
        """Shrink an overfull buffer to its capacity as in `remove`; return the former slots of evicted samples."""
        gone, self._overfull = self._shrink() if self._overfull else np.empty(0, np.int64), False
        return gone

    @alone
    def remove(self, slots: Any) -> None:
        """Delete the samples in `slots` [m]. Others move, so that slots stay 0 … n-1. `seen` does not change."""
        gone = np.unique(slot_array(slots))
        if len(gone) and (gone[0] < 0 or gone[-1] >= self._count):
            raise GraspError(f"slots must be in 0 … {self._count - 1}, got {gone[0]} … {gone[-1]}; nothing was removed")
        self._close_gaps(self.discard(gone))
        self.maintenance.renumbered(self)

    @alone
    def clear(self) -> None:
        """Delete every stored sample. `seen` does not change."""
        self.remove(np.arange(self._count))
        self._overfull = False

    # -- for maintenance rules -------------------------------------------------------------------------------------

    @property
    def by_length(self) -> bool:
        """Whether the number of samples that fit depends on their lengths: all enter first, then the rule evicts."""
        return self._sized is not None and self._limit is not None

    @property
    def equal_codes(self) -> bool:
        """Whether all codes are in this process, as an array [n, …]."""
        return self._sized is None and not self.divided

    def excess_of(self, order: Array) -> int:
        """Return how many samples must go for the others to fit, if they go in the order of slots `order` [n]."""
        if not self.by_length:
            return self._excess()
        sizes = self["lengths"][order] + self._sample_bytes + METADATA_BYTES
        return int(np.searchsorted(np.append(0, np.cumsum(sizes)), self.nbytes - (self._limit or 0)))

    def append(self, labels: Array) -> Array:
        """Take new slots at the end for `labels` [n]; return them."""
        begin, end = self._count, self._count + len(labels)
        slots = np.arange(begin, end)
        self._storage["labels"][begin:end] = -1
        self.overwrite(slots, labels)
        self._storage["births"][begin:end] = np.arange(self.seen, self.seen + len(labels))
        self._count = end
        self.seen += len(labels)
        return slots

    def overwrite(self, slots: Array, labels: Array) -> None:
        """Put `labels` [n] into `slots` [n], in turn. A slot may occur twice."""
        self.index.assign(slots, labels, np.asarray(self._storage["labels"]))

    def discard(self, slots: Array) -> Array:
        """Take `slots` [m] out of the class index and return them."""
        self.overwrite(slots, np.full(len(slots), -1))
        return slots

    # -- state -----------------------------------------------------------------------------------------------------

    @alone
    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides what the buffer holds and will do: arrays, numbers and strings only."""
        return saved_state(self)

    @alone
    def load_state_dict(self, state: Mapping[str, Any], copy: bool = True) -> None:
        """Restore a state from `state_dict` into a buffer made with the same capacity, codec, rule and columns.

        That of a buffer made otherwise is refused. Without `copy`, the arrays of the state become those of the buffer.
        """
        restore_state(self, state, copy)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_ledger": None}  # a copy owns no folder

    # -- inside ----------------------------------------------------------------------------------------------------

    @property
    def _bound(self) -> int | str | None:
        """The capacity that the buffer was made with. It is a string if it is in bytes."""
        return self.capacity if self._limit is None else f"{self._limit}B"

    @property
    def _declared(self) -> Columns:
        """All columns but the codes."""
        sized = {} if self._sized is None else {"lengths": PER_CODE["lengths"]} if self._ragged else PER_CODE
        own = {**OWN, **sized, **self.columns}
        return own if self._ledger is None else {**own, CHECKS: ((), np.uint64)}

    @property
    def _tables(self) -> int:
        return sum(part.nbytes for part in (self.codec, self._sequences) if part is not None)

    @property
    def _sample_bytes(self) -> int:
        checks = 8 if CHECKS in self._storage else 0  # they protect the files, and are no part of a sample
        return self._storage.row_bytes - checks - sum(np.dtype(dtype).itemsize for _, dtype in OWN.values())

    def _make_room(self, codes: Array, lengths: Array | None, overflow: bool) -> None:
        """Make room for a batch. The first one shows how large a sample is, and so how many fit."""
        if self._shape is None:
            declared = {**({} if self._sequences else {"codes": (codes.shape[1:], codes.dtype)}), **self._declared}
            self._storage = self._storage.like({n: np.empty((0, *s), t) for n, (s, t) in declared.items()})
            if self._sequences is not None:
                self._sequences.create(codes.shape[1:])
        if lengths is not None:
            self._fitting(lengths.max())  # each sample must fit alone, and as many fit as have the mean length
            self.capacity = self._fitting(np.concatenate([self["lengths"], lengths]).mean())
            if self._sequences is not None:
                self._sequences.reserve(int(lengths.sum()), self._limit)
        elif self._shape is None:
            self.capacity = self._fitting(0)
        if self.capacity is None or overflow or self.by_length:
            self._storage.reserve(self._count + len(codes))
        else:
            self._storage.reserve(self.capacity, exactly=True)
        first, self._shape = self._shape is None, codes.shape[1:]
        if self._ledger is not None and first:
            self._ledger.describe(self)

    def _fitting(self, length: float) -> int | None:
        return capacity_in_samples(self.given, self._sample_bytes + math.ceil(length), self._tables)

    def _excess(self) -> int:
        """Number of samples over the capacity; if lengths differ, as if all had the mean length."""
        if not self.by_length or not self._count:
            return 0 if self.capacity is None else max(0, self._count - self.capacity)
        over = self.nbytes - (self._limit or 0)
        return max(0, min(self._count - 1, -(-over * self._count // (self.nbytes - self._tables))))

    def _shrink(self) -> Array:
        """Let the rule discard the excess; return the former slots of the samples that were evicted."""
        before = self.births.copy()
        self._close_gaps(self.maintenance.shrink(self, self._excess(), self._rng))
        while excess := self._excess():  # different lengths may take several rounds
            self._close_gaps(self.maintenance.shrink(self, excess, self._rng))
        self.maintenance.renumbered(self)
        return np.flatnonzero(~np.isin(before, self.births))

    def _close_gaps(self, gone: Array) -> None:
        left = self._count - len(gone)
        stays = np.ones(self._count, bool)
        stays[gone] = False
        source = left + np.flatnonzero(stays[left:])
        target = np.flatnonzero(~stays[:left])
        self.index.rename(source, target, self.labels[source].astype(np.int64))
        starts = gone if self._sequences is None else self["code_starts"][gone]
        for name in self._storage:
            self._storage[name][target] = self._storage[name][source]
        if self._ragged and self._count:
            self._storage["codes"][left : self._count] = None  # release the memory of evicted codes
        if CHECKS in self._storage:
            self._storage[CHECKS][left:] = 0
        if self._sequences is not None and self._shape is not None:
            self._sequences.release(starts)
        self._count = left
