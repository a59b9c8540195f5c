"""All kinds of streams, made by name: what holds for each of them, whatever the data."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graspcl.errors import GraspError
from graspcl.stream import make_stream, streams
from graspcl.testing import check_stream

KINDS = {
    "class_incremental": {},
    "class_incremental, blurred": {"blurry": 0.3},
    "iid": {},
    "long_tailed": {"imbalance": 5},
    "long_tailed, as it is": {},
    "task_incremental": {"base_tasks": 1},
}


def make(kind, indices, labels, seed, base=1, sessions=2, **parameters):
    parameters = {**KINDS[kind], **parameters}
    name = kind.partition(",")[0]
    if name == "task_incremental":
        parameters["task_of"] = labels // 2
    else:
        parameters |= {"base_classes": base, "sessions": sessions}
    return make_stream(name, indices, labels, np.random.default_rng(seed), **parameters)


def test_every_built_in_kind_is_tested():
    built_in = {name for name in streams.names() if streams.get(name).__module__.startswith("graspcl.")}
    assert built_in == {kind.partition(",")[0] for kind in KINDS}


@st.composite
def data(draw):
    """Samples at scattered indices, their labels, and the classes of the whole data set by index."""
    sizes = draw(st.lists(st.integers(1, 12), min_size=4, max_size=8))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    labels = rng.permutation(np.repeat(rng.permutation(20)[: len(sizes)], sizes))
    indices = rng.permutation(2 * len(labels))[: len(labels)]
    whole = np.full(2 * len(labels), 99)
    whole[indices] = labels
    return indices, labels, whole


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(data(), st.integers(0, 2), st.integers(1, 2), st.integers(1, 9), st.integers(0, 5))
def test_contract(kind, samples, base, sessions, chunk, seed):
    indices, labels, whole = samples
    if kind == "task_incremental":
        base = min(base, len(np.unique(labels // 2)) - 1)
        check_stream(lambda: make(kind, indices, labels, seed, chunk=chunk, base_tasks=base), whole)
    else:
        check_stream(lambda: make(kind, indices, labels, seed, base, sessions, chunk=chunk), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_arrive_in_chunks_of_the_size_that_is_asked_for(kind):
    stream = make(kind, np.arange(80), np.repeat(np.arange(8), 10), 0, chunk=7)
    chunks = list(stream)
    for session, samples in enumerate(stream.sessions, start=1):
        sizes = [len(chunk.indices) for chunk in chunks if chunk.session == session]
        assert sizes == [7] * (len(samples) // 7) + [len(samples) % 7] * (len(samples) % 7 > 0)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "long_tailed"])
@settings(max_examples=15, deadline=None)
@given(data(), st.integers(0, 5))
def test_all_samples_are_there(kind, samples, seed):
    indices, labels, _ = samples
    base = {} if kind != "task_incremental" else {"base_tasks": 0}
    stream = make(kind, indices, labels, seed, **base)
    assert np.array_equal(np.sort(stream.samples), np.sort(indices))
    assert stream.counts == {int(label): int((labels == label).sum()) for label in np.unique(labels)}


@pytest.mark.parametrize("kind", KINDS)
def test_chance_comes_from_the_generator_alone(kind):
    labels = np.repeat(np.arange(8), 20)
    told = [make(kind, np.arange(160), labels, seed).samples.tolist() for seed in (0, 1, 2)]
    assert all(one != two for one, two in itertools.combinations(told, 2))


def test_the_base_is_the_same_for_all_orders_of_arrival():
    labels = np.repeat(np.arange(8), 20)
    kinds = ("class_incremental", "class_incremental, blurred", "iid", "long_tailed, as it is")
    bases = [make(kind, np.arange(160), labels, 3, base=2).base.tolist() for kind in kinds]
    assert len(bases[0]) == 40 and all(base == bases[0] for base in bases)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("iidd", {}, "no stream called 'iidd'; did you mean 'iid'"),
        ("iid", {"base_clases": 1}, "stream 'iid' has no parameter 'base_clases'; did you mean 'base_classes'"),
        ("iid", {"blurry": 0.5}, "stream 'iid' has no parameter 'blurry'; valid names: base_classes, chunk, order"),
        ("iid", {"rng": 3}, "stream 'iid' has no parameter 'rng'"),
        ("iid", {"labels": 3}, "stream 'iid' has no parameter 'labels'"),
        ("iid", {}, "stream 'iid' needs a value for base_classes and sessions"),
        ("iid", {"base_classes": 3, "sessions": 1}, "0 samples beside the 3 base classes"),
        ("iid", {"base_classes": 4, "sessions": 1}, "0 samples beside the 4 base classes"),
        ("iid", {"base_classes": 1, "sessions": 5}, "4 samples beside the 1 base classes cannot be split into 5"),
        ("iid", {"base_classes": 1, "sessions": 0}, "sessions must be a whole number of at least 1, got 0"),
        (
            "class_incremental",
            {"base_classes": 2, "sessions": 2},
            "one new class each; set --stream.base_classes and --stream.sessions to less",
        ),
        ("task_incremental", {}, "needs a value for task_of"),
        ("task_incremental", {"task_of": [0, 1]}, "indices and task_of must have the same length"),
        ("task_incremental", {"task_of": [0, 0, 1, 1, 2, 2], "base_tasks": 3}, "3 tasks cannot be split into 3 base"),
        (
            "task_incremental",
            {"task_of": [0, 0, 1, 1, 2, 2], "task_order": [0, 1]},
            "each of 3 task numbers once; missing: 2",
        ),
        (
            "long_tailed",
            {"base_classes": 1, "sessions": 1, "imbalance": 0.5},
            "imbalance must be a number of at least 1 or none, got 0.5",
        ),
        (
            "long_tailed",
            {"base_classes": 1, "sessions": 1, "imbalance": "steep"},
            "imbalance must be a number of at least 1 or none, got 'steep'",
        ),
        ("long_tailed", {"base_classes": 1, "sessions": 1, "largest_first": [0, 1, 2]}, "give an imbalance too"),
    ],
)
def test_mistakes_are_explained(name, parameters, message):
    with pytest.raises(GraspError, match=message):
        make_stream(name, np.arange(6), np.repeat([0, 1, 2], 2), np.random.default_rng(0), **parameters)


@pytest.mark.parametrize(
    ("indices", "labels", "message"),
    [
        ([0, 1], [0], "indices and labels must have the same length, got 2 and 1"),
        ([], [], "at least one sample"),
        ([0, 1], ["cat", "dog"], "labels of a stream must be whole numbers"),
        ([0.0, 1.5], [0, 1], "indices of a stream must be whole numbers"),
        ([0, -1], [0, 1], "must be 0 or more, got -1"),
        ([3, 3], [0, 1], "is in the stream twice"),
    ],
)
def test_samples_must_fit(indices, labels, message):
    with pytest.raises(GraspError, match=message):
        make_stream("iid", indices, labels, np.random.default_rng(0), base_classes=0, sessions=1)
