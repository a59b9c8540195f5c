"""MIR: interference against a clone of the network that really takes the step."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from chi_square import LIKELY, p_value
from torch import nn

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.policy import Budget, Session, batches
from graspcl.policy.mir import Mir
from graspcl.testing.common import ToyNetwork
from graspcl.testing.policies import check_policy

OLD, NEW = 30, 12


def network() -> ToyNetwork:
    """In train mode, with the first layer frozen."""
    made = ToyNetwork(5, classes=4)
    made.weight.requires_grad_(False)
    return made.train()


def session(budget: Budget, seed: int = 0, lr: float = 0.3) -> Session:
    rng = np.random.default_rng(1)
    labels = np.concatenate([rng.integers(3, size=OLD), np.full(NEW, 3)])
    buffer = Buffer()
    buffer.insert(rng.normal(size=(OLD + NEW, 5)).astype(np.float32), labels)
    buffer.since = OLD
    return Session(buffer, budget, np.random.default_rng(seed), network(), lr=lr)


def interference(one: Session, incoming: np.ndarray) -> np.ndarray:
    """Of every old sample: its loss in a clone that was trained on `incoming`, minus its loss in the network."""
    assert isinstance(one._network, nn.Module)
    now, after = copy.deepcopy(one._network).eval(), copy.deepcopy(one._network).eval()
    inputs, labels = one._buffer.fetch(incoming)
    nn.functional.cross_entropy(after(inputs).logits, labels).backward()
    torch.optim.SGD([p for p in after.parameters() if p.requires_grad], lr=one.lr).step()
    inputs, labels = one._buffer.fetch(np.arange(OLD))
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(n(inputs).logits, labels, reduction="none") for n in (now, after)]
    return (losses[1] - losses[0]).numpy()


@pytest.mark.parametrize("lr", [0.05, 0.3])
def test_with_all_old_samples_as_candidates_the_most_interfered_are_chosen(lr: float) -> None:
    one = session(Budget(5, 9), lr=lr)
    for slots in batches(Mir(candidates=OLD), one):
        incoming, chosen = slots[:5], slots[5:]
        assert (incoming >= OLD).all() and len(set(incoming)) == 5
        assert chosen.tolist() == np.argsort(-interference(one, incoming))[:4].tolist()


@pytest.mark.parametrize(
    ("policy", "number"),
    [(Mir(), 10), (Mir(candidates_per_pick=3), 6), (Mir(candidates=7), 7), (Mir(candidates=1), 2), (Mir(40), OLD)],
    ids=repr,
)
def test_as_many_candidates_as_said_are_looked_at_and_paid_for(
    policy: Mir, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, seen = session(Budget(3, 5)), []
    forward = one.forward
    monkeypatch.setattr(one, "forward", lambda slots: seen.append(slots) or forward(slots))
    for slots in batches(policy, one):
        looked_at = seen[-1]
        assert len(set(looked_at)) == number and looked_at.max() < OLD
        scores = interference(one, slots[:3])[looked_at]
        assert slots[3:].tolist() == looked_at[np.argsort(-scores)[:2]].tolist()
    assert one.costs.selection_forward == 3 * (3 + 2 * number)
    assert one.costs.selection_backward == 3 * 3


def test_candidates_are_uniform() -> None:
    one = session(Budget(800, 2))  # one of each: as many candidates as picks make the pick uniform
    drawn = np.array(list(batches(Mir(candidates_per_pick=1), one)))
    assert p_value(np.bincount(drawn[:, 1], minlength=OLD), np.ones(OLD)) > LIKELY
    assert p_value(np.bincount(drawn[:, 0] - OLD, minlength=NEW), np.ones(NEW)) > LIKELY


def test_the_network_is_as_it_was() -> None:
    one = session(Budget(4, 6))
    assert isinstance(one._network, nn.Module)
    before = copy.deepcopy(one._network.state_dict())
    list(batches(Mir(), one))
    assert all(torch.equal(value, before[name]) for name, value in one._network.state_dict().items())
    assert one._network.training and all(p.grad is None for p in one._network.parameters())


@pytest.mark.parametrize("policy", [Mir(candidates=3)], ids=repr)
@pytest.mark.usefixtures("fewer_sessions")
def test_it_keeps_the_contract_with_other_parameters(policy: Mir) -> None:
    check_policy(policy)


@pytest.mark.parametrize("wrong", [{"candidates": 0}, {"candidates_per_pick": 0}])
def test_parameters_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(GraspError, match=f"{next(iter(wrong))} must be a whole number of at least 1"):
        Mir(**wrong)
