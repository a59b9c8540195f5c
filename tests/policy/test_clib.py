"""CLIB: importance against a hand-run with a real network and optimiser, and how it decides the draws."""

from __future__ import annotations

import copy
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from chi_square import LIKELY, UNLIKELY, p_value
from torch import nn

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.policy import Budget, Session, batches
from graspcl.policy.clib import Clib
from graspcl.testing.common import ToyNetwork
from graspcl.testing.policies import check_policy

LABELS = np.array([0, 1, 0, 1, 2, 1, 0, 0])


def network() -> ToyNetwork:
    return ToyNetwork(5, classes=3)


def filled(labels: np.ndarray = LABELS, **settings: Any) -> Buffer:
    buffer = Buffer(**settings)
    buffer.insert(np.random.default_rng(1).normal(size=(len(labels), 5)).astype(np.float32), labels)
    return buffer


def train(policy: Clib, session: Session, lr: float = 0.2) -> list[tuple[np.ndarray, nn.Module, nn.Module]]:
    """A session with real updates; of each the slots and the network just before and just after."""
    learning = session._network
    assert isinstance(learning, nn.Module)
    optimiser = torch.optim.SGD(learning.parameters(), lr=lr, momentum=0.9)
    history = []
    for slots in batches(policy, session):
        before = copy.deepcopy(learning)
        inputs, labels = session._buffer.fetch(slots)
        learning.eval()  # its own dropout would draw from the global generator
        optimiser.zero_grad()
        nn.functional.cross_entropy(learning(inputs).logits, labels).backward()
        optimiser.step()
        learning.train()
        history.append((slots, before, copy.deepcopy(learning)))
    return history


def loss(network: nn.Module, buffer: Buffer, slot: int) -> float:
    inputs, labels = buffer.fetch([slot])
    with torch.no_grad():
        return float(nn.functional.cross_entropy(network.eval()(inputs).logits, labels))


def by_hand(history: list[tuple[np.ndarray, nn.Module, nn.Module]], buffer: Buffer, decay: float) -> dict[int, float]:
    """Importance of every sample that was measured, following the definition sample by sample."""
    known: dict[int, float] = {}
    for slots, before, after in history:
        guesses = {k: [v for s, v in known.items() if buffer.labels[s] == k] for k in (0, 1, 2)}
        for slot in slots.tolist():
            own_class = guesses[int(buffer.labels[slot])]
            start = known.get(slot, float(np.mean(own_class)) if own_class else 0.0)
            known[slot] = decay * start + (1 - decay) * (loss(before, buffer, slot) - loss(after, buffer, slot))
    return known


@pytest.mark.parametrize("updates", [1, 3, 12])
def test_importance_is_the_average_of_what_each_update_gained(updates: int) -> None:
    buffer, policy = filled(), Clib(decay=0.7)
    session = Session(buffer, Budget(updates, 3), np.random.default_rng(2), network().train())
    history = train(policy, session)
    known = by_hand(history[:-1], buffer, 0.7)  # the last update's effect is not measured any more
    found = policy.importance(np.arange(len(buffer)))
    for slot, value in known.items():
        assert found[slot] == pytest.approx(value, abs=1e-5)
    for slot in set(range(len(buffer))) - known.keys():
        mates = [value for other, value in known.items() if LABELS[other] == LABELS[slot]]
        assert found[slot] == pytest.approx(np.mean(mates) if mates else 0.0, abs=1e-5)
    assert updates == 1 or max(map(abs, known.values())) > 1e-2  # or else nothing was tested


def test_it_costs_two_passes_per_rehearsed_sample_but_for_the_last_mini_batch() -> None:
    session = Session(filled(), Budget(5, 3), np.random.default_rng(0), network())
    list(batches(Clib(), session))
    assert session.costs.selection_forward == 2 * 15 - 3 and session.costs.selection_backward == 0


def test_a_mini_batch_larger_than_the_buffer_holds_all_of_it_and_is_measured_once() -> None:
    buffer, policy = filled(), Clib(decay=0.5)
    session = Session(buffer, Budget(3, 20), np.random.default_rng(0), network())
    history = train(policy, session, lr=0.05)
    for slots, _, _ in history:
        counts = np.bincount(slots, minlength=8)
        assert counts.min() == 2 and counts.max() == 3
    known = by_hand([(np.unique(slots), *networks) for slots, *networks in history[:-1]], buffer, 0.5)
    found = policy.importance(np.arange(8))
    assert found == pytest.approx(np.array([known[slot] for slot in range(8)]), abs=1e-5)


