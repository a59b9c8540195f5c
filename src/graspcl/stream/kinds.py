"""Kinds of streams: how the samples of a data set become a base and sessions.

Each kind is a subclass of `Stream` that takes `indices` [N], `labels` [N], `rng` and the parameters it names.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Annotated

import numpy as np

from graspcl.checks import Array, Count, Natural, Range, aligned, checked
from graspcl.errors import GraspError
from graspcl.stream.stream import Stream, streams

Numbers = Sequence[int] | Array
Blurry = Annotated[float, Range(0, 1, below=True)]
Imbalance = Annotated[float, Range(1)]


@streams.register("class_incremental")
@checked
class ClassIncremental(Stream):
    """`base_classes` classes first, then the others in `sessions` groups of nearly equal size.

    Classes arrive in `order`, or in a random order drawn from `rng`. Samples of a session are shuffled. `home` maps
    each class to its session; base classes have 0.

    With `blurry` above 0, class boundaries blur as in i-Blurry without disjoint classes. Of the n samples of each
    session, round(blurry · n) are drawn at random, pooled, shuffled and dealt out again to the places they left.
    Sessions keep their sizes and the base is untouched. On average blurry · (1 − n / N) of a session's samples come
    from other sessions, where N counts the samples of all sessions. Nearly every class then arrives in the first
    session, so `home` differs from `arrival`.

    >>> labels = np.repeat(np.arange(6), 10)
    >>> stream = ClassIncremental(np.arange(60), labels, base_classes=2, sessions=2, rng=np.random.default_rng(0))
    >>> len(stream.base), [len(s) for s in stream.sessions], sorted(stream.arrival.values())
    (20, [20, 20], [0, 0, 1, 1, 2, 2])
    """

    def __init__(
        self, indices: Numbers, labels: Numbers, base_classes: Natural, sessions: Count, rng: np.random.Generator,
        order: Numbers | None = None, chunk: Count = 512, blurry: Blurry = 0.0,
    ) -> None:  # fmt: skip
        indices, labels = _samples(indices, labels)
        classes = np.unique(labels)
        ordered = rng.permutation(classes) if order is None else in_order(classes, order)
        if sessions > len(ordered) - base_classes:
            parts = f"{base_classes} base classes and {sessions} sessions of at least one new class each"
            remedy = "set --stream.base_classes and --stream.sessions to less"
            raise GraspError(f"{len(classes)} classes cannot be split into {parts}; {remedy}")
        groups = [ordered[:base_classes], *np.array_split(ordered[base_classes:], sessions)]
        base, *rest = (rng.permutation(group) for group in _grouped(indices, labels, groups))
        if blurry:
            rest = exchanged(rest, blurry, rng)
        home = {int(label): number for number, group in enumerate(groups) for label in group}
        super().__init__(base, rest, chunk, _by_index(indices, labels), home=home)


def exchanged(sessions: Sequence[Array], share: float, rng: np.random.Generator) -> list[Array]:
    """Exchange a share of the samples among sessions at random; sessions keep their sizes."""
    samples = np.concatenate(sessions)
    sizes = [len(session) for session in sessions]
    starts = np.cumsum([0, *sizes[:-1]])
    drawn = [rng.choice(size, round(share * size), replace=False) for size in sizes]
    places = np.concatenate([start + some for start, some in zip(starts, drawn, strict=True)])
    samples[places] = samples[rng.permutation(places)]
    return np.split(samples, starts[1:])


@streams.register("iid")
@checked
class IID(Stream):
    """`base_classes` classes first, then the samples of all others, shuffled, in `sessions` of nearly equal size.

    The base equals that of `class_incremental` with the same `rng` and `order`.

    >>> labels = np.repeat(np.arange(6), 10)
    >>> stream = IID(np.arange(60), labels, base_classes=2, sessions=3, rng=np.random.default_rng(0))
    >>> len(stream.base), [len(s) for s in stream.sessions]
    (20, [14, 13, 13])
    """

    def __init__(
        self, indices: Numbers, labels: Numbers, base_classes: Natural, sessions: Count, rng: np.random.Generator,
        order: Numbers | None = None, chunk: Count = 512,
    ) -> None:  # fmt: skip
        indices, labels = _samples(indices, labels)
        classes = np.unique(labels)
        ordered = rng.permutation(classes) if order is None else in_order(classes, order)
        base, rest = _grouped(indices, labels, [ordered[:base_classes], ordered[base_classes:]])
        if sessions > len(rest):
            beside = f"{len(rest)} samples beside the {base_classes} base classes"
            raise GraspError(f"{beside} cannot be split into {sessions} sessions")
        base, rest = rng.permutation(base), rng.permutation(rest)
        super().__init__(base, np.array_split(rest, sessions), chunk, _by_index(indices, labels))


@streams.register("long_tailed")
@checked
class LongTailed(ClassIncremental):
    """Classes thinned to an exponential profile that then arrive as in `class_incremental`.

    `imbalance` is the size of the largest class over that of the smallest; `long_tail` has the formula. The ranking
    of classes is drawn from `rng`, or given by `largest_first`. Without `imbalance` no sample is removed, for data
    sets that are long-tailed already (Places-LT). `counts` holds the resulting size of each class.

    >>> labels = np.repeat(np.arange(3), 100)
    >>> stream = LongTailed(np.arange(300), labels, 0, 3, np.random.default_rng(0), imbalance=100)
    >>> sorted(stream.counts.values())
    [1, 10, 100]
    """

    def __init__(
        self, indices: Numbers, labels: Numbers, base_classes: Natural, sessions: Count, rng: np.random.Generator,
        order: Numbers | None = None, chunk: Count = 512, blurry: Blurry = 0.0, imbalance: Imbalance | None = None,
        largest_first: Numbers | None = None,
    ) -> None:  # fmt: skip
        indices, labels = _samples(indices, labels)
        if imbalance is not None:
            kept = thinned(labels, imbalance, rng, largest_first)
            indices, labels = indices[kept], labels[kept]
        elif largest_first is not None:
            raise GraspError("largest_first ranks the classes that imbalance thins out: give an imbalance too")
        super().__init__(indices, labels, base_classes, sessions, rng, order, chunk, blurry)


def thinned(labels: Array, imbalance: float, rng: np.random.Generator, largest_first: Numbers | None = None) -> Array:
    """Choose the positions [n], ascending, of the samples with `labels` [N] that stay; random within each class."""
    classes, position, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    ranked = rng.permutation(classes) if largest_first is None else in_order(classes, largest_first)
    rank = np.searchsorted(classes, ranked)
    keep = np.empty_like(sizes)
    keep[rank] = long_tail(sizes[rank], imbalance)
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(position[shuffled], kind="stable")]
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # 0, 1, … within each class
    return np.sort(by_class[place < np.repeat(keep, sizes)])


@checked
def long_tail(sizes: Array, imbalance: Imbalance) -> Array:
    """Return how many samples classes of these sizes [K] keep; the first becomes the largest.

    Class k = 0 … K−1 keeps round(n_max · imbalance^(−k/(K−1))) samples, where n_max is the largest size; at least
    one, and at most what it has.

    >>> long_tail(np.array([100, 100, 5, 100]), 100)
    array([100,  22,   5,   1])
    """
    rank = np.arange(len(sizes)) / max(1, len(sizes) - 1)
    profile = np.rint(sizes.max() * float(imbalance) ** -rank).astype(np.int64)
    kept: Array = np.minimum(np.maximum(profile, 1), sizes)
    return kept


@streams.register("task_incremental")
@checked
class TaskIncremental(Stream):
    """One session per task, samples in random order.

    `task_of` [N] is the task of each sample, for example the number of its data set. Tasks may share classes, as Yelp
    and Amazon share their five stars. Tasks arrive in `task_order`, by default by ascending number; the first
    `base_tasks` of them are the base. `tasks` lists the task of each session.

    >>> labels, task_of = np.array([0, 1, 0, 1, 2, 2]), np.array([0, 0, 1, 1, 2, 2])
    >>> stream = TaskIncremental(np.arange(6), labels, task_of, np.random.default_rng(0), task_order=[2, 0, 1])
    >>> stream.tasks, [sorted(session.tolist()) for session in stream.sessions]
    ([2, 0, 1], [[4, 5], [0, 1], [2, 3]])
    >>> [stream.arrival[label] for label in range(3)]
    [2, 2, 1]
    """

    def __init__(
        self, indices: Numbers, labels: Numbers, task_of: Numbers, rng: np.random.Generator,
        task_order: Numbers | None = None, chunk: Count = 512, base_tasks: Natural = 0,
    ) -> None:  # fmt: skip
        indices, labels = _samples(indices, labels)
        _, task_of = _samples(indices, task_of, "task_of")
        tasks = np.unique(task_of)
        ordered = tasks if task_order is None else in_order(tasks, task_order, "task")
        if base_tasks >= len(ordered):
            raise GraspError(f"{len(tasks)} tasks cannot be split into {base_tasks} base tasks and a session or more")
        groups = [ordered[:base_tasks], *np.split(ordered[base_tasks:], len(ordered) - base_tasks)]
        base, *rest = (rng.permutation(group) for group in _grouped(indices, task_of, groups))
        super().__init__(base, rest, chunk, _by_index(indices, labels), tasks=ordered[base_tasks:].tolist())


# -- what the kinds share ----------------------------------------------------------------------------------------------


def in_order(present: Array, order: Numbers, what: str = "class") -> Array:
    """Return `order` [K] as an array; refuse it unless it names each of the numbers `present` [K] once."""
    ordered = np.asarray(order)
    if ordered.ndim != 1 or ordered.dtype.kind not in "iu":
        raise GraspError(f"the {what} order must be a list of {what} numbers, got {reprlib.repr(order)}")
    if np.array_equal(np.sort(ordered), present):
        return ordered
    names, repeats = np.unique(ordered, return_counts=True)
    wrong = {
        "missing": np.setdiff1d(present, names),
        "not in the data": np.setdiff1d(names, present),
        "more than once": names[repeats > 1],
    }
    few = {reason: reprlib.repr(values.tolist())[1:-1] for reason, values in wrong.items()}
    reasons = "; ".join(f"{reason}: {values}" for reason, values in few.items() if values)
    raise GraspError(f"the {what} order must name each of {len(present)} {what} numbers once; {reasons}")


def _samples(indices: Numbers, numbers: Numbers, what: str = "labels") -> tuple[Array, Array]:
    """Return indices [N] and one number per sample (its class or task) as arrays."""
    indices, numbers = aligned(**{"indices": indices, what: numbers})
    if not len(indices):
        raise GraspError("a stream needs at least one sample")
    for name, values in (("indices", indices), (what, numbers)):
        if values.dtype.kind not in "iu":
            raise GraspError(f"the {name} of a stream must be whole numbers, got {values.dtype}")
    if indices.min() < 0:
        raise GraspError(f"the indices of a stream must be 0 or more, got {indices.min()}")
    return indices, numbers


def _grouped(indices: Array, numbers: Array, groups: Sequence[Array]) -> list[Array]:
    """Return the samples at `indices` [N] whose numbers [N] are in each group; groups partition the numbers."""
    present, position = np.unique(numbers, return_inverse=True)
    group = np.empty(len(present), np.int64)
    for place, own in enumerate(groups):
        group[np.searchsorted(present, own)] = place
    ends = np.cumsum(np.bincount(group[position], minlength=len(groups)))[:-1]
    return np.split(indices[np.argsort(group[position], kind="stable")], ends)


def _by_index(indices: Array, labels: Array) -> Array:
    """Return labels as a table [largest index + 1] to look up by index, -1 where there is no sample."""
    table = np.full(indices.max() + 1, -1)
    table[indices] = labels
    return table
