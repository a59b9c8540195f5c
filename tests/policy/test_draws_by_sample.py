"""GRASP with chance by sample: the draws of Algorithm 1, wherever the samples lie."""

import numpy as np
import pytest
from chi_square import LIKELY, count_sequences, p_value, sequence_probabilities
from scipy import stats

from graspcl import Budget, Buffer, policies, rehearse
from graspcl.policy.drawing import group_by_class, keyed_exponentials
from graspcl.policy.grasp import Grasp, grasp_draws
from graspcl.testing import check_policy

RUNS = 100_000


@pytest.mark.parametrize(("d", "draws", "eps"), [([0.1, 0.5, 1.5], 5, 1e-7), ([0.0, 0.3, 0.4, 1.9], 5, 0.05)])
def test_whole_sequences_have_the_probabilities_of_algorithm_1(d, draws, eps):
    labels = np.repeat(np.arange(RUNS), len(d))
    given = group_by_class(labels), RUNS * draws, np.random.default_rng(1), eps, np.arange(len(labels))
    sequences = (grasp_draws(np.tile(d, RUNS), *given).reshape(draws, RUNS) % len(d)).T
    exact = sequence_probabilities(np.array(d), draws, eps)
    assert p_value(count_sequences(sequences, len(d)).ravel(), exact.ravel()) > LIKELY


@pytest.mark.parametrize("counters", [np.arange(200_000), np.arange(200_000) << 20], ids=["dense", "sparse"])
def test_numbers_are_exponential_and_independent_of_their_neighbours_and_of_other_keys(counters):
    drawn = [keyed_exponentials(key, counters) for key in (0, 1, 2**62)]
    for numbers in drawn:
        assert stats.kstest(numbers, "expon").pvalue > LIKELY
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.01
    # Key 1 is not key 0 one counter later.
    assert abs(np.corrcoef(drawn[0][1:], drawn[1][:-1])[0, 1]) < 0.01
    assert abs(np.corrcoef(drawn[0], drawn[2])[0, 1]) < 0.01


def test_the_contract_of_a_policy():
    check_policy(Grasp(draws="by_sample"))


def plan(draws: str, order: np.ndarray) -> list[int]:
    """The ids that are drawn if samples that arrived in one order lie in slots in another."""
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(40, 6)).astype(np.float32), np.arange(40) % 3
    buffer = Buffer()
    buffer.insert(inputs[order], labels[order], ids=order)
    buffer["births"][:] = order
    drawn = rehearse(buffer, policies.create("grasp", draws=draws), Budget(10, 9), embed=lambda x: x, rng=5)
    return [int(one) for batch in drawn for one in buffer.ids[batch.slots]]


def test_the_draws_do_not_depend_on_where_samples_lie():
    order = np.random.default_rng(1).permutation(40)
    assert plan("by_sample", np.arange(40)) == plan("by_sample", order)
    assert plan("in_order", np.arange(40)) != plan("in_order", order)
