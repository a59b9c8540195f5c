"""MobileNetV3-Large in the form that SIESTA and GRASP train (reference, section 5.6)."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Annotated

import torch
from torch import nn

from graspcl.checks import Positive, Range, checked
from graspcl.model.layers import Form, ImageInput, InvertedResidual, PaddedConv2d, StandardizedConv2d, build
from graspcl.model.network import SplitNetwork, convolutional, networks

STEM = 16
ROWS = (  # kernel, expanded and output channels, channels to which a block squeezes (0: it does not), stride
    (3, 16, 16, 0, 1),
    (3, 64, 24, 0, 2),
    (3, 72, 24, 0, 1),
    (5, 72, 40, 24, 2),
    (5, 120, 40, 32, 1),
    (5, 120, 40, 32, 1),
    (3, 240, 80, 0, 2),
    (3, 200, 80, 0, 1),
    (3, 184, 80, 0, 1),
    (3, 184, 80, 0, 1),
    (3, 480, 112, 120, 1),
    (3, 672, 112, 168, 1),
    (5, 672, 160, 168, 2),
    (5, 960, 160, 240, 1),
    (5, 960, 160, 240, 1),
)
LAST = 960
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
    return convolutional(
        ImageInput(), body, split + 1, LAST, classes, generator, dropout=0.2, scale=scale, embedding=1280
    )


def _body(split: int) -> nn.Sequential:
    """Create the layers 0..16, each in its frozen or plastic form."""
    forms = [_FROZEN if index <= split else _PLASTIC for index in range(LAYERS)]
    layers: OrderedDict[str, nn.Module] = OrderedDict(layer0=forms[0].conv_norm(3, STEM, kernel=3, stride=2))
    channels = STEM
    for index, (kernel, expanded, out, squeezed, stride) in enumerate(ROWS, start=1):
        layers[f"layer{index}"] = InvertedResidual(
            channels, expanded, out, kernel=kernel, stride=stride, form=forms[index], squeezed=squeezed
        )
        channels = out
    layers[f"layer{LAYERS - 1}"] = forms[-1].conv_norm(channels, LAST, kernel=1)
    return nn.Sequential(layers)
