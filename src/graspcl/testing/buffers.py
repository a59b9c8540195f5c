"""The contracts of a buffer and of a maintenance rule: call these in the tests of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from graspcl.buffer import Buffer, Columns, Maintenance, Placed
from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.testing.common import contract, global_chance_untouched, same

# Batches of a stream: small and large ones, one that fills the buffer midway, some larger than a small buffer.
_BATCHES = (1, 3, 8, 5, 1, 40, 2, 17)
_TRIALS = 600


class Batch(NamedTuple):
    """Samples to insert; ids are unique over a stream."""

    inputs: torch.Tensor
    labels: Array
    ids: Array

    def first(self, number: int) -> Batch:
        """Return the first samples of the batch."""
        return Batch(self.inputs[:number], self.labels[:number], self.ids[:number])


def check_buffer(make: Callable[[], Buffer], shape: tuple[int, ...] = (4,), classes: int = 3) -> None:
    """Assert what learners and policies rely on.

    Args:
        make: returns a new, empty buffer on each call, with the same seed and independent of those made before. It has
            room for 10 samples of each class, if its rule needs room for all.
        shape: shape of one input.
        classes: number of classes.

    >>> check_buffer(lambda: Buffer(capacity=30))
    """
    batches = list(_stream(shape, classes))
    with contract(f"{type(make()).__name__} with {make().maintenance}"), global_chance_untouched("it"):
        known, buffer = _Known(), make()
        for batch in batches:
            known.insert(buffer, batch)
            _check_size(buffer)
        first = _history(make(), [batches[0].first(1)])[0]
        assert first[:3] == ([0], [], 1), "must keep the first sample it is given, and evict nothing for it"
        history = _history(make(), batches)
        same_seed = history == _history(make(), batches)
        assert same_seed, "made twice with one seed must do the same; does it use another generator?"
        assert history == _history(make(), batches, pauses=True), "must not be changed by an empty batch"
        _check_restored(make, batches)
        _check_refusals(make(), batches)
        _check_overflow(make(), batches)


def check_maintenance(make_rule: Callable[[], Maintenance], columns: Columns | None = None) -> None:
    """Assert that a rule keeps a buffer consistent and, if `one_by_one`, treats a batch as its samples one by one.

    Args:
        make_rule: returns a new rule on each call. It is tested with room for 10 and for 2 samples of each of 3
            classes, so a rule with a number per class should use at most 2.
        columns: columns of the buffer beside those of the rule's `columns_for`.

    >>> from graspcl.buffer import FifoRule
    >>> check_maintenance(FifoRule)
    """
    for capacity in (30, 6, None):
        check_buffer(lambda capacity=capacity: _buffer(capacity, make_rule(), columns, 1))  # type: ignore[misc]
    with contract(type(make_rule()).__name__):
        if make_rule().one_by_one:
            _check_batches_are_sequences(make_rule, columns)


# -- one property each ---------------------------------------------------------------------------------------------


def _check_size(buffer: Buffer) -> None:
    bound = buffer.capacity
    assert bound is None or len(buffer) <= bound, f"holds {len(buffer)} samples, more than its capacity of {bound}"


def _check_restored(make: Callable[[], Buffer], batches: list[Batch]) -> None:
    for middle in (0, 4):
        buffer = make()
        _history(buffer, batches[:middle])
        state = buffer.state_dict()
        uninterrupted = _history(buffer, batches[middle:])
        restored = make()
        restored.load_state_dict(state)
        where = f"restored from its state after {middle} batches"
        again = _history(restored, batches[middle:])
        assert again == uninterrupted, f"{where} must continue as if uninterrupted; does state_dict copy everything?"
        if len(buffer):
            slots = np.arange(len(buffer))
            assert same(buffer.fetch(slots), restored.fetch(slots)), f"{where} returns other inputs"


def _check_refusals(buffer: Buffer, batches: list[Batch]) -> None:
    _history(buffer, batches[:4])
    inputs, labels, ids = batches[4]
    refused: dict[str, tuple[Any, Any, Any]] = {
        "a negative label": (inputs, labels - 100, ids),
        "float labels": (inputs, labels + 0.5, ids),
        "a label too many": (inputs, np.append(labels, 0), None),
        "an id too many": (inputs, labels, np.append(ids, 0)),
        "NaN": (inputs * float("nan"), labels, ids),
        "inputs of another shape": (torch.zeros(len(inputs), *inputs.shape[1:], 2), labels, ids),
    }
    before = _contents(buffer)
    for mistake, arguments in refused.items():
        try:
            buffer.insert(*arguments, columns=_values(buffer, len(arguments[0]), 0))
        except GraspError:
            pass
        else:
            raise AssertionError(f"must refuse {mistake} with a GraspError")
        assert _contents(buffer) == before, f"refused {mistake}, but changed its contents"


def _check_overflow(buffer: Buffer, batches: list[Batch]) -> None:
    known = _Known()
    for round_ in (batches[:2], batches[2:5], batches[5:]):
        for batch in round_:
            count = len(buffer)
            known.insert(buffer, batch, overflow=True)
            assert len(buffer) == count + len(batch.ids), "must keep all samples inserted with overflow=True"
        before = buffer.ids.copy()
        gone = buffer.compress()
        _check_size(buffer)
        emptied = len(np.unique(gone)) == len(gone) == len(before) - len(buffer)
        assert emptied, "compress() must return every slot it emptied, once"
        left = np.delete(before, gone)
        assert set(buffer.ids.tolist()) == set(left.tolist()), "compress() evicted other slots than it returned"
        known.check(buffer)
    for batch in _stream(batches[0].inputs.shape[1:], int(batches[5].labels.max()) + 1, seed=1):
        known.insert(buffer, batch._replace(ids=batch.ids + 10**6))


def _check_batches_are_sequences(make_rule: Callable[[], Maintenance], columns: Columns | None) -> None:
    """Compare how often each arrival survives as a batch and one by one, within 4.5 standard errors.

    A correct rule fails with a probability below 0.0001. A frequency that is off by 0.2 is found with one above 0.99.
    """
    labels = np.array([0, 0, 1, 0, 0, 2, 0, 1, 2])
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
        f"treats a batch unlike its samples one by one: arrivals {wrong.tolist()} survive with frequency "
        f"{batch[wrong].round(3).tolist()} in a batch and {single[wrong].round(3).tolist()} one by one"
    )


# -- help ----------------------------------------------------------------------------------------------------------


class _Known:
    """Everything that was inserted, by id, to compare a buffer with."""

    def __init__(self) -> None:
        self.samples: dict[int, tuple[torch.Tensor, int, int, dict[str, Array]]] = {}  # input, label, birth, columns

    def insert(self, buffer: Buffer, batch: Batch, overflow: bool = False) -> None:
        """Insert a batch and compare what the buffer reports with what it did."""
        before, seen = buffer.ids.copy(), buffer.seen
        decoded = buffer.decode(buffer.encode(batch.inputs))
        values = _values(buffer, len(batch.ids), int(batch.ids[0]))
        for i, number in enumerate(batch.ids.tolist()):
            own = {column: value[i] for column, value in values.items()}
            self.samples[number] = decoded[i], int(batch.labels[i]), seen + i, own
        placed = _insert(buffer, batch, overflow)
        self.check(buffer)
        assert buffer.seen == seen + len(batch.ids), "`seen` must count every sample offered, kept or not"
        assert placed.slots.shape == batch.ids.shape, "must report a slot (or -1) for every sample of a batch"
        kept, stored = placed.slots >= 0, buffer.ids
        assert same(stored[placed.slots[kept]], batch.ids[kept]), "reports slots that do not hold the samples"
        assert kept.sum() == np.isin(stored, batch.ids).sum(), "kept samples that it reports as not kept"
        changed, reported = np.flatnonzero(stored[: len(before)] != before).tolist(), sorted(placed.evicted.tolist())
        assert reported == changed, f"reports evictions from slots {reported}, but {changed} hold other samples now"

    def check(self, buffer: Buffer) -> None:
        """Compare the whole buffer with what was inserted under its ids."""
        count, ids = len(buffer), buffer.ids.tolist()
        assert len(ids) == len(buffer.labels) == count, "ids and labels must be as long as the buffer"
        assert len(set(ids)) == count, "stores a sample twice"
        inputs, labels, births, columns = zip(*(self.samples[i] for i in ids), strict=True)
        assert buffer.labels.tolist() == list(labels), "labels do not belong to their ids"
        assert buffer.births.tolist() == list(births), "births do not belong to their ids"
        for column in buffer.maintenance.wanted:
            expected = np.stack([own[column] for own in columns])
            assert same(buffer[column], expected), f"{column} does not belong to its ids"
        runs = {int(c): buffer.slots_of(int(c)) for c in buffer.classes}
        assert list(runs) == sorted(set(labels)), "classes are not the labels stored"
        assert buffer.sizes.tolist() == [len(run) for run in runs.values()], "sizes are not those of slots_of"
        pure = all((buffer.labels[run] == c).all() for c, run in runs.items())
        assert pure, "slots_of gives slots of another class"
        slots = np.sort(np.concatenate(list(runs.values())))
        assert same(slots, np.arange(count)), f"the slots of all classes must be 0 … {count - 1}, each once"
        fetched, fetched_labels = buffer.fetch(np.arange(count))
        assert fetched_labels.tolist() == list(labels), "fetch returns other labels than are stored"
        assert torch.allclose(fetched, torch.stack(inputs), atol=1e-5), "fetch returns another sample"


def _stream(shape: tuple[int, ...], classes: int, seed: int = 0) -> Iterator[Batch]:
    rng, begin = np.random.default_rng(seed), 1000
    for size in _BATCHES:
        inputs = torch.from_numpy(rng.standard_normal((size, *shape)).astype(np.float32))
        # A squared uniform number makes the first class most frequent, as in a long tail.
        yield Batch(inputs, (rng.random(size) ** 2 * classes).astype(np.int64), np.arange(begin, begin + size))
        begin += size


def _buffer(capacity: int | None, rule: Maintenance, columns: Columns | None, rng: Any) -> Buffer:
    """A buffer with the columns its rule needs."""
    return Buffer(capacity, maintenance=rule, columns={**rule.columns_for(3, 3), **(columns or {})}, rng=rng)


def _values(buffer: Buffer, number: int, seed: int) -> dict[str, Array]:
    """Random values for `number` samples of the columns that the buffer's rule wants."""
    rng = np.random.default_rng(seed)
    given = {name: buffer.columns[name] for name in sorted(buffer.maintenance.wanted)}
    return {name: rng.standard_normal((number, *shape)).astype(dtype) for name, (shape, dtype) in given.items()}


def _insert(buffer: Buffer, batch: Batch, overflow: bool = False) -> Placed:
    columns = _values(buffer, len(batch.ids), int(batch.ids[0]))
    return buffer.insert(*batch, columns=columns, overflow=overflow)


def _history(buffer: Buffer, batches: list[Batch], pauses: bool = False) -> list[tuple[Any, ...]]:
    """Insert batches, with empty ones in between if `pauses`; return everything visible after each."""
    seen = []
    for batch in batches:
        if pauses:
            nothing = buffer.insert(*batch.first(0))
            assert not len(nothing.slots) and not len(nothing.evicted), "placed samples of an empty batch"
        placed = _insert(buffer, batch)
        seen.append((placed.slots.tolist(), placed.evicted.tolist(), *_contents(buffer)))
    return seen


def _contents(buffer: Buffer) -> tuple[Any, ...]:
    runs = [buffer.slots_of(int(c)).tolist() for c in buffer.classes]
    return len(buffer), buffer.seen, buffer.ids.tolist(), buffer.labels.tolist(), buffer.births.tolist(), runs
