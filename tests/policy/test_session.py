"""Sessions: what a policy may see, what it costs, and the mini-batches that come out."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.policy import Budget, PlannedPolicy, Policy, Session, batches, policies, rehearse
from graspcl.policy.session import evaluating
from graspcl.random import restore_rng, rng_state

LABELS = np.array([2, 5, 2, 9, 5, 5, 2, 9, 9, 2, 2])
COLUMN = {2: 0, 5: 1, 9: 2}


class Outputs(NamedTuple):
    embedding: torch.Tensor
    logits: torch.Tensor


class Counting(nn.Module):
    """Counts samples and forward passes; dropout and normalisation make the mode matter."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 6, generator=generator))
        self.head = nn.Parameter(torch.randn(6, 3, generator=generator))
        self.body = nn.Sequential(nn.BatchNorm1d(6), nn.Dropout(0.5))
        self.fails = fails
        self.passes: list[int] = []

    def forward(self, inputs: torch.Tensor) -> Outputs:
        if self.fails:
            raise RuntimeError("broken network")
        self.passes.append(len(inputs))
        embedding = self.body(inputs @ self.weight)
        return Outputs(embedding, embedding @ self.head)


def filled() -> Buffer:
    buffer = Buffer()
    buffer.insert(np.random.default_rng(0).normal(size=(len(LABELS), 4)).astype(np.float32), LABELS)
    return buffer


def session(network: Any = None, budget: Budget | None = None, seed: int = 0, **settings: Any) -> Session:
    return Session(filled(), budget or Budget(4, 3), np.random.default_rng(seed), network, **settings)


def rows(labels: torch.Tensor) -> torch.Tensor:
    return torch.tensor([COLUMN[int(label)] for label in labels])


# -- quantities ------------------------------------------------------------------------------------------------------


def test_quantities_are_computed_once_and_chunks_change_nothing() -> None:
    network = Counting()
    whole = session(network, rows=rows)
    for _ in range(3):
        embeddings, logits, losses = whole.embeddings, whole.logits, whole.losses
    assert network.passes == [len(LABELS)] and whole.costs.selection_forward == len(LABELS)
    chunked = session(network, rows=rows, chunk=4)
    torch.testing.assert_close(chunked.embeddings, embeddings)
    torch.testing.assert_close(chunked.logits, logits)
    torch.testing.assert_close(chunked.losses, losses)
    assert network.passes == [11, 4, 4, 3] and chunked.costs.selection_forward == len(LABELS)


