"""Representation drift: how far an update moves the embeddings of old samples (appendix on drift)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from graspcl.checks import checked, numbers
from graspcl.errors import GraspError


@dataclass(frozen=True)
class DriftSummary:
    """A drift curve in two numbers: `auc` is β, the area under it; `mean` is φ, the mean over iterations."""

    auc: float
    mean: float


@checked
def drift(before: ArrayLike, after: ArrayLike, measure: Literal["norm", "mse"] = "norm") -> float:
    """Return the drift of the embeddings [n, d] of the same n old samples from one iteration to the next.

    `norm` is the mean over samples of the Euclidean norm ‖f_t(X) − f_{t+1}(X)‖, as defined in the paper's text. `mse`
    is the mean squared difference over samples and dimensions, as named for the paper's figure.

    >>> drift([[0.0, 0.0], [1.0, 1.0]], [[3.0, 4.0], [1.0, 1.0]])
    2.5
    """
    before, after = numbers("before", before, 2, empty=False), numbers("after", after, 2)
    if before.shape != after.shape:
        raise GraspError(f"before and after must have the same shape, got {before.shape} and {after.shape}")
    moved = after - before
    return float(np.linalg.norm(moved, axis=1).mean() if measure == "norm" else np.square(moved).mean())


def summarise_drift(curve: ArrayLike) -> DriftSummary:
    """Return β and φ of a drift curve [U], one value per iteration.

    β is the area by the trapezoidal rule over iterations 0 … U − 1, as in `sklearn.metrics.auc`; 0 for a single
    iteration. Both are NaN for an empty curve.

    >>> summarise_drift([4.0, 2.0, 0.0])
    DriftSummary(auc=4.0, mean=2.0)
    """
    curve = numbers("curve", curve)
    if not len(curve):
        return DriftSummary(float("nan"), float("nan"))
    return DriftSummary(float(np.trapezoid(curve)), float(curve.mean()))
