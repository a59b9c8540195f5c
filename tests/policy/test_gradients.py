"""Gradients of single samples and steps that are never taken, against autograd and torch's own optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.model import CosineHead, Outputs, SplitNetwork, vector_network
from graspcl.policy import Budget, Session, gradients
from graspcl.policy.gradients import Gradients, full_gradients, last_layer_gradients, losses_after_step
from graspcl.testing.common import seeded

DIM, CLASSES = 5, 4


class Linear(nn.Module):
    """A linear head on what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(DIM, CLASSES)
        with torch.no_grad():
            self.head.weight.normal_(generator=seeded(1))

    def forward(self, inputs: torch.Tensor) -> Outputs:
        return Outputs(inputs, inputs, self.head(inputs))


def grouped() -> SplitNetwork:
    """GroupNorm and a cosine head; the frozen part must not show."""
    plastic = nn.Sequential(nn.Linear(DIM, 8), nn.GroupNorm(2, 8), nn.GELU(), nn.Linear(8, 6))
    for parameter in plastic.parameters():
        nn.init.normal_(parameter, generator=seeded(2))
    return SplitNetwork(nn.Linear(3, DIM), plastic, CosineHead(6, CLASSES, generator=seeded(3), scale=4.0), nn.GELU())


def vectors() -> SplitNetwork:
    network = vector_network(DIM, 7, 6, CLASSES, dropout=0.5, generator=seeded(4), scale=4.0)
    network.plastic.hidden.requires_grad_(False)
    return network


NETWORKS = pytest.mark.parametrize("make", [Linear, grouped, vectors])
# How many numbers learn; the frozen ones are 20 and 42 more.
LEARNING: dict[Any, int] = {Linear: 24, grouped: 48 + 16 + 54 + 29, vectors: 48 + 29}


