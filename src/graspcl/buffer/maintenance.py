"""Batches in which a value comes several times: which occurrence is which, and which is the last."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.registry import Registry

if TYPE_CHECKING:
    from graspcl.buffer.buffer import Buffer


def occurrence(values: Array) -> Array:
    """How often each value came before.

    >>> occurrence(np.array([3, 5, 3, 3])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(values, kind="stable")
    _, begins, counts = np.unique(values[order], return_index=True, return_counts=True)
    result = np.empty(len(values), np.int64)
    result[order] = np.arange(len(values)) - np.repeat(begins, counts)
    return result


def last_owner(slots: Array) -> Array:
    """Where a slot was given to several samples of a batch, only the last keeps it; the others get -1.

    >>> last_owner(np.array([7, 2, 7, -1])).tolist()
    [-1, 2, 7, -1]
    """
    seen, last = np.unique(slots[::-1], return_index=True)
    result = np.full(len(slots), -1, np.int64)
    result[len(slots) - 1 - last] = seen
    return result


rules: Registry[Maintenance] = Registry("maintenance", "graspcl.buffer")


class Maintenance:
    """A rule that keeps a buffer within its capacity. Only `replace` and `shrink` are asked of a new one."""

    name: ClassVar[str] = ""
    # Columns that the buffer must have. Each insertion must bring their values, but for those the rule `fills` itself.
    columns: ClassVar[frozenset[str]] = frozenset()
    fills: ClassVar[frozenset[str]] = frozenset()
    one_by_one: ClassVar[bool] = True  # a batch has exactly the distribution of its samples one by one

    def arriving(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> None:
        """Called with every batch before it is placed, also with overflow, for a rule that learns from all that comes.

        `buffer.incoming` holds the batch's column values by name until the insertion ends; an entry that the rule
        replaces is stored as replaced.
        """

    def place(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        """The slot of each incoming sample in turn [n], or -1 where it is not kept; free slots are taken first."""
        room = len(labels) if buffer.capacity is None else max(0, buffer.capacity - len(buffer))
        slots = buffer.append(labels[:room])
        if room >= len(labels):
            return slots
        return np.concatenate([slots, self.replace(buffer, labels[room:], rng)])

    def replace(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        """As `place`, for a full buffer: overwrites slots (`buffer.overwrite`) and returns them."""
        raise GraspError(f"{type(self).__name__} must define replace(buffer, labels, rng)")

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        """Choose and discard (`buffer.index.discard`) `excess` samples of an overfull buffer; returns their slots."""
        raise GraspError(f"{type(self).__name__} must define shrink(buffer, excess, rng)")

    def renumbered(self, buffer: Buffer) -> None:
        """Called after samples moved to other slots, for a rule that remembers slots."""

    def state_dict(self) -> dict[str, Any]:
        """What the rule remembers between calls; by default nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""


@rules.register("largest_class")
@dataclass
class LargestClass(Maintenance):
    """The paper's rule (section 3): a random sample of the largest class makes room; ties are broken uniformly."""

    def replace(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        return buffer.index.replace_largest(labels, rng)

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        return buffer.index.remove_largest(excess, rng)


@rules.register("reservoir")
@dataclass
class Reservoir(Maintenance):
    """Vitter's algorithm R: the buffer is at any time a uniform sample, without replacement, of all that was seen."""

    def replace(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        seen = buffer.seen + 1 + np.arange(len(labels))  # counting the sample itself
        slots = (rng.random(len(labels)) * seen).astype(np.int64)
        slots[slots >= len(buffer)] = -1
        kept = slots >= 0
        buffer.overwrite(slots[kept], labels[kept])
        return slots

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        # The last `excess` arrivals were kept for certain. Of a uniform sample of everything seen they would make up a
        # hypergeometric number; the rest of the room stays with the older samples, which are a uniform sample already.
        keep = len(buffer) - excess
        arrived = np.argsort(buffer.births, kind="stable")
        old, new = arrived[:keep], arrived[keep:]
        newcomers = int(rng.hypergeometric(excess, buffer.seen - excess, keep))
        gone = np.concatenate([rng.permutation(old)[:newcomers], rng.permutation(new)[newcomers:]])
        buffer.index.discard(gone, buffer.labels[gone].astype(np.int64))
        return gone


@rules.register("fifo")
@dataclass
class Fifo(Maintenance):
    """First in, first out."""

    _head: int = field(default=0, init=False, repr=False)
    # Slots from oldest to newest as they were when _head was 0; left empty where that is 0 … n-1, as it is online.
    _queue: Array = field(default_factory=lambda: np.empty(0, np.int32), init=False, repr=False)

    def replace(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        turn = (self._head + np.arange(len(labels))) % len(buffer)
        slots = self._queue[turn].astype(np.int64) if len(self._queue) else turn
        self._head = (self._head + len(labels)) % len(buffer)
        buffer.overwrite(slots, labels)
        return slots

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        gone = np.argsort(buffer.births, kind="stable")[:excess]
        buffer.index.discard(gone, buffer.labels[gone].astype(np.int64))
        return gone

    def renumbered(self, buffer: Buffer) -> None:
        queue = np.argsort(buffer.births, kind="stable").astype(np.int32)
        in_order = bool((queue == np.arange(len(queue))).all())
        self._head, self._queue = 0, queue[:0] if in_order else queue

    def state_dict(self) -> dict[str, Any]:
        return {"queue": self._queue.copy(), "head": self._head}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._queue, self._head = np.array(state["queue"]), int(state["head"])


@rules.register("ring")
@dataclass
class Ring(Maintenance):
    """A ring of `per_class` slots for each class: the newest samples of every class stay (A-GEM's buffer).

    `per_class` times the number of classes should not exceed the capacity; where it does, the insertion that finds
    no slot left is refused before anything changes.
    """

    per_class: int = 20
    # Samples of each class so far, or since `compress`: that many, modulo per_class, is the place in the class's run
    # of the class index that is next.
    _written: Array = field(default_factory=lambda: np.empty(0, np.int64), init=False, repr=False)

    def __post_init__(self) -> None:
        if self.per_class < 1:
            raise GraspError(f"Ring needs per_class of at least 1, not {self.per_class}")

    def place(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        written = np.pad(self._written, (0, max(0, int(labels.max()) + 1 - len(self._written))))
        turn = written[labels] + occurrence(labels)
        first = turn < self.per_class  # the class's ring is not full yet
        if buffer.capacity is not None and len(buffer) + int(first.sum()) > buffer.capacity:
            raise GraspError(
                f"Ring(per_class={self.per_class}) needs more than the buffer's {buffer.capacity:,} slots for "
                f"{len(np.union1d(buffer.index.classes, labels))} classes; lower per_class or raise the capacity"
            )
        slots = np.empty(len(labels), np.int64)
        slots[first] = buffer.append(labels[first])
        # Later rounds take slots of their own class, so that the class index stays as it is.
        slots[~first] = buffer.index.at(labels[~first], turn[~first] % self.per_class)
        self._written = written + np.bincount(labels, minlength=len(written))
        return slots

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        newest_first = np.argsort(-buffer.births, kind="stable")
        age = np.empty(len(buffer), np.int64)
        age[newest_first] = occurrence(buffer.labels[newest_first].astype(np.int64))
        gone = np.lexsort((buffer.births, -age))[: max(excess, int((age >= self.per_class).sum()))]
        buffer.index.discard(gone, buffer.labels[gone].astype(np.int64))
        return gone

    def renumbered(self, buffer: Buffer) -> None:
        buffer.index.sort_runs(buffer.births)
        self._written = np.bincount(buffer.labels, minlength=len(self._written))

    def state_dict(self) -> dict[str, Any]:
        return {"written": self._written.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._written = np.array(state["written"])


@rules.register("gdumb")
@dataclass
class GDumb(Maintenance):
    """GDumb's sampler (Prabhu et al. 2020): a class takes slots from the largest while it has less than its share.

    The share is k_c = capacity / classes seen, newcomer's class included. In a full buffer a newcomer is kept only if
    its class has less than k_c samples; a random sample of the largest class then makes room (ties uniformly). While
    there are free slots every sample is kept; the paper's listing tests the share even then. One by one, exactly.
    """

    _seen: set[int] = field(default_factory=set, init=False, repr=False)

    def replace(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        self._seen.update(buffer.classes.tolist())  # classes vanish from a buffer only here and in shrink
        slots = np.full(len(labels), -1, np.int64)
        for i, label in enumerate(labels.tolist()):
            self._seen.add(label)
            if len(buffer.slots_of(label)) * len(self._seen) < len(buffer):
                slots[i] = buffer.index.replace_largest(labels[i : i + 1], rng)[0]
        return slots

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        self._seen.update(buffer.classes.tolist())
        return buffer.index.remove_largest(excess, rng)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": np.array(sorted(self._seen), np.int64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seen = set(np.array(state["seen"]).tolist())
