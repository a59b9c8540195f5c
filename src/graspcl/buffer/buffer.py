"""The buffer: what is stored, as columns of arrays; nothing here knows about networks or policies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graspcl.buffer.capacity import METADATA_BYTES, capacity_in_samples
from graspcl.buffer.classindex import ClassIndex
from graspcl.buffer.maintenance import LargestClass, Maintenance, rules
from graspcl.buffer.storage import Storage
from graspcl.errors import GraspError, nearest
from graspcl.random import restore_rng, rng_state

if TYPE_CHECKING:
    import torch

    from graspcl.buffer.protocol import Codec

Array = np.ndarray[Any, Any]

_LARGEST_LABEL = 2**24
_OWN = {"codes", "labels", "ids", "births"}


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
        columns: Mapping[str, tuple[tuple[int, ...], Any]] | None = None,
        storage: str | Path = "ram",
        rng: np.random.Generator | int = 0,
    ) -> None:
        self.codec = codec
        self.maintenance = rules.create(maintenance) if isinstance(maintenance, str) else maintenance or LargestClass()
        self.index = ClassIndex()
        self.seen = 0  # samples offered so far, kept or not
        self._capacity_given = capacity
        self._capacity: int | None = None if isinstance(capacity, str) else capacity_in_samples(capacity, 0, 0)
        self._rng = np.random.default_rng(rng)
        self._storage = Storage(None if storage == "ram" else storage)
        self._extra = dict(columns or {})
        if clash := _OWN & self._extra.keys():
            raise GraspError(f"a column cannot be called {clash.pop()!r}: the buffer has its own of that name")
        self._shape: tuple[int, ...] | None = None  # of one input, known from the first insertion on
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
        return self._storage.row_bytes - sum(int(self._storage[name].dtype.itemsize) for name in _OWN - {"codes"})

    def slots_of(self, label: int) -> Array:
        """Slots of one class, a view."""
        return self.index.slots_of(label)

    def __getitem__(self, column: str) -> Array:
        """A named column [n, …], a view that may be written to."""
        if column not in self._storage and column not in self._extra:
            raise GraspError(f"the buffer has no column {column!r}; {nearest(column, [*self._extra, *_OWN])}")
        return self._view(column)

    def fetch(self, slots: Any, device: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs [m, …] and labels [m] in `slots`; only codes cross to the device, where they are decoded."""
        import torch

        slots = torch.as_tensor(slots, dtype=torch.int64)
        if len(slots) and (int(slots.min()) < 0 or int(slots.max()) >= self._count):
            raise GraspError(f"slots lie in 0 … {self._count - 1}, not {int(slots.min())} … {int(slots.max())}")
        if self._shape is None:
            raise GraspError("the buffer is empty: insert samples before fetching")
        codes = torch.from_numpy(self._storage["codes"]).index_select(0, slots).to(device, non_blocking=True)
        labels = torch.from_numpy(self._storage["labels"]).index_select(0, slots).to(device, torch.int64)
        return (codes if self.codec is None else self.codec.decode(codes)), labels

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
        codes, labels, ids, columns = self._checked(inputs, labels, ids, columns or {})
        if not len(labels):
            return Placed(np.empty(0, np.int64), np.empty(0, np.int64))
        before, held = self.seen, self._count
        self._make_room(len(labels), overflow)
        if overflow:
            slots = self.append(labels)
            self._overfull = True
        else:
            slots = self.maintenance.place(self, labels, self._rng)
        self.seen = before + len(labels)
        slots = _last_owner(slots)
        kept = slots >= 0
        values = {"codes": codes, "labels": labels, "ids": ids, "births": before + np.arange(len(labels)), **columns}
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
        final = _last_owner(slots)
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
            "columns": {name: self._storage[name][: self._count].copy() for name in self._storage},
            "index": self.index.state_dict(),
            "maintenance": self.maintenance.state_dict(),
            "codec": None if self.codec is None else self.codec.state_dict(),
            "rng": rng_state(self._rng),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave, into a buffer made with the same codec, rule and columns."""
        if self.codec is not None and state["codec"] is not None:
            self.codec.load_state_dict(state["codec"])
        self._storage = Storage(self._storage.folder)
        for name, value in state["columns"].items():
            self._storage.add_column(name, value.shape[1:], value.dtype)
        self._storage.reserve(int(state["count"]))
        for name, value in state["columns"].items():
            self._storage[name][: len(value)] = value
        self._count, self.seen, self._overfull = int(state["count"]), int(state["seen"]), bool(state["overfull"])
        self._capacity = state["capacity"]
        self._shape = None if state["shape"] is None else tuple(state["shape"])
        self.index.load_state_dict(state["index"])
        self.maintenance.load_state_dict(state["maintenance"])
        restore_rng(self._rng, state["rng"])

    # -- inside ----------------------------------------------------------------------------------------------------

    def _view(self, name: str) -> Array:
        if name not in self._storage:
            shape, dtype = self._extra.get(name, ((), np.int64))
            return np.empty((0, *shape), dtype)
        return self._storage[name][: self._count]

    def _checked(
        self, inputs: Any, labels: Any, ids: Any, columns: Mapping[str, Any]
    ) -> tuple[Array, Array, Array, dict[str, Array]]:
        labels = _label_array(labels)
        shape = tuple(inputs.shape)
        if shape[0] != len(labels):
            raise GraspError(f"{shape[0]} inputs came with {len(labels)} labels; there must be one label per input")
        if self._shape is not None and shape[1:] != self._shape:
            raise GraspError(f"the buffer stores inputs of shape {self._shape}, not {shape[1:]}")
        _refuse_nan(inputs)
        codes = np.ascontiguousarray(_numpy(inputs if self.codec is None else self.codec.encode(_tensor(inputs))))
        ids = np.arange(self.seen, self.seen + len(labels)) if ids is None else np.asarray(_numpy(ids), np.int64)
        if len(ids) != len(labels):
            raise GraspError(f"{len(ids)} ids came with {len(labels)} labels; there must be one id per sample")
        given = {}
        for name, (column_shape, dtype) in self._extra.items():
            value = columns.get(name, np.zeros((len(labels), *column_shape), dtype))
            given[name] = np.asarray(_numpy(value), dtype)
            if given[name].shape != (len(labels), *column_shape):
                raise GraspError(
                    f"column {name!r} takes values of shape {(len(labels), *column_shape)}, not {given[name].shape}"
                )
        if unknown := columns.keys() - self._extra.keys():
            name = unknown.pop()
            raise GraspError(f"the buffer has no column {name!r}; {nearest(name, self._extra)}")
        if self._shape is None and len(labels):
            self._first(shape[1:], codes)
        return codes, labels, ids, given

    def _first(self, shape: tuple[int, ...], codes: Array) -> None:
        """The first batch tells how large a sample is, and so how many fit."""
        for name, (column_shape, dtype) in {
            "codes": (codes.shape[1:], codes.dtype), "labels": ((), np.int32), "ids": ((), np.int64),
            "births": ((), np.int64), **self._extra,
        }.items():  # fmt: skip
            self._storage.add_column(name, column_shape, dtype)
        tables = 0 if self.codec is None else self.codec.nbytes
        self._capacity = capacity_in_samples(self._capacity_given, self._sample_bytes, tables)
        self._shape = shape

    def _make_room(self, incoming: int, overflow: bool) -> None:
        if self._capacity is None or overflow:
            self._storage.reserve(self._count + incoming)
        else:
            self._storage.reserve(self._capacity, exactly=True)

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


def _last_owner(slots: Array) -> Array:
    """Where a slot was given to several samples of a batch, only the last keeps it; the others get -1."""
    seen, last = np.unique(slots[::-1], return_index=True)
    result = np.full(len(slots), -1, np.int64)
    result[len(slots) - 1 - last] = seen
    return result


def _label_array(labels: Any) -> Array:
    given = np.asarray(_numpy(labels))
    if given.ndim != 1 or (len(given) and not np.issubdtype(given.dtype, np.integer)):
        raise GraspError(f"labels must be a vector of integers, not {given.dtype} of shape {given.shape}")
    if len(given) and (given.min() < 0 or given.max() >= _LARGEST_LABEL):
        raise GraspError(
            f"labels must lie in 0 … {_LARGEST_LABEL - 1}, not {given.min()} … {given.max()}; number classes from 0"
        )
    return given.astype(np.int64)


def _refuse_nan(inputs: Any) -> None:
    if isinstance(inputs, np.ndarray):
        if not np.issubdtype(inputs.dtype, np.floating):
            return
        bad = ~np.isfinite(inputs.reshape(len(inputs), -1)).all(1)
        where = np.flatnonzero(bad)
    else:
        if not inputs.is_floating_point():
            return
        where = (~inputs.isfinite().reshape(len(inputs), -1).all(1)).nonzero()[:, 0].numpy(force=True)
    if len(where):
        raise GraspError(
            f"{len(where)} of {len(inputs)} inputs hold NaN or infinity (rows {where[:5].tolist()}); nothing was stored"
        )


def _numpy(values: Any) -> Any:
    return values.numpy(force=True) if hasattr(values, "numpy") else values


def _tensor(values: Any) -> torch.Tensor:
    import torch

    return torch.as_tensor(values)
