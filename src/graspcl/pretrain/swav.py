"""Base initialisation without labels: SwAV (Caron et al. 2020), which predicts the cluster of one view from another."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.errors import GraspError
from graspcl.model import SplitNetwork, build
from graspcl.pretrain.augment import random_blur, random_colours, random_views
from graspcl.pretrain.trainer import Epoch, Int64s, Read, Settings, Trainer


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    """Soft assignments Q [B, K] of B samples to K prototypes, all used equally; scores [B, K] are cosines.

    Q/B is, after enough iterations, the matrix of rows 1/B and columns 1/K with the largest Tr(Qᵀ scores) + ε·H(Q): the
    paper's equations 3 to 5, with Q = Diag(u) exp(scores/ε) Diag(v). Each row of Q sums to 1 after any number of
    iterations. Computed on logarithms, so that a small ε cannot underflow.

    >>> sinkhorn(torch.tensor([[1.0, 0.0], [1.0, 0.0]])).tolist()  # alike, so shared between both
    [[0.5, 0.5], [0.5, 0.5]]
    """
    log_q = scores / epsilon
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(0, keepdim=True)
        log_q = log_q - log_q.logsumexp(1, keepdim=True)
    return log_q.exp()


def swapped_loss(scores: Sequence[Tensor], codes: Sequence[Tensor], temperature: float = 0.1) -> Tensor:
    """The mean over views t and codes s ≠ t of -Σ_k q_s[k] log softmax(scores_t / temperature)[k] (equations 1 and 2).

    `scores` [B, K] of each view, the views with codes first; `codes` [B, K] of those.

    >>> even = torch.full((3, 4), 0.25)
    >>> round(swapped_loss([torch.zeros(3, 4)] * 3, [even, even]).item(), 4) == round(math.log(4), 4)
    True
    """
    logs = [F.log_softmax(view / temperature, dim=1) for view in scores]
    terms = [-(q * log_p).sum(1).mean() for s, q in enumerate(codes) for t, log_p in enumerate(logs) if t != s]
    return torch.stack(terms).mean()


@dataclass(frozen=True)
class SwavSettings(Settings):
    """Two large views (`large` share of the area, at the images' size) and `small_views` small ones.

    `small_pixels` None is 96/224 of the images' size. The rate rises over `warmup` epochs and falls to `final_lr` as a
    cosine. With `queue` > 0, that many earlier projections of each large view join the assignment from epoch
    `queue_from` on, for batches that are small beside the number of prototypes. The paper has 3000 prototypes for 1000
    classes. A loss that stays at log(prototypes) predicts nothing: train longer, or lower `epsilon` or `colours`.
    """

    epochs: int = 200
    batch_size: int = 128
    lr: float = 0.2
    weight_decay: float = 1e-6
    final_lr: float = 1e-4
    warmup: int = 0
    prototypes: int = 500
    projection: int = 128
    hidden: int = 512
    epsilon: float = 0.05
    iterations: int = 3
    temperature: float = 0.1
    frozen_prototypes: int = 1
    queue: int = 0
    queue_from: int = 15
    small_views: int = 4
    small_pixels: int | None = None
    large: tuple[float, float] = (0.14, 1.0)
    small: tuple[float, float] = (0.05, 0.14)
    colours: float = 1.0
    blur: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prototypes < 2 or self.projection < 1 or self.hidden < 1:
            raise GraspError(f"SwAV needs at least 2 prototypes and positive sizes, not {self.prototypes} prototypes")
        if not (self.epsilon > 0 and self.temperature > 0 and self.iterations > 0):
            raise GraspError("SwAV's epsilon, temperature and iterations must be above 0")
        if self.small_views < 0 or self.queue < 0 or not 0 <= self.warmup < self.epochs:
            raise GraspError("small_views and queue must not be negative, and warmup must be shorter than epochs")


class SwavHead(nn.Module):
    """Embeddings [N, features] to unit vectors z [N, projection] and their cosines with the prototypes [N, K].

    >>> head = SwavHead(8, SwavSettings(prototypes=5, projection=4), torch.Generator().manual_seed(0))
    >>> z, scores = head(torch.eye(8)[:6])
    >>> z.norm(dim=1).round().tolist(), scores.shape
    ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], torch.Size([6, 5]))
    """

    def __init__(self, features: int, settings: SwavSettings, generator: torch.Generator) -> None:
        super().__init__()
        hidden, out = settings.hidden, settings.projection
        first, last = (
            build(lambda i=i, o=o: nn.Linear(i, o), generator)  # type: ignore[misc]
            for i, o in ((features, hidden), (hidden, out))
        )
        self.projection = nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), last)
        self.prototypes = nn.Parameter(torch.empty(settings.prototypes, out).normal_(generator=generator))
        self.normalise()

    def forward(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        z = F.normalize(self.projection(embedding), dim=1)
        return z, self.scores(z)

    def scores(self, z: Tensor) -> Tensor:
        """Cosines [N, K] of unit vectors z [N, projection] with the prototypes."""
        return F.linear(z, self.prototypes)

    def normalise(self) -> None:
        """Bring the prototypes back to length 1."""
        with torch.no_grad():
            self.prototypes.copy_(F.normalize(self.prototypes, dim=1))


class SwavTrainer(Trainer[SwavSettings]):
    """Trains the frozen and the plastic part by swapped prediction; the network's own head is not touched."""

    def __init__(
        self,
        network: SplitNetwork,
        read: Read,
        indices: ArrayLike,
        settings: SwavSettings | None = None,
        rng: np.random.Generator | int = 0,
    ) -> None:
        super().__init__(network, read, indices, settings or SwavSettings(), rng)
        s = self.settings
        generator = torch.Generator().manual_seed(int(self.rng.integers(2**63)))
        network.eval()
        with torch.no_grad():  # a neck may change the width: one example shows that of the embedding
            example = network(network.encode(read(self.indices[:1]).float().to(self.device)))
        self.head = SwavHead(example.embedding.shape[1], s, generator).to(self.device)
        body = network.parameters() if s.part == "all" else (p for _, p in network.plastic_parameters())
        own = {id(p) for p in network.head.parameters()}
        learned = [p for p in (*body, *self.head.parameters()) if id(p) not in own]
        self.optimizer = torch.optim.SGD(learned, lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay)
        # Earlier projections of the two large views, newest first; rows of zeros are not filled yet.
        self.queue = torch.zeros(2, s.queue, s.projection, device=self.device)

    def rate(self, epoch: float) -> float:
        s = self.settings
        if epoch < s.warmup:
            return s.lr * epoch / s.warmup
        progress = (epoch - s.warmup) / (s.epochs - s.warmup)
        return s.final_lr + (s.lr - s.final_lr) * (1 + math.cos(math.pi * progress)) / 2

    def step(self, images: Tensor, rows: Int64s) -> tuple[Tensor, Tensor]:
        s, pixels = self.settings, images.shape[-1]
        z, scores = self._views(images, 2, pixels, s.large)
        codes = [self._codes(view, z[view], scores[view]) for view in range(2)]
        if s.small_views:
            small = s.small_pixels or max(1, round(pixels * 96 / 224))
            scores = scores + self._views(images, s.small_views, small, s.small)[1]
        used = torch.bincount(codes[0].argmax(1), minlength=s.prototypes)
        return swapped_loss(scores, codes, s.temperature), used

    def summary(self, counts: Tensor) -> dict[str, Any]:
        return {"prototypes": int((counts > 0).sum())}

    def update(self) -> None:
        if len(self.log) < self.settings.frozen_prototypes:
            self.head.prototypes.grad = None
        super().update()
        self.head.normalise()

    def _views(
        self, images: Tensor, number: int, pixels: int, scale: tuple[float, float]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Projections and scores of `number` random views of each image, in one pass through the network."""
        x = random_views(images.repeat(number, 1, 1, 1), pixels, self.rng, scale)
        x = random_blur(random_colours(x, self.rng, self.settings.colours), self.rng, self.settings.blur)
        latents = self.network.encode(x, learn=self.settings.part == "all")
        z, scores = self.head(self.network(latents).embedding)
        return list(z.chunk(number)), list(scores.chunk(number))

    def _codes(self, view: int, z: Tensor, scores: Tensor) -> Tensor:
        """The assignment of a large view, helped by the queue, which takes in the view afterwards."""
        s, queue = self.settings, self.queue[view]
        with torch.no_grad():
            full = s.queue > 0 and len(self.log) >= s.queue_from and bool(queue[-1].any())
            together = torch.cat([scores, self.head.scores(queue)]) if full else scores
            if len(self.log) >= s.queue_from - 1:
                self.queue[view] = torch.cat([z.detach(), queue])[: s.queue]
            return sinkhorn(together, s.epsilon, s.iterations)[: len(z)]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "head": copy.deepcopy(self.head.state_dict()), "queue": self.queue.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.head.load_state_dict(state["head"])
        self.queue = torch.as_tensor(state["queue"]).to(self.device).clone()


def train_swav(
    network: SplitNetwork,
    read: Read,
    indices: ArrayLike,
    settings: SwavSettings | None = None,
    rng: np.random.Generator | int = 0,
    on_epoch: Callable[[Trainer[SwavSettings]], None] | None = None,
) -> list[Epoch]:
    """Train all of `network` but its head on images without labels and return the log; afterwards it is frozen again.

    >>> from graspcl.model import CosineHead
    >>> head = CosineHead(12, generator=torch.Generator().manual_seed(0))
    >>> net = SplitNetwork(nn.AdaptiveAvgPool2d(2), nn.Flatten(), head)
    >>> images = torch.arange(256, dtype=torch.uint8).reshape(16, 1, 4, 4).repeat(1, 3, 4, 4)
    >>> log = train_swav(net, lambda indices: images[indices], range(16), SwavSettings(epochs=1, prototypes=8))
    >>> log[0].prototypes <= 8
    True
    """
    return SwavTrainer(network, read, indices, settings, rng).run(on_epoch)
