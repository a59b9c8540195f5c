"""Task-incremental arrival: one task after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graspcl.errors import GraspError
from graspcl.stream.base import Stream, streams, whole
from graspcl.stream.groups import by_index, checked_samples, grouped, in_order

Array = np.ndarray[Any, Any]


@streams.register("task_incremental")
class TaskIncremental(Stream):
    """One session per task, the tasks in a given order, samples in random order.

    `task_of` [N] is the task of each sample, such as the number of the data set it comes from. Samples belong to tasks,
    classes need not: two tasks may share classes, as Yelp and Amazon share their five stars. Tasks come in `order`, or
    by ascending number; the first `base_tasks` of them are the base. `tasks` has the task of each session.

    >>> labels, task_of = np.array([0, 1, 0, 1, 2, 2]), np.array([0, 0, 1, 1, 2, 2])
    >>> stream = TaskIncremental(np.arange(6), labels, task_of, np.random.default_rng(0), order=[2, 0, 1])
    >>> stream.tasks, [sorted(session.tolist()) for session in stream.sessions]
    ([2, 0, 1], [[4, 5], [0, 1], [2, 3]])
    >>> [stream.arrival[label] for label in range(3)]
    [2, 2, 1]
    """

    def __init__(
        self,
        indices: Array,
        labels: Array,
        task_of: Array,
        rng: np.random.Generator,
        order: Sequence[int] | Array | None = None,
        chunk: int = 512,
        base_tasks: int = 0,
    ) -> None:
        indices, labels = checked_samples(indices, labels)
        _, task_of = checked_samples(indices, task_of, "task")
        tasks = np.unique(task_of)
        ordered = tasks if order is None else in_order(tasks, order, "task")
        if not 0 <= whole("base_tasks", base_tasks) < len(ordered):
            raise GraspError(
                f"{len(ordered)} tasks cannot be split into {base_tasks} base tasks and at least one session"
            )
        groups = [ordered[:base_tasks], *np.split(ordered[base_tasks:], len(ordered) - base_tasks)]
        base, *rest = (rng.permutation(group) for group in grouped(indices, task_of, groups))
        super().__init__(base, rest, chunk, by_index(indices, labels), tasks=ordered[base_tasks:].tolist())
