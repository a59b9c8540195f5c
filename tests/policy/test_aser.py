"""ASER: Shapley values against the sum over all coalitions, and the choice that follows from them."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from chi_square import LIKELY, p_value
from torch import nn

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.policy import Budget, Session, batches
from graspcl.policy.aser import Aser, knn_shapley
from graspcl.policy.drawing import Groups
from graspcl.testing.common import ToyNetwork
from graspcl.testing.policies import check_policy

# -- Shapley values --------------------------------------------------------------------------------------------------


def worth(coalition: tuple[int, ...], distances: np.ndarray, right: np.ndarray, k: int) -> float:
    """Share of the right class among the k nearest of a coalition; places nobody fills count as wrong."""
    nearest = sorted(coalition, key=lambda i: distances[i])[:k]
    return sum(bool(right[i]) for i in nearest) / k


def shapley(distances: np.ndarray, right: np.ndarray, k: int) -> list[float]:
    """φ_i = Σ_S |S|! (n - |S| - 1)! / n! · (v(S ∪ i) - v(S)) over all coalitions S without i."""
    n = len(distances)
    values = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        value = 0.0
        for size in range(n):
            weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
            for coalition in combinations(others, size):
                gain = worth((*coalition, i), distances, right, k) - worth(coalition, distances, right, k)
                value += weight * gain
        values.append(value)
    return values


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_values_are_those_of_the_sum_over_all_coalitions(n: int, k: int) -> None:
    rng = np.random.default_rng(10 * n + k)
    z, at = rng.normal(size=(n, 3)), rng.normal(size=(4, 3))
    y, labels = rng.integers(2, size=n), rng.integers(2, size=4)
    found = knn_shapley(*map(torch.from_numpy, (z, y, at, labels)), k)
    assert found.shape == (4, n)
    for values, point, label in zip(found, at, labels, strict=True):
        expected = shapley(np.linalg.norm(z - point, axis=1), y == label, k)
        np.testing.assert_allclose(values, expected, atol=1e-9)


def test_values_add_up_to_the_worth_of_all() -> None:
    rng = np.random.default_rng(0)
    z, y = torch.from_numpy(rng.normal(size=(500, 8))).float(), torch.from_numpy(rng.integers(5, size=500))
    at, labels = torch.from_numpy(rng.normal(size=(60, 8))).float(), torch.from_numpy(rng.integers(5, size=60))
    nearest = torch.cdist(at, z).topk(7, largest=False).indices
    share = (y[nearest] == labels[:, None]).double().mean(1)
    torch.testing.assert_close(knn_shapley(z, y, at, labels, 7).sum(1), share)


# -- the choice ------------------------------------------------------------------------------------------------------


OLD_LABELS = np.repeat([0, 1, 2], [12, 9, 6])
NEW_LABELS = np.repeat([1, 4], [4, 6])


def session(budget: Budget, old: np.ndarray = OLD_LABELS, seed: int = 0) -> Session:
    buffer = Buffer()
    labels = np.concatenate([old, NEW_LABELS])
    buffer.insert(np.random.default_rng(1).normal(size=(len(labels), 4)).astype(np.float32), labels)
    buffer.since = len(old)
    return Session(buffer, budget, np.random.default_rng(seed), ToyNetwork(4, classes=5).eval())


@pytest.mark.parametrize("score", ["asvm", "asv", "neg_sv"])
def test_the_candidates_of_largest_score_are_chosen(score: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, one, drawn = Aser(k=2, score=score), session(Budget(6, 7)), []
    sets = Aser.sets
    monkeypatch.setattr(Aser, "sets", lambda *args: drawn.append(sets(*args)) or drawn[-1])
    assert isinstance(one._network, nn.Module)
    with torch.no_grad():
        z = one._network(one._buffer.fetch(np.arange(len(one._buffer)))[0]).embedding.numpy()
    for slots in batches(policy, one):
        incoming, chosen = slots[:4], slots[4:]
        candidates, others = drawn[-1]
        values = {
            name: np.array(
                [
                    shapley(np.linalg.norm(z[candidates] - z[j], axis=1), one.labels[candidates] == one.labels[j], 2)
                    for j in points
                ]
            )
            for name, points in (("coop", others), ("adv", incoming))
        }
        expected = {
            "asvm": values["coop"].mean(0) - values["adv"].mean(0),
            "asv": values["coop"].max(0) - values["adv"].min(0),
            "neg_sv": -values["adv"].sum(0),
        }[score]
        assert (incoming >= 27).all() and set(chosen) <= set(candidates) and len(set(chosen)) == 3
        best = np.sort(expected)[::-1][:3]
        np.testing.assert_allclose([expected[candidates.tolist().index(slot)] for slot in chosen], best, atol=1e-6)
    assert one.costs.selection_forward == 6 * (4 + 6 + 6) and one.costs.selection_backward == 0


def test_candidates_and_evaluation_are_other_samples_of_each_old_class() -> None:
    one = session(Budget(1, 1))
    old = np.arange(27)
    for n_smp_cls, k, each in ((2, 3, 2), (3, 3, 3), (1, 6, 2), (2, 14, 5)):
        candidates, others = Aser(n_smp_cls=n_smp_cls).sets(one, old, k)
        assert np.bincount(one.labels[candidates]).tolist() == [each] * 3 and len(set(candidates)) == 3 * each
        assert np.bincount(one.labels[others]).tolist() == [n_smp_cls] * 3 and max(*candidates, *others) < 27
        apart = each + n_smp_cls <= 6
        assert set(candidates).isdisjoint(others) == apart


@pytest.mark.parametrize(("k", "number"), [(3, 3), (5, 5), (20, 20), (26, 26), (40, 26)])
def test_a_large_class_makes_up_for_small_ones(k: int, number: int) -> None:
    old = np.repeat([0, 1, 2], [1, 1, 24])
    candidates, others = Aser(n_smp_cls=1).sets(session(Budget(1, 1), old), np.arange(26), k)
    assert len(set(candidates)) == len(candidates) == number and len(others) == 3


def test_candidates_are_uniform_within_their_class_and_in_random_order() -> None:
    one, old = session(Budget(1, 1)), np.arange(27)
    drawn = np.array([Aser().sets(one, old, 3)[0] for _ in range(2000)])
    counts = np.bincount(drawn.ravel(), minlength=27)
    for k in (0, 1, 2):
        mine = np.flatnonzero(k == OLD_LABELS)
        assert p_value(counts[mine], np.ones(len(mine))) > LIKELY
    assert p_value(np.bincount(OLD_LABELS[drawn[:, 0]], minlength=3), np.ones(3)) > LIKELY


def test_samples_are_grouped_once_in_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    grouped: list[Groups] = []
    each = Groups.each.fget
    monkeypatch.setattr(Groups, "each", property(lambda groups: grouped.append(groups) or each(groups)))
    assert len(list(batches(Aser(), session(Budget(6, 7))))) == 6 and len(grouped) == 1


def test_fewer_old_samples_than_wanted_are_repeated() -> None:
    for slots in batches(Aser(), session(Budget(3, 16), np.array([0, 1, 1]))):
        counts = np.bincount(slots[slots < 3], minlength=3)
        assert counts.sum() == 8 and counts.max() - counts.min() <= 1


@pytest.mark.parametrize("policy", [Aser(score="asv"), Aser(k=1, n_smp_cls=1, score="neg_sv")], ids=repr)
@pytest.mark.usefixtures("fewer_sessions")
def test_it_keeps_the_contract_with_other_parameters(policy: Aser) -> None:
    check_policy(policy)


@pytest.mark.parametrize("wrong", [{"k": 0}, {"n_smp_cls": 0}, {"score": "best"}])
def test_parameters_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(GraspError, match=f"{next(iter(wrong))} must be .*, got"):
        Aser(**wrong)
