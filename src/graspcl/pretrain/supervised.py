"""Pretraining with labels: cross-entropy on random crops, mixed by mixup and cutmix."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F

from graspcl.checks import Positive, Share, checked
from graspcl.errors import GraspError
from graspcl.model import SplitNetwork
from graspcl.pretrain.augment import random_views
from graspcl.pretrain.stage import Settings, because, check_shares, stages
from graspcl.pretrain.trainer import Int64s, Read, Trainer


@stages.register("supervised")
@checked
@dataclass(frozen=True)
class SupervisedSettings(Settings):
    """Train with labels, on crops, flips and mixtures of images; the defaults are the reference's."""

    labelled = True
    mix: Share = 1.0  # share of the batches that is mixed
    mixup_share: Share = 0.4  # share of those that is mixed by mixup; the others by cutmix
    mixup_alpha: Positive = 0.1  # parameters of their Beta distributions
    cutmix_alpha: Positive = 1.0
    crop: tuple[Share, Share] = (0.08, 1.0)  # least and largest share of the area that a crop covers
    flip: Share = 0.5  # probability that an image is mirrored

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(crop=self.crop)

    def trainer(self) -> type[Trainer[Any]]:
        return SupervisedTrainer

    @property
    def idle(self) -> dict[str, str]:
        return super().idle | because(
            ("mixup_share mixup_alpha cutmix_alpha", not self.mix, "with mix 0 nothing is mixed")
        )


class SupervisedTrainer(Trainer[SupervisedSettings]):
    """Train with soft targets on crops, flips and mixtures. `rows` [len(indices)] are rows of the head."""

    def setup(self, rows: ArrayLike | None) -> None:
        if rows is None:
            raise GraspError("supervised pretraining needs the head's row of each sample; pass rows")
        self.rows = torch.as_tensor(np.asarray(rows, dtype=np.int64))
        number, shape = len(self.indices), list(self.rows.shape)
        if shape != [number] or int(self.rows.min()) < 0:
            raise GraspError(f"rows must give each of the {number} samples its row of the head, from 0, got {shape}")
        self.network.head.grow(int(self.rows.max()) + 1)
        self.optimizer = self.settings.optimizer(self.parameters())

    def step(self, images: Tensor, positions: Int64s) -> tuple[Tensor, Tensor]:
        s = self.settings
        x = random_views(images, images.shape[-1], self.rng, s.crop, flip=s.flip)
        targets = F.one_hot(self.rows[torch.from_numpy(positions)], self.network.head.classes).float().to(self.device)
        if self.rng.random() < s.mix:
            by_mixup = self.rng.random() < s.mixup_share
            mixer, alpha = (mixup, s.mixup_alpha) if by_mixup else (cutmix, s.cutmix_alpha)
            x, targets = mixer(x, targets, self.rng, alpha)
        logits = self.network(self.network.encode(x, learn=s.part == "all")).logits
        # A prediction for a mixture of two classes counts with the share of the predicted class.
        right = targets.gather(1, logits.argmax(1, keepdim=True)).sum()
        return F.cross_entropy(logits, targets), right

    def summary(self, counts: Tensor) -> dict[str, Any]:
        return {"accuracy": float(counts) / len(self.indices)}

    def fingerprint(self) -> list[int]:
        return [*super().fingerprint(), zlib.crc32(self.rows.numpy().tobytes())]


def train_accuracy(network: SplitNetwork, read: Read, indices: ArrayLike, rows: ArrayLike, chunk: int = 256) -> float:
    """Return the share of the images at `indices` classified correctly, in eval mode and without augmentation."""
    network.eval()
    samples, wanted = np.asarray(indices, dtype=np.int64), torch.as_tensor(np.asarray(rows, dtype=np.int64))
    right = 0
    with torch.no_grad():
        for start in range(0, len(samples), chunk):
            part = slice(start, start + chunk)
            found = network(network.encode(read(samples[part]).to(network.device))).logits.argmax(1)
            right += int((found.cpu() == wanted[part]).sum())
    return right / len(samples)


def mixup(x: Tensor, targets: Tensor, rng: np.random.Generator, alpha: float = 0.1) -> tuple[Tensor, Tensor]:
    """Mix pairs of images: λ·x_i + (1 - λ)·x_j, and their targets, with one λ ~ Beta(alpha, alpha) (Zhang et al. 2018).

    Images x are float [n, …], targets soft or one-hot [n, K]. Sample j of a pair comes from a random permutation.

    >>> x, y = mixup(torch.eye(2), torch.eye(2), np.random.default_rng(0))
    >>> bool(torch.equal(x, y)), y.sum(1).tolist()
    (True, [1.0, 1.0])
    """
    share, partner = _draw(x, targets, rng, alpha)
    return torch.lerp(x[partner], x, share), torch.lerp(targets[partner], targets, share)


def cutmix(x: Tensor, targets: Tensor, rng: np.random.Generator, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    """Put a box of x_j into x_i, and mix their targets by the box's share of the area (Yun et al. 2019).

    The box has sides √(1 - λ) of the image's with λ ~ Beta(alpha, alpha), and a uniform centre. What lies outside the
    image is cut off. The parameters are those of `mixup`, for images x [n, C, H, W].

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


@checked
def _draw(x: Tensor, targets: Tensor, rng: np.random.Generator, alpha: Positive) -> tuple[float, Tensor]:
    """Draw λ, and for each sample the one it is mixed with."""
    if not x.is_floating_point() or targets.shape[:1] != x.shape[:1] or targets.ndim != 2:
        shapes = f"{list(x.shape)} and {list(targets.shape)}"
        raise GraspError(f"mixing takes floats [n, …] and targets [n, K], got {x.dtype} and shapes {shapes}")
    return rng.beta(alpha, alpha), torch.from_numpy(rng.permutation(len(x))).to(x.device)


def _side(length: int, share: float, rng: np.random.Generator) -> tuple[int, int]:
    """Draw where a box starts and ends along one side of the image."""
    half, centre = length * np.sqrt(1.0 - share) / 2, rng.integers(length) + 0.5
    return max(round(centre - half), 0), min(round(centre + half), length)
