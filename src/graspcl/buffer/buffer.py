"""The buffer: what is stored, as columns of arrays; nothing here knows about networks or policies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graspcl.buffer import checks
from graspcl.buffer.capacity import METADATA_BYTES, capacity_in_samples, parse_bytes
from graspcl.buffer.classindex import ClassIndex
from graspcl.buffer.maintenance import LargestClass, Maintenance, rules
from graspcl.buffer.repeats import last_owner
from graspcl.buffer.storage import Storage
from graspcl.errors import GraspError, nearest
from graspcl.random import restore_rng, rng_state

if TYPE_CHECKING:
    import torch

    from graspcl.buffer.protocol import Codec

Array = np.ndarray[Any, Any]

# What the buffer keeps of every sample beside its code and the user's columns.
_OWN: checks.Columns = {"labels": ((), np.int32), "ids": ((), np.int64), "births": ((), np.int64)}


class Placed(NamedTuple):
    """What an insertion did: the slot of each incoming sample (-1: not kept), and the slots it evicted from."""

    slots: Array
    evicted: Array


class Buffer:
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
        columns: checks.Columns | None = None,
        storage: str | Path = "ram",
        rng: np.random.Generator | int = 0,
    ) -> None:
        self.codec = codec
        self.maintenance = rules.create(maintenance) if isinstance(maintenance, str) else maintenance or LargestClass()
        self.index = ClassIndex()
        self.seen = 0  # samples offered so far, kept or not
        self._capacity_given = capacity
        self._capacity: int | None = None
        if isinstance(capacity, str):
            parse_bytes(capacity)  # a misspelt size is found here, not at the first insertion
        else:
            self._capacity = capacity_in_samples(capacity, 0, 0)
        self._rng = np.random.default_rng(rng)
        if storage != "ram":
            checks.unused_folder(Path(storage))
        self._storage = Storage(None if storage == "ram" else storage)
        self._extra = dict(columns or {})
        if clash := {"codes", *_OWN} & self._extra.keys():
            raise GraspError(f"a column cannot be called {clash.pop()!r}: the buffer has its own of that name")
        checks.rule_columns(self.maintenance, self._extra)
        self.incoming: dict[str, Array] = {}  # during an insertion, the batch's column values: for maintenance rules
        self._shape: tuple[int, ...] | None = None  # of one code, known from the first insertion on
        self._count = 0
        self._overfull = False

    # -- reading ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    @property
    def capacity(self) -> int | None:
        """Samples the buffer may hold; known from the first insertion on when it was given in bytes."""
        return self._capacity

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

    @property
    def nbytes(self) -> int:
        """Bytes that count against the capacity: codes, columns and metadata of what is stored, and the codec."""
        tables = 0 if self.codec is None else self.codec.nbytes
        return tables + (self._count * (self._sample_bytes + METADATA_BYTES) if self._count else 0)

    @property
    def _sample_bytes(self) -> int:
        return self._storage.row_bytes - sum(np.dtype(dtype).itemsize for _, dtype in _OWN.values())

    def slots_of(self, label: int) -> Array:
        """Slots of one class, a view."""
        return self.index.slots_of(label)

    def __getitem__(self, column: str) -> Array:
        """A named column [n, …], a view that may be written to."""
        if column not in self._storage and column not in {**self._extra, **_OWN}:
            raise GraspError(f"the buffer has no column {column!r}; {nearest(column, [*self._extra, 'codes', *_OWN])}")
        return self._view(column)

    def fetch(self, slots: Any, device: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs [m, …] and labels [m] in `slots`; only codes cross to the device, where they are decoded."""
        import torch

        if self._shape is None:
            raise GraspError("the buffer is empty: insert samples before fetching")
        slots = torch.as_tensor(slots, dtype=torch.int64)
        if len(slots) and (int(slots.min()) < 0 or int(slots.max()) >= self._count):
            raise GraspError(f"slots lie in 0 … {self._count - 1}, not {int(slots.min())} … {int(slots.max())}")
        codes = torch.from_numpy(self._storage["codes"]).index_select(0, slots).to(device, non_blocking=True)
        labels = torch.from_numpy(self._storage["labels"]).index_select(0, slots).to(device, torch.int64)
        return self.decode(codes), labels

    def encode(self, inputs: Any) -> torch.Tensor:
        """Codes [n, …] of inputs [n, …], as they would be stored."""
        tensor = checks.finite_tensor(inputs)
        return tensor.detach().cpu() if self.codec is None else self.codec.encode(tensor)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Inputs [n, …] of codes [n, …], on the device of the codes."""
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
        labels = checks.label_array(labels)
        codes = checks.code_array(codes, len(labels), None if self._shape is None else self._storage["codes"])
        ids = self.seen + np.arange(len(labels)) if ids is None else checks.id_array(ids, len(labels))
        extra = checks.column_arrays(columns or {}, self._extra, len(labels), self.maintenance)
        if not len(labels):
            return Placed(np.empty(0, np.int64), np.empty(0, np.int64))
        if self._overfull and not overflow:
            raise GraspError("the buffer was last filled with overflow=True: call compress() before inserting without")
        self._make_room(codes, overflow)
        before, held, self.incoming = self.seen, self._count, extra
        self.maintenance.arriving(self, labels, self._rng)
        slots = self.append(labels) if overflow else last_owner(self.maintenance.place(self, labels, self._rng))
        self.seen, self._overfull, self.incoming = before + len(labels), overflow, {}
        kept = slots >= 0
        values = {"codes": codes, "labels": labels, "ids": ids, "births": before + np.arange(len(labels)), **extra}
        for name, value in values.items():
            self._storage[name][slots[kept]] = value[kept] if not kept.all() else value
        return Placed(slots, np.sort(slots[(slots >= 0) & (slots < held)]))

    def compress(self) -> Array:
        """Bring an overfull buffer back to its capacity; returns the slots, as they were, of the samples that went.

        Remaining samples move so that slots stay 0 … n-1; their columns move along.
        """
        if not self._overfull:
            return np.empty(0, np.int64)
        excess = 0 if self._capacity is None else max(0, self._count - self._capacity)
        gone = self.maintenance.shrink(self, excess, self._rng)
        self._close_gaps(gone)
        self._overfull = False
        self.maintenance.renumbered(self)
        return gone

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

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what the buffer holds and will do: arrays, numbers and strings only."""
        return {
            "count": self._count,
            "seen": self.seen,
            "overfull": self._overfull,
            "capacity": self._capacity,
            "shape": None if self._shape is None else list(self._shape),
            "columns": {name: np.array(self._storage[name][: self._count]) for name in self._storage},
            "index": self.index.state_dict(),
            "maintenance": self.maintenance.state_dict(),
            "codec": None if self.codec is None else self.codec.state_dict(),
            "rng": rng_state(self._rng),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave, into a buffer made with the same codec, rule and columns."""
        if state["columns"] and (differ := {"codes", *_OWN, *self._extra} ^ state["columns"].keys()):
            raise GraspError(f"the buffer and the state to restore differ in columns: {', '.join(sorted(differ))}")
        storage = Storage(self._storage.folder, state["columns"])
        if self.codec is not None and state["codec"] is not None:
            self.codec.load_state_dict(state["codec"])
        self._storage = storage
        self._count, self.seen, self._overfull = int(state["count"]), int(state["seen"]), bool(state["overfull"])
        self._capacity = state["capacity"]
        self._shape = None if state["shape"] is None else tuple(state["shape"])
        self.index.load_state_dict(state["index"])
        self.maintenance.load_state_dict(state["maintenance"])
        restore_rng(self._rng, state["rng"])

    # -- inside ----------------------------------------------------------------------------------------------------

    def _view(self, name: str) -> Array:
        if name not in self._storage:
            shape, dtype = {**self._extra, **_OWN}[name]
            return np.empty((0, *shape), dtype)
        return self._storage[name][: self._count]

    def _make_room(self, codes: Array, overflow: bool) -> None:
        """Room for a batch; the first one tells how large a sample is, and so how many fit."""
        if self._shape is None:
            declared = {"codes": (codes.shape[1:], codes.dtype), **_OWN, **self._extra}
            self._storage = Storage(self._storage.folder, {n: np.empty((0, *s), t) for n, (s, t) in declared.items()})
            tables = 0 if self.codec is None else self.codec.nbytes
            self._capacity = capacity_in_samples(self._capacity_given, self._sample_bytes, tables)
        if self._capacity is None or overflow:
            self._storage.reserve(self._count + len(codes))
        else:
            self._storage.reserve(self._capacity, exactly=True)
        self._shape = codes.shape[1:]

    def _close_gaps(self, gone: Array) -> None:
        left = self._count - len(gone)
        stays = np.ones(self._count, bool)
        stays[gone] = False
        source = left + np.flatnonzero(stays[left:])
        target = np.flatnonzero(~stays[:left])
        self.index.rename(source, target, self.labels[source].astype(np.int64))
        for name in self._storage:
            self._storage[name][target] = self._storage[name][source]
        self._count = left
