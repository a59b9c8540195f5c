"""GSS, OCS and grad matching against their definitions on explicit gradient vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from chi_square import LIKELY, UNLIKELY, p_value
from torch import nn

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.model import vector_network
from graspcl.policy import Budget, Policy, Session, batches, grad_matching, policies
from graspcl.policy.grad_matching import matching_order
from graspcl.policy.gradients import Gradients
from graspcl.testing.common import seeded
from graspcl.testing.policies import check_policy

Array = np.ndarray[Any, Any]

NAMES = ("gss", "ocs", "grad_matching")
LABELS = np.array([0, 1, 2, 0, 1, 1, 2, 0, 1, 0, 0, 2, 1, 1, 1, 0, 2, 1, 0, 0])
OLD = 12
BOTH = pytest.mark.parametrize("kind", ["last_layer", "full"])


def session(budget: Budget, seed: int = 0) -> Session:
    """The first 12 samples are old, the other 8 new."""
    inputs = torch.randn(len(LABELS), 5, generator=seeded(1))
    buffer = Buffer()
    buffer.insert(inputs, LABELS)
    network = vector_network(5, 7, 6, 3, generator=seeded(2), scale=4.0)
    buffer.since = OLD
    return Session(buffer, budget, np.random.default_rng(seed), network)


def explicit(asked: Session, kind: str) -> Array:
    """Gradients [N, P] of all stored samples in float64, one by one, by autograd on an equal network."""
    network = session(Budget(0, 1))._network
    assert isinstance(network, nn.Module)
    found = []
    for one, label in zip(*asked._buffer.fetch(np.arange(len(LABELS))), strict=True):
        if kind == "full":
            logits, of = network(one[None]).logits, list(network.parameters())
        else:  # with respect to the cosine head's normalised rows
            h, head = nn.functional.pad(network(one[None]).features.detach(), (0, 1), value=1.0), network.head
            of = [nn.functional.normalize(torch.cat([head.weight, head.bias[:, None]], 1)).detach().requires_grad_()]
            logits = head.sigma.detach() * h / h.norm() @ of[0].T
        parts = torch.autograd.grad(nn.functional.cross_entropy(logits, label[None].long()), of)
        found.append(torch.cat([part.reshape(-1) for part in parts]).double())
    return torch.stack(found).numpy()


def cos(a: Array, b: Array) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


class Recorded:
    """A session's gradients, noting whose were asked for: what chance drew, and in which order."""

    def __init__(self, asked: Session) -> None:
        self.original, self.slots = asked.gradients, [np.empty(0, int)]
        asked.gradients = self  # type: ignore[assignment,method-assign]

    def __call__(self, slots: Array, full: bool = False) -> Gradients:
        self.slots.append(slots)
        return self.original(slots, full)


def ranked(slots: Array, score: dict[int, float], n: int) -> list[int]:
    """The `n` slots of the largest score; these must lie apart, so that rounding does not decide."""
    order = sorted(slots.tolist(), key=lambda i: -score[i])
    values = [score[i] for i in order[: n + 1]]
    assert min(-np.diff(values)) > 1e-7 * max(map(abs, values))
    return order[:n]


# -- scores ----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("tau", [0.0, 1.0, 1000.0])
def test_ocs_takes_the_old_candidates_of_the_largest_score(kind: str, tau: float) -> None:
    asked = session(Budget(5, 5))
    g, recorded = explicit(asked, kind), Recorded(asked)
    policy = policies.create("ocs", tau=tau, candidates_per_pick=4, gradients=kind)
    for slots in batches(policy, asked):
        looked_at, incoming = np.split(recorded.slots[-1], [8])
        assert incoming.tolist() == slots[:3].tolist() and min(incoming) >= OLD > max(looked_at)
        assert len(set(looked_at.tolist())) == 8
        mean, reference = g[looked_at].mean(0), g[incoming].mean(0)
        score = {
            i: cos(g[i], mean) - np.mean([cos(g[i], g[j]) for j in looked_at]) + tau * cos(g[i], reference)
            for i in looked_at.tolist()
        }
        assert slots[3:].tolist() == ranked(looked_at, score, 2)


