"""A stream in a few words, session by session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graspcl.errors import GraspError
from graspcl.stream.base import Stream

Array = np.ndarray[Any, Any]


def describe(stream: Stream, class_names: Sequence[str] | None = None, few: int = 3) -> list[dict[str, Any]]:
    """One row for the base (session 0, if there is one) and for each session, as plain values.

    A row has `session`, `task` (if sessions are tasks), `samples`, and, if labels are known, `classes` and
    `new_classes` (how many), `first_new` (the names of the first `few` of the new ones), and `largest`,
    `largest_samples`, `smallest`, `smallest_samples`: the names and sizes of two classes within the session. Class k
    is called `class_names[k]`, or else by its number.

    >>> stream = Stream([0, 1], [[2, 3, 4]], labels=[0, 0, 1, 2, 2])
    >>> for row in describe(stream, ["ant", "bee", "cat"]):
    ...     print(list(row.values()))
    [0, 2, 1, 1, ['ant'], 'ant', 2, 'ant', 2]
    [1, 3, 2, 2, ['bee', 'cat'], 'cat', 2, 'bee', 1]
    """
    names = _names(stream, class_names)
    groups = [stream.base, *stream.sessions]
    labels = None if stream.labels is None else np.split(stream.labels, np.cumsum([len(group) for group in groups]))
    rows = []
    for session, group in enumerate(groups):
        row: dict[str, Any] = {"session": session}
        if stream.tasks is not None:
            row["task"] = stream.tasks[session - 1] if session else None
        row["samples"] = len(group)
        if labels is not None:
            new = [names[label] for label, first in stream.arrival.items() if first == session]
            row |= _classes(labels[session], names) | {"new_classes": len(new), "first_new": new[:few]}
        rows.append(row)
    return rows if len(stream.base) else rows[1:]


def _names(stream: Stream, class_names: Sequence[str] | None) -> dict[int, str]:
    if class_names is None:
        return {label: str(label) for label in stream.counts}
    for label in stream.counts:
        if not 0 <= label < len(class_names):
            raise GraspError(f"the stream has a class {label}, but there are {len(class_names)} class names")
    return {label: class_names[label] for label in stream.counts}


def _classes(labels: Array, names: dict[int, str]) -> dict[str, Any]:
    """Columns in the order of the docstring above; those of new classes are to be filled in."""
    classes, sizes = np.unique(labels, return_counts=True)
    row: dict[str, Any] = {"classes": len(classes), "new_classes": 0, "first_new": []}
    for which, pick in (("largest", np.argmax), ("smallest", np.argmin)):
        at = int(pick(sizes)) if len(sizes) else None  # a session may be empty
        row[which] = None if at is None else names[int(classes[at])]
        row[f"{which}_samples"] = 0 if at is None else int(sizes[at])
    return row