def test_importance_stays_with_the_sample_when_slots_change_hands() -> None:
    buffer, policy = filled(capacity=8), Clib()
    train(policy, Session(buffer, Budget(6, 3), np.random.default_rng(0), network()))
    before = dict(zip(buffer.births.tolist(), policy.importance(np.arange(8)).tolist(), strict=True))
    known = dict(zip(buffer.births.tolist(), policy._known.tolist(), strict=True))
    buffer.insert(np.ones((3, 5), np.float32), [2, 2, 2])
    policy.begin(Session(buffer, Budget(1, 3), np.random.default_rng(0), network()))
    kept = [(slot, birth) for slot, birth in enumerate(buffer.births.tolist()) if known.get(birth)]
    assert len(kept) >= 3 and set(buffer.births.tolist()) != set(before)
    for slot, birth in kept:
        assert policy.importance(np.array([slot]))[0] == before[birth]
    assert not policy._known[buffer.births >= 8].any()
    np.testing.assert_allclose(policy._totals, [policy._importance[buffer.labels == k].sum() for k in (0, 1, 2)])


# -- selection -------------------------------------------------------------------------------------------------------


def begun(importance: np.ndarray, **parameters: Any) -> tuple[Clib, Session]:
    """A policy that has measured `importance` of as many samples."""
    policy = Clib(**parameters)
    session = Session(filled(np.zeros(len(importance), int)), Budget(1, 2), np.random.default_rng(7), network())
    policy.begin(session)
    policy._importance[:], policy._known[:] = importance, True
    return policy, session


def test_draws_are_without_replacement_by_a_softmax_of_the_standardised_importance() -> None:
    importance = np.array([0.3, -0.1, 0.0, 0.7])
    policy, session = begun(importance, candidates_per_pick=2)  # two candidates per pick: all four
    drawn = np.array([policy._choose(np.arange(4), 2, session.rng) for _ in range(6000)])
    counts = np.array([((drawn[:, 0] == a) & (drawn[:, 1] == b)).sum() for a, b in permutations(range(4), 2)])
    for strength, agrees in ((1.0, True), (0.7, False)):
        w = np.exp(strength * (importance - importance.mean()) / importance.std())
        p = np.array([w[a] / w.sum() * w[b] / (w.sum() - w[a]) for a, b in permutations(range(4), 2)])
        assert p_value(counts, p) > LIKELY if agrees else p_value(counts, p) < UNLIKELY


def test_equal_importance_is_drawn_uniformly_in_either_mode() -> None:
    for mode in ("proportional", "top"):
        policy, session = begun(np.full(6, 0.25), mode=mode)
        drawn = np.concatenate([policy._choose(np.arange(6), 2, session.rng) for _ in range(1500)])
        assert p_value(np.bincount(drawn, minlength=6), np.ones(6)) > LIKELY


def test_top_takes_the_largest_of_the_candidates() -> None:
    importance = np.random.default_rng(8).normal(size=10)
    policy, session = begun(importance, mode="top")
    assert policy._choose(np.arange(10), 2, session.rng).tolist() == np.argsort(-importance)[:2].tolist()
    policy, session = begun(importance, mode="top", candidates_per_pick=2)
    drawn = np.concatenate([policy._choose(np.arange(10), 1, session.rng) for _ in range(4000)])
    rank = np.argsort(np.argsort(importance))  # the larger of two candidates: p ~ how many are smaller
    assert p_value(np.bincount(drawn, minlength=10)[rank > 0], rank[rank > 0].astype(float)) > LIKELY


@pytest.mark.parametrize("policy", [Clib(mode="top"), Clib(decay=0.0, candidates_per_pick=1)], ids=repr)
@pytest.mark.usefixtures("fewer_sessions")
def test_it_keeps_the_contract_with_other_parameters(policy: Clib) -> None:
    check_policy(policy)


@pytest.mark.parametrize("wrong", [{"mode": "best"}, {"decay": 1.0}, {"candidates_per_pick": 0}])
def test_parameters_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(GraspError, match=f"{next(iter(wrong))} must be .*, got"):
        Clib(**wrong)
