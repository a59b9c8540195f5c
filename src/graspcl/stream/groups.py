"""What the kinds of streams share: samples checked and put into groups."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from graspcl.errors import GraspError
from graspcl.stream.base import whole

Array = np.ndarray[Any, Any]


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
