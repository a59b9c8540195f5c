"""Replicated ranks draw the samples that one process draws, and come to its weights."""

import pytest
from worlds import differences, learn

from graspcl.learner import learners
from graspcl.policy import policies

LEARNERS = [{"learner": name} for name in learners.names()] + [
    {"learner": "derpp", "parameters": {"teacher": True}},
    {"learner": "derpp", "parameters": {"average": "batch"}},
    {"learner": "idbr", "parameters": {"regularised": True}},
    {"learner": "idbr", "parameters": {"balance": "task"}},
]
POLICIES = [{"policy": name} for name in policies.names()] + [
    {"policy": "grasp", "drawn": {"distances": "remembered"}},
    {"policy": "gss", "drawn": {"gradients": "full"}},
]


def compare(worlds, world, cases):
    results = worlds.run(world, "learn_all", cases=cases)
    wrong = {}
    for number, case in enumerate(cases):
        found = [result["cases"][number] for result in results]
        wrong[f"{case}"] = [differences(learn(None, case), one) for one in found]
        wrong[f"{case}, replicas"] = [differences(found[0], one, tolerance=0) for one in found[1:]]
    return {case: found for case, found in wrong.items() if any(found)}


def test_two_ranks_equal_one_process(worlds):
    assert not compare(worlds, 2, [{"dropout": 0.3}, {"learner": "er_ace"}, {"policy": "mir"}])


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_learners(worlds, world):
    assert not compare(worlds, world, LEARNERS)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_policies(worlds, world):
    assert not compare(worlds, world, POLICIES)
