"""The tree that draws without replacement: against numpy, at the ends of the number range, and after many changes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from chi_square import LIKELY, UNLIKELY, p_value
from hypothesis import given, settings
from hypothesis import strategies as st

from graspcl.errors import GraspError
from graspcl.policy.tree import build, by_level, by_weight, draw, update

LAST = np.nextafter(1.0, 0.0)  # the largest number a generator gives
WHOLE = st.integers(0, 9).map(float)  # sums of whole numbers are exact, so numpy's and the tree's must agree


def left_to_right(n: int) -> np.ndarray:
    """The order in which the tree's leaves stand side by side: those of the lowest row first."""
    first = 2 ** ((2 * n - 1).bit_length() - 1)
    return np.append(np.arange(first, 2 * n), np.arange(n, first)) - n


def draw_slowly(weights: np.ndarray, chances: np.ndarray) -> list[int]:
    """One after the other with numpy: by weight while any is left, then uniformly."""
    order, drawn = left_to_right(len(weights)), []
    for chance in chances:
        left = weights.copy()
        left[drawn] = 0
        if not left.any():
            left = np.ones(len(weights))
            left[drawn] = 0
        cumulated = np.cumsum(left[order])
        drawn.append(int(order[np.searchsorted(cumulated, chance * cumulated[-1], side="right")]))
    return drawn


def sequences(weights: np.ndarray, draws: int) -> dict[tuple[int, ...], float]:
    """Probability of every sequence of different samples, by enumeration."""
    table = {}
    for sequence in itertools.permutations(range(len(weights)), draws):
        p, left = 1.0, weights.sum()
        for i in sequence:
            p *= weights[i] / left
            left -= weights[i]
        table[sequence] = p
    return table


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_draws_and_changes_are_those_of_numpy(data: st.DataObject) -> None:
    weights = np.array(data.draw(st.lists(WHOLE, min_size=1, max_size=20)))
    n = len(weights)
    tree = build(by_weight(weights))
    for _ in range(data.draw(st.integers(1, 5))):
        slots = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=6)), np.int64)
        values = np.array(data.draw(st.lists(WHOLE, min_size=len(slots), max_size=len(slots))))
        weights[slots] = values
        update(tree, slots, by_weight(values))
        assert (tree == build(by_weight(weights))).all()  # to the last bit, however many changes there were
        chances = np.array(data.draw(st.lists(st.integers(0, 1023), max_size=n))) / 1024
        assert draw(tree, chances).tolist() == draw_slowly(weights, chances)
        assert (tree == build(by_weight(weights))).all()


@settings(deadline=None)
@given(st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=20), st.integers(0, 2**32))
def test_levels_come_from_the_largest_down(levels: list[float], seed: int) -> None:
    drawn = draw(build(by_level(np.array(levels))), np.random.default_rng(seed).random(len(levels)))
    assert sorted(drawn) == list(range(len(levels)))
    assert [levels[i] for i in drawn] == sorted(levels, reverse=True)


def test_sequences_without_replacement_are_as_likely_as_enumerated() -> None:
    weights = np.array([0.3, 2.0, 1.0, 0.7, 0.01])
    tree, rng = build(by_weight(weights)), np.random.default_rng(1)
    drawn = [tuple(draw(tree, rng.random(3)).tolist()) for _ in range(40_000)]
    exact = sequences(weights, 3)
    counts = np.array([0] * len(exact))
    for sequence in drawn:
        counts[list(exact).index(sequence)] += 1
    assert p_value(counts, np.array(list(exact.values()))) > LIKELY
    assert p_value(counts, np.array(list(sequences(weights**1.1, 3).values()))) < UNLIKELY


@pytest.mark.parametrize("chance", [0.0, 0.5, LAST])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
def test_no_zero_weight_is_drawn_while_there_are_others(n: int, chance: float) -> None:
    for one in range(n):
        weights = np.zeros(n)
        weights[one] = 0.1
        drawn = draw(build(by_weight(weights)), np.full(n, chance))
        assert drawn[0] == one and sorted(drawn) == list(range(n))


def test_the_end_of_the_range_stays_within_what_has_weight() -> None:
    """Sums of 0.1, 0.2, … round; the last number below 1 must not fall off the end, onto the zeros."""
    rng = np.random.default_rng(2)
    for n in range(1, 60):
        weights = np.where(rng.random(n) < 0.5, 0.0, rng.random(n) * 10.0 ** rng.integers(-300, 300, n))
        some = np.flatnonzero(weights)
        drawn = draw(build(by_weight(weights)), np.full(len(some), LAST))
        assert sorted(drawn) == some.tolist()


def test_all_zero_and_all_equal_weights_are_uniform() -> None:
    rng = np.random.default_rng(3)
    for weights in (np.zeros(5), np.full(5, 1e-300)):
        tree = build(by_weight(weights))
        counts = np.bincount([draw(tree, rng.random(1))[0] for _ in range(5000)], minlength=5)
        assert p_value(counts, np.ones(5)) > LIKELY


def test_small_weights_keep_their_proportions_when_the_large_ones_are_gone() -> None:
    """A sum that was corrected by differences would have lost them: 1 + 1e-200 - 1 = 0."""
    weights = np.array([1.0, 1e-200, 3.0, 3e-200, 1e100])
    tree, rng = build(by_weight(weights)), np.random.default_rng(4)
    drawn = np.array([draw(tree, rng.random(4)) for _ in range(5000)])
    assert (drawn[:, 0] == 4).all() and set(drawn[:, 1:3].ravel()) == {0, 2}
    assert p_value(np.bincount(drawn[:, 3], minlength=5)[[1, 3]], np.array([1, 3])) > LIKELY


def test_more_draws_than_leaves_are_refused() -> None:
    with pytest.raises(GraspError, match="than there are leaves"):
        draw(build(by_weight(np.ones(3))), np.zeros(4))
