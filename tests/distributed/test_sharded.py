"""Ranks that hold parts of the buffer draw the samples that one process draws, and come to its weights."""

import pytest
from worlds import CAPACITY, SMOOTH, compare, distance, learn

from graspcl.bench.ranks import Sizes, formula
from graspcl.learner import learners
from graspcl.policy import policies

BY_SAMPLE = {"drawn": {"draws": "by_sample"}}
SHARDED = {"how": {"shards": "ranks"}}
SOME = [
    {**BY_SAMPLE, **SHARDED},
    {**SHARDED, "policy": "rainbow"},
    {**SHARDED, "learner": "aligned"},  # which has lost samples in the third session
    {**SHARDED, "rule": "kmeans"},
    {**BY_SAMPLE, **SHARDED, "placed": True},
]
LEARNERS = [{**SHARDED, **BY_SAMPLE, "learner": name} for name in learners.names()] + [
    {**SHARDED, **BY_SAMPLE, "learner": "idbr", "parameters": {"regularised": True}},
]
DIVERGING = [
    {**SHARDED, **BY_SAMPLE, "rate": 0.3, "learner": "aligned"},
    {**SHARDED, **BY_SAMPLE, "rate": 0.3, "learner": "idbr", "parameters": {"regularised": True}},
]
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
# Codes of different lengths, bounded by number and in bytes.
LENGTHS = [
    {**SHARDED, **BY_SAMPLE, "kind": "texts", "capacity": "2800B"},
    {**SHARDED, **BY_SAMPLE, "kind": "files", "capacity": "9KB"},
    {**SHARDED, "kind": "texts", "learner": "aligned", "placed": True},
    {**SHARDED, "kind": "files", "learner": "er_ace", "placed": True},
    {**SHARDED, "kind": "texts", "capacity": None, "policy": "rainbow"},
    {**SHARDED, "kind": "files", "capacity": 3, "first": 3},
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


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_texts_without_padding_and_image_files(worlds, world):
    results = worlds.run(world, "learn_all", cases=LENGTHS)
    assert not compare(results, LENGTHS)
    for number in range(len(LENGTHS)):
        held = sum(result["cases"][number]["held"] for result in results)
        assert held == len(results[0]["cases"][number]["stored"][-1])


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_learners(worlds, world):
    assert not compare(worlds.run(world, "learn_all", cases=LEARNERS), LEARNERS)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_where_losses_rise_ranks_differ_as_one_process_does_by_rounding(worlds, world):
    """At ten times the rate, losses rise instead of falling, and the updates amplify every difference.

    The bound is the distance to which one process comes from itself when its gradients change by 1e-7 of themselves.
    """
    results = worlds.run(world, "learn_all", cases=DIVERGING)
    for number, case in enumerate(DIVERGING):
        alone = learn(None, case)
        assert alone["losses"].max() > 10
        noise = max(distance(alone, learn(None, {**case, "noise": seed})) for seed in range(5))
        assert noise > 1e-4
        for result in results:
            assert distance(alone, result["cases"][number]) < 5 * noise


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 4])
def test_all_policies(worlds, world):
    assert not compare(worlds.run(world, "learn_all", cases=POLICIES), POLICIES)


def test_what_is_sent_follows_the_formula(worlds):
    """See docs/scale.md. One session of 4 updates of 10 samples, of 36 stored, in 3 classes."""
    results = worlds.run(2, "first_session", case={**BY_SAMPLE, **SHARDED})
    sizes = Sizes(36, classes=3, updates=4, batch=10, width=8, hidden=16, embedding=12)
    for result in results:
        expected, sent = formula(sizes, result["parameters"]), result["sent"]
        for part in ("gradients", "outputs", "prototypes"):
            assert sent[part] == expected[part]
        assert sent["plans"] == 8 * 27  # one rank owns 2 of 3 classes, and the other gives as many rows
        assert sent["codes"] <= 5 * 10 * 8 * 4  # at most if one rank holds a whole mini-batch
        assert sent["candidates"] <= 2 * 8 * 3 + 16 * 36 + 16


@pytest.mark.parametrize("how", [{}, {"shards": "ranks"}])
def test_a_closed_form_head_is_solved_from_sums_that_are_added_up(worlds, how):
    """One session of `aligned` with 2,400 samples in 3 classes, and features of 12 numbers, of which 512 are kept."""
    case = {"learner": "aligned", "parameters": {"corrected": False}, "capacity": None, "first": 2400, "how": how}
    sums, features = 8 * 2 * (3 + 3 * 12 + 12 * 12), 512 * (4 * 12 + 8)
    for result in worlds.run(2, "first_session", case=case):
        assert result["sent"]["moments"] == sums + features
        if how:  # mini-batches, and the samples that judge the head before the session
            assert result["sent"]["codes"] <= (5 * 10 + 256) * 8 * 4
        # The network passes each sample that is not in a mini-batch on one rank alone.
        assert result["sent"]["outputs"] <= 4 * (12 + 12 + 3) * ((5 * 10 + 256) / 2 + 2400 / 2 * (not how))


def test_the_race_takes_little_memory(worlds):
    """Slots, distances and classes: 20 bytes per sample, and 8 more while classes are found."""
    assert max(result["bytes"] for result in worlds.run(2, "race_memory")) < 30
