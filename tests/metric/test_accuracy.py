"""The accuracy matrix and its summaries against hand-computed numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from graspcl.errors import GraspError
from graspcl.metric import Accuracies, accuracies, by_group, head_and_tail, top_k

NAN = float("nan")

LABELS = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])  # class 0 is base, 1 comes in session 1, 2 in session 2
ARRIVAL = {0: 0, 1: 1, 2: 2}
PREDICTIONS = [
    np.array([0, 0, 0, 9, 9, 9, 9, 9, 9]),
    np.array([0, 0, 1, 1, 1, 0, 9, 9, 9]),
    np.array([0, 2, 2, 2, 1, 1, 2, 2, 0]),
]


def test_matrix():
    result = accuracies(PREDICTIONS, LABELS, ARRIVAL)
    expected = [[75, np.nan, np.nan], [50, 50, np.nan], [25, 100, 200 / 3]]
    np.testing.assert_allclose(result.matrix, expected)
    assert result.weights.tolist() == [4, 2, 3]


def test_summaries():
    result = accuracies(PREDICTIONS, LABELS, ARRIVAL)
    assert result.new == pytest.approx([50, 200 / 3])
    assert result.old == pytest.approx([50, 50])  # after session 2: 1 of 4 and 2 of 2
    assert result.all == pytest.approx([50, 100 * 5 / 9])
    summary = result.summary()
    assert summary["mu_new"] == pytest.approx((50 + 200 / 3) / 2)
    assert summary["mu_old"] == pytest.approx(50)
    assert summary["mu_all"] == pytest.approx((50 + 500 / 9) / 2)
    assert summary["alpha"] == pytest.approx(500 / 9)


def test_classes_of_the_future_do_not_count():
    wild = [PREDICTIONS[0].copy(), PREDICTIONS[1].copy(), PREDICTIONS[2]]
    wild[0][4:] = LABELS[4:]  # right by luck, before they arrived
    wild[1][6:] = LABELS[6:]
    np.testing.assert_array_equal(
        accuracies(wild, LABELS, ARRIVAL).matrix, accuracies(PREDICTIONS, LABELS, ARRIVAL).matrix
    )


def test_no_sessions_yet_and_no_base():
    assert np.isnan(accuracies([PREDICTIONS[0][:4]], LABELS[:4], {0: 0}).summary()["alpha"])
    result = accuracies([np.full(2, -1), np.array([3, 3])], np.array([3, 3]), {3: 1})
    assert result.summary()["alpha"] == 100 and np.isnan(result.summary()["mu_old"])


def test_forgetting_is_the_fall_from_the_best_and_backward_transfer_that_since_arrival():
    result = accuracies(PREDICTIONS, LABELS, ARRIVAL)  # base 75, 50, 25; session 1: 50, 100
    assert result.forgetting() == (50 - 50) / 2
    assert result.backward_transfer() == (-50 + 50) / 2
    rising = Accuracies(np.array([[40, NAN, NAN], [60, 80, NAN], [50, 70, 90]]), np.ones(3))
    assert rising.forgetting() == (10 + 10) / 2  # the base classes were best after session 1
    assert rising.backward_transfer() == (10 - 10) / 2
    assert {"forgetting": 10, "backward_transfer": 0}.items() <= rising.summary().items()
    assert list(rising.summary())[:4] == ["mu_new", "mu_old", "mu_all", "alpha"]


def test_groups_without_classes_are_left_out_of_transfer():
    no_base = Accuracies(np.array([[NAN, NAN, NAN], [NAN, 80, NAN], [NAN, 70, 90]]), np.array([0, 1, 1]))
    assert no_base.forgetting() == 10 and no_base.backward_transfer() == -10
    # Session 1 brought no class.
    gap = Accuracies(np.array([[80, NAN, NAN], [60, NAN, NAN], [50, NAN, 90]]), np.array([1, 0, 1]))
    assert gap.forgetting() == 30 and gap.backward_transfer() == -30


@pytest.mark.parametrize("matrix", [[[70]], [[NAN, NAN], [NAN, 80]]])
def test_transfer_is_nan_without_groups_from_before_the_last_session(matrix):
    result = Accuracies(np.array(matrix, float), np.ones(len(matrix)))
    assert np.isnan([result.forgetting(), result.backward_transfer(), result.forward_transfer()]).all()
    assert np.isnan([result.summary()["forgetting"], result.summary()["backward_transfer"]]).all()


def test_a_single_session_after_base():
    result = Accuracies(np.array([[70, NAN], [60, 90]]), np.ones(2))
    assert result.forgetting() == 10 and result.backward_transfer() == -10 and np.isnan(result.forward_transfer())


def test_forward_transfer_reads_above_the_diagonal():
    result = Accuracies(np.array([[80, 20, 5], [85, 70, 30], [90, 75, 60]]), np.ones(3))
    assert result.forward_transfer() == (20 + 30) / 2
    assert result.forward_transfer(10) == 15
    assert result.forward_transfer([99, 0, 10]) == (20 + 20) / 2
    assert np.isnan(accuracies(PREDICTIONS, LABELS, ARRIVAL).forward_transfer())
    with pytest.raises(GraspError, match="one number or 3"):
        result.forward_transfer([1, 2])


def test_predictions_ahead_of_arrival_fill_the_upper_triangle_only():
    first = PREDICTIONS[0].copy()
    first[4:] = [1, 0, -1, -1, -1]  # session 1 is predicted, half of it right; session 2 is not
    second = PREDICTIONS[1].copy()
    second[6:] = [2, -1, 9]
    result = accuracies([first, second, PREDICTIONS[2]], LABELS, ARRIVAL, ahead=True)
    np.testing.assert_allclose(result.matrix, [[75, 50, NAN], [50, 50, 100 / 3], [25, 100, 200 / 3]])
    assert result.forward_transfer() == pytest.approx((50 + 100 / 3) / 2)
    plain = accuracies(PREDICTIONS, LABELS, ARRIVAL)
    assert (result.new, result.old, result.all) == (plain.new, plain.old, plain.all)


@settings(deadline=None)
@given(st.integers(1, 6).flatmap(lambda size: arrays(float, (size, size), elements=st.integers(0, 100))))
def test_forgetting_bounds_the_loss_since_arrival(matrix):
    result = Accuracies(np.where(np.tri(len(matrix)), matrix, np.nan), np.ones(len(matrix)))
    if len(matrix) == 1:
        assert np.isnan(result.forgetting())
        return
    # The best is at least the accuracy on arrival.
    assert result.forgetting() >= -result.backward_transfer() - 1e-9
    matrix[-1] = matrix[:-1].min(axis=0)  # the last session is never the best
    worst = Accuracies(np.where(np.tri(len(matrix)), matrix, np.nan), np.ones(len(matrix)))
    assert worst.forgetting() >= 0 >= worst.backward_transfer()


def test_top_k():
    scores = [[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.4, 0.35, 0.25], [0.2, 0.3, 0.5]]
    rows = [0, 1, 2, 0]  # ranks 1, 2, 3, 3
    assert [top_k(scores, rows, k) for k in (1, 2, 3, 9)] == [25, 50, 100, 100]
    assert top_k([[0, -np.inf, -np.inf]], [2], 2) == 0  # of equal scores the earlier column comes first
    assert np.isnan(top_k(np.zeros((0, 3)), [], 1))


@settings(deadline=None)
@given(st.data(), st.integers(1, 20), st.integers(1, 6))
def test_top_1_is_argmax_and_more_k_is_never_worse(data, n, classes):
    scores = data.draw(arrays(np.float32, (n, classes), elements=st.integers(-2, 2)))  # few values: many are equal
    rows = data.draw(arrays(int, n, elements=st.integers(0, classes - 1)))
    assert top_k(scores, rows, 1) == pytest.approx(100 * (scores.argmax(axis=1) == rows).mean())
    found = [top_k(scores, rows, k) for k in range(1, classes + 2)]
    assert found == sorted(found) and found[-2:] == [100, 100]


@pytest.mark.parametrize(
    ("scores", "rows", "k", "said"),
    [([1, 2], [0], 1, "scores must have 2 dimensions"), ([[1, 2]], [0, 1], 1, "same length"),
     ([[1, 2]], [0], 0, "k must be a whole number of at least 1"), ([[1, NAN]], [0], 1, "scores must not be NaN"),
     ([[1, 2]], [2], 1, "from 0 to 1"), ([[1, 2]], [-1], 1, "from 0 to 1"), ([[1, 2]], [0.0], 1, "whole numbers"),
     ([[1, 2]], [[0]], 1, "rows must have 1 dimension")],
)  # fmt: skip
def test_top_k_refuses(scores, rows, k, said):
    with pytest.raises(GraspError, match=said):
        top_k(scores, rows, k)


def test_by_group():
    predictions, labels = [0, 1, 1, 2, 0], [0, 0, 1, 2, 3]
    groups = {"even": np.array([0, 2]), "odd": {1, 3}, "none": [7], "empty": []}
    found = by_group(predictions, labels, groups)
    assert found == pytest.approx({"even": 200 / 3, "odd": 50, "none": NAN, "empty": NAN}, nan_ok=True)
    with pytest.raises(GraspError, match="predictions and labels must have the same length, got 1 and 2"):
        by_group([0], [0, 1], {})


def test_head_has_more_than_threshold_training_samples():
    predictions, labels = [0, 0, 1, 9, 2, 9, 9, 9], [0, 0, 1, 1, 2, 2, 3, 3]
    counts = {0: 500, 1: 101, 2: 100, 3: 0, 4: 7}
    assert head_and_tail(predictions, labels, counts) == (75, 25)
    assert head_and_tail(predictions, labels, counts, threshold=101) == (100, pytest.approx(100 / 3))
    assert head_and_tail(predictions, labels, counts, threshold=1000) == (pytest.approx(NAN, nan_ok=True), 50)
    with pytest.raises(GraspError, match="lacks 2 of the classes, first 1"):
        head_and_tail([0, 0, 0], [0, 1, 2], {0: 5})
