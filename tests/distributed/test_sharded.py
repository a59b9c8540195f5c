"""Ranks that hold parts of the buffer draw the samples that one process draws, and come to its weights."""

import numpy as np
import pytest
from worlds import CAPACITY, SMOOTH, compare

from graspcl.learner import learners
from graspcl.policy import policies

BY_SAMPLE = {"drawn": {"draws": "by_sample"}}
SHARDED = {"how": {"shards": "ranks"}}
SOME = [{**BY_SAMPLE, **SHARDED}, {**BY_SAMPLE, **SHARDED, "placed": True}, {**SHARDED, "policy": "rainbow"}]
LEARNERS = [{**SHARDED, **BY_SAMPLE, "learner": name} for name in learners.names()]
POLICIES = [{**SHARDED, "policy": name, "drawn": SMOOTH.get(name, {})} for name in policies.names()]
ODD = [
    {**SHARDED, **BY_SAMPLE, "placed": True},
    {**SHARDED, "placed": True},
    {**SHARDED, **BY_SAMPLE, "capacity": 3, "first": 3},  # more ranks than samples
    {**SHARDED, **BY_SAMPLE, "capacity": None},
    {**SHARDED, **BY_SAMPLE, "learner": "idbr", "parameters": {"balance": "task"}},
    {**SHARDED, "rule": "reservoir"},
    {**SHARDED, "rule": "herding"},  # with a column that updates change
]


def test_two_ranks_equal_one_process(worlds):
    results = worlds.run(2, "learn_all", cases=SOME)
    assert not compare(results, SOME)
    for number in range(len(SOME)):
        assert sum(result["cases"][number]["held"] for result in results) == CAPACITY
    held = [result["cases"][0]["held"] for result in results]
    assert max(held) - min(held) <= 5


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
def test_uneven_and_empty_shards(worlds, world):
    results = worlds.run(world, "learn_all", cases=ODD)
    assert not compare(results, ODD)
    if world == 4:
        assert results[3]["cases"][0]["held"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_all_learners(worlds, world):
    assert not compare(worlds.run(world, "learn_all", cases=LEARNERS), LEARNERS)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_all_policies(worlds, world):
    assert not compare(worlds.run(world, "learn_all", cases=POLICIES), POLICIES)


def test_what_is_sent_follows_the_formula(worlds):
    """See docs/scale.md. One session of 4 updates of 10 samples, of 45 stored; U = 40 draws, 3 classes."""
    case = {**BY_SAMPLE, **SHARDED}
    results = worlds.run(2, "first_session", case=case)
    for result in results:
        sent = result["sent"]
        assert sent["prototypes"] == result["classes"] * (12 + 1) * 8  # 2 (R - 1) / R = 1
        assert sent["gradients"] == 4 * 4 * result["parameters"]
        assert sent["outputs"] >= 4 * 5 * (12 + 12 + result["classes"]) * 4
        assert sent["codes"] <= 4 * 10 * 8 * 4
        assert sent["candidates"] <= 2 * 8 * result["classes"] + 16 + 16 * np.ceil(40 / 3) * 3
