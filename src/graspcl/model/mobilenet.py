"""MobileNetV3-Large in the form that SIESTA and GRASP train (reference, section 5.6)."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from graspcl.errors import GraspError
from graspcl.model.head import CosineHead
from graspcl.model.layers import (
    ChannelsLast,
    GlobalAveragePool,
    InvertedResidual,
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


class _Row(NamedTuple):
    kernel: int
    expanded: int
    out: int
    excite: bool
    stride: int


STEM = 16
ROWS = (
    _Row(3, 16, 16, False, 1),
    _Row(3, 64, 24, False, 2),
    _Row(3, 72, 24, False, 1),
    _Row(5, 72, 40, True, 2),
    _Row(5, 120, 40, True, 1),
    _Row(5, 120, 40, True, 1),
    _Row(3, 240, 80, False, 2),
    _Row(3, 200, 80, False, 1),
    _Row(3, 184, 80, False, 1),
    _Row(3, 184, 80, False, 1),
    _Row(3, 480, 112, True, 1),
    _Row(3, 672, 112, True, 1),
    _Row(5, 672, 160, True, 2),
    _Row(5, 960, 160, True, 1),
    _Row(5, 960, 160, True, 1),
)
LAST = 960
EMBEDDING = 1280
LAYERS = len(ROWS) + 2  # the stem before them, the last 1x1 convolution after them


@networks.register("mobilenet_v3_large", reads="images")
def mobilenet_v3_large(
    classes: int = 0, split: int = 7, *, generator: torch.Generator, scale: float = 1.0
) -> SplitNetwork:
    """MobileNetV3-Large, frozen up to and including feature layer `split` (0-based, the stem is layer 0; 0..16).

    The frozen layers use BatchNorm, the plastic ones GroupNorm and weight-standardised convolutions; GELU throughout.
    `encode` takes images [N, 3, H, W], uint8 or floats in 0..255; at 224 px and split 7 the latents are
    [N, 80, 14, 14]. The embedding is [N, 1280], before its GELU. All weights are random; `load_state_dict` takes
    trained ones. `scale` is the head's.

    >>> net = mobilenet_v3_large(classes=10, generator=torch.Generator().manual_seed(0))
    >>> latents = net.encode(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    >>> latents.shape, net(latents).logits.shape
    (torch.Size([1, 80, 4, 4]), torch.Size([1, 10]))
    """
    if not 0 <= split < LAYERS:
        raise GraspError(f"split must be a feature layer of MobileNetV3-Large, 0..{LAYERS - 1}, not {split}")
    body = build(lambda: _body(split), generator)
    embedding = build(lambda: nn.Linear(LAST, EMBEDDING), generator)
    frozen = nn.Sequential(OrderedDict(input=imagenet_input()))
    plastic = nn.Sequential(OrderedDict(channels_last=ChannelsLast()))
    for index, (name, layer) in enumerate(body.named_children()):
        (frozen if index <= split else plastic).add_module(name, layer)
    plastic.add_module("pool", GlobalAveragePool())
    plastic.add_module("embedding", embedding)
    neck = nn.Sequential(nn.GELU(), SeededDropout(0.2, generator))
    return SplitNetwork(frozen, plastic, CosineHead(EMBEDDING, classes, generator=generator, scale=scale), neck)


def _body(split: int) -> nn.Sequential:
    """The feature layers 0..16, each in its frozen or plastic form."""
    layers = OrderedDict(layer0=_conv(0, split, 3, STEM, kernel=3, stride=2))
    channels = STEM
    for index, row in enumerate(ROWS, start=1):
        layers[f"layer{index}"] = InvertedResidual(
            channels,
            row.expanded,
            row.out,
            kernel=row.kernel,
            stride=row.stride,
            squeezed=make_divisible(row.expanded // 4) if row.excite else None,
            conv=_conv_of(index, split),
            norm=_norm_of(index, split),
            act=nn.GELU,
        )
        channels = row.out
    last = LAYERS - 1
    layers[f"layer{last}"] = _conv(last, split, channels, LAST, kernel=1)
    return nn.Sequential(layers)


def _conv(index: int, split: int, in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Module:
    conv = _conv_of(index, split)(in_channels, out_channels, kernel=kernel, stride=stride)
    return conv_norm(conv, _norm_of(index, split)(out_channels), nn.GELU())


def _conv_of(index: int, split: int) -> MakeConv:
    return PaddedConv2d if index <= split else StandardizedConv2d


def _norm_of(index: int, split: int) -> MakeNorm:
    return partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01) if index <= split else partial(nn.GroupNorm, 8, eps=1e-3)


def make_divisible(channels: float, divisor: int = 8) -> int:
    """`channels` rounded to a multiple of `divisor`, but never by more than 10 % downwards (MobileNetV2 and V3).

    >>> [make_divisible(n) for n in (18, 30, 120, 168)]
    [24, 32, 120, 168]
    """
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded if rounded >= 0.9 * channels else rounded + divisor
