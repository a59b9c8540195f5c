"""Sessions: what a policy may see, what it costs, and the mini-batches that come out."""

from __future__ import annotations

import random
import weakref
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.policy import Budget, PlannedPolicy, Policy, Session, batches, policies
from graspcl.policy.networks import evaluating
from graspcl.policy.prototype import prototype_distances
from graspcl.policy.session import begin
from graspcl.random import restore_rng, rng_state
from graspcl.testing.common import Outputs, ToyNetwork

LABELS = np.array([2, 5, 2, 9, 5, 5, 2, 9, 9, 2, 2])
COLUMN = {2: 0, 5: 1, 9: 2}


class Counting(ToyNetwork):
    """May fail."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__(4, classes=3)
        self.fails = fails

    def forward(self, inputs: torch.Tensor) -> Outputs:
        if self.fails:
            raise RuntimeError("broken network")
        return super().forward(inputs)


def filled(inputs: np.ndarray | None = None) -> Buffer:
    buffer = Buffer()
    random_inputs = np.random.default_rng(0).normal(size=(len(LABELS), 4)).astype(np.float32)
    buffer.insert(random_inputs if inputs is None else inputs, LABELS)
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
    expected = network.eval()(found._buffer.fetch(np.arange(len(LABELS)))[0])
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
    network.train().norm.eval()
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


def test_new_samples_are_those_since_settle() -> None:
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
    assert session(rows=rows).rows.tolist() == [COLUMN[label] for label in LABELS.tolist()]


@dataclass
class Reads(Policy):
    """Reads one quantity without declaring it."""

    quantity: str = "embeddings"

    def select(self, session: Session, n: int) -> np.ndarray:
        getattr(session, self.quantity)
        return np.zeros(n, np.int64)


class ReadsNothing(Reads):
    needs = frozenset()


@pytest.mark.parametrize(
    "quantity", ["labels", "groups", "rows", "ids", "births", "new", "embeddings", "distances", "logits", "losses"]
)
def test_a_quantity_that_was_not_declared_is_refused(quantity: str) -> None:
    declared = "labels" if quantity in ("groups", "rows") else quantity
    with pytest.raises(GraspError, match=rf"session\.{declared} but does not name '{declared}' in `needs`"):
        next(batches(ReadsNothing(quantity), session(Counting(), rows=rows)))


@pytest.mark.parametrize("call", ["forward", "gradients", "losses_after_step"])
def test_so_is_a_call_that_was_not_declared(call: str) -> None:
    one = session(Counting(), rows=rows, needs=frozenset({"labels"}))
    slots = np.arange(2)
    with pytest.raises(GraspError, match="does not name"):
        getattr(one, call)(*([slots, slots] if call == "losses_after_step" else [slots]))


def test_the_default_of_needs_is_labels() -> None:
    assert len(next(batches(Reads("labels"), session()))) == 3


@pytest.mark.parametrize("quantity", ["buffer", "network"])
def test_a_policy_sees_neither_the_buffer_nor_the_network(quantity: str) -> None:
    with pytest.raises(AttributeError, match=quantity):
        next(batches(Reads(quantity), session(Counting())))


@pytest.mark.parametrize("quantity", ["labels", "ids", "births", "distances"])
def test_what_a_policy_reads_it_cannot_write(quantity: str) -> None:
    with pytest.raises(ValueError, match="read-only"):
        getattr(session(Counting(), rows=rows), quantity)[0] = 1
    with pytest.raises(AttributeError):
        setattr(session(), quantity, None)


def test_quantities_of_all_samples_are_refused_once_training_has_begun() -> None:
    class Late(Reads):
        needs = frozenset({"logits"})

    with pytest.raises(GraspError, match=r"session\.logits is measured when a session starts"):
        next(batches(Late("logits"), session(Counting())))


@pytest.mark.parametrize("name", ["mof", "kmeans", "max_loss", "min_margin"])
def test_what_was_measured_of_all_samples_is_freed_once_training_begins(name: str) -> None:
    policy, one = policies.create(name), session(Counting(), rows=rows)
    begin(policy, one)
    (held,) = [weakref.ref(value) for value in one._outputs.values()]
    assert len(next(batches(policy, one, begun=0))) == 3
    assert held() is None and "_distances" not in vars(one)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("name", ["grasp", "mof", "kmeans"])
def test_infinite_embeddings_are_an_error_and_large_ones_are_not(name: str, bad: float) -> None:
    inputs = np.random.default_rng(0).normal(size=(len(LABELS), 4)).astype(np.float32)
    inputs[3, 1] = 1e6  # beyond the range of half precision
    large = Session(filled(inputs), Budget(4, 3), np.random.default_rng(0), nn.Identity())
    assert len(list(batches(policies.create(name), large))) == 4
    spoil = Session(filled(inputs), Budget(4, 3), np.random.default_rng(0), lambda x: x.where(x < 1e6, bad))
    with pytest.raises(GraspError, match=r"embeddings (hold NaN or infinity|are NaN or infinite)"):
        list(batches(policies.create(name), spoil))


def test_needs_may_be_a_plain_set_and_unknown_ones_are_refused() -> None:
    class Plain(Reads):
        needs = {"ids"}  # noqa: RUF012

    class Magic(Reads):
        needs = {"magic"}  # noqa: RUF012

    assert len(next(batches(Plain("ids"), session()))) == 3
    with pytest.raises(GraspError, match="policy 'Magic' needs 'magic'; a session offers labels, ids"):
        next(batches(Magic(), session()))


def test_distances_are_those_to_the_prototypes_of_the_groups() -> None:
    one = session(Counting(), rows=rows)
    expected = prototype_distances(one.embeddings, torch.from_numpy(LABELS))
    assert one.distances.tolist() == expected.tolist() and len(one) == len(LABELS)


@pytest.mark.parametrize("balanced", [True, False])
def test_draw_spends_the_budget_by_weight_within_each_class_of_a_balanced_policy(balanced: bool) -> None:
    @dataclass
    class Drawn(PlannedPolicy):
        needs = frozenset()

        def plan(self, session: Session) -> np.ndarray:
            return session.draw(np.where(np.arange(len(session)) < 4, 1.0, 0.0))

    Drawn.balanced = balanced
    drawn = np.concatenate(list(batches(Drawn(), session(budget=Budget(300, 3)))))
    counts = np.bincount(drawn, minlength=len(LABELS))
    assert counts[4:].sum() == 0 and (counts[:4] > 0).all()
    per_class = [counts[k == LABELS].sum() for k in (2, 5, 9)]
    assert per_class == [300] * 3 if balanced else per_class[0] > 380  # two of the four samples with weight
    with pytest.raises(GraspError, match=r"one weight per stored sample, 11, got shape \(3,\)"):
        session().draw(np.ones(3))


def test_a_missing_network_or_missing_logits_are_told() -> None:
    with pytest.raises(GraspError, match="give the session a network"):
        next(batches(policies.create("grasp"), session()))
    one = session(nn.Identity(), needs=frozenset({"losses"}))
    with pytest.raises(GraspError, match=r"returns \.embedding and \.logits"):
        _ = one.losses


@pytest.mark.parametrize(("name", "forward"), [("uniform", 0), ("uniform_balanced", 0), ("grasp", 11), ("mof", 11)])
def test_costs_are_booked(name: str, forward: int) -> None:
    one = session(Counting(), rows=rows)
    list(batches(policies.create(name), one))
    assert one.costs.selection_forward == forward and one.costs.selection_backward == 0
    assert one.costs.selection_seconds > 0


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
        ([1, 2], r"must return 3 slots in 0 … 10, got int64 of shape \(2,\)"),
        ([1, 2, 11], "must return 3 slots in 0 … 10, got 1 … 11"),
        ([-1, 2, 3], "got -1 … 3"),
        ([0.5, 1.0, 2.0], "got float64"),
        ([True, False, True], "got bool"),
        (None, "got object"),
    ],
)
def test_a_bad_selection_names_the_policy(what: Any, told: str) -> None:
    with pytest.raises(GraspError, match=f"policy 'Returns' {told}" if told[:4] == "must" else f"'Returns'.*{told}"):
        next(batches(Returns(what), session()))


@dataclass
class Plans(PlannedPolicy):
    """Plans `last` after zeros: `fewer` slots than it should."""

    last: int = 0
    fewer: int = 0

    def plan(self, session: Session) -> np.ndarray:
        return np.append(np.zeros(session.budget.samples - 1 - self.fewer, np.int64), self.last)


@pytest.mark.parametrize(
    ("policy", "told"),
    [(Plans(fewer=1), r"got int64 of shape \(11,\)"), (Plans(11), "got 0 … 11"), (Plans(-1), "got -1 … 0")],
)
def test_a_bad_plan_is_refused_before_the_first_mini_batch(policy: Plans, told: str) -> None:
    with pytest.raises(GraspError, match=f"policy 'Plans' must plan 12 slots in 0 … 10, {told}"):
        next(batches(policy, session()))


def test_a_planned_policy_with_a_selection_of_its_own_is_checked_too() -> None:
    class Beyond(Plans):
        def select(self, session: Session, n: int) -> np.ndarray:
            return super().select(session, n) + len(session)

    with pytest.raises(GraspError, match="policy 'Beyond' must return 3 slots in 0 … 10, got 11 … 11"):
        next(batches(Beyond(), session()))


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
    for budget, message in ((Budget(1, 1), "the buffer is empty"), (Budget(0, 1), None)):
        one = Session(Buffer(), budget, np.random.default_rng(0))
        if message is None:
            assert list(batches(policies.create("grasp"), one)) == []
            continue
        with pytest.raises(GraspError, match=message):
            next(batches(policies.create("grasp"), one))


@pytest.mark.parametrize(
    ("updates", "batch_size", "message"),
    [
        (-1, 3, "updates must be a whole number in \\[0, 1000000000\\], got -1"),
        (1, 0, "batch_size must be a whole number of at least 1, got 0"),
        (1.5, 3, "updates must be a whole number in \\[0, 1000000000\\], got 1.5"),
    ],
)
def test_a_budget_is_checked(updates: Any, batch_size: int, message: str) -> None:
    with pytest.raises(GraspError, match=message):
        Budget(updates, batch_size)


@pytest.mark.parametrize("name", policies.names())
@pytest.mark.parametrize("begun", [0, 1, 3])
def test_an_interrupted_session_goes_on_as_if_nothing_had_been(name: str, begun: int) -> None:
    whole = list(batches(policies.create(name), session(Counting(), rows=rows)))
    stopped, first = policies.create(name), session(Counting(), rows=rows)
    stream = batches(stopped, first)
    taken = [next(stream) for _ in range(max(begun, 1))]
    if begun == 0:  # stopped between `begin` and the first mini-batch
        stopped, first, taken = policies.create(name), session(Counting(), rows=rows), []
        first._serve(stopped, started=False)
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


def test_groups_may_be_tasks_in_place_of_classes():
    """Prototypes and balance are then of tasks, whatever the classes within them."""
    buffer = Buffer(columns={"task": ((), np.int32)})
    labels, tasks = np.array([0, 1, 2, 0, 3, 3]), np.array([0, 0, 0, 1, 1, 1])
    buffer.insert(torch.eye(6), labels, columns={"task": tasks})
    by_class = Session(buffer, Budget(1, 6), np.random.default_rng(0))
    by_task = Session(buffer, Budget(1, 6), np.random.default_rng(0), groups_by="task")
    assert by_class.groups.number == 4 and by_task.groups.number == 2
    of_tasks = Session(
        buffer, Budget(1, 6), np.random.default_rng(0), nn.Identity(), needs={"distances"}, groups_by="task"
    )
    assert of_tasks.distances.tolist() == prototype_distances(np.eye(6), tasks).tolist()
    drawn = np.bincount(tasks[next(iter(batches(policies.create("uniform_balanced", replace=False), by_task)))])
    assert drawn.tolist() == [3, 3]
