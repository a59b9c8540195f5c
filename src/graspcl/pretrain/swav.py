"""Pretraining without labels: SwAV (Caron et al. 2020), which predicts the cluster of one view from another."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.checks import Count, Natural, NonNegative, Positive, Range, Share, checked
from graspcl.model import build
from graspcl.pretrain.augment import random_blur, random_colours, random_views
from graspcl.pretrain.stage import Settings, because, check_shares, stages
from graspcl.pretrain.trainer import Int64s, Trainer


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    """Return soft assignments Q [B, K] of B samples to K prototypes, all used equally.

    After enough iterations Q/B has rows 1/B, columns 1/K and the largest Tr(Qᵀ scores) + ε·H(Q): the paper's equations
    3 to 5, with Q = Diag(u) exp(scores/ε) Diag(v). Each row of Q sums to 1 after any number of iterations. `scores`
    are cosines [B, K]; a larger ε spreads the assignments. Logarithms keep a small ε from underflowing.

    >>> sinkhorn(torch.tensor([[1.0, 0.0], [1.0, 0.0]])).tolist()  # the same, so shared between both
    [[0.5, 0.5], [0.5, 0.5]]
    """
    log_q = scores / epsilon
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(0, keepdim=True)
        log_q = log_q - log_q.logsumexp(1, keepdim=True)
    return log_q.exp()


def swapped_loss(scores: Sequence[Tensor], codes: Sequence[Tensor], temperature: float = 0.1) -> Tensor:
    """Return the mean over views t and codes s ≠ t of -Σ_k q_s[k] log softmax(scores_t / temperature)[k].

    These are the paper's equations 1 and 2. `scores` are [B, K] for each view, those with codes first; `codes` [B, K].

    >>> even = torch.full((3, 4), 0.25)
    >>> round(swapped_loss([torch.zeros(3, 4)] * 3, [even, even]).item(), 4)  # log 4
    1.3863
    """
    logs = [F.log_softmax(view / temperature, dim=1) for view in scores]
    terms = [-(q * log_p).sum(1).mean() for s, q in enumerate(codes) for t, log_p in enumerate(logs) if t != s]
    return torch.stack(terms).mean()


@stages.register("swav")
@checked
@dataclass(frozen=True)
class SwavSettings(Settings):
    """Train without labels, by SwAV.

    If the loss stays at log(prototypes), train longer, or lower `epsilon` or `colours`.
    """

    epochs: Count = 200
    batch_size: Annotated[int, Range(2)] = 128
    lr: Positive = 0.2
    weight_decay: NonNegative = 1e-6
    schedule: Literal["steps", "onecycle", "cosine"] = "cosine"
    final_lr: NonNegative = 1e-4
    prototypes: Annotated[int, Range(2)] = 500  # their number; the paper has 3000 for 1000 classes
    projection: Count = 128  # widths of the projection head
    hidden: Count = 512
    epsilon: Positive = 0.05  # of `sinkhorn`, as iterations
    iterations: Count = 3
    temperature: Positive = 0.1  # of `swapped_loss`
    frozen_prototypes: Natural = 1  # epochs before prototypes learn
    # Earlier projections of each large view that join the assignment, for batches that are small compared with the
    # number of prototypes; and the epoch from which on they do.
    queue: Natural = 0
    queue_from: Natural = 15
    small_views: Natural = 4  # in addition to two large ones at the images' size
    small_pixels: Count | None = None  # their size; by default 96/224 of the images'
    large: tuple[Share, Share] = (0.14, 1.0)  # least and largest share of the area that a view covers
    small: tuple[Share, Share] = (0.05, 0.14)
    colours: NonNegative = 1.0  # strength of random colours
    blur: Share = 0.5  # probability of blur

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(large=self.large, small=self.small)

    def trainer(self) -> type[Trainer[Any]]:
        return SwavTrainer

    @property
    def idle(self) -> dict[str, str]:
        rows = (
            ("queue_from", not self.queue, "queue is 0"),
            ("small small_pixels", not self.small_views, "small_views is 0"),
        )
        return super().idle | because(*rows)


class SwavHead(nn.Module):
    """Map embeddings [N, features] to unit vectors z [N, projection] and their cosines with the prototypes [N, K]."""

    def __init__(self, features: int, settings: SwavSettings, generator: torch.Generator) -> None:
        super().__init__()
        hidden, out = settings.hidden, settings.projection
        first, last = (
            build(lambda: nn.Linear(features, hidden), generator),
            build(lambda: nn.Linear(hidden, out), generator),
        )
        self.projection = nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), last)
        self.prototypes = nn.Parameter(torch.empty(settings.prototypes, out).normal_(generator=generator))
        self.normalise()

    def forward(self, embedding: Tensor) -> tuple[Tensor, Tensor]:
        z = F.normalize(self.projection(embedding), dim=1)
        return z, self.scores(z)

    def scores(self, z: Tensor) -> Tensor:
        return F.linear(z, self.prototypes)

    def normalise(self) -> None:
        with torch.no_grad():
            self.prototypes.copy_(F.normalize(self.prototypes, dim=1))


class SwavTrainer(Trainer[SwavSettings]):
    """Train by swapped prediction, without labels: `rows` are ignored, and the network's own head stays as it is."""

    def setup(self, rows: ArrayLike | None) -> None:
        s, network = self.settings, self.network
        generator = torch.Generator().manual_seed(int(self.rng.integers(2**63)))
        network.eval()
        with torch.no_grad():  # one example shows the width of the embedding
            example = network(network.encode(self.read(self.indices[:1]).float().to(self.device)))
        self.head = SwavHead(example.embedding.shape[1], s, generator).to(self.device)
        own = {id(p) for p in network.head.parameters()}
        learning = (p for p in (*self.parameters(), *self.head.parameters()) if id(p) not in own)
        self.optimizer = s.optimizer(learning)
        # Earlier projections of the two large views, newest first; zeros where there are none yet.
        self.queue = torch.zeros(2, s.queue, s.projection, device=self.device)

    def step(self, images: Tensor, positions: Int64s) -> tuple[Tensor, Tensor]:
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
        """Return projections and scores of `number` random views of each image, from one forward pass."""
        x = random_views(images.repeat(number, 1, 1, 1), pixels, self.rng, scale)
        x = random_blur(random_colours(x, self.rng, self.settings.colours), self.rng, self.settings.blur)
        latents = self.network.encode(x, learn=self.settings.part == "all")
        z, scores = self.head(self.network(latents).embedding)
        return list(z.chunk(number)), list(scores.chunk(number))

    def _codes(self, view: int, z: Tensor, scores: Tensor) -> Tensor:
        """Return the assignment of a large view, with the help of the queue, and add the view to the queue."""
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
