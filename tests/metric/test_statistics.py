"""Tests of significance, intervals over seeds, and updates saved."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from graspcl.errors import GraspError
from graspcl.metric import interval, mcnemar, paired_interval, saved_updates, updates_to_reach

NAN = float("nan")
FIGURES = st.integers(0, 10_000).map(lambda value: value / 100)  # accuracies in percent
PAIRS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=200).map(lambda pairs: np.array(pairs).T)
SWEEPS = st.lists(st.tuples(st.integers(0, 1000), FIGURES), min_size=1, unique_by=lambda pair: pair[0]).map(
    lambda pairs: tuple(np.array(pairs, float).T)
)


def right(both, only_a, only_b, neither):
    """Right answers of two models with these counts."""
    a = np.repeat([True, True, False, False], [both, only_a, only_b, neither])
    b = np.repeat([True, False, True, False], [both, only_a, only_b, neither])
    return a, b


def test_mcnemar_by_hand():
    found = mcnemar(*right(50, 1, 5, 20))
    assert (found.only_a, found.only_b) == (1, 5)
    assert found.p == pytest.approx(2 * (1 + 6) / 2**6)  # no or one head of six, or as many tails
    assert mcnemar(*right(5, 3, 3, 1)).p == 1


def test_mcnemar_without_disagreement():
    for a, b in (right(5, 0, 0, 3), ([], [])):
        found = mcnemar(a, b)
        assert (found.only_a, found.only_b, found.p) == (0, 0, 1)


@settings(deadline=None)
@given(PAIRS)
def test_mcnemar_is_symmetric_and_blind_to_agreement(pairs):
    found, turned = mcnemar(*pairs), mcnemar(*pairs[::-1])
    assert (found.only_a, found.only_b, found.p) == (turned.only_b, turned.only_a, turned.p)
    assert 0 < found.p <= 1
    assert mcnemar(*pairs[:, pairs[0] != pairs[1]]) == found


@pytest.mark.parametrize(
    "counts", [(50, 1, 5, 20), (0, 0, 9, 0), (1, 7, 7, 1), (30_000, 2500, 2900, 14_600), (3, 0, 0, 2)]
)
def test_mcnemar_is_that_of_statsmodels(counts):
    tables = pytest.importorskip("statsmodels.stats.contingency_tables", reason="statsmodels is not installed")
    both, only_a, only_b, neither = counts
    expected = tables.mcnemar([[both, only_a], [only_b, neither]], exact=True).pvalue
    assert mcnemar(*right(*counts)).p == pytest.approx(expected)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [([True], [True, False], "right_a and right_b must have the same length, got 1 and 2"),
     ([1, 0], [True, False], "right_a must be true or false"),
     ([True], [[True]], "right_b must have 1 dimension")],
)  # fmt: skip
def test_mcnemar_refuses(a, b, said):
    with pytest.raises(GraspError, match=said):
        mcnemar(a, b)


def test_interval_by_hand():
    found = interval([60.0, 62.0, 64.0])
    half = 4.302653 * 2 / math.sqrt(3)  # Student's t with 2 degrees of freedom, 97.5 %
    assert (found.mean, found.std, found.n) == (62, 2, 3)
    assert (found.low, found.high) == pytest.approx((62 - half, 62 + half))
    two = interval([0.0, 2.0], confidence=0.5)  # with 1 degree of freedom the third quartile is 1
    assert (two.low, two.high) == pytest.approx((0, 2))


def test_interval_of_one_seed_and_of_equal_ones():
    one = interval([60.0])
    assert (one.mean, one.n) == (60, 1) and np.isnan([one.std, one.low, one.high]).all()
    same = interval([60.0, 60.0, 60.0])
    assert (same.mean, same.std, same.low, same.high) == (60, 0, 60, 60)


@settings(deadline=None)
@given(st.lists(FIGURES, min_size=2), st.floats(0.01, 0.98))
def test_interval_contains_the_mean_and_grows_with_confidence(values, confidence):
    narrow, wide = interval(values, confidence), interval(values, confidence + 0.01)
    assert wide.low <= narrow.low <= narrow.mean <= narrow.high <= wide.high


def test_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = [interval(rng.normal(70, 3, size=5)) for _ in range(2000)]
    covered = np.mean([one.low <= 70 <= one.high for one in found])
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 2000)


@pytest.mark.parametrize(
    ("values", "confidence", "said"),
    [([], 0.95, "values must not be empty"), ([1, NAN], 0.95, "values must be finite"), ([[1]], 0.95, "1 dimension"),
     ([1, 2], 95, "confidence must be a number in \\(0, 1\\), got 95")],
)  # fmt: skip
def test_interval_refuses(values, confidence, said):
    with pytest.raises(GraspError, match=said):
        interval(values, confidence)


def test_paired_interval_by_hand():
    found = paired_interval([61.0, 63.0, 66.0], [60.0, 61.0, 63.0])
    plain = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.std, found.low, found.high, found.n) == (2, 1, plain.low, plain.high, 3)
    t = 2 * math.sqrt(3)
    assert found.p == pytest.approx(1 - t / math.sqrt(2 + t**2))  # Student's t with 2 degrees of freedom, two sides


def test_paired_interval_without_spread():
    assert np.isnan(paired_interval([2.0], [1.0]).p) and paired_interval([2.0], [1.0]).mean == 1
    assert paired_interval([1.0, 2.0], [1.0, 2.0]).p == 1
    assert paired_interval([2.0, 3.0], [1.0, 2.0]).p == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=2, max_size=20))
def test_paired_p_is_that_of_scipy_and_agrees_with_the_interval(pairs):
    a, b = np.array(pairs, float).T
    found = paired_interval(a, b)
    if found.std:
        assert found.p == pytest.approx(ttest_rel(a, b).pvalue)
    if abs(found.p - 0.05) > 1e-9:
        assert (found.p < 0.05) == (not found.low <= 0 <= found.high)


@pytest.mark.parametrize(
    ("a", "b", "said"), [([1, 2], [1], "same length, got 2 and 1"), ([NAN], [1], "a must be finite"), ([], [], "empty")]
)
def test_paired_interval_refuses(a, b, said):
    with pytest.raises(GraspError, match=said):
        paired_interval(a, b)


@pytest.mark.parametrize(
    ("target", "expected"),
    [(55, 150), (60, 200), (50, 100), (40, 100), (62, 350), (64, 400), (64.1, NAN), (58, 180)],
)
def test_updates_to_reach(target, expected):
    updates, accuracies = [300, 100, 400, 200], [60.0, 50.0, 64.0, 60.0]
    assert updates_to_reach(updates, accuracies, target) == pytest.approx(expected, nan_ok=True)


def test_the_first_time_counts_where_accuracy_falls_again():
    assert updates_to_reach([0, 10, 20, 30], [0, 40, 20, 80], 30) == 7.5
    assert updates_to_reach([0, 10, 20, 30], [0, 40, 20, 80], 50) == 25
    assert updates_to_reach([10], [50], 50) == 10


@settings(deadline=None)
@given(SWEEPS, FIGURES)
def test_accuracy_at_the_updates_found_is_the_target(sweep, target):
    updates, accuracies = sweep
    found = updates_to_reach(updates, accuracies, target)
    order = np.argsort(updates)
    if accuracies.max() < target:
        assert math.isnan(found)
    elif found > updates.min():
        # A rounded number of updates is off by up to 1e-13, times at most 100 % per update.
        assert np.interp(found, updates[order], accuracies[order]) == pytest.approx(target, rel=1e-9, abs=1e-9)
        assert (accuracies[updates < found - 1e-9] < target).all()
    else:
        assert accuracies[order[0]] >= target


@pytest.mark.parametrize(
    ("updates", "accuracies", "target", "said"),
    [([1, 2], [1], 0, "same length, got 2 and 1"), ([], [], 0, "updates must not be empty"),
     ([1, 2], [1, NAN], 0, "accuracies must be finite"), ([1, 2], [1, 2], NAN, "target must be finite"),
     ([1, 1], [1, 2], 0, "updates has 1 more than once"), ([-1, 1], [1, 2], 0, "0 or more, got -1")],
)  # fmt: skip
def test_updates_to_reach_refuses(updates, accuracies, target, said):
    with pytest.raises(GraspError, match=said):
        updates_to_reach(updates, accuracies, target)


def test_saved_updates():
    grasp, uniform = ([60, 30, 120], [58.0, 50.0, 63.0]), ([50, 100], [50.0, 58.0])
    assert saved_updates(*grasp, *uniform) == pytest.approx(0.4)  # 60 instead of 100
    assert math.isnan(saved_updates(*uniform, *grasp))  # uniform is never as good
    assert saved_updates([50, 200], [50, 58], *uniform) == -1  # twice the updates
    assert saved_updates([10], [60], *uniform) == 0.9
    # b is best with 100 updates; more of them are not charged to it
    assert saved_updates([60], [58], [50, 100, 400], [50, 58, 55]) == pytest.approx(0.4)
    assert math.isnan(saved_updates([10], [60], [0, 10], [50, 40]))  # b needs none


@settings(deadline=None)
@given(SWEEPS)
def test_nothing_is_saved_against_itself(sweep):
    updates, accuracies = sweep
    best = updates[accuracies == accuracies.max()].min()
    assert saved_updates(*sweep, *sweep) == 0 if best else math.isnan(saved_updates(*sweep, *sweep))
    if best:
        assert saved_updates(updates / 2, accuracies, *sweep) == pytest.approx(0.5)
