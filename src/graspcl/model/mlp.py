"""The small plastic network for vector latents, such as those of a text encoder."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from graspcl.errors import GraspError
from graspcl.model.head import CosineHead
from graspcl.model.layers import SeededDropout
from graspcl.model.seeding import build
from graspcl.model.split import SplitNetwork


def vector_network(
    dim: int,
    hidden: int = 512,
    embedding: int = 256,
    classes: int = 0,
    dropout: float = 0.0,
    *,
    generator: torch.Generator,
    scale: float = 1.0,
) -> SplitNetwork:
    """Linear, GELU, Linear on vectors [N, dim]; nothing is frozen and the latents are the inputs.

    The embedding [N, embedding] is taken before its GELU, as in the paper's networks. `scale` is the head's.

    >>> net = vector_network(256, classes=66, generator=torch.Generator().manual_seed(0))
    >>> [tuple(part.shape) for part in net(net.encode(torch.zeros(2, 256)))]
    [(2, 256), (2, 256), (2, 66)]
    """
    if min(dim, hidden, embedding) < 1:
        raise GraspError(f"dim, hidden and embedding must be at least 1, not {dim}, {hidden} and {embedding}")
    plastic = build(
        lambda: nn.Sequential(
            OrderedDict(hidden=nn.Linear(dim, hidden), act=nn.GELU(), embedding=nn.Linear(hidden, embedding))
        ),
        generator,
    )
    neck = nn.Sequential(nn.GELU(), SeededDropout(dropout, generator))
    return SplitNetwork(nn.Identity(), plastic, CosineHead(embedding, classes, generator=generator, scale=scale), neck)
