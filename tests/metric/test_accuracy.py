"""The accuracy matrix and its summaries against hand-computed numbers."""

import numpy as np
import pytest

from graspcl.metric import accuracies

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
