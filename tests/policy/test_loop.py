"""`rehearse` in a training loop of one's own: what a batch offers, what a policy is told, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import graspcl
from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.policy import Budget, Policy, Session, batches, policies, rehearse
from graspcl.testing.common import ToyNetwork, seeded

LABELS = np.array([2, 1, 2, 0, 1, 1, 2, 0, 0, 2, 2])


def filled(old: int = 0) -> Buffer:
    """Eleven samples, of which the first `old` are old."""
    buffer = Buffer()
    inputs = np.random.default_rng(0).normal(size=(len(LABELS), 4)).astype(np.float32)
    buffer.insert(inputs[:old], LABELS[:old])
    buffer.settle()
    buffer.insert(inputs[old:], LABELS[old:])
    return buffer


def model() -> nn.Sequential:
    made = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 3))
    for parameter in made.parameters():
        nn.init.normal_(parameter, generator=seeded())
    return made


def train(policy: Any, buffer: Buffer, budget: Budget, **settings: Any) -> list[list[int]]:
    """The slots of each mini-batch of a session with real updates."""
    network = model()
    optimizer, slots = torch.optim.SGD(network.parameters(), lr=0.1), []
    for batch in rehearse(buffer, policy, budget, model=network, embed=network[:-2], rng=1, **settings):
        logits = network.eval()(batch.x)
        optimizer.zero_grad()
        cross_entropy(logits, batch.y).backward()
        optimizer.step()
        batch.report(logits)
        slots.append(batch.slots.tolist())
    return slots


# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_is_inputs_and_labels() -> None:
    buffer, network = filled(), model()
    given = list(rehearse(buffer, "grasp", Budget(2, 6), embed=network[:-2], rng=3))
    assert [(batch.x.shape, batch.y.tolist()) for batch in given] == [((6, 4), [0, 1, 2, 0, 1, 2])] * 2
    for x, y in given:
        stored = buffer.fetch(np.arange(len(buffer)))
        where = (stored[0][None] == x[:, None]).all(2).float().argmax(1)
        assert torch.equal(stored[1][where], y)
    again = rehearse(buffer, policies.create("grasp"), Budget(2, 6), embed=network[:-2], rng=np.random.default_rng(3))
    assert [batch.slots.tolist() for batch in again] == [batch.slots.tolist() for batch in given]


def test_an_empty_buffer_is_refused_unless_nothing_is_asked_of_it() -> None:
    with pytest.raises(GraspError, match="the buffer is empty"):
        next(rehearse(Buffer(), "grasp", Budget(1, 1)))
    assert list(rehearse(Buffer(), "grasp", Budget(0, 1))) == []


def test_the_loop_of_the_documentation_runs() -> None:
    model_ = model()
    names = {"graspcl": graspcl, "buffer": filled(), "budget": Budget(3, 4), "model": model_}
    names |= {"cross_entropy": cross_entropy, "optimizer": torch.optim.SGD(model_.parameters(), lr=0.1)}
    before = [parameter.clone() for parameter in model_.parameters()]
    with torch.random.fork_rng():
        exec(
            """
