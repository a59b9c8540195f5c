"""MobileViT-S in the form that GRASP trains (appendix, "MobileViT/ImageNet-300"; reference, section 5.6)."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.checks import Positive, Range, checked
from graspcl.model.layers import Dropout, Form, ImageInput, InvertedResidual, PaddedConv2d, StandardizedConv2d, build
from graspcl.model.network import SplitNetwork, convolutional, networks

STEM = 16
ROWS = (  # output channels and stride of an inverted residual, width and depth of the MobileViT block after it, if any
    (32, 1, 0, 0),
    (64, 2, 0, 0),
    (64, 1, 0, 0),
    (64, 1, 0, 0),
    (96, 2, 144, 2),
    (128, 2, 192, 4),
    (160, 2, 240, 3),
)
EXPANSION = 4
HEADS = 4
PATCH = 2
EMBEDDING = 640
LAYERS = 12  # the stem, those of ROWS and the last 1x1 convolution

_FROZEN = Form(PaddedConv2d, nn.BatchNorm2d, nn.SiLU)
_PLASTIC = Form(StandardizedConv2d, partial(nn.GroupNorm, 16), nn.SiLU)


@networks.register("mobilevit_s", reads="images")
@checked
def mobilevit_s(
    classes: int = 0,
    split: Annotated[int, Range(0, LAYERS - 1)] = 7,
    *,
    generator: torch.Generator,
    frozen_norm: Literal["group", "batch"] = "group",
    standardised: Literal["all", "blocks"] = "all",
    dropout: Dropout = 0.0,
    scale: Positive = 1.0,
) -> SplitNetwork:
    """Create MobileViT-S with random weights.

    `encode` takes images [N, 3, H, W] in 0..255, uint8 or float; at 256 px and split 7 the latents are
    [N, 128, 16, 16]. The embedding [N, 640] is the pooled output of the last convolution. No activation follows the
    pooling, so the neck is dropout alone.

    All layers use GroupNorm of 16 groups and standardised convolutions, as the paper describes. SiLU throughout.

    Args:
        split: the last frozen layer, 0..11, by default the paper's; layer 0 is the stem.
        frozen_norm: "batch" gives frozen layers BatchNorm and plain convolutions, like published weights.
        standardised: "blocks" leaves the convolutions of inverted residuals plain, as in the reference program.

    >>> net = mobilevit_s(classes=10, generator=torch.Generator().manual_seed(0))
    >>> latents = net.encode(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    >>> latents.shape, net(latents).embedding.shape
    (torch.Size([1, 128, 4, 4]), torch.Size([1, 640]))
    """
    body = build(lambda: _body(split if frozen_norm == "batch" else -1, standardised == "all"), generator)
    return convolutional(ImageInput(), body, split + 1, EMBEDDING, classes, generator, dropout, scale)


class MobileViTBlock(nn.Module):
    """Convolve, apply a transformer across patches, and fuse the result with the input. x [N, C, H, W] -> same shape.

    Locations at the same place within their patches attend to each other. If H or W is not a multiple of the patch's
    side, the map is interpolated to the next multiple for the transformer and back afterwards. The convolution to
    `width` channels is plain and has no norm: standardised, it would fix the scale of the transformer's input.
    """

    def __init__(self, channels: int, width: int, depth: int, form: Form) -> None:
        super().__init__()
        self.local = form.conv_norm(channels, channels, kernel=3)
        self.widen = PaddedConv2d(channels, width, kernel=1)
        self.transformer = nn.Sequential(*(TransformerLayer(width, HEADS) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.project = form.conv_norm(width, channels, kernel=1)
        self.fuse = form.conv_norm(2 * channels, channels, kernel=3)

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        y = self.widen(self.local(x))
        height, width = (-(-side // PATCH) * PATCH for side in size)
        y = fold(self.norm(self.transformer(unfold(_resize(y, height, width), PATCH))), height, width, PATCH)
        y = self.project(_resize(y, *size))
        fused: Tensor = self.fuse(torch.cat([x, y], dim=1))
        return fused


class TransformerLayer(nn.Module):
    """Self-attention and a two-layer perceptron, each on the normalised input and added to it.

    x [N, tokens, width] -> same shape.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        hidden, out = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.mlp = nn.Sequential(OrderedDict(norm=nn.LayerNorm(width), hidden=hidden, act=nn.SiLU(), out=out))

    def forward(self, x: Tensor) -> Tensor:
        # [N, tokens, 3 width] -> three of [N, heads, tokens, width / heads]
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        mixed: Tensor = x + self.mlp(x)
        return mixed


def unfold(x: Tensor, patch: int) -> Tensor:
    """Turn patches of `patch` x `patch` locations into tokens: x [N, C, H, W] -> [N·patch², H·W / patch², C].

    A row contains the same place of every patch, so that attention within a row spans the whole map.

    >>> unfold(torch.arange(16.0).reshape(1, 1, 4, 4), 2)[..., 0].int().tolist()
    [[0, 2, 8, 10], [1, 3, 9, 11], [4, 6, 12, 14], [5, 7, 13, 15]]
    """
    n, channels, height, width = x.shape
    split = x.permute(0, 2, 3, 1).reshape(n, height // patch, patch, width // patch, patch, channels)
    return split.permute(0, 2, 4, 1, 3, 5).reshape(n * patch**2, -1, channels)


def fold(tokens: Tensor, height: int, width: int, patch: int) -> Tensor:
    """Invert `unfold`: tokens [N·patch², H·W / patch², C] -> [N, C, H, W], channels last in memory."""
    split = tokens.reshape(-1, patch, patch, height // patch, width // patch, tokens.shape[-1])
    return split.permute(0, 3, 1, 4, 2, 5).reshape(-1, height, width, tokens.shape[-1]).permute(0, 3, 1, 2)


def _resize(x: Tensor, height: int, width: int) -> Tensor:
    if x.shape[-2:] == (height, width):
        return x
    return F.interpolate(x, (height, width), mode="bilinear", align_corners=False)


def _body(split: int, standardised: bool) -> nn.Sequential:
    """Create the layers 0..11, up to `split` with BatchNorm; inverted residuals may have plain convolutions."""
    forms = [_FROZEN if index <= split else _PLASTIC for index in range(LAYERS)]
    layers: OrderedDict[str, nn.Module] = OrderedDict(layer0=forms[0].conv_norm(3, STEM, kernel=3, stride=2))
    channels = STEM
    for out, stride, width, depth in ROWS:
        form = forms[len(layers)]
        form = form if standardised else form._replace(conv=PaddedConv2d)
        layers[f"layer{len(layers)}"] = InvertedResidual(
            channels, channels * EXPANSION, out, kernel=3, stride=stride, form=form
        )
        if width:
            layers[f"layer{len(layers)}"] = MobileViTBlock(out, width, depth, forms[len(layers)])
        channels = out
    layers[f"layer{LAYERS - 1}"] = forms[-1].conv_norm(channels, EMBEDDING, kernel=1)
    return nn.Sequential(layers)
