"""Some classes of a source, and some samples of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from graspcl.data.base import Batch, Codes, Int64s, Samples
from graspcl.data.stored import few
from graspcl.errors import GraspError


class Subset(Samples[Batch]):
    """The given `classes` (labels of `samples`; None: all) with at most `per_class` samples of each to train on and
    `test_per_class` to test on (None: all), drawn with `rng`.

    Classes keep their order, whatever the order of `classes`, and are numbered anew. Samples keep order, ids and split;
    those of neither split are left out. With an equal `rng`, the samples drawn of a class are the same whichever other
    classes there are, and a smaller number of them is part of a larger one. A class may be left without samples to
    test on, but not to train on. `samples` is the source itself.

    >>> class Words(Samples[list[str]]):
    ...     def read(self, indices):
    ...         return [["ant", "bee", "cod", "dab", "emu"][i] for i in self.check(indices)]
    >>> words = Words("words", "1", ["insect", "fish", "bird"], [0, 0, 1, 1, 2], [5, 6, 7, 8, 9], [0, 1, 2, 4], [3])
    >>> some = Subset(words, classes=[2, 1], rng=np.random.default_rng(0))
    >>> some.classes, some.labels.tolist(), some.read(some.train), some.read(some.test)
    (['fish', 'bird'], [0, 0, 1], ['cod', 'emu'], ['dab'])
    """

    def __init__(
        self,
        samples: Samples[Batch],
        classes: Sequence[int] | Int64s | None = None,
        per_class: int | None = None,
        test_per_class: int | None = None,
        *,
        rng: np.random.Generator,
    ) -> None:
        for option, limit, least in (("per_class", per_class, 1), ("test_per_class", test_per_class, 0)):
            if limit is not None and limit < least:
                raise GraspError(f"{samples.name}: {option} must be at least {least}, not {limit}")
        chosen = _chosen(samples, classes)
        row_of = np.full(len(samples.classes), -1)
        row_of[chosen] = np.arange(len(chosen))
        train = _drawn(samples.train, samples.labels, row_of, per_class, rng)
        test = _drawn(samples.test, samples.labels, row_of, test_per_class, rng)
        _refuse_untrained(samples, chosen, train)
        self.samples, self.whole = samples, samples.whole
        self._rows = np.sort(np.concatenate([train, test]))
        earlier = samples.options.get("subset", [])
        choice = {"classes": chosen.tolist(), "per_class": per_class, "test_per_class": test_per_class}
        super().__init__(
            name=samples.name,
            version=samples.version,
            classes=[samples.classes[label] for label in chosen],
            labels=row_of[samples.labels[self._rows]],
            ids=samples.ids[self._rows],
            train=np.searchsorted(self._rows, train),
            test=np.searchsorted(self._rows, test),
            options={**samples.options, "subset": [*(earlier if isinstance(earlier, list) else []), choice]},
            problems=samples.problems,
        )

    def read(self, indices: ArrayLike) -> Batch:
        """The contents of the samples at `indices` [n]."""
        return self.samples.read(self._inner(indices))

    def read_some(self, indices: ArrayLike) -> tuple[Batch, Int64s, list[str]]:
        """What can be read of the samples at `indices` [n], which ones, and what is wrong with the others."""
        return self.samples.read_some(self._inner(indices))

    def encoded(self, indices: ArrayLike) -> list[bytes]:
        """The image files at `indices` [n], byte for byte."""
        return self.samples.encoded(self._inner(indices))

    def encoded_some(self, indices: ArrayLike) -> tuple[Codes, Int64s, list[str]]:
        """What can be opened of the images at `indices` [n], which ones, and what is wrong with the others."""
        return self.samples.encoded_some(self._inner(indices))

    def path(self, index: int) -> Path | None:
        """Where the image at `index` lies; None if it is no file by itself."""
        return self.samples.path(int(self._inner([index])[0]))

    def _inner(self, indices: ArrayLike) -> Int64s:
        rows: Int64s = self._rows[self.check(indices)]
        return rows


def _chosen(samples: Samples[Batch], classes: Sequence[int] | Int64s | None) -> Int64s:
    """The labels to keep, ascending."""
    if classes is None:
        return np.arange(len(samples.classes))
    labels = np.asarray(classes)
    if labels.ndim != 1 or not labels.size or labels.dtype.kind not in "iu":
        raise GraspError(f"{samples.name}: classes must be a list of labels, not {classes!r}")
    if labels.min() < 0 or labels.max() >= len(samples.classes):
        beyond = labels[(labels < 0) | (labels >= len(samples.classes))][0]
        raise GraspError(f"{samples.name}: classes must lie in 0..{len(samples.classes) - 1}, but there is {beyond}")
    if len(np.unique(labels)) < len(labels):
        raise GraspError(f"{samples.name}: classes names a class twice")
    return np.sort(labels).astype(np.int64)


def _drawn(indices: Int64s, labels: Int64s, row_of: Int64s, limit: int | None, rng: np.random.Generator) -> Int64s:
    """Of `indices` those of chosen classes, at most `limit` of each, in their order."""
    # All are shuffled whatever is asked for, so that a choice depends on nothing but the generator.
    shuffled = rng.permutation(np.sort(indices))
    grouped = shuffled[np.argsort(labels[shuffled], kind="stable")]
    rank = np.arange(len(grouped)) - np.searchsorted(labels[grouped], labels[grouped])
    kept = (row_of[labels[grouped]] >= 0) & (rank < (len(grouped) if limit is None else limit))
    return indices[np.isin(indices, grouped[kept])]


def _refuse_untrained(samples: Samples[Batch], chosen: Int64s, train: Int64s) -> None:
    left = np.setdiff1d(chosen, samples.labels[train])
    if left.size:
        names = few([samples.classes[label] for label in left])
        raise GraspError(f"{samples.name} has classes without samples to train on: {names}; choose others")
