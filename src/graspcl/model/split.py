"""The split network: a frozen part that makes latents, and a plastic part that learns from them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from graspcl.model.head import CosineHead


class Outputs(NamedTuple):
    """What the plastic part says about N latents."""

    embedding: Tensor
    """[N, d], the penultimate embedding before its activation: what GRASP's distances are taken of."""
    features: Tensor
    """[N, features], what the head sees."""
    logits: Tensor
    """[N, classes]"""


class SplitNetwork(nn.Module):
    """Frozen part, plastic part, neck (activation and dropout; nothing if None) and head.

    `encode` maps inputs (images [N, 3, H, W] or whatever the frozen part takes) to latents; calling the network maps
    latents to `Outputs`. The frozen part has no gradients and stays in eval mode, whatever mode the rest is in.

    >>> head = CosineHead(4, classes=3, generator=torch.Generator().manual_seed(0))
    >>> net = SplitNetwork(nn.Identity(), nn.Flatten(), head, nn.GELU())
    >>> latents = net.encode(torch.ones(2, 2, 2))
    >>> net(latents).logits.shape, round(net.share_plastic(), 2)
    (torch.Size([2, 3]), 1.0)
    """

    def __init__(self, frozen: nn.Module, plastic: nn.Module, head: CosineHead, neck: nn.Module | None = None) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.plastic = plastic
        self.neck = nn.Identity() if neck is None else neck
        self.head = head
        self.train(self.training)

    def train(self, mode: bool = True) -> SplitNetwork:
        """Set the mode of the plastic part, neck and head; the frozen part stays in eval mode."""
        super().train(mode)
        self.frozen.eval()
        return self

    def encode(self, x: Tensor) -> Tensor:
        """Latents [N, ...] of inputs x [N, ...], without gradients."""
        with torch.no_grad():
            latents: Tensor = self.frozen(x)
        return latents

    def forward(self, latents: Tensor) -> Outputs:
        embedding = self.plastic(latents)
        features = self.neck(embedding)
        return Outputs(embedding, features, self.head(features))

    def plastic_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters of the plastic part, neck and head, from the first layer to the last."""
        return [named for named in self.named_parameters() if not named[0].startswith("frozen.")]

    def share_plastic(self) -> float:
        """Which share of all parameters learns, 0..1."""
        plastic = sum(parameter.numel() for _, parameter in self.plastic_parameters())
        total = sum(parameter.numel() for parameter in self.parameters())
        return plastic / total if total else 0.0
