"""Supervised pretraining: what learns, at which rates, what is left behind, and resuming."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_network import same, stripes, tiny
from torch import nn
from torch.nn import functional as F

from graspcl.errors import GraspError
from graspcl.model import mobilenet_v3_large
from graspcl.pretrain import SupervisedSettings, make_trainer, train_accuracy
from graspcl.pretrain.supervised import SupervisedTrainer
from graspcl.pretrain.trainer import learning
from graspcl.state import load_state, save_state

IMAGES, LABELS = stripes(48)


def read(indices):
    return IMAGES[indices]


def settings(**changes) -> SupervisedSettings:
    return SupervisedSettings(**{"epochs": 3, "batch_size": 16, "lr": 0.05, "part": "all", **changes})


def trainer(seed: int = 0, rng: int = 0, **changes) -> SupervisedTrainer:
    return SupervisedTrainer(tiny(seed), read, np.arange(48), LABELS, settings(**changes), rng)


def test_the_whole_network_learns_to_tell_the_classes_apart() -> None:
    network = tiny()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    plain = settings(epochs=25, mix=0.0, crop=(0.6, 1.0), flip=0.0, step=20)
    log = make_trainer(network, "supervised", read, np.arange(48), LABELS, plain).run()
    assert [log[0].accuracy < 0.6, log[-1].accuracy > 0.9] == [True, True]
    assert log[-1].loss < 0.5 * log[0].loss and len(log) == 25
    after = network.state_dict()
    for name in ("frozen.layer0.0.weight", "frozen.layer1.1.running_mean", "plastic.layer3.0.weight"):
        assert not torch.equal(before[name], after[name]), name
    test, wanted = stripes(40, seed=1)
    assert train_accuracy(network, lambda indices: test[indices], np.arange(40), wanted) > 0.8
    assert train_accuracy(network, read, np.arange(48), LABELS, chunk=7) > 0.9


def test_afterwards_the_network_is_frozen_and_in_eval_mode_again() -> None:
    one, seen = trainer(), []
    one.run(on_epoch=lambda t: seen.append(t.network.frozen.training))
    network = one.network
    assert seen == [False, False, False]  # also between epochs
    assert not any(module.training for module in network.modules())
    assert not any(parameter.requires_grad for parameter in network.frozen.parameters())
    assert all(parameter.requires_grad for parameter in network.plastic.parameters())
    with pytest.raises(RuntimeError, match="broken"), learning(network):
        raise RuntimeError("broken")
    assert not any(parameter.requires_grad for parameter in network.frozen.parameters())


def test_the_plastic_part_alone() -> None:
    network = tiny()
    frozen = {name: value.clone() for name, value in network.frozen.state_dict().items()}
    plastic = network.plastic.layer2[0].weight.detach().clone()
    make_trainer(network, "supervised", read, np.arange(48), LABELS, settings(part="plastic")).run()
    assert all(torch.equal(value, frozen[name]) for name, value in network.frozen.state_dict().items())
    assert not torch.equal(network.plastic.layer2[0].weight, plastic)


def test_one_update_is_that_of_plain_sgd() -> None:
    """Without crops and mixtures, one batch of all: w - lr·(gradient + decay·w)."""
    s = settings(epochs=1, batch_size=64, mix=0.0, crop=(1.0, 1.0), flip=0.0, weight_decay=0.01, lr=0.1)
    trained, reference = tiny(dropout=0.0), tiny(dropout=0.0)
    make_trainer(trained, "supervised", lambda indices: IMAGES[np.sort(indices)], np.arange(48), np.zeros(48), s).run()
    reference.head.grow(1)
    with learning(reference):
        logits = reference(reference.frozen(IMAGES.float())).logits
        F.cross_entropy(logits, torch.zeros(48, dtype=torch.int64)).backward()
    for (name, one), other in zip(trained.named_parameters(), reference.parameters(), strict=True):
        gradient = torch.zeros_like(other) if other.grad is None else other.grad
        expected = other.detach() - 0.1 * (gradient + 0.01 * other.detach())
        torch.testing.assert_close(one.detach(), expected, rtol=1e-3, atol=2e-4, msg=name)


def test_rates_fall_in_steps() -> None:
    rates = [trainer(lr=0.2, epochs=50).settings.rate(epoch + 0.9) for epoch in range(50)]
    assert rates == pytest.approx([0.2] * 15 + [0.02] * 15 + [0.002] * 15 + [0.0002] * 5)
    log = trainer(lr=0.2, step=1, gamma=0.5).run()
    assert [epoch.lr for epoch in log] == pytest.approx([0.2, 0.1, 0.05])


def test_defaults_are_those_of_the_reference() -> None:
    s = SupervisedSettings()
    assert (s.epochs, s.step, s.gamma, s.momentum, s.weight_decay) == (50, 15, 0.1, 0.9, 1e-5)
    assert (s.mix, s.mixup_share, s.mixup_alpha, s.cutmix_alpha) == (1.0, 0.4, 0.1, 1.0)


def test_batches_are_mixed_by_the_method_and_parameter_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import graspcl.pretrain.supervised as module

    used: list[tuple[str, float]] = []
    for name in ("mixup", "cutmix"):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, name=name, real=real: (used.append((name, a[3])), real(*a))[1])

    def mixed(**changes) -> list[tuple[str, float]]:
        used.clear()
        trainer(epochs=1, mixup_alpha=0.3, cutmix_alpha=0.7, **changes).run()
        return list(used)

    assert mixed(mixup_share=1.0) == [("mixup", 0.3)] * 3
    assert mixed(mixup_share=0.0) == [("cutmix", 0.7)] * 3
    assert mixed(mix=0.0) == []
    assert mixed(mixup_share=0.9, batch_size=2).count(("mixup", 0.3)) > 16  # of 24


def test_every_sample_is_seen_once_an_epoch_in_batches_of_nearly_equal_size() -> None:
    asked = []

    def watched(indices):
        asked.append(indices.tolist())
        return read(indices)

    seen = []
    one = SupervisedTrainer(tiny(), watched, np.arange(2, 47), LABELS[2:47], settings(epochs=2), 0)
    one.run(on_batch=seen.append)
    assert [len(part) for part in asked] == [15] * 6 == seen
    first, second = ([index for part in epoch for index in part] for epoch in (asked[:3], asked[3:]))
    assert sorted(first) == sorted(second) == list(range(2, 47))
    assert first != second


def test_mixtures_are_counted_by_their_shares() -> None:
    """A network that always says class 0 is right by the share of class 0, whatever is mixed."""
    network = tiny(dropout=0.0)
    network.head.grow(2)
    with torch.no_grad():
        network.head.bias.copy_(torch.tensor([100.0, -100.0]))
        network.head.weight.zero_()
    one = SupervisedTrainer(network, read, np.arange(48), np.arange(48) % 2, settings(epochs=2, lr=1e-9), 0)
    assert [epoch.accuracy for epoch in one.run()] == pytest.approx([0.5, 0.5], abs=1e-5)
    varied = trainer().run()[-1].accuracy * 48
    assert abs(varied - round(varied)) > 1e-3  # not a count of whole samples


@pytest.mark.parametrize("changes", [{}, {"part": "plastic"}, {"momentum": 0.0, "mix": 0.5}])
def test_a_stopped_training_resumes_to_the_same_bytes(tmp_path, changes) -> None:
    straight = trainer(**changes)
    expected = straight.run()
    stopped = trainer(**changes)

    class Stop(Exception):
        pass

    def stop(t) -> None:
        save_state(tmp_path / "state", t.state_dict())
        raise Stop

    with pytest.raises(Stop):
        stopped.run(on_epoch=stop)
    resumed = trainer(seed=7, rng=99, **changes)  # other weights and another generator, all overwritten
    resumed.load_state_dict(load_state(tmp_path / "state"))
    log = resumed.run()
    assert same(straight.network, resumed.network)
    assert [(e.loss, e.accuracy, e.lr) for e in log] == [(e.loss, e.accuracy, e.lr) for e in expected]


def test_a_state_does_not_change_afterwards() -> None:
    one = trainer()
    states = []
    one.run(on_epoch=lambda t: states.append(t.state_dict()))
    assert not torch.equal(
        states[0]["network"]["plastic.layer2.0.weight"], states[2]["network"]["plastic.layer2.0.weight"]
    )
    momentum = [state["optimizer"]["state"][0]["momentum_buffer"] for state in states]
    assert not torch.equal(momentum[0], momentum[2])


def test_a_state_of_another_training_is_refused() -> None:
    one = trainer()
    one.run()
    state = one.state_dict()
    with pytest.raises(GraspError, match=r"with other settings: lr was 0\.05, is 0\.1"):
        trainer(lr=0.1).load_state_dict(state)
    fewer = SupervisedTrainer(tiny(), read, np.arange(20), LABELS[:20], settings(), 0)
    with pytest.raises(GraspError, match=r"on other samples or classes \(48 samples\)"):
        fewer.load_state_dict(state)
    other = SupervisedTrainer(tiny(), read, np.arange(48), np.zeros(48), settings(), 0)
    with pytest.raises(GraspError, match="on other samples or classes"):
        other.load_state_dict(state)


def test_the_global_generator_is_neither_used_nor_moved() -> None:
    before = torch.get_rng_state()
    np.random.seed(0)  # noqa: NPY002
    state = np.random.get_state()[1].copy()  # noqa: NPY002
    first, second = trainer(), trainer()
    first.run()
    torch.manual_seed(5)
    second.run()
    assert same(first.network, second.network)
    torch.set_rng_state(before)
    trainer().run()
    assert torch.equal(before, torch.get_rng_state())
    assert np.array_equal(state, np.random.get_state()[1])  # noqa: NPY002


def test_a_diverging_loss_is_explained() -> None:
    with pytest.raises(GraspError, match=r"the loss became (nan|inf) in epoch \d; lower the learning rate"):
        trainer(lr=1e30, epochs=10).run()


def test_an_error_while_reading_comes_through() -> None:
    def broken(indices):
        if 40 in indices:
            raise GraspError("photo 40 cannot be read")
        return read(indices)

    network = tiny()
    with pytest.raises(GraspError, match="photo 40 cannot be read"):
        make_trainer(network, "supervised", broken, np.arange(48), LABELS, settings()).run()
    assert not any(parameter.requires_grad for parameter in network.frozen.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        ({"batch_size": 1}, "batch_size must be a whole number of at least 2, got 1"),
        ({"lr": 0.0}, "lr must be a positive number, got 0.0"),
        ({"step": 0}, "step must be a whole number of at least 1, got 0"),
        ({"gamma": 0.0}, r"gamma must be a number in \(0, 1\], got 0.0"),
        ({"mixup_share": 1.5}, r"mixup_share must be a number in \[0, 1\], got 1.5"),
        ({"part": "half"}, "part must be 'all' or 'plastic', got 'half'"),
    ],
)
def test_wrong_settings_are_explained(changes, message: str) -> None:
    with pytest.raises(GraspError, match=message):
        settings(**changes)


def test_wrong_samples_are_explained() -> None:
    for indices, rows in (([0], [0]), ([], []), ([[0, 1]], [0])):
        with pytest.raises(GraspError, match="at least 2 samples"):
            SupervisedTrainer(tiny(), read, indices, rows, settings())
    for rows in ([0, 1], [0, 1, -1], [[0], [1], [2]]):
        with pytest.raises(GraspError, match="each of the 3 samples its row"):
            SupervisedTrainer(tiny(), read, [0, 1, 2], rows, settings())


def test_a_real_network_of_the_paper_trains() -> None:
    network = mobilenet_v3_large(generator=torch.Generator().manual_seed(0))
    images, labels = stripes(16, pixels=32)
    short = settings(epochs=2, batch_size=8)
    log = make_trainer(network, "supervised", lambda i: images[i], np.arange(16), labels, short).run()
    assert np.isfinite(log[-1].loss) and network.head.classes == 4
    norms = [module for module in network.frozen.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms[0].num_batches_tracked == 4 and not norms[0].training
