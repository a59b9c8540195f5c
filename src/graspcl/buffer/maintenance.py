"""Maintenance rules: which samples a full buffer evicts. This file has the contract and the rules without columns."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from graspcl.checks import Array, Count, check_parameters
from graspcl.errors import GraspError
from graspcl.registry import Registry, parameter_names

if TYPE_CHECKING:
    import torch

    from graspcl.buffer.buffer import Buffer
    from graspcl.buffer.columns import Columns

Head: TypeAlias = "Callable[[torch.Tensor], torch.Tensor]"

rules: Registry[Maintenance] = Registry("maintenance", "graspcl.buffer")


@dataclass
class Maintenance:
    """A rule that keeps a buffer within its capacity. A subclass must define `replace` and `shrink`.

    A rule that decides by values of its own, such as embeddings, names them in `columns`. A learner computes them for
    newcomers with `values` and refreshes them at each update with `trained`. Without a learner, every insertion must
    bring them.
    """

    name: ClassVar[str] = ""
    columns: ClassVar[Set[str]] = frozenset()  # columns that the buffer must have
    fills: ClassVar[Set[str]] = frozenset()  # those of them that the rule computes itself
    one_by_one: ClassVar[bool] = True  # a batch has exactly the distribution of its samples one by one

    def __post_init__(self) -> None:
        check_parameters(type(self), {name: getattr(self, name) for name in parameter_names(type(self))})

    @property
    def wanted(self) -> Set[str]:
        """Columns whose values every insertion must bring."""
        return self.columns - self.fills

    def columns_for(self, embedding: int, features: int) -> Columns:
        """Return the columns that a buffer with this rule must be made with.

        "embedding" and "gradient" are vectors, as long as the network's embeddings and the head's inputs (`features`).
        All others are numbers. Override this for other vectors.

        >>> LargestClassRule().columns_for(16, 16)
        {}
        """
        vectors = {"embedding": (embedding,), "gradient": (features,)}
        return {name: (vectors.get(name, ()), np.float32) for name in sorted(self.columns)}

    def values(self, outputs: Any, targets: torch.Tensor, head: Head) -> dict[str, torch.Tensor]:
        """Compute the values of n samples for the columns in `wanted`. A rule with columns of its own overrides this.

        Known are "embedding"; "uncertainty", 1 - the largest softmax probability (1 before any class is known); and
        "gradient", that of the loss with respect to the features.

        Args:
            outputs: the network's outputs, with `.embedding`, `.features` and `.logits` [n, …]: of newcomers in eval
                mode, of trained samples in train mode.
            targets: column of the logits of each sample [n], -1 for a class without one.
            head: maps features to logits.
        """
        from torch.nn.functional import pad

        known: dict[str, Callable[[], torch.Tensor]] = {
            "embedding": lambda: outputs.embedding,
            "uncertainty": lambda: 1 - pad(outputs.logits.softmax(1), (0, 1)).amax(1),
            "gradient": lambda: _feature_gradients(outputs, targets, head),
        }
        if unknown := sorted(self.wanted - known.keys()):
            raise GraspError(f"{type(self).__name__} must define values(outputs, targets, head) for {unknown[0]!r}")
        return {name: known[name]() for name in sorted(self.wanted)}

    def trained(self, buffer: Buffer, slots: Array, outputs: Any, targets: torch.Tensor, head: Head) -> None:
        """Refresh what the rule knows of the samples in `slots` [n], at an update on them; for rules with columns.

        It may change the rule's state and the values of its columns in `slots`; only these can be undone (`UndoLog`).

        Args:
            outputs, targets, head: as for `values`, before the update. `outputs.losses` [n] are the cross-entropies.
        """
        for name, value in self.values(outputs, targets, head).items():
            buffer[name][slots] = value.numpy(force=True)

    def arriving(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> None:
        """Called with every batch before it is placed, also with overflow, for a rule that learns from all newcomers.

        `buffer.incoming` holds the batch's column values by name until the insertion ends. A rule may replace them.
        """

    def place(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        """Return the slot of each newcomer in turn [n], or -1 if it is not kept. Free slots are taken first."""
        room = len(labels) if buffer.capacity is None else max(0, buffer.capacity - len(buffer))
        if not room:
            return self.replace(buffer, labels, rng)
        slots = buffer.append(labels[:room])
        return np.concatenate([slots, self.replace(buffer, labels[room:], rng)]) if len(labels) > room else slots

    def replace(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        """As `place`, for a full buffer: overwrite slots with `buffer.overwrite` and return them."""
        raise GraspError(f"{type(self).__name__} must define replace(buffer, labels, rng)")

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        """Choose `excess` samples of an overfull buffer and return `buffer.discard(slots)`."""
        raise GraspError(f"{type(self).__name__} must define shrink(buffer, excess, rng)")

    def renumbered(self, buffer: Buffer) -> None:
        """Called after samples moved to other slots, for a rule that remembers slots."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the rule remembers between calls: its fields with `init=False`, without leading underscores."""
        remembered = [field.name for field in dataclasses.fields(self) if not field.init]
        return {name.lstrip("_"): copy.deepcopy(getattr(self, name)) for name in remembered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        for name, value in state.items():
            setattr(self, f"_{name}", copy.deepcopy(value))

    def assumed(self, count: int, seen: int) -> dict[str, Any]:
        """Return what to assume where a state of an earlier version lacks it, for `count` samples of `seen`."""
        return {}


class UndoLog:
    """What `trained` overwrites in a session: old values of the samples it touches, and the rule's state before.

    Samples must stay in their slots until the session is over or undone.
    """

    def __init__(self, buffer: Buffer) -> None:
        self._buffer, self._state = buffer, buffer.maintenance.state_dict()
        self._touched = np.zeros(len(buffer), bool)
        self._slots: list[Array] = []
        self._values: dict[str, list[Array]] = {name: [] for name in sorted(buffer.maintenance.columns)}

    def keep(self, slots: Array) -> None:
        """Keep the values in `slots` [n] that were not kept before. Call this before `trained`."""
        first = np.unique(slots[~self._touched[slots]])
        self._touched[first] = True
        self._slots.append(first)
        for name, values in self._values.items():
            values.append(self._buffer[name][first])

    def undo(self) -> None:
        """Restore the rule's columns and its state."""
        old = self.state_dict()
        for name, values in old["columns"].items():
            self._buffer[name][old["slots"]] = values
        self._buffer.maintenance.load_state_dict(old["state"])

    def state_dict(self) -> dict[str, Any]:
        """Return the slots [n] that were touched, their old values by column, and the rule's state before."""
        columns = {name: np.concatenate([self._buffer[name][:0], *values]) for name, values in self._values.items()}
        return {"slots": np.concatenate([np.arange(0), *self._slots]), "columns": columns, "state": self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the log by one from `state_dict`."""
        self._slots, self._state = [np.array(state["slots"])], state["state"]
        self._values = {name: [np.array(values)] for name, values in state["columns"].items()}
        self._touched[:] = False
        self._touched[self._slots[0]] = True


def _feature_gradients(outputs: Any, targets: torch.Tensor, head: Head) -> torch.Tensor:
    """Gradients of the loss with respect to the features. A class without a row is only pushed away from the others."""
    import torch

    features: torch.Tensor = outputs.features
    if not outputs.logits.shape[1]:
        return torch.zeros_like(features)
    features = features.detach().clone().requires_grad_()
    with torch.enable_grad():
        logits = head(features)
        right = logits.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        loss = logits.logsumexp(1) - right * (targets >= 0)  # cross-entropy, if there is a correct row
        (gradient,) = torch.autograd.grad(loss.sum(), features)
    return gradient


# -- batches in which a value occurs several times ---------------------------------------------------------------------


def occurrence(values: Array) -> Array:
    """Return how often each value came before.

    >>> occurrence(np.array([3, 5, 3, 3])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(values, kind="stable")
    _, begins, counts = np.unique(values[order], return_index=True, return_counts=True)
    result = np.empty(len(values), np.int64)
    result[order] = np.arange(len(values)) - np.repeat(begins, counts)
    return result


def last_owner(slots: Array) -> Array:
    """Where several samples of a batch got the same slot, only the last keeps it; the others get -1.

    >>> last_owner(np.array([7, 2, 7, -1])).tolist()
    [-1, 2, 7, -1]
    """
    order = slots.argsort(kind="stable")
    ordered = slots[order]
    result = slots.copy()
    result[order[:-1][ordered[:-1] == ordered[1:]]] = -1
    return result


# -- rules ---------------------------------------------------------------------------------------------------------


@rules.register("largest_class")
class LargestClassRule(Maintenance):
    """The paper's rule (section 3): evict a random sample of the largest class; ties are broken uniformly."""

    def replace(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        return buffer.index.replace_largest(labels, rng)

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        return buffer.index.remove_largest(excess, rng)


@rules.register("reservoir")
@dataclass
class ReservoirRule(Maintenance):
    """Vitter's algorithm R: the buffer is always a uniform sample, without replacement, of everything seen.

    If codes differ in length and the capacity is in bytes, the buffer holds the longest start of a random order of
    everything seen that fits. So neither the time of arrival nor the batches matter, and samples of equal length are
    equally likely. Length matters only at the edge: a sample of s bytes is kept about 1 - s/capacity times as often as
    a very short one.
    """

    # For bytes. Every arrival has a random number in [0, 1), and the numbers below `_level` are those of the buffer.
    _level: float = field(default=1.0, init=False, repr=False)
    _compared: int = field(default=0, init=False, repr=False)  # arrivals that were compared with the level

    def assumed(self, count: int, seen: int) -> dict[str, Any]:
        return {"level": count / seen if seen else 1.0, "compared": seen}

    def replace(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        seen = buffer.seen + 1 + np.arange(len(labels))  # counting the sample itself
        slots = (rng.random(len(labels)) * seen).astype(np.int64)
        kept = slots < len(buffer)
        buffer.overwrite(slots[kept], labels[kept])
        return np.where(kept, slots, -1)

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        if buffer.by_length:
            return buffer.discard(self._above_level(buffer, rng))
        # The last `excess` arrivals were all kept. In a uniform sample of everything seen, their number would be
        # hypergeometric. The rest of the room goes to the older samples, which are a uniform sample already.
        keep = len(buffer) - excess
        arrived = np.argsort(buffer.births, kind="stable")
        old, new = arrived[:keep], arrived[keep:]
        newcomers = int(rng.hypergeometric(excess, buffer.seen - excess, keep))
        return buffer.discard(np.concatenate([rng.permutation(old)[:newcomers], rng.permutation(new)[newcomers:]]))

    def _above_level(self, buffer: Buffer, rng: np.random.Generator) -> Array:
        """Lower the level until the samples below it fit; return the slots of the others.

        The level is the smallest number evicted so far. It tells nothing else of the numbers of stored samples, which
        are uniform below it. So they need not be kept and are drawn again.
        """
        old = buffer.births < self._compared
        level = self._level if old.any() else 1.0
        numbers = rng.random(len(buffer)) * np.where(old, level, 1.0)
        order = np.argsort(-numbers)
        gone = order[: max(int((numbers >= level).sum()), buffer.excess_of(order))]
        self._level, self._compared = float(numbers[gone].min(initial=level)), buffer.seen
        return gone


@rules.register("fifo")
@dataclass
class FifoRule(Maintenance):
    """First in, first out."""

    _head: int = field(default=0, init=False, repr=False)
    # Slots from oldest to newest when _head was 0. Empty if that is 0 … n-1, as without overflow.
    _queue: Array = field(default_factory=lambda: np.empty(0, np.int32), init=False, repr=False)

    def replace(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        turn = (self._head + np.arange(len(labels))) % len(buffer)
        if 0 < len(self._queue) < len(buffer):  # samples were removed, and later ones took new slots at the end
            self._queue = np.append(self._queue, np.arange(len(self._queue), len(buffer), dtype=np.int32))
        slots = self._queue[turn].astype(np.int64) if len(self._queue) else turn
        self._head = (self._head + len(labels)) % len(buffer)
        buffer.overwrite(slots, labels)
        return slots

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        return buffer.discard(np.argsort(buffer.births, kind="stable")[:excess])

    def renumbered(self, buffer: Buffer) -> None:
        queue = np.argsort(buffer.births, kind="stable").astype(np.int32)
        in_order = bool((queue == np.arange(len(queue))).all())
        self._head, self._queue = 0, queue[:0] if in_order else queue


@rules.register("ring")
@dataclass
class RingRule(Maintenance):
    """A ring of `per_class` slots for each class: the newest samples of every class stay (A-GEM's buffer).

    `per_class` times the number of classes should not exceed the capacity. An insertion that finds no free slot is
    refused before anything changes.
    """

    per_class: Count = 20
    # Samples of each class so far, or since `compress`. Modulo per_class, this is the next place in the class's run.
    _written: Array = field(default_factory=lambda: np.empty(0, np.int64), init=False, repr=False)

    def place(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        written = np.pad(self._written, (0, max(0, int(labels.max()) + 1 - len(self._written))))
        turn = written[labels] + occurrence(labels)
        first = turn < self.per_class  # the class's ring is not full yet
        if buffer.capacity is not None and len(buffer) + int(first.sum()) > buffer.capacity:
            needs = f"{self} needs more than the buffer's {buffer.capacity:,} slots"
            classes = len(np.union1d(buffer.classes, labels))
            raise GraspError(f"{needs} for {classes} classes; lower per_class or raise the capacity")
        slots = np.empty(len(labels), np.int64)
        slots[first] = buffer.append(labels[first])
        # Later rounds reuse slots of the same class, so the class index does not change.
        slots[~first] = buffer.index.at(labels[~first], turn[~first] % self.per_class)
        self._written = written + np.bincount(labels, minlength=len(written))
        return slots

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        newest_first = np.argsort(-buffer.births, kind="stable")
        age = np.empty(len(buffer), np.int64)
        age[newest_first] = occurrence(buffer.labels[newest_first].astype(np.int64))
        return buffer.discard(np.lexsort((buffer.births, -age))[: max(excess, int((age >= self.per_class).sum()))])

    def renumbered(self, buffer: Buffer) -> None:
        buffer.index.sort_runs(buffer.births)
        self._written = np.bincount(buffer.labels, minlength=len(self._written))


@rules.register("gdumb")
@dataclass
class GDumbRule(Maintenance):
    """GDumb's sampler (Prabhu et al. 2020): a class takes slots from the largest while it has less than its share.

    The share is k_c = capacity / classes seen, including the newcomer's class. In a full buffer a newcomer is kept only
    if its class has fewer than k_c samples. A random sample of the largest class is then evicted, ties uniformly. While
    slots are free, every sample is kept; the paper's listing tests the share even then.
    """

    _seen: Array = field(default_factory=lambda: np.empty(0, np.int64), init=False, repr=False)

    def replace(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        self._seen = np.union1d(self._seen, buffer.classes)  # classes vanish from a buffer only here and in shrink
        classes, first = np.unique(labels, return_index=True)
        appears = np.zeros(len(labels), np.int64)
        appears[first[~np.isin(classes, self._seen)]] = 1
        share = -(-len(buffer) // (len(self._seen) + np.cumsum(appears)))  # rounded up: sizes are whole numbers
        self._seen = np.union1d(self._seen, classes)
        return buffer.index.replace_largest(labels, rng, share)

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        self._seen = np.union1d(self._seen, buffer.classes)
        return buffer.index.remove_largest(excess, rng)
