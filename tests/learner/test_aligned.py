"""The default learner: a discriminant of all samples, halves that are cross-fitted, and a past that is carried over."""

from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.learner import Aligned, Optimiser, aligned
from graspcl.learner.aligned import _half
from graspcl.learner.logistic import logistic_rows
from graspcl.learner.moments import Moments, Movement, discriminant_rows
from graspcl.learner.rehearsal import Batch, Rehearsal
from graspcl.model import make_network, vector_network
from graspcl.policy import Budget, UniformBalanced

WIDTH, CLASSES = 6, 5


def samples(number=200, seed=0, classes=CLASSES):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % classes
    means = torch.randn(classes, WIDTH, generator=torch.Generator().manual_seed(7))
    return means[labels] + 0.7 * torch.randn(number, WIDTH, generator=generator), labels.numpy()


def learner(capacity=None, lr=1e-2, policy="uniform_balanced", **parameters):
    network = vector_network(WIDTH, hidden=16, embedding=8, generator=torch.Generator().manual_seed(0))
    optimiser = Optimiser("adamw", lr, weight_decay=0.0, layer_decay=1.0, schedule="linear")
    return Aligned(network, Buffer(capacity), policy, optimiser, **parameters)


def centred(logits):
    return logits - logits.mean(1, keepdim=True)


def features(learner, inputs):
    return learner.outputs(learner.encode(inputs), "features")


def test_a_class_is_known_before_any_session():
    inputs, labels = samples()
    learned = learner()
    learned.observe(inputs[labels < 4], labels[labels < 4])
    assert set(learned.predict(inputs)) == {0, 1, 2, 3}
    learned.observe(inputs[labels == 4], labels[labels == 4])
    assert (learned.predict(inputs[labels == 4]) == 4).mean() > 0.5


def test_the_head_is_the_discriminant_of_the_features_of_all_samples_after_a_session(monkeypatch):
    monkeypatch.setattr(aligned, "_LATE", 1.0)  # no features of updates are used
    inputs, labels = samples()
    learned = learner(corrected=False)
    learned.observe(inputs, labels)
    learned.rehearse(Budget(20, 16))
    exact = Moments(learned.network.head.features).add(features(learned, inputs), torch.from_numpy(labels))
    logits = learned.outputs(learned.encode(inputs), "logits").double()
    found = logits - logits.mean(1, keepdim=True)
    for shrinkage in (1e-3, 1e-2, 0.1, 0.3, 0.6, 0.9):  # one of them was chosen, with some factor
        expected = F.linear(features(learned, inputs).double(), *discriminant_rows(exact, shrinkage))
        expected -= expected.mean(1, keepdim=True)
        factor = (expected * found).sum() / expected.square().sum()
        if torch.allclose(found, factor * expected, atol=1e-3):
            return
    pytest.fail("the head is no discriminant of all samples")


def test_the_order_of_arrival_does_not_matter_before_a_session():
    inputs, labels = samples()
    forth, back = learner(), learner()
    forth.observe(inputs, labels)
    for part in np.array_split(np.arange(len(labels)), 7):
        back.observe(inputs[part], labels[part])
    assert torch.allclose(forth.logits(inputs), back.logits(inputs), atol=1e-4)


def test_each_half_trains_against_rows_that_have_not_seen_it(monkeypatch):
    monkeypatch.setattr(aligned, "lowest", lambda surprise, places, start: start)  # the same shrinkage
    inputs, labels = samples()
    learned = learner()
    learned.observe(inputs, labels)
    half = _half(learned.buffer.births)
    assert abs(half.mean() - 0.5) < 0.05
    other = learner()
    changed = inputs.clone()
    changed[half == 0] += 1.0  # half 0 is others' samples now: its own rows, solved on half 1, must not change
    other.observe(changed, labels)
    for one in (learned, other):
        one.begin_session()
    ours, theirs = learned._crossed, other._crossed
    ours, theirs = ([F.normalize(weight.flatten(), dim=0) for weight, _ in rows] for rows in (ours, theirs))
    assert torch.allclose(ours[0], theirs[0], atol=1e-5)
    assert not torch.allclose(ours[1], theirs[1], atol=1e-2)


