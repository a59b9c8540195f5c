"""What the kinds of streams share: samples checked and put into groups."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError, expect
from graspcl.stream.stream import Stream, streams, whole


def checked_samples(
    indices: Sequence[int] | Array, numbers: Sequence[int] | Array, what: str = "label"
) -> tuple[Array, Array]:
    """Indices [N] of samples and a number for each (its class, its task), as arrays; refused if they do not fit.

    >>> checked_samples([3, 4], [0])
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: a stream needs one label for each sample, not shapes (2,) and (1,)
    """
    indices, numbers = np.asarray(indices), np.asarray(numbers)
    if indices.ndim != 1 or indices.shape != numbers.shape:
        raise GraspError(f"a stream needs one {what} for each sample, not shapes {indices.shape} and {numbers.shape}")
    if not len(indices):
        raise GraspError("a stream needs at least one sample")
    for name, values in (("indices", indices), (f"{what}s", numbers)):
        if values.dtype.kind not in "iu":
            raise GraspError(f"the {name} of a stream must be whole numbers, not {values.dtype}")
    if indices.min() < 0:
        raise GraspError(f"a stream has indices from 0 on, not {indices.min()}")
    return indices, numbers


def in_order(present: Array, order: Sequence[int] | Array, what: str = "class") -> Array:
    """A given order [K] of the numbers `present` [K]; refused unless it names each of them once.

    >>> in_order(np.array([1, 2]), [2, 1])
    array([2, 1])
    >>> in_order(np.array([1, 2]), [2, 3])
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: the class order must name each of the 2 classes once; missing: 1; not in the data: 3
    """
    ordered = np.asarray(order)
    if ordered.ndim != 1 or ordered.dtype.kind not in "iu":
        raise GraspError(f"the {what} order must be a list of {what} numbers, not {reprlib.repr(order)}")
    if np.array_equal(np.sort(ordered), present):
        return ordered
    names, repeats = np.unique(ordered, return_counts=True)
    wrong = {
        "missing": np.setdiff1d(present, names),
        "not in the data": np.setdiff1d(names, present),
        "more than once": names[repeats > 1],
    }
    reasons = "; ".join(f"{reason}: {_some(values)}" for reason, values in wrong.items() if len(values))
    plural = "classes" if what == "class" else f"{what}s"
    raise GraspError(f"the {what} order must name each of the {len(present)} {plural} once; {reasons}")


def ordered_classes(
    labels: Array, base_classes: int, order: Sequence[int] | Array | None, rng: np.random.Generator
) -> Array:
    """All classes in their order [K], drawn from `rng` unless given, of which `base_classes` can be the base.

    >>> ordered_classes(np.array([4, 4, 2]), 1, [4, 2], np.random.default_rng(0))
    array([4, 2])
    """
    classes = np.unique(labels)
    ordered: Array = rng.permutation(classes) if order is None else in_order(classes, order)
    if not 0 <= whole("base_classes", base_classes) <= len(classes):
        raise GraspError(f"{len(classes)} classes cannot be split: {base_classes} base classes are not among them")
    return ordered


def grouped(indices: Array, numbers: Array, groups: Sequence[Array]) -> list[Array]:
    """The samples at `indices` [N] whose numbers [N] are in each of the groups, which share the numbers out.

    >>> grouped(np.array([10, 11, 12, 13]), np.array([5, 6, 7, 5]), [np.array([6]), np.array([5, 7])])
    [array([11]), array([10, 12, 13])]
    """
    present, position = np.unique(numbers, return_inverse=True)
    group = np.empty(len(present), np.int64)
    sizes = [len(each) for each in groups]
    group[np.searchsorted(present, np.concatenate(groups))] = np.repeat(np.arange(len(groups)), sizes)
    of_sample = group[position]
    ends = np.cumsum(np.bincount(of_sample, minlength=len(groups)))[:-1]
    return np.split(indices[np.argsort(of_sample, kind="stable")], ends)


def by_index(indices: Array, labels: Array) -> Array:
    """Labels as a table [largest index + 1] that is read by index, -1 where there is no sample.

    >>> by_index(np.array([3, 1]), np.array([7, 8]))
    array([-1,  8, -1,  7])
    """
    table = np.full(indices.max() + 1, -1)
    table[indices] = labels
    return table


def _some(values: Array, most: int = 5) -> str:
    shown = ", ".join(str(value) for value in values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"


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


@streams.register("long_tailed")
class LongTailed(ClassIncremental):
    """Classes thinned to an exponential profile, then arriving as in `class_incremental`, with its parameters.

    `imbalance` is the size of the largest class over that of the smallest (`long_tail` has the formula). Which class
    is large is drawn from `rng`, or given by `largest_first`, the classes from the largest to the smallest. Without
    `imbalance` the samples are taken as they are: some data sets are long-tailed from the start (Places-LT). `counts`
    has what is left of each class.

    >>> labels = np.repeat(np.arange(3), 100)
    >>> stream = LongTailed(np.arange(300), labels, 0, 3, np.random.default_rng(0), imbalance=100)
    >>> sorted(stream.counts.values())
    [1, 10, 100]
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
        imbalance: float | None = None,
        largest_first: Sequence[int] | Array | None = None,
    ) -> None:
        indices, labels = checked_samples(indices, labels)
        if imbalance is not None:
            kept = thinned(labels, imbalance, rng, largest_first)
            indices, labels = indices[kept], labels[kept]
        elif largest_first is not None:
            raise GraspError("largest_first says which classes imbalance leaves large: give an imbalance too")
        super().__init__(indices, labels, base_classes, sessions, rng, order, chunk, blurry)


def thinned(
    labels: Array, imbalance: float, rng: np.random.Generator, largest_first: Sequence[int] | Array | None = None
) -> Array:
    """Positions [n], ascending, of the samples with `labels` [N] that stay; which ones of a class is drawn at random.

    >>> labels = np.repeat([0, 1], 4)
    >>> labels[thinned(labels, 2, np.random.default_rng(0), largest_first=[1, 0])]
    array([0, 0, 1, 1, 1, 1])
    """
    classes, position, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    ranked = rng.permutation(classes) if largest_first is None else in_order(classes, largest_first)
    rank = np.searchsorted(classes, ranked)
    keep = np.empty_like(sizes)
    keep[rank] = long_tail(sizes[rank], imbalance)
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(position[shuffled], kind="stable")]
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # 0, 1, … within each class
    return np.sort(by_class[place < np.repeat(keep, sizes)])


def long_tail(sizes: Array, imbalance: float) -> Array:
    """How many samples classes of these sizes [K] keep, the first becoming the largest.

    Class k = 0 … K−1 keeps round(n_max · imbalance^(−k/(K−1))), n_max being the largest of the sizes; at least one,
    and never more than it has.

    >>> long_tail(np.array([100, 100, 5, 100]), 100)
    array([100,  22,   5,   1])
    """
    expect("imbalance", imbalance, float)
    if imbalance < 1:
        raise GraspError(f"imbalance is the largest class over the smallest, 1 or more, not {imbalance}")
    rank = np.arange(len(sizes)) / max(1, len(sizes) - 1)
    profile = np.rint(sizes.max() * float(imbalance) ** -rank).astype(np.int64)
    kept: Array = np.minimum(np.maximum(profile, 1), sizes)
    return kept


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
