"""Choose samples class by class: rank them, hold some out for testing, take a subset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from graspcl.checks import Count, Natural, checked
from graspcl.data.samples import Batch, Codes, Int64s, Samples, few
from graspcl.errors import GraspError
from graspcl.random import generator


def rank_in_class(labels: Int64s, keys: Int64s | None = None) -> Int64s:
    """Return the rank of each sample within its class, from 0: [n].

    A class is sorted by `keys` [n], and samples with equal keys share a rank. Without keys it is sorted by position.

    >>> rank_in_class(np.array([5, 5, 7, 5]), keys=np.array([9, 4, 3, 9])).tolist()
    [1, 0, 0, 1]
    """
    size = len(labels)
    group = np.unique(labels, return_inverse=True)[1]
    place = np.arange(size) if keys is None else np.unique(keys, return_inverse=True)[1]
    pairs, pair = np.unique(group * size + place, return_inverse=True)
    group_of_pair = pairs // max(size, 1)
    ranks: Int64s = (np.arange(len(pairs)) - np.searchsorted(group_of_pair, group_of_pair))[pair]
    return ranks


def held_out(labels: Int64s, keys: Int64s, share: float, per_class: int | None = None) -> NDArray[np.bool_]:
    """Choose test samples, as a mask [n]: in each class those with the smallest keys.

    A positive `share` of a class is at least one sample, but never the last. `per_class` sets the number instead.
    Samples with equal keys count once and stay together.
    """
    rank = rank_in_class(labels, keys)
    sizes = np.zeros(labels.max(initial=-1) + 1, np.int64)
    np.maximum.at(sizes, labels, rank + 1)
    asked = np.maximum(np.round(share * sizes), share > 0) if per_class is None else np.full(len(sizes), per_class)
    mask: NDArray[np.bool_] = rank < np.minimum(asked, sizes - 1)[labels]
    return mask


def rows_of_split(labels: Int64s, ids: Int64s, train: Int64s, test: Int64s) -> tuple[Int64s, dict[str, Any]]:
    """Return the rows that are in a split, ascending, and the arrays of `Samples` that has these rows alone."""
    rows = np.sort(np.concatenate([train, test]))
    places = {"train": np.searchsorted(rows, train), "test": np.searchsorted(rows, test)}
    return rows, {"labels": labels[rows], "ids": ids[rows], **places}


class View(Samples[Batch]):
    """Some rows of another source, `samples`, which are read from there."""

    samples: Samples[Batch]
    _rows: Int64s

    def _look_at(self, samples: Samples[Batch], rows: Int64s) -> None:
        self.samples, self._rows = samples, rows
        self.whole, self.own_test = samples.whole, samples.own_test

    def read(self, indices: ArrayLike) -> Batch:
        return self.samples.read(self.rows(indices))

    def read_some(self, indices: ArrayLike) -> tuple[Batch, Int64s, list[str]]:
        return self.samples.read_some(self.rows(indices))

    def encoded_some(self, indices: ArrayLike) -> tuple[Codes, Int64s, list[str]]:
        return self.samples.encoded_some(self.rows(indices))

    def title(self, index: int) -> str:
        return self.samples.title(int(self.rows([index])[0]))

    def rows(self, indices: ArrayLike) -> Int64s:
        """Return the indices in the source of the samples at `indices` [n]."""
        rows: Int64s = self._rows[self.check(indices)]
        return rows


class Validation(View[Batch]):
    """The training samples of a source alone: a `share` of each class to test on, the others to train on.

    Settings that are chosen on them know nothing of the source's test samples, which are left out. The samples are
    drawn at random, always the same. A class keeps at least one training sample.

    >>> from graspcl.data import Groceries
    >>> photos = Groceries()
    >>> held = Validation(photos, 0.25)
    >>> len(photos.train), len(held.train), len(held.test)
    (732, 548, 184)
    """

    def __init__(self, samples: Samples[Batch], share: float) -> None:
        labels = samples.labels[samples.train]
        held = held_out(labels, generator(0, "validation").permutation(len(labels)), share)
        parts = samples.train[~held], samples.train[held]
        rows, arrays = rows_of_split(samples.labels, samples.ids, *parts)
        self._look_at(samples, rows)
        options = {**samples.options, "validation": share}
        super().__init__(samples.name, samples.version, samples.classes, **arrays, options=options)
        self.problems = samples.problems
        if (task_of := getattr(samples, "task_of", None)) is not None:
            self.task_of, self.tasks = task_of[rows], getattr(samples, "tasks", None)


@checked
class Subset(View[Batch]):
    """Some classes of a source, and some samples of each.

    Classes keep their order and get new labels. Samples keep their order, ids and split; samples of neither split are
    left out. With an equal `rng`, the samples drawn from a class do not depend on the other classes, and a smaller
    draw is part of a larger one. Every class needs training samples; test samples may be missing.

    Args:
        samples: the source.
        classes: labels of the classes to keep, in any order. None: all.
        per_class: maximum number of training samples per class. None: all.
        test_per_class: maximum number of test samples per class. None: all.
        rng: generator for the draws.

    >>> from graspcl.data import Groceries
    >>> Subset(Groceries(), classes=[2, 1], per_class=5, rng=np.random.default_rng(0)).classes
    ['Cantaloupe', 'Conference']
    """

    def __init__(
        self,
        samples: Samples[Batch],
        classes: Sequence[int] | Int64s | None = None,
        per_class: Count | None = None,
        test_per_class: Natural | None = None,
        *,
        rng: np.random.Generator,
    ) -> None:
        chosen = every = np.arange(len(samples.classes))
        if classes is not None:
            labels = np.asarray(classes)
            chosen = np.intersect1d(labels, every).astype(np.int64) if labels.dtype.kind in "iu" else every[:0]
            if labels.ndim != 1 or not labels.size or len(chosen) < len(labels):
                valid = f"different labels in 0..{len(every) - 1}"
                raise GraspError(f"{samples.name}: classes must be {valid}, got {classes!r}")
        new_label = np.full(len(samples.classes), -1)
        new_label[chosen] = np.arange(len(chosen))
        train = _draw(samples.train, samples.labels, new_label, per_class, rng)
        test = _draw(samples.test, samples.labels, new_label, test_per_class, rng)
        if (bare := np.setdiff1d(chosen, samples.labels[train])).size:
            names = few([samples.classes[label] for label in bare])
            raise GraspError(f"{samples.name} has classes without training samples: {names}; choose other classes")
        rows, arrays = rows_of_split(new_label[samples.labels], samples.ids, train, test)
        self._look_at(samples, rows)
        choice = {"classes": chosen.tolist(), "per_class": per_class, "test_per_class": test_per_class}
        super().__init__(
            name=samples.name,
            version=samples.version,
            classes=[samples.classes[label] for label in chosen],
            **arrays,
            options={**samples.options, "subset": [*samples.options.get("subset", []), choice]},
            problems=samples.problems,
        )


def take(
    samples: Samples[Batch],
    order: Int64s,
    classes: int | None = None,
    per_class: int | None = None,
    test_per_class: int | None = None,
) -> tuple[Samples[Batch], Int64s]:
    """Reduce the samples of a run: keep the first `classes` of `order`, and some samples of each, as in `Subset`.

    Returns:
        The samples that remain, and their new labels in the order in which classes arrive.

    >>> from graspcl.data import Groceries
    >>> photos, order = take(Groceries(), np.arange(14)[::-1], classes=2, per_class=5)
    >>> photos.classes, order.tolist(), len(photos.train)
    (['Satsumas', 'Watermelon'], [1, 0], 10)
    """
    if (classes, per_class, test_per_class) == (None, None, None):
        return samples, order
    if classes is not None and classes > len(order):
        raise GraspError(f"--data.classes {classes}: {samples.name} has only {len(order)} classes")
    chosen = order[:classes]
    # The same samples for every seed, so that runs share cached latents.
    rng = generator(0, "subset")
    return Subset(samples, np.sort(chosen), per_class, test_per_class, rng=rng), np.argsort(np.argsort(chosen))


def _draw(indices: Int64s, labels: Int64s, new_label: Int64s, limit: int | None, rng: np.random.Generator) -> Int64s:
    """Draw at most `limit` of `indices` from each chosen class, and keep their order."""
    # Always shuffle all of them, so that a draw depends on nothing but the generator.
    shuffled = rng.permutation(np.sort(indices))
    kept = new_label[labels[shuffled]] >= 0
    if limit is not None:
        kept &= rank_in_class(labels[shuffled]) < limit
    return indices[np.isin(indices, shuffled[kept])]