def test_the_loss_takes_the_rows_of_the_other_half():
    inputs, labels = samples()
    learned = learner()
    learned.observe(inputs, labels)
    learned.begin_session()
    slots = np.arange(20)
    outputs = learned.network(inputs[:20])
    targets = torch.from_numpy(labels[:20])
    batch = Batch(inputs[:20], targets, slots, outputs, torch.ones(20, dtype=torch.bool))
    half = _half(learned.buffer.births[slots])
    each = [
        F.cross_entropy(F.linear(outputs.features[[place]], *learned._crossed[half[place]]), targets[[place]])
        for place in slots
    ]
    assert torch.isclose(learned.loss(batch), torch.stack(each).mean(), atol=1e-5)


def test_only_the_plastic_part_is_trained():
    inputs, labels = samples()
    learned = learner()
    learned.observe(inputs, labels)
    names = [name for name, _ in learned.network.plastic_parameters()]
    assert names and not any(name.startswith("head") for name in names)
    session = Rehearsal(learned, Budget(3, 16))
    head, plastic = learned.network.head.weight.clone(), learned.network.plastic[0].weight.clone()
    session.step()
    assert torch.equal(head, learned.network.head.weight)
    assert not torch.equal(plastic, learned.network.plastic[0].weight)


def test_moments_are_carried_exactly_where_features_moved_linearly():
    generator = torch.Generator().manual_seed(3)
    before = torch.randn(4000, 5, generator=generator).double()
    move, shift = torch.eye(5).double() + 0.3 * torch.randn(5, 5, generator=generator).double(), torch.arange(5.0)
    now = before @ move.T + shift
    targets = torch.arange(4000) % 3
    stored, gone = slice(0, 2000), slice(2000, None)
    moved = Movement(5, torch.device("cpu"), prior=1e-9)
    moved.add(before[stored], now[stored])
    carried = moved.carry(Moments(5).add(before[gone], targets[gone]))
    exact = Moments(5).add(now[gone], targets[gone])
    assert torch.allclose(carried.sums, exact.sums, rtol=1e-5) and torch.equal(carried.counts, exact.counts)
    assert torch.allclose(carried.second, exact.second, rtol=1e-5)


def test_without_evidence_features_stay_where_they_were():
    moved = Movement(3, torch.device("cpu"))
    before = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    moved.add(before, before)
    past = Moments(3).add(before, torch.zeros(50, dtype=torch.int64))
    carried = moved.carry(past)
    assert torch.allclose(carried.sums, past.sums) and torch.allclose(carried.second, past.second)


def test_what_the_buffer_lost_still_counts():
    inputs, labels = samples(400)
    learned = learner(capacity=40)
    learned.observe(inputs, labels)
    learned.rehearse(Budget(10, 16))
    first, second = learned._halves
    assert len(learned.buffer) == 40 and (first.counts + second.counts).sum() == 40
    assert torch.allclose((first + second + learned._gone).counts, torch.full((5,), 80.0).double())
    assert (first + second + learned._gone).counts.sum() == 400


def test_features_of_late_updates_replace_a_pass_over_their_samples():
    inputs, labels = samples()
    learned = learner(policy=UniformBalanced(replace=False), lr=1e-9)
    learned.observe(inputs, labels)
    log = learned.rehearse(Budget(10, 20))
    late = len(np.unique(log.picks[4:]))
    assert log.costs.training_forward == 200 + (200 - late)
    assert sum(float(half.counts.sum()) for half in learned._halves) == 200
    exact = Moments(learned.network.head.features).add(features(learned, inputs), torch.from_numpy(labels))
    first, second = learned._halves  # nothing moved, so the sums are exact
    assert torch.allclose((first + second).sums, exact.sums, rtol=1e-5)
    assert torch.allclose((first + second).second, exact.second, rtol=1e-5)


def test_a_sample_that_is_drawn_twice_late_counts_once():
    inputs, labels = samples(40)
    learned = learner(policy="uniform")
    learned.observe(inputs, labels)
    learned.rehearse(Budget(20, 16))
    assert sum(float(half.counts.sum()) for half in learned._halves) == 40