for batch in graspcl.rehearse(buffer, "max_loss", budget, model=model, embed=model[:-2]):
    logits = model(batch.x)                      # x, y = batch works too
    loss = cross_entropy(logits, batch.y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    batch.report(logits)                         # an error if the policy needs it and it is missing
""",
            names,
        )
    assert any(not torch.equal(a, b) for a, b in zip(before, model_.parameters(), strict=True))


# -- feedback --------------------------------------------------------------------------------------------------------


def test_min_rehearsal_shows_all_samples_before_any_again() -> None:
    slots = train(policies.create("min_rehearsal", mode="top"), filled(), Budget(11, 2))
    assert sorted(np.concatenate(slots)) == sorted([*range(11)] * 2)


def test_max_loss_follows_the_losses_of_training() -> None:
    slots = train(policies.create("max_loss", mode="top"), filled(), Budget(20, 2))
    assert len({tuple(sorted(pair)) for pair in slots}) > 1


def test_a_report_reaches_the_policy_as_training_saw_it() -> None:
    @dataclass
    class Listens(Policy):
        needs = frozenset({"feedback"})

        def select(self, session: Session, n: int) -> np.ndarray:
            return np.arange(n)

        def observe(self, slots: np.ndarray, outputs: Any) -> None:
            self.seen = slots, outputs

    policy, logits = Listens(), torch.randn(2, 3, generator=seeded(), requires_grad=True)
    batch = next(rehearse(filled(), policy, Budget(1, 2)))
    batch.report(logits)
    slots, outputs = policy.seen
    assert slots.tolist() == [0, 1] and outputs.rows.tolist() == batch.y.tolist() and not outputs.logits.requires_grad
    torch.testing.assert_close(outputs.losses, cross_entropy(logits.detach(), batch.y, reduction="none"))
    with pytest.raises(GraspError, match=r"logits of shape \(2, classes\), got \(3, 3\)"):
        batch.report(torch.zeros(3, 3))


@pytest.mark.parametrize("name", [name for name in policies.names() if "feedback" in policies.get(name).needs])
def test_a_policy_that_needs_feedback_and_gets_none_raises_an_error(name: str) -> None:
    loop = rehearse(filled(), name, Budget(2, 2), model=model())
    next(loop)
    with pytest.raises(GraspError, match=rf"'{name}' needs feedback: call batch\.report\(logits\)"):
        next(loop)


# -- new and old samples ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mir", "aser", "ocs"])
def test_without_new_and_old_samples_the_user_is_told_what_to_do(name: str) -> None:
    """Without new samples there is nothing to choose for; without old ones, as in a first week, draws are uniform."""
    buffer = filled()
    with pytest.warns(UserWarning, match=rf"'{name}' needs new and old .* all 11 .* are new.*buffer\.settle\(\)"):
        assert len(train(name, buffer, Budget(1, 4))) == 1
    assert not buffer.new.any()
    with pytest.raises(GraspError, match=rf"'{name}' needs new and old .* all 11 .* are old; insert new samples"):
        train(name, buffer, Budget(1, 4))
    session = Session(buffer, Budget(5, 4), np.random.default_rng(0), ToyNetwork(4, 3))  # as of a learner
    assert np.shape(list(batches(policies.create(name), session))) == (5, 4)


@pytest.mark.parametrize("name", ["mir", "aser", "ocs"])
def test_half_of_a_mini_batch_is_new_and_afterwards_all_is_old(name: str) -> None:
    buffer = filled(old=6)
    for slots in train(name, buffer, Budget(3, 4), lr=0.1):
        assert [slot >= 6 for slot in slots] == [True, True, False, False]
    assert not buffer.new.any()


def test_samples_stay_new_until_the_last_batch_was_consumed() -> None:
    buffer = filled(old=6)
    loop = rehearse(buffer, "uniform", Budget(2, 2))
    next(loop), next(loop)
    assert buffer.new.sum() == 5
    assert list(loop) == [] and not buffer.new.any()


def test_the_learning_rate_decides_what_mir_chooses() -> None:
    chosen = [train(policies.create("mir", candidates=6), filled(old=6), Budget(1, 4), lr=lr) for lr in (1e-9, 5.0)]
    assert chosen[0][0][:2] == chosen[1][0][:2] and chosen[0] != chosen[1]


# -- networks --------------------------------------------------------------------------------------------------------


def test_every_policy_runs_in_a_loop() -> None:
    for name in policies.names():
        assert np.shape(train(name, filled(old=6), Budget(3, 4))) == (3, 4), name


def test_models_may_be_modules_methods_functions_or_networks_with_outputs() -> None:
    network, toy = model(), ToyNetwork(4, classes=3)
    expected = [batch.slots.tolist() for batch in rehearse(filled(), "grasp", Budget(2, 4), embed=network, rng=1)]
    for embed in (network.forward, lambda x: network.eval()(x)):
        network.train()
        found = [batch.slots.tolist() for batch in rehearse(filled(), "grasp", Budget(2, 4), embed=embed, rng=1)]
        assert found == expected
    for settings in ({"model": toy}, {"embed": toy}, {"model": lambda x: toy(x).logits, "embed": toy}):
        for name in ("grasp", "clib"):
            if name == "grasp" or "model" in settings:
                assert len(list(rehearse(filled(), name, Budget(2, 4), **settings))) == 2
    assert toy.training


def test_modules_are_evaluated_in_eval_mode_and_keep_their_mode() -> None:
    network = model().train()
    network[1].eval()
    first, again = (
        [
            batch.slots.tolist()
            for batch in rehearse(filled(), "kmeans", Budget(2, 4), model=network, embed=embed, rng=1)
        ]
        for embed in (network[:-2], network[:-2].forward)
    )
    assert first == again and network.training and not network[1].training


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("grasp", None, "'grasp' reads embeddings: give embed="),
        ("grasp", "model", "reads embeddings: give embed="),
        ("aser", "model", "reads embeddings: give embed="),
        ("max_loss", None, "'max_loss' reads logits: give model="),
        ("max_loss", "embed", "reads logits: give model="),
        ("clib", "embed", "reads logits: give model="),
        ("gss", "model", "gradients of the last layer need embeddings: give embed=, or set gradients='full'"),
    ],
)
def test_what_is_missing_is_named(name: str, given: str | None, message: str) -> None:
    with pytest.raises(GraspError, match=message):
        next(rehearse(filled(old=6), name, Budget(1, 4), **({given: model()} if given else {})))


def test_full_gradients_need_a_model_only() -> None:
    policy = policies.create("gss", gradients="full", references=1)
    assert len(list(rehearse(filled(), policy, Budget(2, 4), model=model()))) == 2


def test_a_budget_that_is_none_is_refused() -> None:
    with pytest.raises(GraspError, match=r"budget must be a Budget\(updates=…, batch_size=…\), got 10"):
        rehearse(filled(), "uniform", 10)


@pytest.mark.parametrize("bad", [np.nan, -1.0, np.inf])
def test_weights_that_cannot_be_drawn_by_are_refused(bad: float) -> None:
    buffer = filled()
    session = Session(buffer, Budget(1, 4), np.random.default_rng(0))
    with pytest.raises(GraspError, match="finite weights of at least 0, but 1 of 11 are not"):
        session.draw(np.r_[bad, np.ones(10)])