def test_quantities_are_those_of_the_network_in_eval_mode_without_gradients() -> None:
    network = Counting().train()
    found = session(network, rows=rows)
    assert not found.embeddings.requires_grad and not found.losses.requires_grad
    expected = network.eval()(found.buffer.fetch(np.arange(len(LABELS)))[0])
    assert found.embeddings.dtype == torch.float16
    torch.testing.assert_close(found.embeddings.float(), expected.embedding.detach(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.logits, expected.logits.detach())
    p = expected.logits.softmax(1).detach()
    by_hand = torch.stack([-p[i, COLUMN[int(label)]].log() for i, label in enumerate(LABELS)])
    torch.testing.assert_close(found.losses, by_hand)
    assert all(p.grad is None for p in network.parameters())


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("as_method", [False, True])
def test_every_module_keeps_its_mode(fails: bool, as_method: bool) -> None:
    network = Counting()
    expected = session(network.eval()).embeddings
    network.train().body[0].eval()
    network.fails = fails
    modes = [module.training for module in network.modules()]
    assert len(set(modes)) == 2
    one = session(network.forward if as_method else network)
    if fails:
        with pytest.raises(RuntimeError, match="broken network"):
            _ = one.embeddings
    else:
        torch.testing.assert_close(one.embeddings, expected)
    assert [module.training for module in network.modules()] == modes


def test_modes_come_back_after_an_exception_within() -> None:
    network = Counting().train()
    with pytest.raises(KeyError), evaluating(network):
        assert not any(module.training for module in network.modules())
        raise KeyError
    assert all(module.training for module in network.modules())


def test_no_global_generator_is_used() -> None:
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    for name in policies.names():
        list(batches(policies.create(name), session(Counting(), rows=rows)))
    after = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    assert before[0] == after[0] and (before[1][1] == after[1][1]).all() and torch.equal(before[2], after[2])


def test_new_samples_are_told_by_their_birth() -> None:
    buffer = filled()
    buffer.settle()
    buffer.insert(np.ones((2, 4), np.float32), [2, 5])
    one = Session(buffer, Budget(1, 1), np.random.default_rng(0))
    assert one.new.tolist() == [False] * len(LABELS) + [True] * 2


def test_labels_and_groups_agree() -> None:
    one = session()
    members, offsets = one.groups
    assert [sorted(members[a:b]) for a, b in pairwise(offsets)] == [
        np.flatnonzero(one.labels == k).tolist() for k in (2, 5, 9)
    ]
    assert one.label_tensor.dtype == torch.int64 and one.label_tensor.tolist() == LABELS.tolist()


@dataclass
class Reads(Policy):
    """Reads one quantity without declaring it."""

    quantity: str = "embeddings"

    def select(self, session: Session, n: int) -> np.ndarray:
        getattr(session, self.quantity)
        return np.zeros(n, np.int64)


@pytest.mark.parametrize("quantity", ["embeddings", "logits", "losses", "new"])
def test_a_quantity_that_was_not_declared_is_refused(quantity: str) -> None:
    with pytest.raises(GraspError, match=rf"session\.{quantity} without naming it in `needs`"):
        next(batches(Reads(quantity), session(Counting())))
    assert len(next(batches(Reads("labels"), session()))) == 3


def test_a_missing_network_or_missing_logits_are_told() -> None:
    with pytest.raises(GraspError, match="the session a network"):
        next(batches(policies.create("grasp"), session()))
    one = session(nn.Identity())
    one.needs = frozenset({"losses"})
    with pytest.raises(GraspError, match=r"must return \.embedding and \.logits"):
        _ = one.losses


@pytest.mark.parametrize(("name", "forward"), [("uniform", 0), ("uniform_balanced", 0), ("grasp", 11), ("mof", 11)])
def test_costs_are_booked(name: str, forward: int) -> None:
    one = session(Counting(), rows=rows)
    list(batches(policies.create(name), one))
    assert one.costs.selection_forward == forward and one.costs.selection_backward == 0
    assert 0 < one.costs.selection_seconds < 10


# -- mini-batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", policies.names())
def test_a_session_has_exactly_the_samples_of_its_budget(name: str) -> None:
    for budget in (Budget(4, 3), Budget(1, 40), Budget(0, 3), Budget(60, 7)):
        drawn = list(batches(policies.create(name), session(Counting(), budget, rows=rows)))
        assert [len(slots) for slots in drawn] == [budget.batch_size] * budget.updates


@dataclass
class Returns(Policy):
    """Returns whatever it is given."""

    what: Any = None

    def select(self, session: Session, n: int) -> Any:
        return self.what


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ([1, 2], r"must return 3 slots in 0 … 10, not int64 of shape \(2,\)"),
        ([1, 2, 11], "must return 3 slots in 0 … 10, not 1 … 11"),
        ([-1, 2, 3], "not -1 … 3"),
        ([0.5, 1.0, 2.0], "not float64"),
        ([True, False, True], "not bool"),
        (None, "not object"),
    ],
)
def test_a_bad_selection_names_the_policy(what: Any, told: str) -> None:
    with pytest.raises(GraspError, match=f"policy 'Returns' {told}" if told[:4] == "must" else f"'Returns'.*{told}"):
        next(batches(Returns(what), session()))


