"""Representation drift and its two summaries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from graspcl.errors import GraspError
from graspcl.metric import drift, summarise_drift

BEFORE = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
AFTER = np.array([[3.0, 4.0], [1.0, 1.0], [2.0, 1.0], [6.0, 8.0]])  # moved by 5, 0, 1 and 10


def test_norm_is_the_mean_distance_and_mse_the_mean_square():
    assert drift(BEFORE, AFTER) == drift(BEFORE, AFTER, "norm") == 16 / 4
    assert drift(BEFORE, AFTER, "mse") == (25 + 0 + 1 + 100) / 8


def test_small_steps_of_half_precision_are_not_lost():
    before = np.full((1000, 8), 300, np.float16)
    assert drift(before, before + np.float16(0.25), "mse") == 0.0625


@settings(deadline=None)
@given(arrays(float, array_shapes(min_dims=2, max_dims=2), elements=st.integers(-1000, 1000)), st.integers(-9, 9))
def test_drift_of_a_shift(before, step):
    after = before + step
    assert drift(before, after) == pytest.approx(abs(step) * before.shape[1] ** 0.5)
    assert drift(before, after, "mse") == step**2
    assert drift(before, after) == drift(after, before)


@pytest.mark.parametrize(
    ("before", "after", "measure", "said"),
    [(BEFORE, AFTER, "nrom", "measure must be 'norm' or 'mse', got 'nrom'"),
     (BEFORE, AFTER[:2], "norm", r"the same shape, got \(4, 2\) and \(2, 2\)"),
     (BEFORE[0], AFTER[0], "norm", "before must have 2 dimensions"),
     (BEFORE[:0], AFTER[:0], "norm", "before must not be empty"),
     (BEFORE, AFTER * [1, np.nan], "mse", "after must be finite: 4 of 8 numbers are"),
     ([["a"]], AFTER, "norm", "before must be an array of numbers")],
)  # fmt: skip
def test_refused(before, after, measure, said):
    with pytest.raises(GraspError, match=said):
        drift(before, after, measure)


def test_summary_by_hand():
    found = summarise_drift([1.0, 3.0, 2.0, 0.0])
    assert (found.auc, found.mean) == (2 + 2.5 + 1, 1.5)


def test_short_curves():
    one = summarise_drift([0.5])
    assert (one.auc, one.mean) == (0, 0.5)
    none = summarise_drift([])
    assert np.isnan([none.auc, none.mean]).all()
    with pytest.raises(GraspError, match="curve must be finite: 1 of 2 numbers are"):
        summarise_drift([0.1, np.inf])


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=2))
def test_area_is_that_of_sklearn(curve):
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    assert summarise_drift(curve).auc == pytest.approx(metrics.auc(range(len(curve)), curve))
