"""Long-tailed arrival: few large classes, many small ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from graspcl.errors import GraspError, expect
from graspcl.stream.base import streams
from graspcl.stream.groups import checked_samples, in_order
from graspcl.stream.incremental import ClassIncremental

Array = np.ndarray[Any, Any]


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