@BOTH
@pytest.mark.parametrize("size", [1, 6])
def test_gss_at_the_top_takes_the_candidates_least_like_any_reference(kind: str, size: int) -> None:
    asked = session(Budget(5, 3))
    g, recorded = explicit(asked, kind), Recorded(asked)
    policy = policies.create("gss", references=4, reference_size=size, gradients=kind, mode="top")
    for slots in batches(policy, asked):
        looked_at, *references = np.split(recorded.slots[-1], 15 + size * np.arange(4))
        assert [len(set(part.tolist())) for part in (looked_at, *references)] == [15, size, size, size, size]
        score = {i: -max(cos(g[i], g[part].mean(0)) for part in references) for i in looked_at.tolist()}
        assert slots.tolist() == ranked(looked_at, score, 3)


def test_gss_draws_each_candidate_in_proportion_to_one_over_its_score() -> None:
    """All six samples are the reference, so their scores C are the same in every mini-batch."""
    angles = np.array([0.0, 0.3, 0.8, 1.9, 2.6, 2.9])
    g = np.stack([np.cos(angles), np.sin(angles)], 1)
    asked = session(Budget(1, 1))
    asked._buffer = Buffer()
    asked._buffer.insert(torch.zeros(6, 5), [0] * 6)
    asked.gradients = lambda slots, full=False: Gradients(torch.from_numpy(g[slots]))  # type: ignore[method-assign]
    policy = policies.create("gss", references=1, reference_size=6)
    weights = 1 / (1 + np.array([cos(one, g.mean(0)) for one in g]))
    p = weights / weights.sum()
    assert max(p) > 1.5 * min(p)
    pairs = p[:, None] * p / (1 - p[:, None])
    np.fill_diagonal(pairs, 0)
    counts = np.zeros((6, 6), int)
    for _ in range(3000):
        counts[tuple(policy.select(asked, 2))] += 1
    assert p_value(counts.ravel(), pairs.ravel()) > LIKELY
    assert p_value(counts.ravel(), (1 - np.eye(6)).ravel()) < UNLIKELY


# -- grad matching ---------------------------------------------------------------------------------------------------


def exhaustive(g: Array, number: int) -> list[int]:
    """Grad matching as it is defined; when all were drawn, it begins again."""
    mean, chosen = g.mean(0), []
    for draw in range(number):
        so_far = chosen[draw - draw % len(g) :]
        left = [i for i in range(len(g)) if i not in so_far]
        chosen.append(min(left, key=lambda i: np.linalg.norm(mean - g[[*so_far, i]].mean(0))))
    return chosen


