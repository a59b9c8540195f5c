"""Replicated ranks draw the samples that one process draws, and come to its weights."""

import pytest
from worlds import SMOOTH, compare

from graspcl.learner import learners
from graspcl.policy import policies

LEARNERS = [{"learner": name} for name in learners.names()] + [
    {"learner": "derpp", "parameters": {"teacher": True}},
    {"learner": "derpp", "parameters": {"average": "batch"}},
    {"learner": "idbr", "parameters": {"balance": "task"}},
    {"learner": "idbr", "parameters": {"regularised": True}},
]
POLICIES = [{"policy": name, "drawn": SMOOTH.get(name, {})} for name in policies.names()] + [
    {"policy": "grasp", "drawn": {"distances": "remembered"}},
    {"policy": "gss", "drawn": {"gradients": "full"}},
]
SOME = [{"dropout": 0.3}, {"learner": "er_ace"}, {"policy": "mir"}, {"learner": "ranpac", "kind": "texts"}]


def test_two_ranks_equal_one_process(worlds):
    assert not compare(worlds.run(2, "learn_all", cases=SOME), SOME)


def test_class_means_are_sums_that_are_added_up(worlds):
    """Three sessions that know 3, 4 and 6 classes; features have 12 numbers. The probe of 20 is predicted together."""
    case = {"learner": "ncm", "kind": "texts"}
    results = worlds.run(2, "learn_all", cases=[case])
    assert not compare(results, [case])
    for result in results:
        sent = result["cases"][0]["sent"]
        assert sent["moments"] == 8 * (3 + 4 + 6) * (1 + 12)
        assert sent["outputs"] == 20 / 2 * 4 * (12 + 12 + 6)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_learners(worlds, world):
    assert not compare(worlds.run(world, "learn_all", cases=LEARNERS), LEARNERS)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_policies(worlds, world):
    assert not compare(worlds.run(world, "learn_all", cases=POLICIES), POLICIES)
