"""Every rule under a learner: SIESTA fills the columns that a rule asks for."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from graspcl.buffer import Buffer, ClibRule, GssRule, HerdingRule, Maintenance, MofRule, RainbowRule, RingRule, rules
from graspcl.errors import GraspError
from graspcl.learner import Diverged, Idbr, Learner, Optimiser, Rehearsal, Siesta, column_shapes
from graspcl.model import SplitNetwork, vector_network
from graspcl.policy import Budget
from graspcl.state import load_state, save_state
from graspcl.testing import check_learner
from graspcl.testing.common import same, seeded

INPUTS = torch.randn(100, 12, generator=seeded())
LABELS = np.arange(100) // 20


def siesta(rule: Maintenance, capacity: int | None = 40, learner: type[Learner] = Siesta) -> Learner:
    network = vector_network(12, hidden=16, embedding=8, generator=seeded())
    buffer = Buffer(capacity, maintenance=rule, columns=column_shapes(rule, network))
    return learner(network, buffer, "uniform", Optimiser(lr=0.1))


def rule_of(name: str) -> Maintenance:
    return RingRule(per_class=8) if name == "ring" else rules.create(name)


@pytest.mark.parametrize("name", ["mof", "gss", "clib"])  # with a state, or with columns, of its own
def test_learner_contract(name: str) -> None:
    check_learner(lambda: siesta(rule_of(name)), INPUTS)


class Offline(Siesta):
    offline = True


@pytest.mark.parametrize("name", rules.names())
@pytest.mark.parametrize("learner", [Siesta, Offline])
def test_two_sessions_stay_within_capacity(name: str, learner: type[Siesta]) -> None:
    made = siesta(rule_of(name), learner=learner)
    for session in (LABELS < 3, LABELS >= 3):
        made.observe(INPUTS[session], LABELS[session])
        made.rehearse(Budget(3, 8))
        assert 0 < len(made.buffer) <= 40
    for column, (shape, _) in made.buffer.columns.items():
        assert made.buffer[column].shape == (len(made.buffer), *shape)
        assert np.isfinite(made.buffer[column]).all()


@pytest.mark.parametrize("name", rules.names())
def test_one_forward_pass_serves_the_rule_and_the_learner(name: str) -> None:
    for learner, passes in ((Siesta, 1), (Learner, 1 if rules.get(name).columns - rules.get(name).fills else 0)):
        made, seen = siesta(rule_of(name), learner=learner), list[int]()
        made.network.register_forward_hook(lambda network, inputs, outputs, seen=seen: seen.append(len(inputs[0])))
        for part in (slice(0, 40), slice(40, 100)):  # the second finds classes that the head knows
            made.observe(INPUTS[part], LABELS[part])
        assert seen == [40, 60] * passes


def test_embeddings_and_uncertainties_are_those_of_the_network_at_insertion() -> None:
    for rule, column in ((HerdingRule(), "embedding"), (RainbowRule(), "uncertainty")):
        learner = siesta(rule, None)
        learner.observe(INPUTS[:40], LABELS[:40])
        learner.observe(INPUTS[40:50], LABELS[40:50])
        if column == "embedding":
            expected = learner.outputs(INPUTS[:50], "embedding")
        else:
            assert (learner.buffer[column][:40] == 1).all()  # no class was known
            learner.classes = learner.classes[:2]
            expected = 1 - learner.outputs(INPUTS[40:50], "logits")[:, :2].softmax(1).amax(1)
        np.testing.assert_allclose(learner.buffer[column][-len(expected) :], expected, atol=1e-6)


def test_gradients_are_those_of_the_loss_at_the_heads_input() -> None:
    learner = siesta(GssRule(), None)
    learner.observe(INPUTS[:40], LABELS[:40])
    assert not learner.buffer["gradient"].any()  # no class was known
    head, step = copy.deepcopy(learner.network.head).double(), 1e-6  # of the moment of insertion
    features = learner.outputs(INPUTS[:1], "features").double()
    learner.observe(INPUTS[:1], LABELS[:1])

    def loss(x: torch.Tensor) -> Any:
        return torch.nn.functional.cross_entropy(head(x), torch.tensor([0])).item()

    nudges = step * torch.eye(8, dtype=torch.float64)
    expected = [(loss(features + nudge) - loss(features - nudge)) / (2 * step) for nudge in nudges]
    np.testing.assert_allclose(learner.buffer["gradient"][-1], expected, atol=1e-4)


@pytest.mark.parametrize("neck", [nn.Linear(16, 8), nn.Sequential(nn.PReLU(), nn.LayerNorm(16), nn.Linear(16, 8))])
@pytest.mark.parametrize(("name", "column", "width"), [("herding", "embedding", 16), ("gss", "gradient", 8)])
def test_a_neck_may_change_the_width(neck: nn.Module, name: str, column: str, width: int) -> None:
    network = SplitNetwork.of(nn.Identity(), nn.Linear(12, 16), INPUTS[:1], generator=seeded(), neck=neck)
    rule = rules.create(name)
    learner = Siesta(network, Buffer(40, maintenance=rule, columns=column_shapes(rule, network)), "uniform")
    learner.observe(INPUTS, LABELS)
    assert learner.buffer[column].shape == (40, width)


@pytest.mark.parametrize(("name", "column", "width"), [("herding", "embedding", 8), ("gss", "gradient", 256)])
def test_idbr_widens_the_heads_input(name: str, column: str, width: int) -> None:
    network = vector_network(12, hidden=16, embedding=8, generator=seeded())
    rule = rules.create(name)
    columns = {**column_shapes(rule, network, Idbr, regularised=True), **Idbr.columns(5, regularised=True)}
    learner = Idbr(network, Buffer(40, maintenance=rule, columns=columns), "uniform", regularised=True)
    for session in (LABELS < 3, LABELS >= 3):
        learner.observe(INPUTS[session], LABELS[session])
        learner.rehearse(Budget(3, 8))
    assert learner.buffer[column].shape == (40, width)
    assert column_shapes(rule, learner.network)[column] == ((width,), np.float32)  # also of the widened network


def test_a_wrong_batch_is_refused_before_the_network_sees_it() -> None:
    learner = siesta(GssRule())
    learner.observe(INPUTS[:40], LABELS[:40])
    for codes, labels in ((INPUTS[:3], [0, 1]), (INPUTS[:3, :5], [0, 1, 2]), (INPUTS[:2], [0, -1])):
        with pytest.raises(GraspError):
            learner.observe_codes(codes, labels)
    assert len(learner.buffer) == 40 and learner.classes == [0, 1]
    learner.observe_codes(INPUTS[:0], [])


def test_a_column_that_learners_do_not_know() -> None:
    class Mine(HerdingRule):
        columns = frozenset({"colour"})

    learner = siesta(Mine())
    with pytest.raises(GraspError, match=r"Mine must define values\(outputs, targets, head\) for 'colour'"):
        learner.observe(INPUTS[:3], LABELS[:3])


# -- training --------------------------------------------------------------------------------------------------------


def session_of(rule: Maintenance, updates: int, lr: float = 0.1) -> Rehearsal:
    learner = siesta(rule, None)
    learner.optimiser = Optimiser(lr=lr)
    learner.observe(INPUTS[:40], LABELS[:40])
    return Rehearsal(learner, Budget(updates, 32))


def step(session: Rehearsal) -> tuple[np.ndarray, Any, Any, torch.Tensor]:
    """Make an update; return its slots, and the network, outputs and targets before it."""
    network = copy.deepcopy(session.learner.network)
    session.step()
    slots = session._picks[-1]
    inputs, labels = session.learner.buffer.fetch(slots)
    with torch.no_grad():
        return slots, network, network(inputs), session.learner.rows(labels)


@pytest.mark.parametrize("rule", [HerdingRule(), RainbowRule(), GssRule()])
def test_an_update_refreshes_the_columns_from_its_own_outputs(rule: Maintenance) -> None:
    session = session_of(rule, updates=2)
    (column,), buffer = rule.wanted, session.learner.buffer
    first = buffer[column].copy()
    slots, network, outputs, targets = step(session)
    others = np.setdiff1d(np.arange(40), slots)
    expected = rule.values(outputs, targets, network.head)[column]
    np.testing.assert_allclose(buffer[column][slots], expected, atol=1e-6)
    assert len(others) and np.array_equal(buffer[column][others], first[others])
    slots, network, outputs, targets = step(session)  # under the network that the first update made
    np.testing.assert_allclose(buffer[column][slots], rule.values(outputs, targets, network.head)[column], atol=1e-6)
    assert not np.allclose(buffer[column][slots], first[slots], atol=1e-3)
    assert session.session.costs.selection_forward == 0


def test_clib_learns_what_training_on_a_sample_gained() -> None:
    session = session_of(ClibRule(decay=0.75), updates=4)
    buffer = session.learner.buffer
    assert not buffer["importance"].any() and (buffer["last_loss"] == -1).all()
    last, importance = {}, dict.fromkeys(range(40), 0.0)
    for _ in range(4):
        slots, _, outputs, targets = step(session)
        losses = torch.nn.functional.cross_entropy(outputs.logits, targets, reduction="none")
        for slot, loss in dict(zip(slots.tolist(), losses.tolist(), strict=True)).items():
            if slot in last:
                importance[slot] = 0.75 * importance[slot] + 0.25 * (last[slot] - loss)
            last[slot] = loss
    np.testing.assert_allclose(buffer["importance"], [*importance.values()], atol=1e-6)
    assert np.unique(buffer["importance"]).size > 10
    session.finish()
    least = {slots[buffer["importance"][slots].argmin()] for slots in (np.arange(20), np.arange(20, 40))}
    buffer.capacity = 40
    session.learner.observe(INPUTS[90:91], LABELS[90:91])  # one of the two large classes loses a sample
    assert set(np.flatnonzero(buffer.labels == LABELS[90]).tolist()) <= least


def test_an_update_moves_the_means_of_mof() -> None:
    rule = MofRule(decay=0.5)
    session = session_of(rule, updates=1)
    means = copy.deepcopy(rule._means)
    slots, _, outputs, _ = step(session)
    for label, z in zip(LABELS[slots].tolist(), outputs.embedding.double().numpy(), strict=True):
        means[label] = 0.5 * means[label] + 0.5 * z
    assert same(rule._means.keys(), means.keys())
    np.testing.assert_allclose([*rule._means.values()], [*means.values()], atol=1e-6)


@pytest.mark.parametrize("resumes", [False, True])
@pytest.mark.parametrize("name", ["clib", "mof"])
def test_a_diverged_session_leaves_no_trace_in_a_rule(name: str, resumes: bool, tmp_path: Path) -> None:
    session = session_of(rules.create(name), updates=6, lr=1e20)
    before = copy.deepcopy(session.learner.buffer.state_dict())
    session.step()
    if resumes:
        save_state(tmp_path / "state", {"learner": session.learner.state_dict(), "session": session.state_dict()})
        state, learner = load_state(tmp_path / "state"), siesta(rules.create(name), None)
        learner.load_state_dict(state["learner"])
        learner.optimiser = session.learner.optimiser
        session = Rehearsal(learner, session.budget, state["session"])
    with pytest.raises(Diverged):
        while not session.done:
            session.step()
    assert same(before, session.learner.buffer.state_dict())


@pytest.mark.parametrize("name", ["clib", "mof"])
def test_a_session_keeps_old_values_of_the_samples_it_trained_on_alone(name: str) -> None:
    session = session_of(rules.create(name), updates=6)
    buffer = session.learner.buffer
    first = {column: buffer[column].copy() for column in buffer.columns}
    for updates in range(3):
        kept = session.state_dict()["rule_before"]
        touched = np.unique(session._stacked_picks())
        assert len(touched) < 40 and (len(touched) > 30) == (updates > 0)
        assert np.array_equal(np.sort(kept["slots"]), touched)  # each once
        assert same(kept["columns"], {column: values[kept["slots"]] for column, values in first.items()})
        session.step()


def test_a_rule_without_columns_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Maintenance, "trained", None)  # not even called
    session_of(rules.create("largest_class"), updates=1).step()
