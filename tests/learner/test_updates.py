"""The updates of a session: weight decay, momentum, and the rate that a policy is told."""

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer
from graspcl.learner import Learner, Optimiser, Rehearsal
from graspcl.model import vector_network
from graspcl.policy import Budget, Policy
from graspcl.policy.mir import Mir


def two_steps(optimiser):
    """Start at 3.0 and take two steps with gradients 2.0 and -1.0; returns both values."""
    weight = torch.nn.Parameter(torch.tensor([3.0], dtype=torch.float64))
    optimizer, found = optimiser.build([("layer.weight", weight)]), []
    for gradient in (2.0, -1.0):
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        found.append(weight.item())
    return found


def test_sgd_adds_its_penalty_to_the_gradient_and_momentum_to_both():
    first = 3.0 - 0.1 * (2.0 + 0.5 * 3.0)
    velocity = 0.8 * (2.0 + 0.5 * 3.0) + (-1.0 + 0.5 * first)
    expected = [first, first - 0.1 * velocity]
    assert two_steps(Optimiser("sgd", lr=0.1, momentum=0.8, weight_decay=0.5)) == pytest.approx(expected)


def test_adamw_shrinks_weights_beside_its_step():
    found = two_steps(Optimiser("adamw", lr=0.1, weight_decay=0.5))
    assert found[0] == pytest.approx(3.0 * (1 - 0.1 * 0.5) - 0.1)  # its first step is the rate, whatever the gradient
    plain = two_steps(Optimiser("adamw", lr=0.1, weight_decay=0.0))
    assert found[1] - found[0] * (1 - 0.1 * 0.5) == pytest.approx(plain[1] - plain[0])


class Watching(Policy):
    """Uniform; remembers the rate when a session starts, and before each update."""

    def begin(self, session):
        self.rates = [session.lr]

    def select(self, session, n):
        self.rates.append(session.lr)
        return session.rng.integers(len(session), size=n)


def learner(policy, **settings):
    network = vector_network(6, hidden=8, embedding=5, generator=torch.Generator().manual_seed(0))
    return Learner(network, Buffer(), policy, Optimiser(**settings))


def inputs(number, seed=0):
    return torch.randn(number, 6, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("schedule", ["onecycle", "constant"])
def test_a_policy_is_told_the_heads_rate_of_the_next_update(schedule):
    one = learner(Watching(), lr=0.7, schedule=schedule, layer_decay=0.5)
    one.observe(inputs(10), np.arange(10) % 2)
    one.rehearse(Budget(6, 4))
    expected = [0.7] * 6
    if schedule == "onecycle":
        alone = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.7)
        cycle = torch.optim.lr_scheduler.OneCycleLR(alone, max_lr=0.7, total_steps=6, cycle_momentum=False)
        expected = []
        for _ in range(6):
            expected.append(alone.param_groups[0]["lr"])
            alone.step()
            cycle.step()
        assert len(set(expected)) == 6
    assert one.policy.rates == pytest.approx([expected[0], *expected])


def test_mir_looks_one_step_ahead_at_the_rate_of_the_update(monkeypatch):
    """In the second session, so that there are old samples; the losses are those of a network that took the step."""
    one = learner(Mir(candidates=5), lr=2.0, schedule="constant", momentum=0.0, weight_decay=0.0, layer_decay=1.0)
    one.observe(inputs(10), np.arange(10) % 2)
    one.rehearse(Budget(1, 4))
    one.observe(inputs(6, seed=1), np.full(6, 2))
    session, asked = Rehearsal(one, Budget(2, 8)), []
    real = session.session.losses_after_step
    monkeypatch.setattr(
        session.session, "losses_after_step", lambda *slots: asked.append((*slots, real(*slots))) or asked[-1][2]
    )
    before = {name: value.clone() for name, value in one.network.state_dict().items()}
    session.step()
    incoming, slots, found = asked[0]
    one.network.load_state_dict(before)
    one.network.zero_grad()
    x, labels = one.buffer.fetch(incoming)
    torch.nn.functional.cross_entropy(one.network.eval()(x).logits, one.rows(labels)).backward()
    torch.optim.SGD([p for _, p in one.network.plastic_parameters()], lr=2.0).step()
    x, labels = one.buffer.fetch(slots)
    losses = torch.nn.functional.cross_entropy(one.network(x).logits, one.rows(labels), reduction="none")
    torch.testing.assert_close(found, losses.detach())


def test_a_session_that_an_unfused_optimiser_began_resumes_with_a_fused_one():
    given = learner("uniform", name="adamw", lr=0.01)
    given.observe(inputs(20), np.arange(20) % 2)
    begun = Rehearsal(given, Budget(4, 5))
    begun.step()
    state = begun.state_dict()
    for group in state["optimizer"]["param_groups"]:
        group["fused"] = None  # as earlier versions saved it
    resumed = Rehearsal(given, Budget(4, 5), state)
    assert all(group["fused"] for group in resumed._optimizer.param_groups)
    while not resumed.done:
        resumed.step()
    assert np.isfinite(resumed.finish().losses).all()
