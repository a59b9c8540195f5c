"""SIESTA: the wake update, what a session spends, layer-wise rates, and what happens when the loss runs away."""

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer
from graspcl.codec import OPQ, Half
from graspcl.errors import GraspError
from graspcl.learner import Optimiser, Rehearsal, Siesta, learners
from graspcl.model import mobilenet_v3_large, vector_network
from graspcl.policy import Budget, policies
from graspcl.testing import check_learner


def clusters(classes=5, per_class=20, dim=12, seed=0, spread=0.6):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, dim))
    labels = np.repeat(np.arange(classes), per_class)
    x = centres[labels] + spread * rng.normal(size=(len(labels), dim))
    return torch.from_numpy(x).float(), labels


def siesta(policy="grasp", capacity=None, dim=12, lr=0.1, codec=None, maintenance=None):
    network = vector_network(dim, hidden=32, embedding=16, dropout=0.1, generator=torch.Generator().manual_seed(0))
    return Siesta(network, Buffer(capacity, codec, maintenance), policy, Optimiser(lr=lr))


@pytest.mark.parametrize("policy", policies.names())
def test_contract_with_every_policy(policy):
    inputs, _ = clusters()
    check_learner(lambda: siesta(policy, capacity=40), inputs)


@pytest.mark.parametrize("maintenance", ["largest_class", "reservoir", "fifo"])
def test_contract_with_every_rule(maintenance):
    inputs, _ = clusters()
    check_learner(lambda: siesta(capacity=40, maintenance=maintenance), inputs)


def test_contract_with_codecs():
    inputs, _ = clusters()
    check_learner(lambda: siesta(codec=Half()), inputs)
    opq = OPQ(codebooks=4, size=16, iterations=2).fit(inputs)
    check_learner(lambda: siesta(codec=opq), inputs)


def test_wake_rows_are_the_means_of_what_the_head_sees():
    inputs, labels = clusters()
    learner = siesta()
    for part in np.array_split(np.arange(len(labels)), 7):  # in uneven chunks: the mean is a running one
        learner.observe(inputs[part], labels[part])
    features = learner.outputs(inputs, "features").double()
    for label in np.unique(labels):
        expected = features[torch.from_numpy(labels == label)].mean(0)
        row = learner.classes.index(label)
        torch.testing.assert_close(learner.network.head.weight[row, :].detach(), expected.float(), atol=1e-6, rtol=1e-5)


def test_wake_update_leaves_rehearsed_rows_alone():
    inputs, labels = clusters()
    learner = siesta()
    learner.observe(inputs[labels < 3], labels[labels < 3])
    learner.rehearse(Budget(5, 8))
    before = learner.network.head.weight.detach().clone()
    learner.observe(inputs[labels != 4], labels[labels != 4])
    assert torch.equal(learner.network.head.weight[:3].detach(), before)
    assert len(learner.classes) == 4


def given_up(learner):
    session = Rehearsal(learner, Budget(2, 8))
    session.step()
    session.abandon()


@pytest.mark.parametrize("without_updates", [lambda learner: learner.rehearse(Budget(0, 8)), given_up])
def test_wake_rows_stay_means_over_a_session_that_trained_nothing(without_updates):
    inputs, labels = clusters()
    whole, parted = siesta(), siesta()
    whole.observe(inputs, labels)
    parted.observe(inputs[::2], labels[::2])
    without_updates(parted)
    assert not parted.buffer.new.any()
    parted.observe(inputs[1::2], labels[1::2])
    torch.testing.assert_close(parted.network.head.weight, whole.network.head.weight)


def test_online_accuracy_beats_chance_and_rehearsal_raises_it():
    inputs, labels = clusters(classes=10, per_class=40, spread=0.9)
    learner = siesta(lr=0.5)
    learner.observe(inputs[labels < 5], labels[labels < 5])
    learner.rehearse(Budget.passes(5, len(learner.buffer), 16))
    learner.observe(inputs[labels >= 5], labels[labels >= 5])
    awake = (learner.predict(inputs) == labels).mean()
    learner.rehearse(Budget.passes(5, len(learner.buffer), 16))
    asleep = (learner.predict(inputs) == labels).mean()
    assert awake > 0.3  # chance is 0.1
    assert asleep > awake + 0.05