def samples(number: int, seed: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = seeded(seed)
    return torch.randn(number, DIM, generator=generator), torch.randint(CLASSES, (number,), generator=generator)


def one_by_one(network: nn.Module, inputs: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Gradients [n, P] of all that learns, by a loop of backward passes over a copy."""
    network = copy.deepcopy(network).eval()
    found = []
    for one, row in zip(inputs, rows, strict=True):
        network.zero_grad()
        nn.functional.cross_entropy(network(one[None]).logits, row[None]).backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in network.parameters() if p.grad is not None]))
    return torch.stack(found)


def session(network: Any, number: int = 9, **settings: Any) -> Session:
    buffer = Buffer()
    inputs, rows = samples(number)
    buffer.insert(inputs, rows.numpy())
    return Session(buffer, Budget(1, 1), np.random.default_rng(0), network, **settings)


# -- of the last layer -----------------------------------------------------------------------------------------------


def test_the_closed_form_is_the_gradient_of_a_linear_last_layer() -> None:
    network, (inputs, rows) = Linear(), samples(9)
    network.head.bias.requires_grad_(False)
    expected = one_by_one(network, inputs, rows)
    for g in (
        last_layer_gradients(network(inputs).logits.detach(), rows, inputs),
        session(network).gradients(np.arange(9)),
    ):
        outer = torch.einsum("nk,nd->nkd", *g.factors).flatten(1)
        torch.testing.assert_close(outer, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("make", [grouped, vectors])
def test_of_a_cosine_head_it_is_the_gradient_of_the_normalised_rows(make: Callable[[], SplitNetwork]) -> None:
    network, (inputs, rows) = make().eval(), samples(9)
    g = session(network).gradients(np.arange(9))
    found = torch.einsum("nk,nd->nkd", *g.factors)
    extended = nn.functional.pad(network(inputs).features, (0, 1), value=1.0).detach()
    for one, h, row in zip(found, extended, rows, strict=True):
        unit = nn.functional.normalize(torch.cat([network.head.weight, network.head.bias[:, None]], 1)).detach()
        logits = network.head.sigma.detach() * (unit.requires_grad_() @ (h / h.norm()))
        (slope,) = torch.autograd.grad(nn.functional.cross_entropy(logits[None], row[None]), unit)
        torch.testing.assert_close(one, slope, atol=1e-5, rtol=1e-5)


# -- products --------------------------------------------------------------------------------------------------------


def both_forms() -> tuple[Gradients, torch.Tensor]:
    generator = seeded(6)
    g = Gradients(torch.randn(7, 3, generator=generator), torch.randn(7, 5, generator=generator))
    return g, torch.einsum("nk,nd->nkd", *g.factors).flatten(1)


@pytest.mark.parametrize("block", [2, 2048])
def test_products_of_factors_are_products_of_gradients(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_BLOCK", block)
    g, explicit = both_forms()
    assert len(g) == 7
    for mine in (g, Gradients(explicit)):
        some, others = mine.split([3, 4])
        mean = explicit[3:].mean(0)
        close = torch.testing.assert_close
        close(some.dots(others), explicit[:3] @ explicit[3:].T)
        close(some.norms(), explicit[:3].norm(dim=1))
        close(some.mean_dots(others), explicit[:3] @ mean)
        close(some.mean_cosines(others), nn.functional.cosine_similarity(explicit[:3], mean[None]))
        close(some.cosines(others), nn.functional.cosine_similarity(explicit[:3, None], explicit[None, 3:], dim=2))
        unit = explicit / (explicit.norm(dim=1, keepdim=True) + 0.5)
        close(mine.normalised(0.5).dots(mine), unit @ explicit.T)


def test_nothing_has_cosine_0_with_everything() -> None:
    g = Gradients(torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]))
    assert g.cosines(g)[0].tolist() == [0, 0, 0]
    assert g.mean_cosines(g).tolist() == [0, 0, 0]  # the mean is nothing, too
    assert g.normalised().factors[0][0].tolist() == [0, 0]


# -- of all that learns ----------------------------------------------------------------------------------------------


@NETWORKS
def test_full_gradients_are_those_of_backward(make: Callable[[], nn.Module]) -> None:
    network, (inputs, rows) = make().eval(), samples(9)
    (found,) = full_gradients(network, inputs, rows).factors
    torch.testing.assert_close(found, one_by_one(network, inputs, rows), atol=1e-5, rtol=1e-4)


@NETWORKS
def test_a_session_gives_them_in_the_order_asked_for_without_what_is_frozen(make: Callable[[], nn.Module]) -> None:
    network, slots = make(), np.array([7, 0, 7, 3])
    (found,) = session(network).gradients(slots, full=True).factors
    assert found.shape == (4, LEARNING[make])
    inputs, rows = (part[slots] for part in samples(9))
    torch.testing.assert_close(found, one_by_one(network, inputs, rows), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("full", [False, True])
def test_what_gradients_cost_is_booked(full: bool) -> None:
    asked = session(Linear())
    asked.gradients(np.arange(4), full)
    assert asked.costs.selection_forward == 4 and asked.costs.selection_backward == (4 if full else 0)


def test_a_network_that_does_not_learn_has_no_gradients() -> None:
    network, (inputs, rows) = Linear().requires_grad_(False), samples(2)
    with pytest.raises(GraspError, match="the network has no trainable parameter"):
        full_gradients(network, inputs, rows)
    with pytest.raises(GraspError, match="the network has no trainable parameter"):
        losses_after_step(network, inputs, rows, 0.1, inputs, rows)


# -- a step that is not taken ----------------------------------------------------------------------------------------


@NETWORKS
@pytest.mark.parametrize("lr", [0.0, 0.3])
def test_losses_after_a_step_are_those_after_one_of_sgd(make: Callable[[], nn.Module], lr: float) -> None:
    network = make()
    asked = session(network, lr=lr)
    incoming, slots = np.array([0, 4, 4]), np.array([8, 1, 0])
    found = asked.losses_after_step(incoming, slots)
    clone = copy.deepcopy(network).eval()
    inputs, rows = samples(9)
    optimiser = torch.optim.SGD([p for p in clone.parameters() if p.requires_grad], lr)
    nn.functional.cross_entropy(clone(inputs[incoming]).logits, rows[incoming]).backward()
    optimiser.step()
    after = nn.functional.cross_entropy(clone(inputs[slots]).logits, rows[slots], reduction="none")
    torch.testing.assert_close(found, after.detach())
    before = asked.forward(slots).losses
    assert torch.allclose(found, before) == (lr == 0)
    assert not found.requires_grad
    assert asked.costs.selection_forward == 3 + 3 + 3 and asked.costs.selection_backward == 3


@NETWORKS
def test_the_network_stays_as_it_is(make: Callable[[], nn.Module]) -> None:
    network = make().train()
    before, modes = copy.deepcopy(network.state_dict()), [module.training for module in network.modules()]
    learns = [p.requires_grad for p in network.parameters()]
    chance = torch.get_rng_state()
    asked = session(network)
    asked.gradients(np.arange(5))
    asked.gradients(np.arange(5), full=True)
    asked.losses_after_step(np.arange(3), np.arange(5))
    after = network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [module.training for module in network.modules()] == modes
    assert [p.requires_grad for p in network.parameters()] == learns
    assert all(p.grad is None for p in network.parameters())
    assert torch.equal(chance, torch.get_rng_state())
