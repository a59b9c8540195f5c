"""How often samples are decoded: once for the policy that looks at them and for the update, counted in samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from graspcl.buffer import Buffer
from graspcl.codec.codec import Identity
from graspcl.learner import Optimiser, Siesta
from graspcl.model import vector_network
from graspcl.policy import Budget, Clib, Policy, Session, batches, policies, rehearse
from graspcl.policy.loader import Loader
from graspcl.testing.common import Outputs, ToyNetwork

OLD, NEW = 40, 20
BUDGET = Budget(updates=5, batch_size=6)


class Counting(Identity):
    """Counts the samples it decodes."""

    def __init__(self) -> None:
        self.decoded, self.most = 0, 0

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        self.decoded += len(codes)
        self.most = max(self.most, len(codes))  # at once
        return super().decode(codes)


def filled() -> tuple[Buffer, Counting]:
    codec, rng = Counting(), np.random.default_rng(0)
    buffer = Buffer(codec=codec)
    buffer.insert(rng.normal(size=(OLD + NEW, 5)).astype(np.float32), rng.integers(4, size=OLD + NEW))
    buffer.since = OLD
    return buffer, codec


@pytest.mark.parametrize(
    ("policy", "plan", "update"),
    [
        ("uniform", 0, 6),
        ("clib", 0, 6),  # its own mini-batch, before the update, in it and after it
        ("mir", 0, 3 + 5 * 3),  # three incoming samples and five candidates for each of three old ones
        ("gss", 0, 5 * 6 + 10),  # five candidates per pick and ten references
        ("ocs", 0, 3 + 5 * 3),
        ("aser", 0, 3 + (2 + 2) * 4),  # three incoming samples, two candidates and two others of each class
        ("rainbow", OLD + NEW, 6),  # once for all twelve views
        ("grad_matching", OLD + NEW, 6),
    ],
)
def test_a_sample_is_decoded_once_to_be_looked_at_and_trained_on(policy: str, plan: int, update: int) -> None:
    buffer, codec = filled()
    network = ToyNetwork(5, classes=4)
    for _ in rehearse(buffer, policy, BUDGET, model=network, rng=0):
        pass
    assert codec.decoded == plan + BUDGET.updates * update


@pytest.mark.parametrize("chunk", [4, 6, 512])
@pytest.mark.parametrize(("policy", "decoded"), [(Clib(), 30), (policies.create("rainbow"), OLD + NEW + 30)], ids=repr)
def test_so_it_is_if_it_takes_several_chunks(policy: Policy, decoded: int, chunk: int) -> None:
    buffer, codec = filled()
    one = Session(buffer, BUDGET, np.random.default_rng(0), ToyNetwork(5, classes=4), chunk=chunk)
    for slots in batches(policy.clone(), one):
        one._loader.fetch(slots)
    assert codec.decoded == decoded


class LooksAtAll(Policy):
    needs = frozenset({"forward"})

    def select(self, session: Session, n: int) -> np.ndarray:
        assert len(session.forward(np.arange(len(session))).losses) == len(session)
        return np.arange(n)


def test_a_policy_that_looks_at_the_whole_buffer_does_not_decode_it_at_once() -> None:
    buffer, codec = filled()
    one = Session(buffer, BUDGET, np.random.default_rng(0), ToyNetwork(5, classes=4), chunk=2)
    next(batches(LooksAtAll(), one))
    assert codec.decoded == OLD + NEW and codec.most == 32  # 16 chunks


def test_a_learner_trains_on_what_its_policy_looked_at() -> None:
    codec = Counting()
    network = vector_network(5, hidden=8, embedding=4, generator=torch.Generator().manual_seed(0))
    learner = Siesta(network, Buffer(codec=codec), "clib", Optimiser(lr=0.1))
    learner.observe(torch.randn(40, 5, generator=torch.Generator().manual_seed(1)), np.arange(40) % 4)
    before = codec.decoded
    learner.rehearse(BUDGET)
    assert codec.decoded - before == BUDGET.samples + 6  # and the last mini-batch, to see whether the network diverged


# -- what is kept ----------------------------------------------------------------------------------------------------


def test_any_part_of_what_was_looked_at_comes_in_the_order_asked_for() -> None:
    buffer, codec = filled()
    loader, slots = Loader(buffer, "cpu"), np.array([7, 3, 50, 3, 21])
    loader.look(slots)
    assert codec.decoded == 5
    for part in (slots, np.array([21, 7, 7]), np.array([3])):
        found, expected = loader.fetch(part), buffer.fetch(part)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    codec.decoded = 0
    slots[:] = 0  # the loader has a copy
    assert loader.fetch(np.array([7]))[0].shape == (1, 5) and codec.decoded == 0
    loader.fetch(np.array([7, 8]))  # not all of it is kept
    assert codec.decoded == 2
    loader.look(np.array([1, 2]))
    loader.fetch(np.array([7]))
    assert codec.decoded == 2 + 2 + 1
    loader.forget()
    loader.fetch(np.array([1]))
    assert codec.decoded == 2 + 2 + 1 + 1


def test_what_was_changed_in_place_is_decoded_again() -> None:
    buffer, _ = filled()
    loader, slots = Loader(buffer, "cpu"), np.arange(4)
    for change in (lambda x, y: x[1].mul_(2), lambda x, y: y.add_(1)):
        change(*loader.look(slots))
        found, expected = loader.fetch(slots), buffer.fetch(slots)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


class InPlace(nn.Module):
    """Its first layer may overwrite what it is given."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.first, self.body = nn.SiLU(inplace), ToyNetwork(5, classes=4)

    def forward(self, inputs: torch.Tensor) -> Outputs:
        return self.body(self.first(inputs))


@pytest.mark.parametrize("policy", ["clib", "mir", "rainbow", "gss", "aser"])
def test_a_network_that_works_in_place_is_given_the_same_inputs(policy: str) -> None:
    drawn = []
    for inplace in (False, True):
        batch_list = rehearse(filled()[0], policy, BUDGET, model=InPlace(inplace), rng=0)
        drawn.append(torch.stack([batch.x.clone() for batch in batch_list]))
    assert torch.equal(*drawn)
