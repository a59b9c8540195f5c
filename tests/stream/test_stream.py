"""Streams: order, completeness, and that what has passed is gone."""

import numpy as np
import pytest

from graspcl.errors import GraspError
from graspcl.stream import ClassIncremental, Stream, streams
from graspcl.testing import check_stream

LABELS = np.repeat([5, 2, 9, 4, 7, 0, 1], [3, 9, 4, 1, 12, 6, 2])
INDICES = 100 + np.arange(len(LABELS))


def class_incremental(**changes):
    settings = {"base_classes": 2, "sessions": 3, "rng": np.random.default_rng(0), "chunk": 4, **changes}
    return ClassIncremental(INDICES, LABELS, **settings)


def test_contract():
    check_stream(lambda: Stream(base=[], sessions=[[3, 1, 2], [9], [4, 5]], chunk=2))
    check_stream(class_incremental)
    assert {"class_incremental", "iid", "long_tailed", "task_incremental"} <= set(streams.names())


def test_every_class_arrives_in_one_session_only():
    stream = class_incremental()
    groups = [stream.base, *stream.sessions]
    classes = [set(LABELS[group - 100].tolist()) for group in groups]
    assert [len(c) for c in classes] == [2, 2, 2, 1]
    assert sorted(label for group in classes for label in group) == sorted(set(LABELS.tolist()))
    assert np.array_equal(np.sort(np.concatenate(groups)), INDICES)
    assert all(stream.arrival[label] == number for number, group in enumerate(classes) for label in group)


def test_a_given_order_is_kept_and_a_seed_decides_otherwise():
    order = [7, 0, 1, 2, 4, 5, 9]
    assert list(class_incremental(order=order).arrival) == order
    orders = {tuple(class_incremental(rng=np.random.default_rng(seed)).arrival) for seed in range(20)}
    assert len(orders) > 15


def test_a_stream_that_has_passed_cannot_be_read_again():
    stream = class_incremental()
    assert sum(len(chunk.indices) for chunk in stream) == len(stream)
    with pytest.raises(GraspError, match="has already started"):
        iter(stream)
    assert list(stream.resume()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_classes": 7}, "cannot be split"),
        ({"base_classes": -1}, "base_classes must be a whole number of at least 0, got -1"),
        ({"sessions": 0}, "sessions must be a whole number of at least 1, got 0"),
        ({"sessions": 6}, "cannot be split"),
        ({"order": [1, 2, 3]}, "class order must name each"),
        ({"chunk": 0}, "chunk must be a whole number of at least 1, got 0"),
        ({"chunk": 2.5}, "chunk must be a whole number"),
        ({"base_classes": "two"}, "base_classes must be a whole number"),
        ({"sessions": True}, "sessions must be a whole number"),
        ({"order": "imagenet"}, "list of class numbers, got 'imagenet'"),
        ({"order": [5, 2, 9, 4, 7, 0, 0]}, "missing: 1; more than once: 0"),
        ({"order": [5, 2, 9, 4, 7, 0, 8]}, "missing: 1; not in the data: 8"),
        ({"blurry": 1.0}, r"blurry must be a number in \[0, 1\), got 1.0"),
        ({"blurry": -0.1}, r"blurry must be a number in \[0, 1\), got -0.1"),
        ({"blurry": "half"}, "blurry must be a number"),
    ],
)
def test_mistakes_are_explained(changes, message):
    with pytest.raises(GraspError, match=message):
        class_incremental(**changes)


def test_a_sample_may_arrive_once():
    with pytest.raises(GraspError, match="is in the stream twice"):
        Stream(base=[1], sessions=[[2, 1]])


def test_classes_arrive_with_their_first_sample():
    labels = np.array([4, 4, 6, 4, 1, 6, 1, 9])
    stream = Stream(base=[1], sessions=[[2, 3], [], [7, 4, 5]], labels=labels)
    assert stream.labels.tolist() == [4, 6, 4, 9, 1, 6]
    assert list(stream.arrival.items()) == [(4, 0), (6, 1), (9, 3), (1, 3)]
    assert stream.home == stream.arrival
    assert list(stream.counts.items()) == [(4, 2), (6, 2), (9, 1), (1, 1)]
    check_stream(lambda: Stream(base=[1], sessions=[[2, 3], [], [7, 4, 5]], labels=labels), labels)


def test_labels_may_be_a_mapping():
    stream = Stream([10**12], [[3]], labels={10**12: 5, 3: 4, 8: 0})
    assert stream.arrival == {5: 0, 4: 1} and stream.counts == {5: 1, 4: 1}


def test_a_stream_without_labels_knows_no_classes():
    stream = Stream([0], [[1]])
    assert stream.labels is None and stream.tasks is None
    assert stream.arrival == stream.home == stream.counts == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"labels": [0, 0]}, "samples 0 to 2, but there are 2 labels"),
        ({"labels": {0: 1, 1: 1}}, "no label, for example sample 2"),
        ({"tasks": [1]}, "2 sessions cannot have 1 tasks"),
        ({"labels": [0, 1, 1], "home": {0: 0}}, "home must give one of the stream's sessions for each class"),
        ({"labels": [0, 1, 1], "home": {0: 0, 1: 3}}, "home must give one of the stream's sessions"),
    ],
)
def test_labels_and_tasks_must_fit(given, message):
    with pytest.raises(GraspError, match=message):
        Stream([0], [[1], [2]], **given)
