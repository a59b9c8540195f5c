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
    assert streams.names() == ["class_incremental"]


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
    with pytest.raises(GraspError, match="has passed"):
        iter(stream)
    assert list(stream.resume()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base_classes": 7}, "cannot be split"),
        ({"base_classes": -1}, "cannot be split"),
        ({"sessions": 0}, "cannot be split"),
        ({"sessions": 6}, "cannot be split"),
        ({"order": [1, 2, 3]}, "class order must name each"),
        ({"chunk": 0}, "at least one sample"),
    ],
)
def test_mistakes_are_explained(changes, message):
    with pytest.raises(GraspError, match=message):
        class_incremental(**changes)


def test_a_sample_may_arrive_once():
    with pytest.raises(GraspError, match="stands twice"):
        Stream(base=[1], sessions=[[2, 1]])
