"""What a batch must look like before a buffer stores it: everything wrong is found here, before anything changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError, nearest

if TYPE_CHECKING:
    import torch

    from graspcl.buffer.maintenance import Maintenance

Columns = Mapping[str, tuple[tuple[int, ...], Any]]

_LARGEST_LABEL = 2**24  # arrays of the class index are as long as the largest label


def finite_tensor(inputs: Any) -> torch.Tensor:
    """Inputs [n, …] as a tensor; NaN and infinity are refused.

    >>> finite_tensor(np.array([[1.0], [np.nan]]))
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: 1 of 2 inputs hold NaN or infinity (rows [1]); nothing was stored
    """
    import torch

    if isinstance(inputs, np.ndarray):
        inputs = np.require(inputs, requirements=["C", "W"])  # torch shares no read-only or reversed array
    tensor = torch.as_tensor(inputs)
    if tensor.ndim == 0:
        raise GraspError("inputs must have one row per sample, not be a single number")
    if tensor.is_floating_point():
        finite = tensor.isfinite().reshape(len(tensor), math.prod(tensor.shape[1:])).all(1)
        rows = (~finite).nonzero()[:, 0].tolist()
        if rows:
            shown = f"{rows[:5]}".replace("]", ", …]" if len(rows) > 5 else "]")
            raise GraspError(
                f"{len(rows)} of {len(tensor)} inputs hold NaN or infinity (rows {shown}); nothing was stored"
            )
    return tensor


def label_array(labels: Any) -> Array:
    """Labels [n] as int64.

    >>> label_array([0, -1])
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: labels must lie in 0 … 16777215, not -1 … 0; number classes from 0
    """
    given = _integers(labels, "labels")
    if len(given) and (given.min() < 0 or given.max() >= _LARGEST_LABEL):
        raise GraspError(
            f"labels must lie in 0 … {_LARGEST_LABEL - 1}, not {given.min()} … {given.max()}; number classes from 0"
        )
    return given.astype(np.int64)


def id_array(ids: Any, number: int) -> Array:
    """The user's `number` ids as int64."""
    given = _integers(ids, "ids")
    if len(given) != number:
        raise GraspError(f"{len(given)} ids came with {number} labels; there must be one id per sample")
    return given.astype(np.int64)


def code_array(codes: Any, number: int, stored: Array | None, ragged: bool = False) -> Array:
    """Codes of `number` samples, of the shape and kind of those `stored` already."""
    if ragged:
        given = np.empty(len(codes), object)
        given[:] = list(codes)
    else:
        given = np.ascontiguousarray(_numpy(codes))
    if len(given) != number:
        raise GraspError(f"{len(given)} inputs came with {number} labels; there must be one label per input")
    if stored is not None and given.shape[1:] != stored.shape[1:]:
        raise GraspError(f"the buffer stores codes of shape {stored.shape[1:]}, not {given.shape[1:]}")
    if stored is not None and not np.can_cast(given.dtype, stored.dtype, "same_kind"):
        raise GraspError(f"the buffer stores codes of type {stored.dtype}, not {given.dtype}")
    if stored is not None and len(given) and not np.can_cast(given.dtype, stored.dtype):
        limits = np.finfo(stored.dtype) if stored.dtype.kind == "f" else np.iinfo(stored.dtype)
        if given.min() < limits.min or given.max() > limits.max:
            raise GraspError(
                f"the buffer stores codes of type {stored.dtype}, which cannot hold {given.min()} … {given.max()}"
            )
    return given


def unused_folder(folder: Path) -> None:
    """Refuse a folder for memory-mapped files that holds arrays already: they would be overwritten."""
    if any(folder.glob("*.npy")):
        raise GraspError(
            f"{folder} holds arrays already; give a buffer a folder of its own (to keep one, save its state_dict())"
        )


def rule_columns(rule: Maintenance, declared: Columns) -> None:
    """Refuse a buffer without the columns that its rule reads."""
    if missing := sorted(rule.columns - declared.keys()):
        needed = ", ".join(f"{name!r}: (shape, np.float32)" for name in missing)
        raise GraspError(
            f"{type(rule).__name__} needs columns that the buffer was not made with; add columns={{{needed}}}, where "
            "shape is () for a number and (d,) for a vector per sample (graspcl.learner.column_shapes gives them)"
        )


def column_arrays(columns: Mapping[str, Any], declared: Columns, number: int, rule: Maintenance) -> dict[str, Array]:
    """Values of every declared column for `number` samples; zero where none are given and the rule needs none."""
    if unknown := sorted(columns.keys() - declared.keys()):
        hint = nearest(unknown[0], declared) if declared else "it was made without columns"
        raise GraspError(f"the buffer has no column {unknown[0]!r}; {hint}")
    values = {}
    for name, (shape, dtype) in declared.items():
        value = np.asarray(_numpy(columns[name]), dtype) if name in columns else np.zeros((number, *shape), dtype)
        if value.shape != (number, *shape):
            raise GraspError(f"column {name!r} takes values of shape {(number, *shape)}, not {value.shape}")
        if number and name in rule.columns - rule.fills:
            _refuse_unknown(name, value, name in columns, type(rule).__name__)
        values[name] = value
    return values


def _refuse_unknown(name: str, value: Array, given: bool, rule: str) -> None:
    """What a rule decides from must be there: zeros or NaN in its place would silently keep the wrong samples."""
    if not given:
        raise GraspError(f"{rule} reads the column {name!r}; insert with columns={{{name!r}: …}}, a value per sample")
    if bad := int((~np.isfinite(value)).reshape(len(value), -1).any(1).sum()):
        raise GraspError(f"{bad} of {len(value)} values of column {name!r} hold NaN or infinity; nothing was stored")


def _integers(values: Any, what: str) -> Array:
    given = np.asarray(_numpy(values))
    if given.ndim != 1 or (len(given) and not np.issubdtype(given.dtype, np.integer)):
        raise GraspError(f"{what} must be a vector of integers, not {given.dtype} of shape {given.shape}")
    return given


def _numpy(values: Any) -> Any:
    return values.numpy(force=True) if hasattr(values, "numpy") else values