@BOTH
@pytest.mark.parametrize("budget", [Budget(1, 2), Budget(4, 4), Budget(9, 7)], ids=str)
@pytest.mark.parametrize("gram", [0, 4096])
def test_grad_matching_is_the_exhaustive_greedy_one(
    kind: str, budget: Budget, gram: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 63 draws every class is exhausted at least twice; without room for the products, as with it."""
    monkeypatch.setattr(grad_matching, "_GRAM", gram)
    asked = session(budget)
    g = explicit(asked, kind)
    g /= np.linalg.norm(g, axis=1, keepdims=True) + 1e-8
    drawn = np.concatenate(list(batches(policies.create("grad_matching", gradients=kind), asked)))
    turns = LABELS[drawn]
    assert (turns == np.resize(turns[:3], len(turns))).all() and len(set(turns[:3])) == min(3, len(turns))
    for k in range(3):
        members, mine = np.flatnonzero(k == LABELS), drawn[turns == k]
        assert mine.tolist() == members[exhaustive(g[members], len(mine))].tolist()


@pytest.mark.parametrize("gram", [0, 4096])
def test_grad_matching_without_balance_matches_the_mean_of_the_buffer(
    gram: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grad_matching, "_GRAM", gram)
    asked = session(Budget(5, 5))
    g = explicit(asked, "last_layer")
    g /= np.linalg.norm(g, axis=1, keepdims=True) + 1e-8
    policy = policies.create("grad_matching", balanced=False)
    assert not policy.balanced
    drawn = np.concatenate(list(batches(policy, asked)))
    assert drawn.tolist() == exhaustive(g, 20) + drawn[:5].tolist()
    assert asked.costs.selection_forward == len(LABELS)


def test_matching_comes_nearer_to_the_mean_than_chance() -> None:
    """20 of 400 directions in six dimensions."""
    rng = np.random.default_rng(3)
    g = rng.normal(size=(400, 6))
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    order = matching_order(Gradients(torch.from_numpy(g)), 20)
    assert len(set(order.tolist())) == 20
    at_random = np.mean([np.linalg.norm(g[rng.permutation(400)[:20]].mean(0) - g.mean(0)) for _ in range(50)])
    assert np.linalg.norm(g[order].mean(0) - g.mean(0)) < 0.2 * at_random


def test_ties_and_the_first_class_of_a_round_are_left_to_chance() -> None:
    buffer = Buffer()
    buffer.insert(torch.ones(6, 5), [0, 0, 0, 1, 1, 1])
    network = vector_network(5, 7, 6, 2, generator=seeded(2))
    policy = policies.create("grad_matching")
    first = {
        int(next(batches(policy, Session(buffer, Budget(1, 1), np.random.default_rng(seed), network)))[0])
        for seed in range(40)
    }
    assert first == set(range(6))


# -- costs, settings, contract ---------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("policy", "settings", "per_batch", "per_session"),
    [
        ("ocs", {"candidates_per_pick": 2}, 3 + 2 * 2, 0),  # three are incoming, two are picked
        ("gss", {"candidates_per_pick": 2, "references": 3, "reference_size": 4}, 2 * 5 + 3 * 4, 0),
        ("grad_matching", {}, 0, len(LABELS)),
    ],
)
def test_costs_are_as_stated(
    policy: str, settings: dict[str, int], per_batch: int, per_session: int, kind: str
) -> None:
    asked = session(Budget(6, 5))
    drawn = list(batches(policies.create(policy, gradients=kind, **settings), asked))
    assert [len(slots) for slots in drawn] == [5] * 6
    assert asked.costs.selection_forward == 6 * per_batch + per_session
    assert asked.costs.selection_backward == (asked.costs.selection_forward if kind == "full" else 0)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradients_show_in_the_repr_and_no_others_are_taken(name: str) -> None:
    assert "gradients='last_layer'" in repr(policies.create(name))
    part = policies.get(name)
    assert part.family == "gradient" and "last layer's weight; of all trainable parameters if full" in part.cost
    assert "those of the last layer's weight" in str(part.__doc__)
    with pytest.raises(GraspError, match="gradients must be 'last_layer' or 'full', got 'half'"):
        policies.create(name, gradients="half")


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("ocs", {"candidates_per_pick": 0}),
        ("ocs", {"tau": float("nan")}),
        ("gss", {"candidates_per_pick": 0}),
        ("gss", {"references": 0}),
        ("gss", {"reference_size": -1}),
    ],
)
def test_settings_are_checked_when_the_policy_is_made(name: str, setting: dict[str, Any]) -> None:
    with pytest.raises(GraspError, match=f"{next(iter(setting))} must be"):
        policies.create(name, **setting)


@pytest.mark.parametrize(
    "policy",
    [
        policies.create("ocs", tau=0.0, candidates_per_pick=1),
        policies.create("gss", references=1, reference_size=1, candidates_per_pick=1),
        policies.create("gss", references=2, reference_size=3, candidates_per_pick=2, gradients="full", mode="top"),
        policies.create("ocs", candidates_per_pick=2, gradients="full"),
        policies.create("grad_matching", gradients="full"),
        policies.create("grad_matching", balanced=False),
    ],
    ids=repr,
)
@pytest.mark.usefixtures("fewer_sessions")
def test_other_settings_keep_the_contract(policy: Policy) -> None:
    globally = policy == policies.create("grad_matching", balanced=False)
    check_policy(policy, random=not globally)  # without ties its order is the same for every seed
