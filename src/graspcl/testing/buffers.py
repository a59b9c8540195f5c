"""What every buffer and every maintenance rule must do; call these from the tests of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from graspcl.buffer import Buffer, Maintenance, Placed
from graspcl.buffer.checks import Columns
from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.testing.codecs import global_chance_untouched

# Batches of a stream: small and large ones, one that fills the buffer midway, some larger than a small buffer.
_BATCHES = (1, 3, 8, 5, 1, 40, 2, 17)
_TRIALS = 600
_VECTORS = {"embedding", "gradient"}  # columns of vectors that rules of the library ask for; others are numbers


class Batch(NamedTuple):
    """Samples to insert; ids are unique over a stream."""

    inputs: torch.Tensor
    labels: Array
    ids: Array


def check_buffer(make: Callable[[], Buffer], shape: tuple[int, ...] = (4,), classes: int = 3) -> None:
    """Assert what learners and policies rely on.

    `make` returns a new, empty buffer each time, always with the same seed, independent of those made before (of its
    own folder, if it is stored in one), with room for 10 samples of each of `classes` classes if its rule needs room
    for all of them. It is given inputs of `shape`, and random values for the columns that its rule asks for.

    >>> check_buffer(lambda: Buffer(capacity=30))
    """
    name = f"{type(make()).__name__} with {make().maintenance}"
    with global_chance_untouched(name):
        _check_stream(make(), list(_stream(shape, classes)), name)
        _check_one_sample(make(), next(_stream(shape, classes)), name)
        _check_repeatable(make, list(_stream(shape, classes)), name)
        _check_restored(make, list(_stream(shape, classes)), name)
        _check_empty_batches(make, list(_stream(shape, classes)), name)
        _check_refusals(make(), list(_stream(shape, classes)), name)
        _check_overflow(make(), list(_stream(shape, classes)), name)


def check_maintenance(make_rule: Callable[[], Maintenance], columns: Columns | None = None) -> None:
    """Assert that a rule keeps a buffer sound, and treats a batch as its samples one by one (if it says it does).

    `make_rule` returns a new rule each time. It is tried with room for 10 samples of each of 3 classes and with room
    for 2, so a rule that takes a number per class should take at most 2. `columns` are those it needs, if they are not
    single numbers, "embedding" or "gradient".

    >>> from graspcl.buffer import Fifo
    >>> check_maintenance(Fifo)
    """
    check_buffer(lambda: _buffer(30, make_rule(), columns, 1))
    check_buffer(lambda: _buffer(6, make_rule(), columns, 1))
    check_buffer(lambda: _buffer(None, make_rule(), columns, 1))
    if make_rule().one_by_one:
        _check_batches_are_sequences(make_rule, columns)


# -- one property each ---------------------------------------------------------------------------------------------


def _check_stream(buffer: Buffer, batches: list[Batch], name: str) -> None:
    """Whatever came, slots are dense, classes agree with labels, and every slot holds the sample its id names."""
    known = _Known()
    for batch in batches:
        known.insert(buffer, batch, name)
        assert buffer.capacity is None or len(buffer) <= buffer.capacity, (
            f"{name} holds {len(buffer)} samples, more than its capacity of {buffer.capacity}"
        )


def _check_one_sample(buffer: Buffer, batch: Batch, name: str) -> None:
    placed = _insert(buffer, Batch(batch.inputs[:1], batch.labels[:1], batch.ids[:1]))
    assert len(buffer) == 1 and placed.slots.tolist() == [0], f"{name} must keep the first sample it is given"
    assert not len(placed.evicted), f"{name} reports an eviction from an empty buffer"


def _check_repeatable(make: Callable[[], Buffer], batches: list[Batch], name: str) -> None:
    first, second = _history(make(), batches), _history(make(), batches)
    assert first == second, f"{name} made twice with one seed must do the same; does it draw from another generator?"


def _check_restored(make: Callable[[], Buffer], batches: list[Batch], name: str) -> None:
    for middle in (0, 4):
        buffer = make()
        _history(buffer, batches[:middle])
        state = buffer.state_dict()
        uninterrupted = _history(buffer, batches[middle:])
        restored = make()
        restored.load_state_dict(state)
        assert _history(restored, batches[middle:]) == uninterrupted, (
            f"{name} restored from its state after {middle} batches must go on as if uninterrupted; "
            "does state_dict copy all that matters, and the generator too?"
        )
        if len(buffer):
            slots = np.arange(len(buffer))
            same = torch.equal(buffer.fetch(slots)[0], restored.fetch(slots)[0])
            assert same, f"{name} restored from its state serves other inputs"


def _check_empty_batches(make: Callable[[], Buffer], batches: list[Batch], name: str) -> None:
    buffer, nothing = make(), Batch(batches[0].inputs[:0], np.empty(0, np.int64), np.empty(0, np.int64))
    with_pauses = []
    for batch in batches:
        placed = buffer.insert(*nothing)
        assert not len(placed.slots) and not len(placed.evicted), f"{name} placed samples of an empty batch"
        with_pauses += _history(buffer, [batch])
    assert with_pauses == _history(make(), batches), f"{name} must not be changed by an empty batch"


def _check_refusals(buffer: Buffer, batches: list[Batch], name: str) -> None:
    _history(buffer, batches[:4])
    inputs, labels, ids = batches[4]
    wrong_shape = torch.zeros(len(inputs), *inputs.shape[1:], 2)
    refused: dict[str, tuple[Any, Any, Any]] = {
        "a negative label": (inputs, labels - 100, ids),
        "float labels": (inputs, labels + 0.5, ids),
        "a label too many": (inputs, np.append(labels, 0), None),
        "an id too many": (inputs, labels, np.append(ids, 0)),
        "NaN": (inputs * float("nan"), labels, ids),
        "inputs of another shape": (wrong_shape, labels, ids),
    }
    before = _contents(buffer)
    for mistake, arguments in refused.items():
        try:
            buffer.insert(*arguments, columns=_values(buffer, len(arguments[0]), 0))
        except GraspError:
            pass
        else:
            raise AssertionError(f"{name} must refuse {mistake} with a GraspError")
        assert _contents(buffer) == before, f"{name} refused {mistake}, but changed what is stored"


def _check_overflow(buffer: Buffer, batches: list[Batch], name: str) -> None:
    known = _Known()
    for round_ in (batches[:2], batches[2:5], batches[5:]):
        for batch in round_:
            count = len(buffer)
            known.insert(buffer, batch, name, overflow=True)
            assert len(buffer) == count + len(batch.ids), f"{name} must keep all samples inserted with overflow=True"
        before = buffer.ids.copy()
        gone = buffer.compress()
        assert buffer.capacity is None or len(buffer) <= buffer.capacity, f"{name}.compress() left too many samples"
        assert len(np.unique(gone)) == len(gone) == len(before) - len(buffer), (
            f"{name}.compress() must return every slot it emptied, once"
        )
        assert set(buffer.ids.tolist()) == set(np.delete(before, gone).tolist()), (
            f"{name}.compress() kept other samples than those whose slots it did not return"
        )
        known.check(buffer, name)
    for batch in _stream(batches[0].inputs.shape[1:], int(batches[5].labels.max()) + 1, seed=1):
        known.insert(buffer, batch._replace(ids=batch.ids + 10**6), name)


def _check_batches_are_sequences(make_rule: Callable[[], Maintenance], columns: Columns | None) -> None:
    """How often each arrival survives, as a batch and one by one: within 4.5 standard errors.

    A rule that is right fails this with a probability below 0.0001; a frequency that is off by 0.2 is found with one
    above 0.99.
    """
    name, labels = type(make_rule()).__name__, np.array([0, 0, 1, 0, 0, 2, 0, 1, 2])
    inputs, survived = np.zeros((len(labels), 1), np.float32), np.zeros((2, len(labels)))
    rng = np.random.default_rng(2)
    for _ in range(_TRIALS):
        for way, cuts in enumerate(([2], range(2, len(labels)))):
            buffer = _buffer(6, make_rule(), columns, rng)
            values = _values(buffer, len(labels), 0)
            for part in np.split(np.arange(len(labels)), cuts):
                buffer.insert_codes(inputs[part], labels[part], columns={n: v[part] for n, v in values.items()})
            survived[way, buffer.ids] += 1
    batch, single = survived / _TRIALS
    error = np.sqrt((batch * (1 - batch) + single * (1 - single)) / _TRIALS)
    wrong = np.flatnonzero(np.abs(batch - single) > 4.5 * error)
    assert not len(wrong), (
        f"{name} treats a batch unlike its samples one by one: arrivals {wrong.tolist()} survive with frequency "
        f"{batch[wrong].round(3).tolist()} in a batch and {single[wrong].round(3).tolist()} one by one"
    )


# -- help ----------------------------------------------------------------------------------------------------------


class _Known:
    """What was ever inserted, by id, to compare a buffer with."""

    def __init__(self) -> None:
        self.inputs: dict[int, torch.Tensor] = {}
        self.labels: dict[int, int] = {}
        self.births: dict[int, int] = {}
        self.columns: dict[int, dict[str, Array]] = {}

    def insert(self, buffer: Buffer, batch: Batch, name: str, overflow: bool = False) -> None:
        """Insert a batch and compare what the buffer says it did with what it did."""
        before, seen = buffer.ids.copy(), buffer.seen
        decoded = buffer.decode(buffer.encode(batch.inputs))
        values = _values(buffer, len(batch.ids), int(batch.ids[0]))
        for i, number in enumerate(batch.ids.tolist()):
            self.inputs[number], self.labels[number] = decoded[i], int(batch.labels[i])
            self.births[number] = seen + i
            self.columns[number] = {name: value[i] for name, value in values.items()}
        placed = _insert(buffer, batch, overflow)
        self.check(buffer, name)
        assert buffer.seen == seen + len(batch.ids), f"{name}.seen must count every sample offered, kept or not"
        assert placed.slots.shape == batch.ids.shape, f"{name} must report a slot (or -1) for every sample of a batch"
        kept = placed.slots >= 0
        assert np.array_equal(buffer.ids[placed.slots[kept]], batch.ids[kept]), (
            f"{name} reports slots that do not hold the samples it says it put there"
        )
        assert kept.sum() == np.isin(buffer.ids, batch.ids).sum(), f"{name} kept samples that it reports as not kept"
        changed = np.flatnonzero(buffer.ids[: len(before)] != before)
        reported = sorted(placed.evicted.tolist())
        assert reported == changed.tolist(), (
            f"{name} reports evictions from slots {reported}, but other samples now lie in {changed.tolist()}"
        )

    def check(self, buffer: Buffer, name: str) -> None:
        """Compare all that the buffer holds with what was inserted under its ids."""
        count, ids = len(buffer), buffer.ids.tolist()
        assert len(ids) == len(buffer.labels) == count, f"{name}: ids and labels must be as long as the buffer"
        assert len(set(ids)) == count, f"{name} stores a sample twice"
        assert buffer.labels.tolist() == [self.labels[i] for i in ids], f"{name}: labels went astray from their ids"
        assert buffer.births.tolist() == [self.births[i] for i in ids], f"{name}: births went astray from their ids"
        for column in buffer.maintenance.columns - buffer.maintenance.fills:
            expected_values = np.stack([self.columns[i][column] for i in ids])
            assert np.array_equal(buffer[column], expected_values), f"{name}: {column} went astray from its ids"
        classes, runs = buffer.classes.tolist(), [buffer.slots_of(int(c)) for c in buffer.classes]
        assert classes == sorted(set(buffer.labels.tolist())), f"{name}.classes are not the labels stored"
        assert buffer.sizes.tolist() == [len(run) for run in runs], f"{name}.sizes are not those of slots_of"
        assert all((buffer.labels[run] == c).all() for c, run in zip(classes, runs, strict=True)), (
            f"{name}.slots_of gives slots of another class"
        )
        assert sorted(s for run in runs for s in run.tolist()) == list(range(count)), (
            f"{name}: the slots of all classes must be 0 … {count - 1}, each once"
        )
        inputs, labels = buffer.fetch(np.arange(count))
        assert labels.tolist() == buffer.labels.tolist(), f"{name}.fetch gives other labels than are stored"
        expected = torch.stack([self.inputs[i] for i in ids])
        assert torch.allclose(inputs, expected, atol=1e-5), f"{name}.fetch gives another sample than its id names"


def _stream(shape: tuple[int, ...], classes: int, seed: int = 0) -> Iterator[Batch]:
    rng, begin = np.random.default_rng(seed), 1000
    for size in _BATCHES:
        inputs = torch.from_numpy(rng.standard_normal((size, *shape)).astype(np.float32))
        # A squared uniform number: the first class comes most often, as in a long tail.
        yield Batch(inputs, (rng.random(size) ** 2 * classes).astype(np.int64), np.arange(begin, begin + size))
        begin += size


def _buffer(capacity: int | None, rule: Maintenance, columns: Columns | None, rng: Any) -> Buffer:
    """A buffer with the columns its rule needs."""
    needed = {name: ((3,) if name in _VECTORS else (), np.float32) for name in sorted(rule.columns)}
    return Buffer(capacity, maintenance=rule, columns={**needed, **(columns or {})}, rng=rng)


def _values(buffer: Buffer, number: int, seed: int) -> dict[str, Array]:
    """Random values for `number` samples of the columns that the buffer's rule asks for."""
    rng, rule = np.random.default_rng(seed), buffer.maintenance
    given = {name: buffer.columns[name] for name in sorted(rule.columns - rule.fills)}
    return {name: rng.standard_normal((number, *shape)).astype(dtype) for name, (shape, dtype) in given.items()}


def _insert(buffer: Buffer, batch: Batch, overflow: bool = False) -> Placed:
    columns = _values(buffer, len(batch.ids), int(batch.ids[0]))
    return buffer.insert(*batch, columns=columns, overflow=overflow)


def _history(buffer: Buffer, batches: list[Batch]) -> list[tuple[Any, ...]]:
    """Insert batches; everything visible after each."""
    return [(*map(np.ndarray.tolist, _placed(_insert(buffer, batch))), *_contents(buffer)) for batch in batches]


def _placed(placed: Placed) -> tuple[Array, Array]:
    return placed.slots, placed.evicted


def _contents(buffer: Buffer) -> tuple[Any, ...]:
    runs = [buffer.slots_of(int(c)).tolist() for c in buffer.classes]
    return len(buffer), buffer.seen, buffer.ids.tolist(), buffer.labels.tolist(), buffer.births.tolist(), runs
