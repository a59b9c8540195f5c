"""Small networks for work on a CPU: a convolutional one for images, and two for vectors."""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import partial
from typing import Annotated

import torch
from torch import nn
from torch.nn import functional as F

from graspcl.checks import Count, Positive, Range, checked
from graspcl.model.head import CosineHead
from graspcl.model.layers import Dropout, Form, ImageInput, PaddedConv2d, SeededDropout, StandardizedConv2d, build
from graspcl.model.network import SplitNetwork, convolutional, networks
from graspcl.model.texts import static_inputs

CHANNELS = (16, 32, 64, 128)

_FROZEN = Form(PaddedConv2d, nn.BatchNorm2d, nn.GELU)
_PLASTIC = Form(StandardizedConv2d, partial(nn.GroupNorm, 8), nn.GELU)


@networks.register("small", reads="images")
@checked
def small_network(
    pixels: Annotated[int, Range(8)] = 64,
    classes: int = 0,
    split: Annotated[int, Range(0, len(CHANNELS) - 1)] = 1,
    *,
    generator: torch.Generator,
    embedding: Count = 128,
    dropout: Dropout = 0.0,
    scale: Positive = 10.0,
) -> SplitNetwork:
    """Create a network of four stages of two 3x3 convolutions, 16 to 128 channels, with random weights.

    As in the paper's networks, frozen stages use BatchNorm, plastic ones GroupNorm and weight-standardised
    convolutions; GELU throughout. `encode` takes images [N, 3, H, W] in 0..255, uint8 or float. Each stage halves them,
    but below 48 px the first one does not. At 64 px and split 1 the latents are [N, 32, 16, 16].

    Args:
        pixels: the approximate side of the images.
        split: the last frozen stage, 0..3.
        embedding: width of the embedding, a linear layer on the pooled features, before its GELU.

    >>> net = small_network(classes=10, generator=torch.Generator().manual_seed(0))
    >>> latents = net.encode(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    >>> latents.shape, net(latents).logits.shape
    (torch.Size([1, 32, 16, 16]), torch.Size([1, 10]))
    """
    body = build(lambda: _body(split, 1 if pixels < 48 else 2), generator)
    return convolutional(
        ImageInput(), body, split + 1, CHANNELS[-1], classes, generator, dropout, scale, embedding=embedding
    )


def _body(split: int, first_stride: int) -> nn.Sequential:
    """Create the stages 0..3, each in its frozen or plastic form."""
    stages: OrderedDict[str, nn.Module] = OrderedDict()
    channels = 3
    for index, out in enumerate(CHANNELS):
        form = _FROZEN if index <= split else _PLASTIC
        reduce = form.conv_norm(channels, out, kernel=3, stride=2 if index else first_stride)
        stages[f"stage{index}"] = nn.Sequential(OrderedDict(reduce=reduce, refine=form.conv_norm(out, out, kernel=3)))
        channels = out
    return nn.Sequential(stages)


@networks.register("vector", reads="vectors", prepare=static_inputs)
@checked
def vector_network(
    dim: Count,
    hidden: Count = 512,
    embedding: Count = 256,
    classes: int = 0,
    dropout: Dropout = 0.0,
    *,
    generator: torch.Generator,
    scale: Positive = 1.0,
) -> SplitNetwork:
    """Create a network of two linear layers for vectors [N, dim]; nothing is frozen, so latents are the inputs.

    Args:
        dim: width of the input.
        hidden: width of the hidden layer, which is followed by a GELU.
        embedding: width of the embedding, before its GELU.

    >>> net = vector_network(256, classes=66, generator=torch.Generator().manual_seed(0))
    >>> [tuple(part.shape) for part in net(net.encode(torch.zeros(2, 256)))]
    [(2, 256), (2, 256), (2, 66)]
    """

    def layers() -> nn.Sequential:
        first, last = nn.Linear(dim, hidden), nn.Linear(hidden, embedding)
        return nn.Sequential(OrderedDict(hidden=first, act=nn.GELU(), embedding=last))

    plastic = build(layers, generator)
    neck = nn.Sequential(nn.GELU(), SeededDropout(dropout, generator))
    return SplitNetwork(nn.Identity(), plastic, CosineHead(embedding, classes, generator=generator, scale=scale), neck)


@networks.register("wide", reads="vectors", prepare=static_inputs)
@checked
def wide_network(
    dim: Count,
    width: Count = 1000,
    classes: int = 0,
    dropout: Dropout = 0.0,
    *,
    generator: torch.Generator,
    scale: Positive = 1.0,
) -> SplitNetwork:
    """Create a network for vectors [N, dim] from an encoder: the vector, and a wide layer of ReLUs beside it.

    A linear head on random ReLUs is already a strong classifier of embeddings. The vectors should have length 1, about.

    Args:
        dim: width of the input.
        width: number of ReLUs, with random weights to start with.

    >>> net = wide_network(256, classes=66, width=500, generator=torch.Generator().manual_seed(0))
    >>> [tuple(part.shape) for part in net(net.encode(torch.zeros(2, 256)))]
    [(2, 756), (2, 756), (2, 66)]
    """
    plastic = build(lambda: _Beside(dim, width), generator)
    nn.init.normal_(plastic.hidden.weight, generator=generator)
    neck = SeededDropout(dropout, generator)
    return SplitNetwork(
        nn.Identity(), plastic, CosineHead(dim + width, classes, generator=generator, scale=scale), neck
    )


class _Beside(nn.Module):
    """A vector, scaled to numbers around 1, followed by ReLUs of it."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(dim, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * math.sqrt(x.shape[1]), F.relu(self.hidden(x))], dim=1)
