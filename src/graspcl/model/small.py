"""A small convolutional network for images, for work on a CPU."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import torch
from torch import nn

from graspcl.errors import GraspError
from graspcl.model.head import CosineHead
from graspcl.model.layers import (
    ChannelsLast,
    GlobalAveragePool,
    MakeConv,
    MakeNorm,
    PaddedConv2d,
    SeededDropout,
    StandardizedConv2d,
    build,
    conv_norm,
    imagenet_input,
)
from graspcl.model.network import SplitNetwork, networks

CHANNELS = (16, 32, 64, 128)
STAGES = len(CHANNELS)


@networks.register("small", reads="images")
def small_network(
    pixels: int = 64,
    classes: int = 0,
    split: int = 1,
    *,
    generator: torch.Generator,
    embedding: int = 128,
    dropout: float = 0.0,
    scale: float = 10.0,
) -> SplitNetwork:
    """Four stages of two 3x3 convolutions, 16 to 128 channels, frozen up to and including stage `split` (0..3).

    As in the paper's networks, frozen stages use BatchNorm, plastic ones GroupNorm and weight-standardised
    convolutions; GELU throughout; the embedding [N, embedding] is a linear layer's on the pooled features, before its
    GELU. `encode` takes images [N, 3, H, W], uint8 or floats in 0..255, of about `pixels` a side: each stage halves it,
    but the first one does not below 48 px. At 64 px and split 1 the latents are [N, 32, 16, 16]. `scale` is the head's;
    10 suits sessions of a few hundred updates. All weights are random; `graspcl.pretrain`
    trains them before a stream.

    >>> net = small_network(classes=10, generator=torch.Generator().manual_seed(0))
    >>> latents = net.encode(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    >>> latents.shape, net(latents).logits.shape
    (torch.Size([1, 32, 16, 16]), torch.Size([1, 10]))
    """
    if not 0 <= split < STAGES:
        raise GraspError(f"split must be a stage of the small network, 0..{STAGES - 1}, not {split}")
    if pixels < 8 or embedding < 1:
        raise GraspError(
            f"the small network takes images of at least 8 px and embeds in at least 1 dimension, "
            f"not {pixels} and {embedding}"
        )
    body = build(lambda: _body(split, 1 if pixels < 48 else 2), generator)
    linear = build(lambda: nn.Linear(CHANNELS[-1], embedding), generator)
    frozen = nn.Sequential(OrderedDict(input=imagenet_input()))
    plastic = nn.Sequential(OrderedDict(channels_last=ChannelsLast()))
    for index, (name, stage) in enumerate(body.named_children()):
        (frozen if index <= split else plastic).add_module(name, stage)
    plastic.add_module("pool", GlobalAveragePool())
    plastic.add_module("embedding", linear)
    neck = nn.Sequential(nn.GELU(), SeededDropout(dropout, generator))
    return SplitNetwork(frozen, plastic, CosineHead(embedding, classes, generator=generator, scale=scale), neck)


def _body(split: int, first_stride: int) -> nn.Sequential:
    """The stages 0..3, each in its frozen or plastic form."""
    stages: OrderedDict[str, nn.Module] = OrderedDict()
    channels = 3
    for index, out in enumerate(CHANNELS):
        conv: MakeConv = PaddedConv2d if index <= split else StandardizedConv2d
        norm: MakeNorm = nn.BatchNorm2d if index <= split else partial(nn.GroupNorm, 8)
        stages[f"stage{index}"] = nn.Sequential(
            OrderedDict(
                reduce=conv_norm(
                    conv(channels, out, kernel=3, stride=2 if index else first_stride), norm(out), nn.GELU()
                ),
                refine=conv_norm(conv(out, out, kernel=3), norm(out), nn.GELU()),
            )
        )
        channels = out
    return nn.Sequential(stages)


@networks.register("vector", reads="vectors")
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
