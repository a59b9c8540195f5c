"""Independent, identically distributed arrival after the base classes (paper, continual IID learning)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graspcl.errors import GraspError
from graspcl.stream.base import Stream, streams, whole
from graspcl.stream.groups import by_index, checked_samples, grouped, ordered_classes

Array = np.ndarray[Any, Any]


@streams.register("iid")
class IID(Stream):
    """`base_classes` classes first, then the samples of all others, shuffled, in `sessions` of (nearly) equal size.

    The base is the one `class_incremental` has with the same `rng` and `order`.

    >>> labels = np.repeat(np.arange(6), 10)
    >>> stream = IID(np.arange(60), labels, base_classes=2, sessions=3, rng=np.random.default_rng(0))
    >>> len(stream.base), [len(s) for s in stream.sessions]
    (20, [14, 13, 13])
    """

    def __init__(
        self,
        indices: Array,
        labels: Array,
        base_classes: int,
        sessions: int,
        rng: np.random.Generator,
        order: Sequence[int] | Array | None = None,
        chunk: int = 512,
    ) -> None:
        indices, labels = checked_samples(indices, labels)
        ordered = ordered_classes(labels, base_classes, order, rng)
        base, rest = grouped(indices, labels, [ordered[:base_classes], ordered[base_classes:]])
        if not 1 <= whole("sessions", sessions) <= len(rest):
            raise GraspError(
                f"{len(rest)} samples beside the {base_classes} base classes cannot be split into {sessions} sessions"
            )
        base, rest = rng.permutation(base), rng.permutation(rest)
        super().__init__(base, np.array_split(rest, sessions), chunk, by_index(indices, labels))
