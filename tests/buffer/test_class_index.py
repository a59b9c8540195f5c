"""The class index against a model that keeps a plain list of labels."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graspcl.buffer.class_index import ClassIndex

Array = np.ndarray[Any, Any]
labels_ = st.lists(st.integers(0, 6) | st.just(40), max_size=12)
operations = st.lists(
    st.tuples(
        st.sampled_from(["append", "overwrite", "replace_largest", "remove_largest", "discard", "sort"]), labels_
    ),
    max_size=25,
)


def assert_consistent(index: ClassIndex, model: dict[int, int]) -> None:
    """`model` maps every slot in use to its class."""
    runs = {int(c): index.slots_of(int(c)).tolist() for c in index.classes}
    expected: dict[int, list[int]] = {}
    for slot, label in sorted(model.items()):
        expected.setdefault(label, []).append(slot)
    assert {c: sorted(run) for c, run in runs.items()} == expected
    assert index.classes.tolist() == sorted(expected)
    assert index.sizes.tolist() == [len(expected[c]) for c in sorted(expected)]
    assert index.sizes.sum() == len(model)
    sizes = index._size
    assert sorted(index._order.tolist()) == list(range(len(sizes)))
    assert np.array_equal(index._rank[index._order], np.arange(len(sizes)))
    assert (np.diff(sizes[index._order]) <= 0).all(), "order must go from the largest class to the smallest"
    assert index._above.tolist() == [(sizes > n).sum() for n in range(len(index._above))]
    for run in runs.values():
        assert index._pos[run].tolist() == list(range(len(run)))
    used = sorted((int(index._start[c]), int(index._start[c] + index._room[c])) for c in np.flatnonzero(index._room))
    assert all(end <= begin for (_, end), (begin, _) in pairwise(used)), "runs overlap"
    assert all(end <= index._end for _, end in used) and index._end <= len(index._pool)
    assert (index._room >= sizes).all()
    grouped, offsets = index.grouped()
    assert grouped.tolist() == [slot for c in index.classes for slot in runs[int(c)]]
    assert offsets.tolist() == [0, *np.cumsum(index.sizes).tolist()]


def dense(index: ClassIndex, model: dict[int, int], gone: Array) -> dict[int, int]:
    """Close gaps as the buffer does: samples from the end move to the free slots."""
    left = len(model) - len(gone)
    stays = [slot for slot in model if slot not in set(gone.tolist())]
    source = np.array([s for s in sorted(stays) if s >= left], np.int64)
    target = np.array(sorted(set(range(left)) - set(stays)), np.int64)
    index.rename(source, target, np.array([model[s] for s in source.tolist()], np.int64))
    moved = dict(zip(source.tolist(), target.tolist(), strict=True))
    return {moved.get(s, s): model[s] for s in stays}


def by_slot(model: dict[int, int]) -> Array:
    return np.array([model[slot] for slot in sorted(model)], np.int32)


@settings(max_examples=100, deadline=None)
@given(operations, st.integers(0, 2**32 - 1))
def test_any_sequence_of_operations_agrees_with_the_model(steps: list[tuple[str, list[int]]], seed: int) -> None:
    rng, index, model = np.random.default_rng(seed), ClassIndex(), {}
    for operation, given_labels in steps:
        labels, count = np.array(given_labels, np.int64), len(model)
        if operation == "append":
            slots = np.arange(count, count + len(labels))
            index.assign(slots, labels, np.full(count + len(labels), -1, np.int32))
            model.update(zip(slots.tolist(), given_labels, strict=True))
        elif operation == "overwrite" and model:
            slots, held = rng.integers(count, size=len(labels)), by_slot(model)
            model.update(zip(slots.tolist(), given_labels, strict=True))
            index.assign(slots, labels, held)
            assert held.tolist() == by_slot(model).tolist()
        elif operation == "replace_largest" and model:
            for slot, label in zip(index.replace_largest(labels, rng).tolist(), given_labels, strict=True):
                counts = np.bincount(list(model.values()))
                assert counts[model[slot]] == counts.max(), "the evicted sample was not of a largest class"
                model[slot] = label
        elif operation == "remove_largest":
            gone = index.remove_largest(min(len(labels), count), rng)
            remaining = dict(model)
            for slot in gone.tolist():
                counts = np.bincount(list(remaining.values()))
                assert counts[remaining.pop(slot)] == counts.max()
            assert_consistent(index, remaining)
            model = dense(index, model, gone)
        elif operation == "discard" and model:
            gone = rng.permutation(count)[: len(labels)]
            index.assign(gone, np.full(len(gone), -1), by_slot(model))
            model = dense(index, model, gone)
        elif operation == "sort":
            key = rng.permutation(count)
            index.sort_runs(key)
            for c in index.classes:
                assert (np.diff(key[index.slots_of(int(c))]) > 0).all()
        assert_consistent(index, model)
    assert sorted(model) == list(range(len(model)))


def test_place_in_a_run_gives_the_slot() -> None:
    index = ClassIndex()
    index.assign(np.array([0, 1, 2, 3]), np.array([7, 5, 7, 7]), np.full(4, -1, np.int32))
    assert index.at(np.array([7, 7, 5]), np.array([2, 1, 0])).tolist() == [3, 2, 1]


def test_unknown_classes_have_no_slots_and_views_cannot_be_written() -> None:
    index = ClassIndex()
    index.assign(np.array([0]), np.array([2]), np.full(1, -1, np.int32))
    assert index.slots_of(1).tolist() == index.slots_of(9).tolist() == index.slots_of(-1).tolist() == []
    with pytest.raises(ValueError, match="read-only"):
        index.slots_of(2)[0] = 5


def test_state_restores_the_order_that_decides_later_choices() -> None:
    index, rng = ClassIndex(), np.random.default_rng(0)
    index.assign(np.arange(60), rng.integers(5, size=60), np.full(60, -1, np.int32))
    index.replace_largest(rng.integers(5, size=30), rng)
    state, restored = index.state_dict(), ClassIndex()
    labels = rng.integers(9, size=200)
    expected = index.replace_largest(labels, np.random.default_rng(1))
    restored.load_state_dict(state)
    assert restored.replace_largest(labels, np.random.default_rng(1)).tolist() == expected.tolist()
