"""Samples in slots 0 … n-1: columns of arrays and a class index. How many there may be is the buffer's business."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from graspcl.buffer.capacity import METADATA_BYTES, Bound
from graspcl.buffer.checks import (
    Columns,
    code_array,
    column_arrays,
    finite_tensor,
    id_array,
    label_array,
    rule_columns,
    unused_folder,
)
from graspcl.buffer.class_index import ClassIndex
from graspcl.buffer.columns import Storage, pack, unpack
from graspcl.buffer.maintenance import LargestClass, Maintenance, last_owner, rules
from graspcl.checks import Array
from graspcl.errors import GraspError, nearest
from graspcl.random import restore_rng, rng_state

if TYPE_CHECKING:
    import torch

    from graspcl.buffer.protocol import Codec

# What is kept of every sample beside its code and the user's columns.
OWN: Columns = {"labels": ((), np.int32), "ids": ((), np.int64), "births": ((), np.int64)}


class Slots:
    """Columns over slots 0 … n-1, where n is what is stored; `ragged` ones also keep the length of each code."""

    def __init__(self, columns: Columns | None, folder: str | Path | None, ragged: bool) -> None:
        self.index = ClassIndex()
        self.seen = 0  # samples offered so far, kept or not
        self.since = 0  # samples offered before this count are old
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
    def new(self) -> Array:
        """Which stored samples arrived since the last call of `settle` [n], bool."""
        return self.births >= self.since

    def settle(self) -> None:
        """Count everything stored as old, as at the end of a rehearsal session."""
        self.since = self.seen

    @property
    def columns(self) -> Columns:
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
    def _declared(self) -> Columns:
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


Codes: TypeAlias = "torch.Tensor | Array"  # objects, if the codec is ragged


class Placed(NamedTuple):
    """What an insertion did: the slot of each incoming sample (-1: not kept), and the slots it evicted from."""

    slots: Array
    evicted: Array


class Buffer(Slots):
    """Stored samples in slots 0 … n-1, with a class index, a maintenance rule and a bound on samples or bytes.

    `capacity` is a number of samples, a size such as "1.5GB" (codes, labels, ids, columns, metadata and the codec's
    tables all count) or None. `columns` adds named values per sample, as name -> (shape, dtype). `storage` is "ram" or
    a folder for memory-mapped .npy files. `rng` (a generator or a seed) decides what is evicted.

    >>> buffer = Buffer(capacity=3, columns={"loss": ((), np.float32)})
    >>> placed = buffer.insert(np.eye(4, dtype=np.float32), labels=[0, 0, 0, 1])
    >>> len(buffer), buffer.sizes.tolist(), buffer.fetch([0])[0].shape
    (3, [2, 1], torch.Size([1, 4]))
    """

    def __init__(
        self,
        capacity: int | str | None = None,
        codec: Codec | None = None,
        maintenance: Maintenance | str | None = None,
        columns: Columns | None = None,
        storage: str | Path = "ram",
        rng: np.random.Generator | int = 0,
    ) -> None:
        if isinstance(codec, str):
            raise GraspError(f"the buffer takes a codec, not its name: graspcl.codec.codecs.create({codec!r})")
        self.codec = codec
        self.maintenance = rules.create(maintenance) if isinstance(maintenance, str) else maintenance or LargestClass()
        self._bound = Bound(capacity)
        self._rng = np.random.default_rng(rng)
        ragged = codec is not None and codec.ragged
        if storage != "ram" and ragged:
            raise GraspError(f"codec {type(codec).__name__} stores samples of different lengths: use storage='ram'")
        if storage != "ram":
            unused_folder(Path(storage))
        super().__init__(columns, None if storage == "ram" else storage, ragged)
        rule_columns(self.maintenance, self._extra)
        self.incoming: dict[str, Array] = {}  # during an insertion, the batch's column values: for maintenance rules
        self._shape: tuple[int, ...] | None = None  # of one code, known from the first insertion on
        self._overfull = False

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int | None:
        """Samples the buffer may hold; known from the first insertion on when it was given in bytes."""
        return self._bound.samples

    @property
    def unbounded(self) -> bool:
        """Whether everything is kept."""
        return self._bound.given is None

    @property
    def nbytes(self) -> int:
        """Bytes that count against the capacity: codes, columns and metadata of what is stored, and the codec."""
        tables = 0 if self.codec is None else self.codec.nbytes
        lengths = int(self._view("lengths").sum()) if self._ragged else 0
        return tables + lengths + (self._count * (self._sample_bytes + METADATA_BYTES) if self._count else 0)

    @property
    def _sample_bytes(self) -> int:
        return self._storage.row_bytes - sum(np.dtype(dtype).itemsize for _, dtype in OWN.values())

    def fetch(self, slots: Any, device: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs [m, …] and labels [m] in `slots`; only codes cross to the device, where they are decoded."""
        import torch

        if self._shape is None:
            raise GraspError("the buffer is empty: insert samples before fetching")
        slots = torch.as_tensor(slots, dtype=torch.int64)
        if len(slots) and (int(slots.min()) < 0 or int(slots.max()) >= self._count):
            raise GraspError(f"slots lie in 0 … {self._count - 1}, not {int(slots.min())} … {int(slots.max())}")
        labels = torch.from_numpy(self._storage["labels"]).index_select(0, slots).to(device, torch.int64)
        if self._ragged:
            return self.decode(self._storage["codes"][slots.numpy()], device), labels
        return self.decode(torch.from_numpy(self._storage["codes"]).index_select(0, slots), device), labels

    def encode(self, inputs: Any) -> Codes:
        """Codes [n, …] of inputs [n, …], as they would be stored."""
        if self.codec is not None and self.codec.ragged:
            return self.codec.encode(inputs)
        tensor = finite_tensor(inputs)
        return tensor.detach().cpu() if self.codec is None else self.codec.encode(tensor)

    def decode(self, codes: Codes, device: torch.device | str = "cpu") -> torch.Tensor:
        """Inputs [n, …] of codes [n, …], on the device: only codes cross to it, unless they are objects."""
        import torch

        if self.codec is not None and self._ragged:
            return self.codec.decode(codes).to(device, non_blocking=True)
        codes = torch.as_tensor(codes).to(device, non_blocking=True)
        return codes if self.codec is None else self.codec.decode(codes)

    def draw_seed(self) -> int:
        """A seed from the buffer's own generator, for who draws from the buffer and has no generator."""
        return int(self._rng.integers(2**63))

    # -- writing ---------------------------------------------------------------------------------------------------

    def insert(
        self,
        inputs: Any,
        labels: Any,
        ids: Any | None = None,
        columns: Mapping[str, Any] | None = None,
        overflow: bool = False,
    ) -> Placed:
        """Store a batch: `inputs` [n, …] (tensor or array), integer `labels` [n], optional `ids` [n] and column values.

        With `overflow` (the offline setting) all are kept, beyond the capacity if need be, until `compress`.
        Whatever is wrong with the batch is found before anything stored changes.
        """
        return self.insert_codes(self.encode(inputs), labels, ids, columns, overflow)

    def insert_codes(
        self,
        codes: Any,
        labels: Any,
        ids: Any | None = None,
        columns: Mapping[str, Any] | None = None,
        overflow: bool = False,
    ) -> Placed:
        """As `insert`, for a batch that is encoded already (`encode`)."""
        labels = label_array(labels)
        stored = None if self._shape is None else self._storage["codes"]
        codes = code_array(codes, len(labels), stored, self._ragged)
        ids = self.seen + np.arange(len(labels)) if ids is None else id_array(ids, len(labels))
        extra = column_arrays(columns or {}, self._extra, len(labels), self.maintenance)
        if not len(labels):
            return Placed(np.empty(0, np.int64), np.empty(0, np.int64))
        if self._overfull and not overflow:
            raise GraspError("the buffer was last filled with overflow=True: call compress() before inserting without")
        if self.codec is not None and self.codec.ragged:
            extra["lengths"] = self.codec.lengths(codes)
        self._make_room(codes, extra.get("lengths"), overflow)
        before, held, self.incoming = self.seen, self._count, extra
        self.maintenance.arriving(self, labels, self._rng)
        append = overflow or self._by_length
        slots = self.append(labels) if append else last_owner(self.maintenance.place(self, labels, self._rng))
        self.seen, self._overfull, self.incoming = before + len(labels), overflow, {}
        kept = slots >= 0
        values = {"codes": codes, "labels": labels, "ids": ids, "births": before + np.arange(len(labels)), **extra}
        for name, value in values.items():
            self._storage[name][slots[kept]] = value[kept] if not kept.all() else value
        if overflow or not self._by_length:
            return Placed(slots, np.sort(slots[(slots >= 0) & (slots < held)]))
        gone = self._shrink()
        return Placed(positions(self.births, before + np.arange(len(labels))), gone[gone < held])

    def compress(self) -> Array:
        """Bring an overfull buffer back to its capacity; returns the slots, as they were, of the samples that went.

        Remaining samples move so that slots stay 0 … n-1; their columns move along.
        """
        if not self._overfull:
            return np.empty(0, np.int64)
        gone = self._shrink()
        self._overfull = False
        return gone

    def remove(self, slots: Any) -> None:
        """Forget the samples in `slots` [m]; what was counted of the stream stays counted. Remaining samples move so
        that slots stay 0 … n-1; their columns move along."""
        gone = np.unique(np.asarray(slots, np.int64))
        if len(gone) and (gone[0] < 0 or gone[-1] >= self._count):
            raise GraspError(f"slots lie in 0 … {self._count - 1}, not {gone[0]} … {gone[-1]}; nothing was removed")
        self.index.discard(gone, self.labels[gone].astype(np.int64))
        self._close_gaps(gone)
        self.maintenance.renumbered(self)

    def clear(self) -> None:
        """Forget every stored sample; what was counted of the stream stays counted."""
        self.remove(np.arange(self._count))
        self._overfull = False

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what the buffer holds and will do: arrays, numbers and strings only."""
        return {
            "count": self._count,
            "seen": self.seen,
            "since": self.since,
            "overfull": self._overfull,
            "capacity": self._bound.samples,
            "shape": None if self._shape is None else list(self._shape),
            "columns": {name: self._saved(name) for name in self._storage},
            "index": self.index.state_dict(),
            "maintenance": self.maintenance.state_dict(),
            "codec": None if self.codec is None else self.codec.state_dict(),
            "codec_kind": type(self.codec).__name__,
            "rng": rng_state(self._rng),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave, into a buffer made with the same codec, rule and columns."""
        if (kind := type(self.codec).__name__) != state["codec_kind"]:
            raise GraspError(f"the state is of a buffer with codec {state['codec_kind']}, this one has {kind}")
        columns = dict(state["columns"])
        if columns and (differ := {"codes", *self._declared} ^ columns.keys()):
            raise GraspError(f"the buffer and the state to restore differ in columns: {', '.join(sorted(differ))}")
        if columns and self._ragged:
            columns["codes"] = unpack(columns["codes"])
        storage = Storage(self._storage.folder, columns)
        if self.codec is not None and state["codec"] is not None:
            self.codec.load_state_dict(state["codec"])
        self._storage = storage
        self._count, self.seen, self._overfull = int(state["count"]), int(state["seen"]), bool(state["overfull"])
        self.since = int(state.get("since", 0))  # states of earlier versions keep it elsewhere
        self._bound.samples = state["capacity"]
        self._shape = None if state["shape"] is None else tuple(state["shape"])
        self.index.load_state_dict(state["index"])
        self.maintenance.load_state_dict(state["maintenance"])
        restore_rng(self._rng, state["rng"])

    # -- inside ----------------------------------------------------------------------------------------------------

    def _saved(self, name: str) -> Any:
        column = self._storage[name][: self._count]
        return pack(column) if self._ragged and name == "codes" else np.array(column)

    def _make_room(self, codes: Array, lengths: Array | None, overflow: bool) -> None:
        """Room for a batch; the first one tells how large a sample is, and so how many fit."""
        if self._shape is None:
            declared = {"codes": (codes.shape[1:], codes.dtype), **self._declared}
            self._storage = Storage(self._storage.folder, {n: np.empty((0, *s), t) for n, (s, t) in declared.items()})
        tables = 0 if self.codec is None else self.codec.nbytes
        if lengths is not None:  # samples differ: each must fit alone, and as many fit as are of mean length
            self._bound.settle(self._sample_bytes + int(lengths.max()), tables)
            every = np.concatenate([self._view("lengths"), lengths])
            self._bound.settle(self._sample_bytes + int(np.ceil(every.mean())), tables)
        elif self._shape is None:
            self._bound.settle(self._sample_bytes, tables)
        if self.capacity is None or overflow or self._by_length:
            self._storage.reserve(self._count + len(codes))
        else:
            self._storage.reserve(self.capacity, exactly=True)
        self._shape = codes.shape[1:]

    @property
    def _by_length(self) -> bool:
        """Whether how many samples fit depends on which: then all enter first, and the rule lets go of the excess."""
        return self._ragged and self._bound.nbytes is not None

    def _excess(self) -> int:
        """How many samples too many there are; where lengths differ, if they were of mean length."""
        if not self._by_length or not self._count:
            return 0 if self.capacity is None else max(0, self._count - self.capacity)
        tables = 0 if self.codec is None else self.codec.nbytes
        over = self.nbytes - (self._bound.nbytes or 0)
        return max(0, min(self._count - 1, -(-over * self._count // (self.nbytes - tables))))

    def _shrink(self) -> Array:
        """Let the rule discard what is too much; returns the slots, as they were, of the samples that went."""
        before, excess = self.births.copy(), self._excess()
        while True:
            self._close_gaps(self.maintenance.shrink(self, excess, self._rng))
            if not (excess := self._excess()):  # samples of different lengths may take more than one round
                break
        self.maintenance.renumbered(self)
        return np.flatnonzero(positions(self.births, before) < 0)
