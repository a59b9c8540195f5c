"""Mixup and cutmix against the equations that define them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graspcl.errors import GraspError
from graspcl.pretrain.supervised import cutmix, mixup


def batch(number: int = 12, classes: int = 5, pixels: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(number, 3, pixels, pixels + 3, generator=generator)
    return x, torch.eye(classes)[torch.arange(number) % classes]


def draws(rng: np.random.Generator, number: int, alpha: float) -> tuple[float, np.ndarray]:
    """What both functions draw first: the share, then the partners."""
    return rng.beta(alpha, alpha), rng.permutation(number)


@pytest.mark.parametrize("alpha", [0.1, 1.0, 4.0])
def test_mixup_is_the_weighted_mean_of_pairs(alpha: float) -> None:
    x, y = batch()
    mixed, targets = mixup(x, y, np.random.default_rng(3), alpha)
    share, partner = draws(np.random.default_rng(3), len(x), alpha)
    for i, j in enumerate(partner):
        torch.testing.assert_close(mixed[i], share * x[i] + (1 - share) * x[j])
        torch.testing.assert_close(targets[i], share * y[i] + (1 - share) * y[j])
    torch.testing.assert_close(targets.sum(1), torch.ones(len(x)))


def test_mixup_shares_have_the_beta_distribution() -> None:
    stats = pytest.importorskip("scipy.stats", reason="needs graspcl[dev]")
    rng, pair = np.random.default_rng(0), torch.eye(2)
    shares = []
    for _ in range(2000):
        # Two samples: the first keeps λ of itself, unless it is its own partner.
        first = float(mixup(pair, pair, rng, 0.4)[1][0, 0])
        shares += [first] if first < 1 else []
    assert 800 < len(shares) < 1200
    assert stats.kstest(shares, stats.beta(0.4, 0.4).cdf).pvalue > 0.01


@pytest.mark.parametrize("seed", range(20))
def test_cutmix_pastes_one_box_of_the_partner_and_shares_by_its_area(seed: int) -> None:
    x, y = batch()
    mixed, targets = cutmix(x, y, np.random.default_rng(seed))
    _, partner = draws(np.random.default_rng(seed), len(x), 1.0)
    changed = (mixed != x).any(1)  # [n, H, W]
    moved = np.flatnonzero(partner != np.arange(len(x)))
    box = changed[moved[0]]
    assert all(torch.equal(changed[i], box) for i in moved)
    rows, columns = box.any(1), box.any(0)
    assert torch.equal(box, rows[:, None] & columns[None])
    for side in (rows, columns):
        inside = side.nonzero().flatten()
        assert len(inside) == 0 or int(inside[-1] - inside[0]) == len(inside) - 1  # without gaps
    pasted = float(box.float().mean())
    for i, j in enumerate(partner):
        torch.testing.assert_close(mixed[i], torch.where(box, x[j], x[i]))
        torch.testing.assert_close(targets[i], (1 - pasted) * y[i] + pasted * y[j])
    torch.testing.assert_close(targets.sum(1), torch.ones(len(x)))


def test_cutmix_boxes_have_the_sides_that_the_share_asks_for() -> None:
    """Where the box is not cut off by the border its area is 1 - λ', within rounding."""
    x = torch.arange(2.0).reshape(2, 1, 1, 1).expand(2, 1, 64, 64)
    inside = 0
    for seed in range(500):
        share, partner = draws(np.random.default_rng(seed), 2, 1.0)
        mixed, _ = cutmix(x, torch.eye(2), np.random.default_rng(seed))
        box = (mixed != x).any(1)[0]
        if partner[0] == 0 or not box.any() or box[0].any() or box[-1].any() or box[:, 0].any() or box[:, -1].any():
            continue
        inside += 1
        sides = (int(box.any(1).sum()), int(box.any(0).sum()))
        assert sides == pytest.approx((64 * np.sqrt(1 - share),) * 2, abs=1)
    assert inside > 20


def test_the_given_batch_stays_as_it_is() -> None:
    x, y = batch()
    before = x.clone(), y.clone()
    for mix in (mixup, cutmix):
        mix(x, y, np.random.default_rng(0))
        assert torch.equal(x, before[0]) and torch.equal(y, before[1])


def test_soft_targets_are_mixed_too() -> None:
    x, _ = batch(4)
    soft = torch.softmax(torch.randn(4, 7, generator=torch.Generator().manual_seed(1)), 1)
    for mix in (mixup, cutmix):
        torch.testing.assert_close(mix(x, soft, np.random.default_rng(2))[1].sum(1), torch.ones(4))


def test_wrong_inputs_are_explained() -> None:
    x, y = batch()
    with pytest.raises(GraspError, match="alpha must be a positive number, got 0"):
        mixup(x, y, np.random.default_rng(0), 0)
    for wrong in ((x.byte(), y), (x, y[:3]), (x, y.argmax(1))):
        with pytest.raises(GraspError, match="mixing takes floats"):
            cutmix(*wrong, np.random.default_rng(0))
