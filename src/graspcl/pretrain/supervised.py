"""Mixing pairs of images and of their targets, with one share a batch."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional as F

from graspcl.errors import GraspError
from graspcl.model import SplitNetwork
from graspcl.pretrain.augment import random_views
from graspcl.pretrain.trainer import Epoch, Int64s, Read, Settings, Trainer


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


@dataclass(frozen=True)
class SupervisedSettings(Settings):
    """SGD and a rate that falls to `gamma` of itself every `step` epochs; the defaults are the reference's.

    Of the batches a share `mix` is mixed: `mixup_share` of those by mixup, the others by cutmix.
    """

    step: int = 15
    gamma: float = 0.1
    mix: float = 1.0
    mixup_share: float = 0.4
    mixup_alpha: float = 0.1
    cutmix_alpha: float = 1.0
    crop: tuple[float, float] = (0.08, 1.0)
    flip: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step < 1 or not 0 < self.gamma <= 1:
            raise GraspError(f"step must be at least 1 and gamma in (0, 1], not {self.step} and {self.gamma}")
        for name in ("mix", "mixup_share", "flip"):
            if not 0 <= getattr(self, name) <= 1:
                raise GraspError(f"{name} must lie in 0..1, not {getattr(self, name)}")


class SupervisedTrainer(Trainer[SupervisedSettings]):
    """Cross-entropy with soft targets on crops, flips and mixtures; `rows` [len(indices)] are rows of the head."""

    def __init__(
        self,
        network: SplitNetwork,
        read: Read,
        indices: ArrayLike,
        rows: ArrayLike,
        settings: SupervisedSettings | None = None,
        rng: np.random.Generator | int = 0,
    ) -> None:
        super().__init__(network, read, indices, settings or SupervisedSettings(), rng)
        self.rows = torch.as_tensor(np.asarray(rows, dtype=np.int64))
        if self.rows.shape != (len(self.indices),) or int(self.rows.min()) < 0:
            raise GraspError(
                f"rows must give each of the {len(self.indices)} samples its row of the head, 0 or above, not shape "
                f"{list(self.rows.shape)}"
            )
        network.head.grow(int(self.rows.max()) + 1)
        s = self.settings
        self.optimizer = torch.optim.SGD(
            network.parameters() if s.part == "all" else [p for _, p in network.plastic_parameters()],
            lr=s.lr,
            momentum=s.momentum,
            weight_decay=s.weight_decay,
        )

    def rate(self, epoch: float) -> float:
        return self.settings.lr * self.settings.gamma ** (int(epoch) // self.settings.step)

    def step(self, images: Tensor, rows: Int64s) -> tuple[Tensor, Tensor]:
        s = self.settings
        x = random_views(images, images.shape[-1], self.rng, s.crop, flip=s.flip)
        targets = F.one_hot(self.rows[torch.from_numpy(rows)], self.network.head.classes).float().to(self.device)
        if self.rng.random() < s.mix:
            if self.rng.random() < s.mixup_share:
                x, targets = mixup(x, targets, self.rng, s.mixup_alpha)
            else:
                x, targets = cutmix(x, targets, self.rng, s.cutmix_alpha)
        logits = self.network(self.network.encode(x, learn=s.part == "all")).logits
        # Of a mixture of two classes, the share of the one that is predicted is right.
        right = targets.gather(1, logits.argmax(1, keepdim=True)).sum()
        return F.cross_entropy(logits, targets), right

    def summary(self, counts: Tensor) -> dict[str, Any]:
        return {"accuracy": float(counts) / len(self.indices)}

    def fingerprint(self) -> list[int]:
        return [*super().fingerprint(), zlib.crc32(self.rows.numpy().tobytes())]


def train_supervised(
    network: SplitNetwork,
    read: Read,
    indices: ArrayLike,
    rows: ArrayLike,
    settings: SupervisedSettings | None = None,
    rng: np.random.Generator | int = 0,
    on_epoch: Callable[[Trainer[SupervisedSettings]], None] | None = None,
) -> list[Epoch]:
    """Train all of `network` on labelled images and return the log; afterwards it is frozen and in eval mode again.

    `read(indices)` gives images, uint8 [n, 3, H, W]; `rows` [len(indices)] are rows of the head, which grows to them.

    >>> from graspcl.model import CosineHead
    >>> head = CosineHead(12, generator=torch.Generator().manual_seed(0), scale=10.0)
    >>> net = SplitNetwork(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), head)
    >>> black, white = torch.zeros(20, 3, 8, 8, dtype=torch.uint8), torch.full((20, 3, 8, 8), 255, dtype=torch.uint8)
    >>> images, rows = torch.cat([black, white]), [0] * 20 + [1] * 20
    >>> settings = SupervisedSettings(epochs=20, batch_size=8, mix=0.0)
    >>> log = train_supervised(net, lambda indices: images[indices], range(40), rows, settings)
    >>> log[-1].accuracy
    1.0
    """
    return SupervisedTrainer(network, read, indices, rows, settings, rng).run(on_epoch)


def train_accuracy(network: SplitNetwork, read: Read, indices: ArrayLike, rows: ArrayLike, chunk: int = 256) -> float:
    """Which share of the images at `indices` is classed right as they are: no crops, no mixtures, eval mode."""
    network.eval()
    device = next(network.parameters()).device
    samples, wanted = np.asarray(indices, dtype=np.int64), torch.as_tensor(np.asarray(rows, dtype=np.int64))
    right = 0
    with torch.no_grad():
        for start in range(0, len(samples), chunk):
            part = slice(start, start + chunk)
            found = network(network.encode(read(samples[part]).to(device))).logits.argmax(1)
            right += int((found.cpu() == wanted[part]).sum())
    return right / len(samples)
