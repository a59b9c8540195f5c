"""Representation drift: how far an update moves the embeddings of old samples (appendix on drift experiments)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from graspcl.errors import GraspError, nearest
from graspcl.metric.checks import filled, numbers

Measure = Literal["norm", "mse"]


@dataclass(frozen=True)
class DriftSummary:
    """A drift curve in two numbers: `auc` is β, the area under it, `mean` is φ, the average over iterations."""

    auc: float
    mean: float


def drift(before: ArrayLike, after: ArrayLike, measure: Measure = "norm") -> float:
    """Drift of the embeddings [n, d] of the same n old samples from one iteration to the next.

    `norm` is the mean over samples of the Euclidean norm ‖f_t(X) − f_{t+1}(X)‖, as the text of the paper defines it;
    `mse` is the mean over samples and dimensions of the squared difference, by which it speaks of the figure.

    >>> drift([[0.0, 0.0], [1.0, 1.0]], [[3.0, 4.0], [1.0, 1.0]])
    2.5
    >>> drift([[0.0, 0.0], [1.0, 1.0]], [[3.0, 4.0], [1.0, 1.0]], measure="mse")
    6.25
    """
    if measure not in get_args(Measure):
        raise GraspError(f"measure {measure!r} of drift is not known; {nearest(str(measure), get_args(Measure))}")
    before, after = numbers("before", before, dimensions=2), numbers("after", after, dimensions=2)
    if before.shape != after.shape:
        raise GraspError(f"before and after must have one shape, not {before.shape} and {after.shape}")
    filled("before", before.ravel())
    moved = after - before
    return float(np.linalg.norm(moved, axis=1).mean() if measure == "norm" else np.square(moved).mean())


def summarise_drift(curve: ArrayLike) -> DriftSummary:
    """β and φ of a drift curve [U], one value per iteration.

    β is the area by the trapezoidal rule over the iterations 0 … U − 1, as of `sklearn.metrics.auc`: 0 for a single
    iteration. Both are NaN for an empty curve.

    >>> summarise_drift([4.0, 2.0, 0.0])
    DriftSummary(auc=4.0, mean=2.0)
    """
    curve = numbers("curve", curve)
    if not len(curve):
        return DriftSummary(float("nan"), float("nan"))
    return DriftSummary(float(np.trapezoid(curve)), float(curve.mean()))