def test_the_head_of_a_prediction_serves_the_session_after_it(monkeypatch):
    inputs, labels = samples()
    learned = learner()
    learned.observe(inputs, labels)
    learned.predict(inputs)
    rows = [weight.clone() for weight, _ in learned._crossed]
    monkeypatch.setattr(learned, "_solve", lambda: pytest.fail("the head was solved again"))
    learned.begin_session()
    assert all(torch.equal(weight, before) for (weight, _), before in zip(learned._crossed, rows, strict=True))


# -- the correction of the head ----------------------------------------------------------------------------------------


def lopsided(number, seed):
    """Two classes with one mean and one covariance for each: a discriminant cannot use that the second is wider."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 2
    inputs = torch.randn(number, WIDTH, generator=generator)
    far = torch.randn(number, generator=generator).exp()
    inputs[:, 0] = torch.where(labels == 0, -0.3 + 0.1 * inputs[:, 0], far)
    return inputs, labels.numpy()


def test_the_correction_helps_where_classes_are_no_normal_distributions_of_one_shape(monkeypatch):
    monkeypatch.setattr(aligned, "_STRENGTH", 1 / 2000)
    inputs, labels = lopsided(2000, seed=0)
    tests, truth = lopsided(2000, seed=1)
    losses = []
    for corrected in (False, True):
        learned = learner(lr=1e-9, corrected=corrected)
        learned.observe(inputs, labels)
        learned.rehearse(Budget(10, 16))
        logits = learned.outputs(learned.encode(tests), "logits")
        losses.append(float(F.cross_entropy(logits, torch.from_numpy(truth))))
    assert losses[1] < 0.97 * losses[0]


def test_the_head_is_the_mean_of_the_discriminant_and_a_logistic_regression(monkeypatch):
    """Scaled to equally large logits: with n and n / k for the two, so that both have n / √k."""
    monkeypatch.setattr(aligned, "_STEPS", 200)
    inputs, labels = samples()
    heads = []
    for corrected in (False, True):
        learned = learner(lr=1e-9, corrected=corrected)
        learned.observe(inputs, labels)
        learned.rehearse(Budget(10, 16))
        heads.append(centred(learned.outputs(learned.encode(inputs), "logits").double()))
    found = features(learned, inputs).double()
    targets = learned.rows(torch.from_numpy(labels))
    rows = logistic_rows(found, targets, len(learned.classes), 0.03 * len(labels))
    regression, (discriminant, mean) = centred(F.linear(found, *rows)), heads
    ratio = discriminant.square().mean().sqrt() / regression.square().mean().sqrt()
    assert not torch.allclose(discriminant, ratio * regression, atol=0.1)
    assert torch.allclose(mean, (discriminant / ratio**0.5 + regression * ratio**0.5) / 2, atol=1e-2)


def test_a_class_whose_features_were_not_kept_has_the_row_of_the_discriminant():
    inputs, labels = samples()
    learned = learner()
    learned.observe(inputs, labels)
    learned.predict(inputs)
    now, before = learned._nothing_measured(), learned.network.head.weight.clone()
    slots = np.flatnonzero(learned.buffer.labels != 0)
    now.add(slots, features(learned, inputs)[slots], learned.rows(torch.from_numpy(labels[slots])))
    now.finish()
    kept = now.kept()
    learned._correct(namedtuple("Known", "kept")(lambda: [part[np.isin(np.arange(200), slots)] for part in kept]))
    similar = F.cosine_similarity(learned.network.head.weight, before)
    assert similar[learned.classes.index(0)] > 0.99999 and similar.min() < 0.995


def test_few_samples_correct_a_head_of_many_classes(monkeypatch):
    """Their logits are in memory at once."""
    monkeypatch.setattr(aligned, "_JUDGES", 2)
    inputs, labels = samples()
    learned = learner()
    learned.observe(inputs, labels)
    assert len(learned._nothing_measured()._slots) == 200
    monkeypatch.setattr(aligned, "_LOGITS", 10 * CLASSES)
    assert len(learned._nothing_measured()._slots) == 10


def test_features_that_are_kept_are_those_of_the_stored_samples(monkeypatch):
    monkeypatch.setattr(aligned, "_CORRECT_WITH", 50)
    kept = []
    monkeypatch.setattr(Aligned, "_correct", lambda self, now: kept.append(now.kept()))
    inputs, labels = samples()
    learned = learner(lr=1e-9)
    learned.observe(inputs, labels + 10)
    learned.rehearse(Budget(10, 16))
    [(found, rows, halves)] = kept
    exact, chosen = features(learned, inputs), np.linspace(0, 199, 50).astype(int)
    assert torch.allclose(found, exact[chosen], atol=1e-2)
    assert rows.tolist() == labels[chosen].tolist()
    assert halves.tolist() == _half(chosen).tolist()


def test_a_head_that_is_too_large_is_not_corrected(monkeypatch):
    monkeypatch.setattr(aligned, "_LARGEST_HEAD", 5 * 8 - 1)
    monkeypatch.setattr(aligned, "logistic_rows", lambda *_, **__: pytest.fail("the head was corrected"))
    inputs, labels = samples()
    learned = learner()
    learned.observe(inputs, labels)
    learned.rehearse(Budget(5, 16))
    assert (learned.predict(inputs) == labels).mean() > 0.5


def test_where_samples_were_lost_the_regression_counts_half_the_share_that_is_stored(monkeypatch):
    weights = []
    monkeypatch.setattr(aligned, "averaged", lambda first, second, weight, *rest: weights.append(weight) or first)
    inputs, labels = samples()
    for capacity in (None, 60):
        learned = learner(capacity=capacity)
        learned.observe(inputs, labels)
        learned.rehearse(Budget(5, 16))
    assert weights == [0.5, 0.5 * 60 / 200]


def test_the_head_is_corrected_when_classes_are_relearned(monkeypatch):
    monkeypatch.setattr(aligned, "_STRENGTH", 1 / 2000)
    inputs, labels = lopsided(2000, seed=0)
    learned, plain = learner(lr=1e-9), learner(lr=1e-9, corrected=False)
    logits = []
    for one in (learned, plain):
        one.observe(inputs, labels)
        one.rehearse(Budget(5, 16))
        one.relearn([0, 1])
        logits.append(one.outputs(one.encode(inputs), "logits"))
    losses = [float(F.cross_entropy(values, torch.from_numpy(labels))) for values in logits]
    assert losses[0] < 0.97 * losses[1]


def test_by_default_the_head_is_corrected_unless_the_plastic_part_has_convolutions():
    photos = make_network("efficientnet_lite0", pretrained=False, generator=torch.Generator().manual_seed(0))
    assert not Aligned(photos, Buffer()).corrected
    assert Aligned(photos, Buffer(), corrected=True).corrected
    assert learner().corrected


def test_states_with_the_strength_of_an_earlier_correction_are_read():
    inputs, labels = samples()
    learned, again = learner(), learner()
    learned.observe(inputs, labels)
    learned.rehearse(Budget(5, 16))
    state = learned.state_dict()
    state["strength"] = 1
    again.load_state_dict(state)
    assert np.array_equal(again.predict(inputs), learned.predict(inputs))


def test_a_session_without_updates_keeps_the_corrected_head():
    inputs, labels = samples()
    learned = learner()
    learned.observe(inputs, labels)
    learned.rehearse(Budget(5, 16))
    before = learned.outputs(learned.encode(inputs), "logits")
    session = Rehearsal(learned, Budget(5, 16))
    session.stop()
    session.finish()
    assert torch.equal(learned.outputs(learned.encode(inputs), "logits"), before)


def test_nothing_stored_is_nothing_to_correct():
    inputs, labels = samples(1)
    learned = learner()
    learned.observe(inputs, labels)
    learned.rehearse(Budget(2, 1))
    assert learned.predict(inputs).tolist() == labels.tolist()
    learned.buffer.clear()
    learned.relearn([])


def test_a_module_that_is_not_cut_is_refused():
    with pytest.raises(GraspError, match=r"network must be a SplitNetwork \(see SplitNetwork.cut\), got Sequential"):
        Aligned(torch.nn.Sequential(torch.nn.Linear(2, 2)), Buffer())
