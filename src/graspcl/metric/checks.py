"""What the metrics take: arrays of one shape, without NaN; anything else is refused in one sentence."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from graspcl.checks import Array
from graspcl.errors import GraspError


def numbers(name: str, values: ArrayLike, dimensions: int = 1) -> Array:
    """`values` as float64 of that many dimensions, none of them NaN or infinite.

    >>> numbers("values", [1, 2])
    array([1., 2.])
    >>> numbers("values", [1, float("nan")])
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: values must be finite: 1 of 2 numbers is NaN or infinite
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise GraspError(f"{name} must be an array of numbers ({error})") from error
    shaped(name, array, dimensions)
    broken = int(array.size - np.isfinite(array).sum())
    if broken:
        verb = "is" if broken == 1 else "are"
        raise GraspError(f"{name} must be finite: {broken} of {array.size} numbers {verb} NaN or infinite")
    return array


def shaped(name: str, array: Array, dimensions: int = 1) -> None:
    """Refuse an array of another number of dimensions."""
    if array.ndim != dimensions:
        raise GraspError(f"{name} must have {dimensions} dimension{'s'[: dimensions > 1]}, not shape {array.shape}")


def alike(**arrays: Array) -> None:
    """Refuse arrays of different lengths, by the names they are given under."""
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
        raise GraspError(f"{' and '.join(arrays)} must be equally long, not {lengths}")


def filled(name: str, array: Array) -> None:
    """Refuse an array without entries."""
    if not len(array):
        raise GraspError(f"{name} must not be empty")
