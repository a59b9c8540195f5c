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
SOME = [{"dropout": 0.3}, {"learner": "er_ace"}, {"policy": "mir"}]


def test_two_ranks_equal_one_process(worlds):
    assert not compare(worlds.run(2, "learn_all", cases=SOME), SOME)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_learners(worlds, world):
    assert not compare(worlds.run(world, "learn_all", cases=LEARNERS), LEARNERS)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_policies(worlds, world):
    assert not compare(worlds.run(world, "learn_all", cases=POLICIES), POLICIES)