def test_a_session_spends_exactly_its_budget_and_books_it():
    inputs, labels = clusters()
    learner = siesta("grasp")
    learner.observe(inputs, labels)
    log = learner.rehearse(Budget(updates=7, batch_size=9))
    assert (log.costs.updates, log.costs.training_forward, log.rehearsed.sum()) == (7, 63, 63)
    assert log.costs.selection_forward == len(inputs)  # GRASP looks at every stored sample once
    assert log.costs.selection_seconds > 0 and log.costs.training_seconds > 0
    assert learner.rehearse(Budget(3, 4)).costs.selection_forward == len(inputs)
    uniform = siesta("uniform")
    uniform.observe(inputs, labels)
    assert uniform.rehearse(Budget(3, 4)).costs.selection_forward == 0


@pytest.mark.parametrize("updates", [1, 2, 3, 4, 50])
def test_rates_are_layer_wise_over_the_whole_schedule(updates):
    learner = siesta(lr=0.8)
    learner.observe(*clusters())
    session = Rehearsal(learner, Budget(updates, 4))
    seen = []
    while not session.done:
        seen.append([group["lr"] for group in session._optimizer.param_groups])
        session.step()
    rates = np.array(seen)
    layers = rates.shape[1]
    assert layers == 3  # two linear layers and the head
    for earlier, later in zip(rates.T[:-1], rates.T[1:], strict=True):
        np.testing.assert_allclose(earlier, 0.99 * later, rtol=1e-6)
    assert rates[:, -1].max() <= 0.8 + 1e-9
    if updates == 50:
        assert rates[:, -1].max() == pytest.approx(0.8, rel=0.05)  # the peak is the configured rate
        assert rates[0, -1] < 0.1 and rates[-1, -1] < 0.01  # rises from and falls to almost nothing
    assert {group["momentum"] for group in session._optimizer.param_groups} == {0.9}  # as configured, not cycled


def test_a_loss_that_runs_away_is_reported_and_undone():
    inputs, labels = clusters()
    learner = siesta(lr=0.1)
    learner.observe(inputs, labels)
    learner.rehearse(Budget(5, 8))
    before = {name: value.clone() for name, value in learner.network.state_dict().items()}
    learner.optimiser = Optimiser(lr=1e38, schedule="constant")
    with pytest.raises(GraspError, match=r"loss became (nan|inf) at update .* lower the learning rate"):
        learner.rehearse(Budget(20, 8))
    for name, value in learner.network.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert len(learner.buffer) == len(inputs) and not learner.network.training
    learner.optimiser = Optimiser(lr=0.1)
    learner.rehearse(Budget(5, 8))  # and it goes on from there


def test_labels_may_be_any_integers_and_arrive_in_any_order():
    inputs, labels = clusters()
    learner = siesta()
    learner.observe(inputs, 1000 - 3 * labels)
    learner.rehearse(Budget(30, 16))
    assert learner.classes == [1000, 997, 994, 991, 988]
    assert set(learner.predict(inputs).tolist()) <= set(learner.classes)


def test_spatial_latents_of_the_papers_network():
    noise = torch.Generator().manual_seed(0)
    latents = torch.randn(24, 80, 4, 4, generator=noise)
    labels = np.arange(24) % 3
    codec = OPQ(codebooks=8, size=16, iterations=1).fit(latents)
    learner = Siesta(mobilenet_v3_large(generator=noise), Buffer(codec=codec), "grasp", Optimiser(lr=0.05))
    learner.observe_codes(learner.buffer.encode(latents), labels)
    log = learner.rehearse(Budget(2, 8))
    assert np.isfinite(log.losses).all() and log.stored == 24


def test_registry_and_errors():
    assert "siesta" in learners.names()
    with pytest.raises(GraspError, match="the buffer is empty"):
        siesta().rehearse(Budget(1, 1))
    with pytest.raises(GraspError, match="lr must be a positive number, got -1"):
        Optimiser(lr=-1)
