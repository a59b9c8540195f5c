"""Drawing within classes and dealing out round-robin."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from chi_square import LIKELY, UNLIKELY, p_value
from hypothesis import given, settings
from hypothesis import strategies as st

from graspcl.policy.drawing import (
    Groups,
    draws_per_class,
    group_by_class,
    round_robin,
    shuffled_draws,
    uniform_draws,
    weighted_draws,
)


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class Extreme:
    """A generator at the end of its range."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self, n: int) -> np.ndarray:
        return np.full(n, self.value)


# Dense labels are counted, sparse and negative ones sorted: both ways must agree.
LABELS = st.one_of(
    st.lists(st.integers(0, 6), min_size=1, max_size=40),
    st.lists(st.sampled_from([-(10**15), -2, 3, 10**6, 10**15]), min_size=1, max_size=40),
)


@settings(deadline=None)
@given(LABELS)
def test_groups_hold_each_class_in_order(labels: list[int]) -> None:
    groups = group_by_class(np.array(labels))
    classes = sorted(set(labels))
    assert groups.number == len(classes) and groups.sizes.tolist() == [labels.count(c) for c in classes]
    for k, c in enumerate(classes):
        members = groups.members[groups.offsets[k] : groups.offsets[k + 1]]
        assert members.tolist() == [i for i, label in enumerate(labels) if label == c]


def test_more_classes_than_16_bits_can_number() -> None:
    labels = seeded().permutation(70_000)
    assert (labels[group_by_class(labels).members] == np.arange(70_000)).all()


def test_no_samples_no_groups() -> None:
    groups = group_by_class(np.empty(0, int))
    assert groups.number == 0 and len(groups.members) == 0


@given(classes=st.integers(1, 50), budget=st.integers(0, 500))
def test_round_robin_deals_one_of_each_class_per_round(classes: int, budget: int) -> None:
    draws = draws_per_class(classes, budget)
    assert draws.sum() == budget and np.ptp(draws) <= 1 and (np.diff(draws) <= 0).all()
    class_of = np.repeat(np.arange(classes), draws)
    turn = np.concatenate([np.arange(n) for n in draws])
    dealt = round_robin(np.arange(budget), classes)
    assert class_of[dealt].tolist() == [c % classes for c in range(budget)]
    assert turn[dealt].tolist() == [c // classes for c in range(budget)]


SIZES = [1, 2, 700, 3, 40]
MIXED = group_by_class(np.repeat([5, 6, 7, 8, 9], SIZES))


@pytest.mark.parametrize("draw", [uniform_draws, shuffled_draws])
@pytest.mark.parametrize("budget", [0, 1, 4, 5, 1234])
def test_every_draw_is_of_the_class_whose_turn_it_is(draw, budget: int) -> None:  # type: ignore[no-untyped-def]
    labels = np.repeat(np.arange(5), SIZES)
    assert labels[draw(MIXED, budget, seeded())].tolist() == [c % 5 for c in range(budget)]


def test_uniform_draws_are_uniform_and_independent() -> None:
    groups = group_by_class(np.array([0, 1, 1, 2, 2, 2, 2]))
    order = uniform_draws(groups, 60_000, seeded(1)).reshape(-1, 3)
    assert (order[:, 0] == 0).all()
    pairs = np.bincount((order[:, 1] - 1) * 4 + order[:, 2] - 3, minlength=8)
    assert p_value(pairs, np.ones(8)) > LIKELY
    successive = np.bincount(order[:-1:2, 2] * 4 + order[1::2, 2] - 15, minlength=16)
    assert p_value(successive, np.ones(16)) > LIKELY


@pytest.mark.parametrize("classes", [10, 1_000_003])
def test_the_ends_of_the_random_numbers_stay_within_the_class(classes: int) -> None:
    """A sum of a large offset and a number just below 1 rounds up; it must not reach the next class."""
    groups = Groups(np.arange(3 * classes), np.arange(0, 3 * classes + 1, 3))
    for chance, last in ((1 - 2.0**-53, 2), (0.0, 0)):
        order = uniform_draws(groups, classes, Extreme(chance))  # type: ignore[arg-type]
        assert (order == 3 * np.arange(classes) + last).all()


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=8), budget=st.integers(0, 400), seed=st.integers(0, 99))
def test_shuffled_draws_show_all_of_a_class_before_any_comes_again(sizes: list[int], budget: int, seed: int) -> None:
    order = shuffled_draws(group_by_class(np.repeat(np.arange(len(sizes)), sizes)), budget, seeded(seed))
    for k, size in enumerate(sizes):
        drawn = order[k :: len(sizes)]
        for begin in range(0, len(drawn), size):
            deck = drawn[begin : begin + size]
            assert len(set(deck.tolist())) == len(deck)


def test_shuffled_draws_come_in_uniform_order_anew_in_each_pass() -> None:
    """Two passes over a class of 3, next to a large and a tiny class: 36 equally likely orders, 20,000 times."""
    runs = 20_000
    groups = group_by_class(np.repeat(np.arange(runs + 2), [3] * runs + [1, 5000]))
    order = shuffled_draws(groups, 6 * (runs + 2), seeded(2)).reshape(6, runs + 2)
    assert (order[:, runs] == 3 * runs).all() and len(set(order[:, runs + 1])) == 6
    decks = (order[:, :runs] % 3).T
    orders = {deck: number for number, deck in enumerate(itertools.permutations(range(3)))}
    cells = [6 * orders[tuple(row[:3])] + orders[tuple(row[3:])] for row in decks.tolist()]
    assert p_value(np.bincount(cells, minlength=36), np.ones(36)) > LIKELY


def test_weighted_draws_follow_the_weights_within_each_class() -> None:
    labels = np.array([3, 0, 3, 0, 3, 9, 9])
    weights = np.array([1.0, 5.0, 0.0, 2.0, 3.0, 0.0, 0.0])
    order = weighted_draws(weights, group_by_class(labels), 90_000, seeded(3))
    assert labels[order].tolist() == [0, 3, 9] * 30_000
    counts = np.bincount(order, minlength=7)
    assert counts[2] == 0  # no weight, no draw
    assert p_value(counts[[1, 3]], np.array([5.0, 2.0])) > LIKELY
    assert p_value(counts[[0, 4]], np.array([1.0, 3.0])) > LIKELY
    assert p_value(counts[[5, 6]], np.ones(2)) > LIKELY  # a class without any weight
    assert p_value(counts[[0, 4]], np.array([1.05, 3.0])) > UNLIKELY > p_value(counts[[0, 4]], np.array([1.2, 3.0]))


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_only_ratios_of_weights_matter(scale: float) -> None:
    groups, weights = group_by_class(np.repeat([0, 1], 5)), seeded(4).random(10)
    plain, scaled = (weighted_draws(w, groups, 1000, seeded(5)) for w in (weights, weights * scale))
    assert (plain == scaled).mean() > 0.999


def test_samples_without_weight_at_the_edges_of_many_classes_are_never_drawn() -> None:
    classes = 20_000
    weights = np.tile([0.0, 0.1, 0.7, 0.0], classes)
    groups = group_by_class(np.repeat(np.arange(classes), 4))
    order = weighted_draws(weights, groups, 30 * classes, seeded(6))
    assert (weights[order] > 0).all()
    for chance in (0.0, 1 - 2.0**-53):
        assert (weights[weighted_draws(weights, groups, classes, Extreme(chance))] > 0).all()  # type: ignore[arg-type]
