"""Class-incremental arrival: every session brings classes never seen before, unless their boundaries are blurred."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graspcl.errors import GraspError, expect
from graspcl.stream.base import Stream, streams, whole
from graspcl.stream.groups import by_index, checked_samples, grouped, ordered_classes

Array = np.ndarray[Any, Any]


@streams.register("class_incremental")
class ClassIncremental(Stream):
    """`base_classes` classes first, the others in `sessions` groups of (nearly) equal size, samples in random order.

    `labels` [N] are the classes of the samples at `indices` [N] of a data set. Classes come in a random order drawn
    from `rng`, or in `order`. `home` tells for each class the session it belongs to; base classes have 0.

    With `blurry` above 0 (and below 1) class boundaries blur, as in i-Blurry without disjoint classes: of the n samples
    of each session, round(blurry · n) drawn at random are put together, shuffled, and dealt out again into the places
    they left. Sessions keep their sizes and the base is untouched. A sample may fall back to its own session, so that
    on average blurry · (1 − n / N) of a session's samples come from others, N being the samples of all sessions.
    Nearly every class then arrives in the first session: `home` differs from `arrival`.

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
        order: Sequence[int] | Array | None = None,
        chunk: int = 512,
        blurry: float = 0.0,
    ) -> None:
        expect("blurry", blurry, float)
        if not 0 <= blurry < 1:
            raise GraspError(f"blurry is a share of 0 or more and less than 1, not {blurry}")
        indices, labels = checked_samples(indices, labels)
        ordered = ordered_classes(labels, base_classes, order, rng)
        if not 1 <= whole("sessions", sessions) <= len(ordered) - base_classes:
            raise GraspError(
                f"{len(ordered)} classes cannot be split into {base_classes} base classes and {sessions} sessions "
                "of at least one new class each"
            )
        groups = [ordered[:base_classes], *np.array_split(ordered[base_classes:], sessions)]
        base, *rest = (rng.permutation(group) for group in grouped(indices, labels, groups))
        if blurry:
            rest = exchanged(rest, blurry, rng)
        super().__init__(base, rest, chunk, by_index(indices, labels))
        self._settle({int(label): number for number, group in enumerate(groups) for label in group})


def exchanged(sessions: Sequence[Array], share: float, rng: np.random.Generator) -> list[Array]:
    """Sessions of samples of which a share has been exchanged among them at random.

    >>> [len(session) for session in exchanged([np.arange(4), np.arange(4, 10)], 0.5, np.random.default_rng(0))]
    [4, 6]
    """
    samples = np.concatenate(sessions)
    sizes = [len(session) for session in sessions]
    begins = np.cumsum([0, *sizes[:-1]])
    drawn = [rng.choice(size, round(share * size), replace=False) for size in sizes]
    places = np.concatenate([begin + some for begin, some in zip(begins, drawn, strict=True)])
    samples[places] = samples[rng.permutation(places)]
    return np.split(samples, begins[1:])
