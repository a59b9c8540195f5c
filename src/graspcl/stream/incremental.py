"""Class-incremental arrival: every session brings classes never seen before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graspcl.errors import GraspError
from graspcl.stream.base import Stream, streams

Array = np.ndarray[Any, Any]


@streams.register("class_incremental")
class ClassIncremental(Stream):
    """`base_classes` classes first, the others in `sessions` groups of (nearly) equal size, samples in random order.

    `labels` [N] are the classes of the samples at `indices` [N] of a data set. Classes come in a random order drawn
    from `rng`, or in `order`. `arrival` tells for each class the session that brings it; base classes have 0.

    >>> labels = np.repeat(np.arange(6), 10)
    >>> stream = ClassIncremental(np.arange(60), labels, base_classes=2, sessions=2, rng=np.random.default_rng(0))
    >>> len(stream.base), [len(s) for s in stream.sessions], sorted(stream.arrival.values())
    (20, [20, 20], [0, 0, 1, 1, 2, 2])
    """

    def __init__(
        self,
        indices: Array,
        labels: Array,
        base_classes: int,
        sessions: int,
        rng: np.random.Generator,
        order: Sequence[int] | None = None,
        chunk: int = 512,
    ) -> None:
        indices, labels = np.asarray(indices), np.asarray(labels)
        classes = np.unique(labels)
        ordered = rng.permutation(classes) if order is None else np.asarray(order)
        if not np.array_equal(np.sort(ordered), classes):
            raise GraspError(f"the class order must name each of the {len(classes)} classes once")
        coming = len(classes) - base_classes
        if base_classes < 0 or sessions < 1 or coming < sessions:
            raise GraspError(
                f"{len(classes)} classes cannot be split into {base_classes} base classes and {sessions} sessions "
                "of at least one new class each"
            )
        groups = [ordered[:base_classes], *np.array_split(ordered[base_classes:], sessions)]
        self.arrival = {int(label): number for number, group in enumerate(groups) for label in group}
        base, *rest = (rng.permutation(indices[np.isin(labels, group)]) for group in groups)
        super().__init__(base, rest, chunk)
