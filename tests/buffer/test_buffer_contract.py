"""The contract holds for every rule in memory and in files, and finds what is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch

from graspcl.buffer import (
    Buffer,
    ByClassRule,
    FifoRule,
    LargestClassRule,
    Maintenance,
    Placed,
    ReservoirRule,
    RingRule,
    rules,
)
from graspcl.codec import OPQ, Half
from graspcl.testing.buffers import check_buffer, check_maintenance
from graspcl.testing.common import seeded

RULES: list[Callable[[], Maintenance]] = [LargestClassRule, ReservoirRule, FifoRule, lambda: RingRule(per_class=2)]
NAMES = ["largest_class", "reservoir", "fifo", "ring"]


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_buffers_in_memory_keep_the_contract(rule: Callable[[], Maintenance]) -> None:
    check_buffer(lambda: Buffer(8, maintenance=rule(), rng=3))


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_buffers_in_files_keep_the_contract(rule: Callable[[], Maintenance], tmp_path: Path) -> None:
    check_buffer(lambda: Buffer(8, maintenance=rule(), storage=mkdtemp(dir=tmp_path), rng=3))


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_rules_keep_the_contract(rule: Callable[[], Maintenance]) -> None:
    check_maintenance(rule)


@pytest.mark.parametrize("name", sorted(set(rules.names()) - set(NAMES)))
def test_rules_that_know_more_than_labels_keep_the_contract(name: str, tmp_path: Path) -> None:
    check_maintenance(rules.get(name))
    shapes = {column: ((2,) if column in ("embedding", "gradient") else ()) for column in rules.get(name).columns}
    columns = {column: (shape, np.float64) for column, shape in shapes.items()}
    check_buffer(lambda: Buffer(8, None, name, columns, mkdtemp(dir=tmp_path)))
    check_buffer(lambda: Buffer(2, None, name, columns))  # fewer slots than classes


@dataclass
class Smallest(ByClassRule):
    """Somebody's own rule with a column of its own: the shortest vectors go."""

    columns = frozenset({"mine"})

    def victims(
        self, label: int, values: np.ndarray[Any, Any], number: int, rng: np.random.Generator
    ) -> np.ndarray[Any, Any]:
        return np.argsort(np.linalg.norm(values, axis=1))[:number]


def test_a_rule_of_ones_own_with_a_column_of_its_own() -> None:
    check_maintenance(Smallest, columns={"mine": ((5,), np.float32)})


def test_buffers_with_codecs_keep_the_contract(tmp_path: Path) -> None:
    codec = OPQ(codebooks=2, size=16, iterations=2).fit(torch.randn(200, 4, generator=seeded()))
    check_buffer(lambda: Buffer(8, codec=codec, storage=mkdtemp(dir=tmp_path)), shape=(4, 3, 2))
    check_buffer(lambda: Buffer("700B", codec=Half(), storage=mkdtemp(dir=tmp_path)), shape=(4,))


# -- broken buffers --------------------------------------------------------------------------------------------------


class ForgetsLabels(Buffer):
    """Writes codes of evicted samples but not their labels."""

    def insert_codes(self, *arguments: Any, **options: Any) -> Placed:
        before = self.labels.copy()
        placed = super().insert_codes(*arguments, **options)
        self.labels[: len(before)] = before
        return placed


class SilentAboutEvictions(Buffer):
    def insert_codes(self, *arguments: Any, **options: Any) -> Placed:
        return super().insert_codes(*arguments, **options)._replace(evicted=np.empty(0, np.int64))


class FetchesNeighbours(Buffer):
    def fetch(self, slots: Any, device: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = super().fetch(slots, device)
        return inputs.roll(1, 0), labels


class AliasedState(Buffer):
    """Gives its live arrays as its state."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "columns": {n: self._storage[n][: len(self)] for n in self._storage}}


class ForgetsGenerator(Buffer):
    def load_state_dict(self, state: Any) -> None:
        rng = self._rng.bit_generator.state
        super().load_state_dict(state)
        self._rng.bit_generator.state = rng


class AcceptsNan(Buffer):
    def encode(self, inputs: Any) -> torch.Tensor:
        return torch.as_tensor(inputs)


class GloballyRandom(Buffer):
    def encode(self, inputs: Any) -> torch.Tensor:
        torch.rand(1)
        return super().encode(inputs)


class LeavesColumnsBehind(Buffer):
    """Moves samples when it compresses, but not their codes."""

    def _close_gaps(self, gone: np.ndarray[Any, Any]) -> None:
        codes = self._storage["codes"].copy()
        super()._close_gaps(gone)
        self._storage["codes"][:] = codes


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (ForgetsLabels, "labels do not belong to their ids"),
        (SilentAboutEvictions, "reports evictions from slots"),
        (FetchesNeighbours, "fetch returns another sample"),
        (AliasedState, "must continue as if uninterrupted"),
        (ForgetsGenerator, "must continue as if uninterrupted"),
        (AcceptsNan, "must refuse NaN"),
        (GloballyRandom, "torch's global generator"),
        (LeavesColumnsBehind, "fetch returns another sample"),
    ],
)
def test_broken_buffers_are_found_out(broken: type[Buffer], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_buffer(lambda: broken(8, rng=0))


def test_buffers_that_differ_from_each_other_are_found_out() -> None:
    seeds = iter(range(1000))
    with pytest.raises(AssertionError, match="made twice with one seed must do the same"):
        check_buffer(lambda: Buffer(8, rng=next(seeds)))


# -- broken rules ----------------------------------------------------------------------------------------------------


class StaleSizes(LargestClassRule):
    """Chooses the largest class once per batch, not before every sample."""

    def replace(self, buffer: Buffer, labels: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
        largest = buffer.classes[buffer.sizes.argmax()]
        slots = rng.choice(buffer.slots_of(int(largest)).astype(np.int64), len(labels))
        buffer.overwrite(slots, labels)
        return slots


class Overflowing(ReservoirRule):
    """Never evicts."""

    def place(self, buffer: Buffer, labels: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
        buffer._storage.reserve(len(buffer) + len(labels))
        return buffer.append(labels)


class ForgetsIndex(FifoRule):
    """Takes slots without telling the class index."""

    def replace(self, buffer: Buffer, labels: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
        return np.arange(len(labels)) % len(buffer)


class MixesUpColumns(Smallest):
    """Shuffles the values that a batch came with."""

    def arriving(self, buffer: Buffer, labels: np.ndarray[Any, Any], rng: np.random.Generator) -> None:
        buffer.incoming["mine"] = np.roll(buffer.incoming["mine"], 1, axis=0)


@dataclass
class Forgetful(FifoRule):
    """Keeps no state."""

    def state_dict(self) -> dict[str, Any]:
        return {"queue": np.empty(0, np.int32), "head": 0}


class SeedsItself(LargestClassRule):
    def replace(self, buffer: Buffer, labels: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
        return super().replace(buffer, labels, np.random.default_rng())


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (StaleSizes, "treats a batch unlike its samples one by one"),
        (Overflowing, "more than its capacity"),
        (ForgetsIndex, r"slots_of gives slots of another class|classes are not the labels stored"),
        (Forgetful, "must continue as if uninterrupted"),
        (MixesUpColumns, "mine does not belong to its ids"),
        (SeedsItself, "does it use another generator"),
    ],
)
def test_broken_rules_are_found_out(broken: type[Maintenance], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_maintenance(broken)
