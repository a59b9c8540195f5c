"""What `describe` tells of a stream."""

import json

import numpy as np
import pytest

from graspcl.errors import GraspError
from graspcl.stream import ClassIncremental, Stream, TaskIncremental, session_table

NAMES = ["ant", "bee", "cat", "dog", "emu"]


def test_rows_of_base_and_sessions():
    labels = [0, 1, 0, 2, 3, 3, 4, 0, 3]
    stream = Stream([0, 1, 2], [[3, 4, 5, 6, 7], [], [8]], labels=labels)
    rows = session_table(stream, NAMES, few=2)
    assert rows[0] == {
        "session": 0, "samples": 3, "classes": 2, "new_classes": 2, "first_new": ["ant", "bee"],
        "largest": "ant", "largest_samples": 2, "smallest": "bee", "smallest_samples": 1,
    }  # fmt: skip
    assert rows[1] == {
        "session": 1, "samples": 5, "classes": 4, "new_classes": 3, "first_new": ["cat", "dog"],
        "largest": "dog", "largest_samples": 2, "smallest": "ant", "smallest_samples": 1,
    }  # fmt: skip
    assert rows[2] == {
        "session": 2, "samples": 0, "classes": 0, "new_classes": 0, "first_new": [],
        "largest": None, "largest_samples": 0, "smallest": None, "smallest_samples": 0,
    }  # fmt: skip
    assert (rows[3]["classes"], rows[3]["new_classes"], rows[3]["largest"]) == (1, 0, "dog")
    assert json.loads(json.dumps(rows)) == rows


def test_classes_without_names_are_called_by_number_and_come_in_their_order():
    labels = np.repeat([7, 2, 5], 4)
    stream = ClassIncremental(np.arange(12), labels, 0, 1, np.random.default_rng(0), order=[5, 7, 2])
    (row,) = session_table(stream)
    assert row["session"] == 1 and row["first_new"] == ["5", "7", "2"]


def test_without_labels_only_samples_are_counted():
    assert session_table(Stream([], [[1, 2], [3]])) == [{"session": 1, "samples": 2}, {"session": 2, "samples": 1}]


def test_tasks_are_named():
    stream = TaskIncremental(
        np.arange(6), np.arange(6) % 5, np.arange(6) // 2, np.random.default_rng(0), [2, 1, 0], base_tasks=1
    )
    rows = session_table(stream, NAMES)
    assert [(row["session"], row["task"]) for row in rows] == [(0, None), (1, 1), (2, 0)]
    assert list(rows[0])[:3] == ["session", "task", "samples"]


def test_too_few_names():
    with pytest.raises(GraspError, match="has a class 4, but there are 2 class names"):
        session_table(Stream([], [[0]], labels=[4]), NAMES[:2])
