"""MobileNetV3-Large in the form that SIESTA and GRASP train (reference, section 5.6)."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Annotated, NamedTuple

import torch
from torch import nn

from graspcl.checks import Positive, Range, checked
from graspcl.model.head import CosineHead
from graspcl.model.layers import (
    Form,
    InvertedResidual,
    PaddedConv2d,
    SeededDropout,
    StandardizedConv2d,
    build,
    imagenet_input,
    split_body,
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

_FROZEN = Form(PaddedConv2d, partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01), nn.GELU)
_PLASTIC = Form(StandardizedConv2d, partial(nn.GroupNorm, 8, eps=1e-3), nn.GELU)


@networks.register("mobilenet_v3_large", reads="images")
@checked
def mobilenet_v3_large(
    classes: int = 0,
    split: Annotated[int, Range(0, LAYERS - 1)] = 7,
    *,
    generator: torch.Generator,
    scale: Positive = 1.0,
) -> SplitNetwork:
    """Create MobileNetV3-Large with random weights.

    `encode` takes images [N, 3, H, W] in 0..255, uint8 or float. At 224 px and split 7 the latents are [N, 80, 14, 14].
    The embedding is [N, 1280], before its GELU. Frozen layers use BatchNorm, plastic ones GroupNorm and
    weight-standardised convolutions; GELU throughout. `split` is the last frozen layer, 0..16; layer 0 is the stem.

    >>> net = mobilenet_v3_large(classes=10, generator=torch.Generator().manual_seed(0))
    >>> latents = net.encode(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    >>> latents.shape, net(latents).logits.shape
    (torch.Size([1, 80, 4, 4]), torch.Size([1, 10]))
    """
    body = build(lambda: _body(split), generator)
    embedding = build(lambda: nn.Linear(LAST, EMBEDDING), generator)
    frozen, plastic = split_body(body, split + 1, imagenet_input(), embedding)
    neck = nn.Sequential(nn.GELU(), SeededDropout(0.2, generator))
    return SplitNetwork(frozen, plastic, CosineHead(EMBEDDING, classes, generator=generator, scale=scale), neck)


def _body(split: int) -> nn.Sequential:
    """Create the layers 0..16, each in its frozen or plastic form."""
    forms = [_FROZEN if index <= split else _PLASTIC for index in range(LAYERS)]
    layers: OrderedDict[str, nn.Module] = OrderedDict(layer0=forms[0].conv_norm(3, STEM, kernel=3, stride=2))
    channels = STEM
    for index, row in enumerate(ROWS, start=1):
        squeezed = make_divisible(row.expanded // 4) if row.excite else None
        layers[f"layer{index}"] = InvertedResidual(
            channels, row.expanded, row.out, kernel=row.kernel, stride=row.stride, form=forms[index], squeezed=squeezed
        )
        channels = row.out
    layers[f"layer{LAYERS - 1}"] = forms[-1].conv_norm(channels, LAST, kernel=1)
    return nn.Sequential(layers)


def make_divisible(channels: float, divisor: int = 8) -> int:
    """Round `channels` to a multiple of `divisor`, but never down by more than 10 % (MobileNetV2 and V3).

    >>> [make_divisible(n) for n in (18, 30, 120, 168)]
    [24, 32, 120, 168]
    """
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded if rounded >= 0.9 * channels else rounded + divisor
