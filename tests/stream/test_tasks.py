"""Task-incremental streams: samples belong to tasks, and tasks may share classes."""

import numpy as np

from graspcl.stream import TaskIncremental

# ag 4, yelp 5, amazon 5, yahoo 10, dbpedia 14 classes; yelp and amazon share theirs: 33 in all
TASKS = {"ag": range(4), "yelp": range(4, 9), "amazon": range(4, 9), "yahoo": range(9, 19), "dbpedia": range(19, 33)}
LABELS = np.concatenate([np.repeat(list(classes), 3) for classes in TASKS.values()])
TASK_OF = np.repeat(np.arange(5), [3 * len(classes) for classes in TASKS.values()])
ORDER = [4, 3, 0, 2, 1]  # dbpedia yahoo ag amazon yelp


def stream(**changes):
    parameters = {"rng": np.random.default_rng(0), "task_order": ORDER, **changes}
    return TaskIncremental(1000 + np.arange(len(LABELS)), LABELS, TASK_OF, **parameters)


def test_tasks_come_in_the_given_order():
    text = stream()
    assert text.tasks == ORDER and len(text.base) == 0
    assert [np.unique(TASK_OF[session - 1000]).tolist() for session in text.sessions] == [[task] for task in ORDER]
    assert [len(session) for session in text.sessions] == [42, 30, 12, 15, 15]


def test_shared_classes_arrive_with_the_first_task_that_has_them():
    text = stream()
    assert {text.arrival[label] for label in range(4, 9)} == {4}
    assert 5 not in text.arrival.values()  # yelp brings nothing new
    assert len(text.counts) == 33
    assert [text.counts[label] for label in (0, 4, 8, 32)] == [3, 6, 6, 3]
    assert {label: first for label, first in text.arrival.items() if label >= 19} == dict.fromkeys(range(19, 33), 1)


def test_first_tasks_as_base():
    text = stream(base_tasks=2)
    assert text.tasks == [0, 2, 1] and len(text.base) == 72
    assert text.arrival[19] == text.arrival[9] == 0 and text.arrival[0] == 1 and text.arrival[4] == 2


def test_without_an_order_tasks_come_by_number():
    assert stream(task_order=None).tasks == [0, 1, 2, 3, 4]


def test_samples_of_a_task_are_shuffled():
    assert stream().sessions[0].tolist() != sorted(stream().sessions[0].tolist())
    assert stream().sessions[0].tolist() != stream(rng=np.random.default_rng(1)).sessions[0].tolist()
