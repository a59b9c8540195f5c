"""Mixing pairs of images and of their targets, with one share a batch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from graspcl.errors import GraspError


def mixup(x: Tensor, targets: Tensor, rng: np.random.Generator, alpha: float = 0.1) -> tuple[Tensor, Tensor]:
    """λ·x_i + (1 - λ)·x_j and λ·y_i + (1 - λ)·y_j with λ ~ Beta(alpha, alpha), j a permutation (Zhang et al. 2018).

    x is float [n, …], targets are soft or one-hot [n, K]; so are the results.

    >>> x, y = mixup(torch.eye(2), torch.eye(2), np.random.default_rng(0))
    >>> bool(torch.equal(x, y)), y.sum(1).tolist()
    (True, [1.0, 1.0])
    """
    share, partner = _draw(x, targets, rng, alpha)
    return torch.lerp(x[partner], x, share), torch.lerp(targets[partner], targets, share)


def cutmix(x: Tensor, targets: Tensor, rng: np.random.Generator, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    """A box of x_j in x_i, and λ·y_i + (1 - λ)·y_j with 1 - λ the share of the box (Yun et al. 2019).

    x is float [n, C, H, W], targets are soft or one-hot [n, K]. The box has sides √(1 - λ') of the image's with
    λ' ~ Beta(alpha, alpha) and a uniform centre; what lies outside the image is cut off, and λ is what is left of x_i.

    >>> x = torch.arange(2.0).reshape(2, 1, 1, 1).expand(2, 1, 8, 8)
    >>> mixed, y = cutmix(x, torch.eye(2), np.random.default_rng(1))
    >>> bool((mixed.mean((1, 2, 3)) == y[:, 1]).all())
    True
    """
    share, partner = _draw(x, targets, rng, alpha)
    height, width = x.shape[-2:]
    top, bottom = _side(height, share, rng)
    left, right = _side(width, share, rng)
    mixed = x.clone()
    mixed[..., top:bottom, left:right] = x[partner][..., top:bottom, left:right]
    kept = 1.0 - (bottom - top) * (right - left) / (height * width)
    return mixed, torch.lerp(targets[partner], targets, kept)


def _draw(x: Tensor, targets: Tensor, rng: np.random.Generator, alpha: float) -> tuple[float, Tensor]:
    """λ, and for each sample the one it is mixed with."""
    if not alpha > 0:
        raise GraspError(f"the alpha of mixup and cutmix must be above 0, not {alpha}")
    if not x.is_floating_point() or targets.shape[:1] != x.shape[:1] or targets.ndim != 2:
        raise GraspError(
            f"mixing takes floats [n, …] and targets [n, K], not {x.dtype} of shape {list(x.shape)} and targets of "
            f"shape {list(targets.shape)}"
        )
    return rng.beta(alpha, alpha), torch.from_numpy(rng.permutation(len(x))).to(x.device)


def _side(length: int, share: float, rng: np.random.Generator) -> tuple[int, int]:
    """Where a box begins and ends along a side of the image."""
    half, centre = length * np.sqrt(1.0 - share) / 2, rng.integers(length) + 0.5
    return max(round(centre - half), 0), min(round(centre + half), length)
