"""Distances remembered from when samples were last seen: against fresh ones, by hand, and through every change."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.learner import Diverged, Idbr, Learner, Optimiser, Rehearsal, Siesta
from graspcl.model import vector_network
from graspcl.policy import Budget, Grasp, Session, batches, prototype_distances, rehearse
from graspcl.policy.prototype import ByDistance, HardBiased, Mof
from graspcl.testing import check_learner, check_policy
from graspcl.testing.common import same, seeded

LABELS = np.array([0, 1, 0, 1, 2, 1, 0, 0])
BUDGET = Budget(3, 4)


class Embeds(nn.Module):
    """Embeddings are the inputs times a scale; counts the samples it has seen."""

    seen = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen += len(inputs)
        return inputs


def points(n: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(n, 4, generator=seeded(seed)).half().float()  # as a session measures them


def filled(labels: np.ndarray = LABELS, **settings: Any) -> Buffer:
    buffer = Buffer(**settings)
    buffer.insert(points(len(labels)), labels)
    return buffer


def session_of(buffer: Buffer, policy: ByDistance, seed: int = 0, network: nn.Module | None = None) -> Session:
    return Session(buffer, BUDGET, np.random.default_rng(seed), network or Embeds(), needs=policy.needs)


def learned(policy: ByDistance, buffer: Buffer, moved: torch.Tensor | None = None) -> Session:
    """A session whose updates are reported, with embeddings `moved` [N, D] instead of the stored inputs."""
    session = session_of(buffer, policy)
    for slots in batches(policy, session):
        z = buffer.fetch(slots)[0] if moved is None else moved[torch.from_numpy(slots)]
        policy.observe(slots, SimpleNamespace(embedding=z))
    return session


def test_contract(fewer_sessions: None) -> None:
    check_policy(Grasp(distances="remembered"))


@pytest.mark.parametrize("kind", [Mof, HardBiased])
def test_other_policies_by_distance(kind: Any) -> None:
    policy, buffer = kind(distances="remembered"), filled()
    assert [learned(policy, buffer).costs.selection_forward for _ in range(2)] == [8, 0]


def test_other_values_are_refused() -> None:
    with pytest.raises(GraspError, match="distances must be 'fresh' or 'remembered', got 'old'"):
        Grasp(distances="old")  # type: ignore[arg-type]


def test_without_a_memory_the_first_session_is_that_of_fresh_distances() -> None:
    plans = []
    for policy in (Grasp(), Grasp(distances="remembered")):
        session = session_of(filled(), policy)
        plans.append([slots.tolist() for slots in batches(policy, session)])
        assert session.costs.selection_forward == len(LABELS)
    assert plans[0] == plans[1]
    buffer = filled()
    found = policy.clone().measured(session_of(buffer, policy))
    np.testing.assert_allclose(found, prototype_distances(points(8).numpy(), LABELS), atol=1e-6)


def test_a_later_session_needs_no_forward_pass() -> None:
    policy, buffer = Grasp(distances="remembered"), filled()
    learned(policy, buffer)
    assert learned(policy, buffer).costs.selection_forward == 0


def test_an_update_is_remembered_against_the_running_prototype() -> None:
    policy, buffer = Grasp(distances="remembered"), filled(np.array([5, 5, 9]))
    z = points(3).double().numpy()
    session = session_of(buffer, policy)
    policy.begin(session)
    sums = {5: z[0] + z[1], 9: z[2]}
    expected = [distance(z[0], sums[5]), distance(z[1], sums[5]), 0.0]
    np.testing.assert_allclose(policy._known, expected, atol=1e-6)
    for slot in (1, 0, 1):
        new = points(1, seed=20 + slot)
        policy.observe(np.array([slot]), SimpleNamespace(embedding=new))
        policy._take_in()
        sums[5] = sums[5] + new[0].double().numpy()
        expected[slot] = distance(new[0].double().numpy(), sums[5])
        np.testing.assert_allclose(policy._known, expected, atol=1e-6)
    # What was seen before a session counts a tenth in it.
    assert policy.measured(session_of(buffer, policy)).tolist() == policy._known.tolist()
    policy.observe(np.array([2]), SimpleNamespace(embedding=points(1, seed=30)))
    policy._take_in()
    late = points(1, seed=30)[0].double().numpy()
    assert policy._known[2].item() == pytest.approx(distance(late, 0.1 * z[2] + late), abs=1e-6)


def distance(z: Any, q: Any) -> float:
    return float(1 - z @ q / np.linalg.norm(z) / np.linalg.norm(q))


def test_samples_keep_their_distance_in_another_slot_and_leave_none_to_their_successor() -> None:
    policy, buffer = Grasp(distances="remembered"), filled(capacity=8, rng=0)
    learned(policy, buffer)
    policy._take_in()
    known = dict(zip(buffer.births.tolist(), policy._known.tolist(), strict=True))
    buffer.remove([0, 3])  # others move into their slots
    buffer.insert(points(3, seed=2), [7, 7, 1])  # the third evicts
    network = Embeds()
    policy.begin(session := session_of(buffer, policy, network=network))
    new = buffer.births >= 8
    assert new.sum() == 3 and network.seen == session.costs.selection_forward == 3
    assert policy._known[~new].tolist() == [known[birth] for birth in buffer.births[~new].tolist()]
    assert len(set(buffer.births.tolist()) & known.keys()) == 5


def test_a_class_that_returns_finds_its_prototype() -> None:
    policy, buffer = Grasp(distances="remembered"), filled()
    learned(policy, buffer)
    policy._take_in()
    before = policy._sums[2].clone()
    buffer.remove(buffer.slots_of(2))
    learned(policy, buffer)
    buffer.insert(points(1, seed=3), [2])
    policy.begin(session_of(buffer, policy))
    z = points(1, seed=3)[0]
    torch.testing.assert_close(policy._sums[2], 0.01 * before + z)
    assert policy._known[-1].item() == pytest.approx(distance(z.numpy(), (0.01 * before + z).numpy()), abs=1e-6)


def test_the_ranks_of_a_network_that_keeps_moving() -> None:
    """Embeddings turn over four sessions. Measured: 0.957; distances without memory of the sample would give 0."""
    labels = np.arange(400) % 4
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(size=(4, 8))[labels] + 0.7 * rng.normal(size=(400, 8))).float()
    turn = torch.from_numpy(rng.normal(size=(8, 8))).float()
    policy, buffer = Grasp(distances="remembered"), Buffer()
    buffer.insert(z, labels)
    for number in range(4):
        session = Session(buffer, Budget(50, 8), np.random.default_rng(number), Embeds(), needs=policy.needs)
        for step, slots in enumerate(batches(policy, session)):
            generator = (turn - turn.T) * (number + step / 50) / 16
            policy.observe(slots, SimpleNamespace(embedding=z[torch.from_numpy(slots)] @ torch.matrix_exp(generator)))
    fresh = prototype_distances(z.numpy(), labels)  # turning keeps them
    known = policy._known
    assert np.mean([spearmanr(known[labels == k], fresh[labels == k])[0] for k in range(4)]) > 0.85


# -- in a loop of one's own ------------------------------------------------------------------------------------------


def test_in_a_loop_reported_embeddings_are_remembered_and_others_measured_again() -> None:
    policy, buffer, embed = Grasp(distances="remembered"), filled(), Embeds()
    for batch in rehearse(buffer, policy, Budget(1, 4), embed=embed):
        batch.report(torch.zeros(4, 3), batch.x)
    assert embed.seen == 8
    for _ in rehearse(buffer, policy, Budget(1, 4), embed=embed):
        pass  # nothing is reported
    assert embed.seen == 8
    drawn = set(policy._plan.tolist())
    for batch in rehearse(buffer, policy, Budget(1, 4), embed=embed):
        batch.report(torch.zeros(4, 3))  # no embeddings
    assert embed.seen == 8 + len(drawn)
    again = set(policy._plan.tolist())
    assert len(list(rehearse(buffer, policy, Budget(1, 4), embed=embed))) == 1
    assert embed.seen == 8 + len(drawn) + len(again)


def test_what_is_reported_is_taken_in_together_and_the_last_of_a_sample_counts() -> None:
    policy, buffer = Grasp(distances="remembered"), filled(np.array([5, 5, 9]))
    policy.begin(session_of(buffer, policy))
    before, sums, reports = policy._known.copy(), policy._sums.clone(), points(8, seed=4)
    for place, slot in enumerate([0, 1, 0, 1, 0, 1, 2, 0]):
        assert policy._known.tolist() == before.tolist()
        policy.observe(np.array([slot]), SimpleNamespace(embedding=reports[place : place + 1]))
    sums[0] += reports[[0, 1, 2, 3, 4, 5, 7]].sum(0)
    expected = [distance(reports[place].numpy(), sums[0].numpy()) for place in (7, 5)]
    np.testing.assert_allclose(policy._known[:2], expected, atol=1e-6)


def test_a_report_that_is_not_finite_is_measured_again() -> None:
    policy, buffer, embed = Grasp(distances="remembered"), filled(), Embeds()
    for batch in rehearse(buffer, policy, Budget(1, 4), embed=embed):
        wrong = batch.x.clone()
        wrong[1] = torch.nan
        batch.report(torch.zeros(4, 3), wrong)
    drawn = policy._plan[1]
    assert len(list(rehearse(buffer, policy, Budget(1, 4), embed=embed))) == 1
    assert embed.seen == 8 + 1 and np.isfinite(policy._known[drawn]) and policy._sums.isfinite().all()


def test_embeddings_of_another_length_are_refused() -> None:
    batch = next(rehearse(filled(), Grasp(distances="remembered"), Budget(1, 4), embed=Embeds()))
    with pytest.raises(GraspError, match=r"report takes embeddings of shape \(4, dimensions\), got \(3, 4\)"):
        batch.report(torch.zeros(4, 3), torch.zeros(3, 4))


@pytest.mark.parametrize(("bad", "message"), [(0.0, "1 of 8 embeddings are all zero"), (torch.nan, "hold NaN")])
def test_embeddings_without_a_direction_are_named(bad: float, message: str) -> None:
    def embed(x: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(len(x))[:, None] == 5, bad, x)

    with pytest.raises(GraspError, match=rf"{message}.*rows \[5\]"):
        next(rehearse(filled(), Grasp(distances="remembered"), Budget(1, 4), embed=embed))


def test_a_new_sample_without_a_direction_is_named_by_its_slot() -> None:
    policy, buffer = Grasp(distances="remembered"), filled()
    learned(policy, buffer)
    buffer.insert(torch.cat([points(1, seed=2), torch.zeros(1, 4)]), [7, 7])
    with pytest.raises(GraspError, match=r"1 of 2 embeddings are all zero \(rows \[9\]\)"):
        policy.begin(session_of(buffer, policy, network=Embeds()))


# -- with learners ---------------------------------------------------------------------------------------------------

INPUTS = torch.randn(60, 6, generator=seeded(5))
CLASSES = np.arange(60) // 10


def learner_of(kind: type[Learner] = Siesta, capacity: int | None = 40, **parameters: Any) -> Learner:
    network = vector_network(6, hidden=8, embedding=5, generator=seeded())
    buffer = Buffer(capacity, columns=kind.columns(6, **parameters), rng=3)
    return kind(network, buffer, Grasp(distances="remembered"), Optimiser(lr=0.1), **parameters)


def test_learner_contract() -> None:
    """With resuming in a session and between two, and with eviction."""
    check_learner(learner_of, INPUTS)


def test_a_learner_with_outputs_of_new_samples_gives_them_for_nothing() -> None:
    learner = learner_of()
    for begin in (0, 30):  # the second chunks evict
        for chunk in (slice(begin, begin + 15), slice(begin + 15, begin + 30)):
            learner.observe(INPUTS[chunk], CLASSES[chunk])
        if not begin:
            known = learner.policy._known
            z = learner.outputs(learner.buffer["codes"], "embedding").numpy()
            assert known[15:] == pytest.approx(prototype_distances(z, CLASSES[:30])[15:], abs=0.2)
        log = learner.rehearse(Budget(4, 16))
        assert log.costs.selection_forward == 0
        assert np.isfinite(learner.policy._known).all()


def test_a_learner_without_measures_new_samples_alone() -> None:
    learner = learner_of(Learner, capacity=None)
    for begin in (0, 30):
        learner.observe(INPUTS[begin : begin + 30], CLASSES[begin : begin + 30])
        assert learner.rehearse(Budget(4, 16)).costs.selection_forward == 30


def test_prototypes_of_tasks() -> None:
    learner = learner_of(Idbr, capacity=None, balance="task")
    for begin in (0, 30):
        learner.observe(INPUTS[begin : begin + 30], CLASSES[begin : begin + 30])
        learner.rehearse(Budget(4, 16))
    assert learner.policy._groups.tolist() == [0, 1]


def test_a_diverged_session_leaves_no_trace_in_what_is_remembered() -> None:
    learner = learner_of()
    learner.observe(INPUTS, CLASSES)
    learner.rehearse(Budget(2, 16))
    before, learner.optimiser = learner.policy.state_dict(), Optimiser(lr=1e20)
    with pytest.raises(Diverged):
        learner.rehearse(Budget(6, 16))
    assert same(before, learner.policy.state_dict())


def test_a_saved_learner_remembers(tmp_path: Path) -> None:
    first, second = learner_of(), learner_of()
    first.observe(INPUTS, CLASSES)
    first.rehearse(Budget(2, 16))
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")
    assert same(first.policy.state_dict(), second.policy.state_dict())
    assert second.rehearse(Budget(2, 16)).costs.selection_forward == 0


def test_an_interrupted_session_without_a_memory_resumes() -> None:
    """As of earlier versions: the policy has a plan and nothing else."""
    learner = learner_of()
    learner.observe(INPUTS, CLASSES)
    session = Rehearsal(learner, Budget(2, 16))
    session.step()
    state = learner.state_dict()
    state["policy"] = {name: state["policy"][name] for name in ("_plan", "_next")}
    restored = learner_of()
    restored.load_state_dict(state)
    rest = Rehearsal(restored, Budget(2, 16), session.state_dict())
    rest.step()
    rest.finish()
    assert restored.rehearse(Budget(2, 16)).costs.selection_forward == len(restored.buffer)
