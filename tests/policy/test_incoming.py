"""Policies for incoming samples: which half is which, what is left to chance, and what happens without one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from chi_square import LIKELY, p_value

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.policy import Budget, Session, batches
from graspcl.policy.drawing import best, candidates, evenly
from graspcl.policy.policy import IncomingPolicy
from graspcl.testing.policies import check_policy

Array = np.ndarray[Any, Any]


@dataclass
class Asked(IncomingPolicy):
    """Chooses at random and notes what it was asked."""

    asked: list[Any] = field(default_factory=list)

    def choose(self, session: Session, incoming: Array, old: Array, k: int) -> Array:
        self.asked.append((incoming, old, k))
        return evenly(candidates(old, 5 * k, session.rng), k, session.rng)


@dataclass
class AtRandom(IncomingPolicy):
    """Chooses at random."""

    def choose(self, session: Session, incoming: Array, old: Array, k: int) -> Array:
        return evenly(old, k, session.rng)


def session(old: int, new: int, budget: Budget, seed: int = 0) -> Session:
    """A buffer that was full when the new ones came, so that they lie in random places."""
    buffer = Buffer(capacity=old + new)
    buffer.insert(torch.zeros(old + new, 1), np.zeros(old + new, int))
    buffer.settle()
    buffer.insert(torch.zeros(new, 1), np.zeros(new, int))
    return Session(buffer, budget, np.random.default_rng(seed))


@pytest.mark.parametrize("n", [1, 2, 5, 8, 9])
def test_half_is_new_and_the_smaller_half_is_chosen_from_all_old_ones(n: int) -> None:
    policy, asked_of = Asked(), session(old=30, new=20, budget=Budget(20, n))
    new = asked_of._buffer.new
    assert 0 < new.sum() < len(new) and (np.diff(new.astype(int)) < 0).any()  # old and new lie mixed
    drawn = list(batches(policy, asked_of))
    assert len(drawn) == 20
    for slots in drawn:
        assert len(slots) == n and new[slots].tolist() == [True] * (n - n // 2) + [False] * (n // 2)
        assert len(set(slots.tolist())) == n
    assert len(policy.asked) == (0 if n == 1 else 20)
    for slots, (incoming, old, k) in zip(drawn, policy.asked, strict=n > 1):
        assert slots[: n - k].tolist() == incoming.tolist() and k == n // 2
        assert old.tolist() == np.flatnonzero(~new).tolist()


def test_incoming_samples_are_drawn_uniformly_and_anew_for_each_mini_batch() -> None:
    asked_of = session(old=5, new=5, budget=Budget(6000, 4))
    new = np.flatnonzero(asked_of.new)
    drawn = np.searchsorted(new, np.array(list(batches(AtRandom(), asked_of)))[:, :2])
    number = len(new)
    pairs = np.bincount(drawn[:, 0] * number + drawn[:, 1], minlength=number**2).reshape(number, number)
    assert (np.diag(pairs) == 0).all()
    assert p_value(pairs[~np.eye(number, dtype=bool)], np.ones(number * (number - 1))) > LIKELY
    across = np.bincount(drawn[:-1:2, 0] * number + drawn[1::2, 0], minlength=number**2)
    assert p_value(across, np.ones(number**2)) > LIKELY


def test_too_few_of_a_kind_come_repeatedly_but_evenly() -> None:
    asked_of = session(old=3, new=2, budget=Budget(10, 23))
    new = asked_of.new
    for slots in batches(AtRandom(), asked_of):
        for half, kind in ((slots[:12], new), (slots[12:], ~new)):
            counts = np.bincount(half, minlength=5)[kind]
            assert counts.sum() == len(half) and np.ptp(counts) <= 1


@pytest.mark.parametrize("since", [0, 10])
def test_without_old_or_new_samples_all_are_drawn_uniformly_from_what_there_is(since: int) -> None:
    policy, asked_of = Asked(), session(old=10, new=0, budget=Budget(2000, 7))
    asked_of._buffer.since = since
    drawn = np.array(list(batches(policy, asked_of)))
    assert policy.asked == []
    assert all(len(set(slots)) == 7 for slots in drawn.tolist())
    assert p_value(np.bincount(drawn[:, 0], minlength=10), np.ones(10)) > LIKELY
    assert p_value(np.bincount(drawn[:, 6], minlength=10), np.ones(10)) > LIKELY


def test_the_contract_is_kept() -> None:
    check_policy(AtRandom())


def test_a_policy_must_say_how_it_chooses() -> None:
    with pytest.raises(GraspError, match="IncomingPolicy must define choose"):
        next(batches(IncomingPolicy(), session(4, 4, Budget(1, 4))))


# -- helpers ---------------------------------------------------------------------------------------------------------


def test_candidates_are_uniform_in_random_order_and_all_when_there_are_too_few() -> None:
    slots, rng = np.array([3, 5, 8, 9]), np.random.default_rng(1)
    drawn = np.array([candidates(slots, 2, rng) for _ in range(6000)])
    assert (drawn[:, 0] != drawn[:, 1]).all()
    for place in drawn.T:
        assert p_value(np.bincount(np.searchsorted(slots, place), minlength=4), np.ones(4)) > LIKELY
    everything = [candidates(slots, 9, rng).tolist() for _ in range(20)]
    assert all(sorted(some) == slots.tolist() for some in everything) and len(set(map(tuple, everything))) > 1


def test_best_takes_the_first_of_equals_and_repeats_what_is_too_little() -> None:
    slots = np.array([9, 2, 5, 7])
    scores = torch.tensor([1.0, 3.0, 1.0, 2.0])
    assert best(slots, scores, 3).tolist() == [2, 7, 9]
    assert best(slots, scores, 9).tolist() == [2, 7, 9, 5, 2, 7, 9, 5, 2]
    many = torch.arange(3000) % 2  # torch sorts few numbers stably without being told
    assert best(np.arange(3000), many, 3000).tolist() == [*range(1, 3000, 2), *range(0, 3000, 2)]