@dataclass
class PlansTooLittle(PlannedPolicy):
    """Plans one sample too few."""

    def plan(self, session: Session, budget: int, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(budget - 1, np.int64)


def test_a_bad_plan_names_the_policy() -> None:
    with pytest.raises(GraspError, match=r"policy 'PlansTooLittle' planned slots of shape \(11,\); the budget is 12"):
        next(batches(PlansTooLittle(), session()))


def test_a_policy_without_its_one_method_is_told() -> None:
    class Nothing(Policy):
        pass

    class NoPlan(PlannedPolicy):
        pass

    with pytest.raises(GraspError, match="Nothing must define select"):
        next(batches(Nothing(), session()))
    with pytest.raises(GraspError, match="NoPlan must define plan"):
        next(batches(NoPlan(), session()))


def test_an_empty_buffer_is_told_unless_nothing_is_asked_of_it() -> None:
    with pytest.raises(GraspError, match="the buffer is empty"):
        next(rehearse(Buffer(), "grasp", Budget(1, 1)))
    assert list(rehearse(Buffer(), "grasp", Budget(0, 1))) == []


@pytest.mark.parametrize("updates_and_size", [(-1, 3), (1, 0)])
def test_a_budget_makes_sense(updates_and_size: tuple[int, int]) -> None:
    with pytest.raises(GraspError, match="updates >= 0 and batch_size >= 1"):
        Budget(*updates_and_size)


@pytest.mark.parametrize("name", policies.names())
@pytest.mark.parametrize("begun", [0, 1, 3])
def test_an_interrupted_session_goes_on_as_if_nothing_had_been(name: str, begun: int) -> None:
    whole = list(batches(policies.create(name), session(Counting(), rows=rows)))
    stopped, first = policies.create(name), session(Counting(), rows=rows)
    stream = batches(stopped, first)
    taken = [next(stream) for _ in range(max(begun, 1))]
    if begun == 0:  # stopped between `begin` and the first mini-batch
        stopped, first, taken = policies.create(name), session(Counting(), rows=rows), []
        first.needs = stopped.needs | {"labels"}
        stopped.begin(first)
    restored, second = policies.create(name), session(Counting(), seed=99, rows=rows)
    restored.load_state_dict(stopped.state_dict())
    restore_rng(second.rng, rng_state(first.rng))
    assert np.array_equal(taken + list(batches(restored, second, begun)), whole)


def test_state_is_a_copy_and_replaces_what_was_there() -> None:
    used, fresh = policies.create("uniform"), policies.create("uniform")
    list(batches(used, session()))
    state = used.state_dict()
    state["_plan"][:] = -1
    assert used.state_dict()["_plan"].min() >= 0
    used.load_state_dict(fresh.state_dict())
    assert used.state_dict() == {}


def test_rehearse_gives_inputs_and_labels() -> None:
    buffer = filled()
    network = Counting()
    given = list(rehearse(buffer, "grasp", Budget(2, 6), embed=network, rng=3))
    assert [(x.shape, y.tolist()) for x, y in given] == [((6, 4), [2, 5, 9, 2, 5, 9])] * 2
    stored = {tuple(x.tolist()): int(y) for x, y in zip(*buffer.fetch(np.arange(len(buffer))), strict=True)}
    assert all(stored[tuple(x.tolist())] == int(y) for xs, ys in given for x, y in zip(xs, ys, strict=True))
    again = list(rehearse(buffer, policies.create("grasp"), Budget(2, 6), embed=network, rng=np.random.default_rng(3)))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(given, again, strict=True))


def test_groups_may_be_tasks_in_place_of_classes():
    """Prototypes and balance are then of tasks, whatever the classes within them."""
    buffer = Buffer(columns={"task": ((), np.int32)})
    labels, tasks = np.array([0, 1, 2, 0, 3, 3]), np.array([0, 0, 0, 1, 1, 1])
    buffer.insert(torch.eye(6), labels, columns={"task": tasks})
    by_class = Session(buffer, Budget(1, 6), np.random.default_rng(0))
    by_task = Session(buffer, Budget(1, 6), np.random.default_rng(0), groups_by="task")
    assert by_class.groups.number == 4 and by_task.groups.number == 2
    assert by_task.group_tensor.tolist() == tasks.tolist() and by_class.group_tensor.tolist() == labels.tolist()
    drawn = np.bincount(tasks[next(iter(batches(policies.create("uniform_balanced", replace=False), by_task)))])
    assert drawn.tolist() == [3, 3]
