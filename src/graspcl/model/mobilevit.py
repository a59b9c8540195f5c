"""MobileViT-S in the form that GRASP trains (appendix, "MobileViT/ImageNet-300"; reference, section 5.6)."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.errors import GraspError, nearest
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


class _Inverted(NamedTuple):
    out: int
    stride: int


class _Attending(NamedTuple):
    width: int
    depth: int


STEM = 16
BLOCKS: tuple[_Inverted | _Attending, ...] = (
    _Inverted(32, 1),
    _Inverted(64, 2),
    _Inverted(64, 1),
    _Inverted(64, 1),
    _Inverted(96, 2),
    _Attending(144, 2),
    _Inverted(128, 2),  # the last frozen layer of the paper
    _Attending(192, 4),
    _Inverted(160, 2),
    _Attending(240, 3),
)
EXPANSION = 4
HEADS = 4
PATCH = 2
EMBEDDING = 640
LAYERS = len(BLOCKS) + 2  # the stem before them, the last 1x1 convolution after them

FrozenNorm = Literal["batch", "group"]


@networks.register("mobilevit_s", reads="images")
def mobilevit_s(
    classes: int = 0,
    split: int = 7,
    *,
    generator: torch.Generator,
    frozen_norm: FrozenNorm = "batch",
    dropout: float = 0.0,
    scale: float = 1.0,
) -> SplitNetwork:
    """MobileViT-S, frozen up to and including layer `split` (0-based, the stem is layer 0; 0..11).

    The paper freezes the stem, six inverted residuals and one MobileViT block, which is split 7. Plastic layers use
    GroupNorm of 16 groups; their convolutions are standardised in the MobileViT blocks and the last convolution, and
    plain in the inverted residuals. Frozen layers use BatchNorm and plain convolutions, as published weights do; with
    `frozen_norm="group"` they have the form of the plastic ones, as in the reference. SiLU throughout.
    `encode` takes images [N, 3, H, W], uint8 or floats in 0..255; at 256 px and split 7 the latents are
    [N, 128, 16, 16]. The embedding [N, 640] is the pooled output of the last convolution: its activation lies before
    the pooling and none follows, so the neck is dropout alone. All weights are random; `load_state_dict` takes trained
    ones. `scale` is the head's.

    >>> net = mobilevit_s(classes=10, generator=torch.Generator().manual_seed(0))
    >>> latents = net.encode(torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    >>> latents.shape, net(latents).embedding.shape
    (torch.Size([1, 128, 4, 4]), torch.Size([1, 640]))
    """
    if not 0 <= split < LAYERS:
        raise GraspError(f"split must be a layer of MobileViT-S, 0..{LAYERS - 1}, not {split}")
    if frozen_norm not in get_args(FrozenNorm):
        raise GraspError(f"frozen_norm cannot be {frozen_norm!r}; {nearest(str(frozen_norm), get_args(FrozenNorm))}")
    body = build(lambda: _body(split if frozen_norm == "batch" else -1), generator)
    frozen = nn.Sequential(OrderedDict(input=imagenet_input()))
    plastic = nn.Sequential(OrderedDict(channels_last=ChannelsLast()))
    for index, (name, layer) in enumerate(body.named_children()):
        (frozen if index <= split else plastic).add_module(name, layer)
    plastic.add_module("pool", GlobalAveragePool())
    head = CosineHead(EMBEDDING, classes, generator=generator, scale=scale)
    return SplitNetwork(frozen, plastic, head, SeededDropout(dropout, generator))


class MobileViTBlock(nn.Module):
    """Convolve, let the locations of equal place in their patches attend to each other, and fuse with the input.

    x [N, channels, H, W] -> same shape. Where H or W is no multiple of the patch's side, the map is interpolated to
    the next one for the transformer and back after it. The convolution to `width` channels has neither norm nor
    activation and is plain: standardised without a norm after it, it would fix the scale of the transformer's input.

    >>> block = MobileViTBlock(32, width=48, depth=2, conv=StandardizedConv2d, norm=partial(nn.GroupNorm, 16))
    >>> block(torch.zeros(2, 32, 7, 8)).shape
    torch.Size([2, 32, 7, 8])
    """

    def __init__(self, channels: int, width: int, depth: int, *, conv: MakeConv, norm: MakeNorm) -> None:
        super().__init__()
        self.local = conv_norm(conv(channels, channels, kernel=3), norm(channels), nn.SiLU())
        self.widen = PaddedConv2d(channels, width, kernel=1)
        self.transformer = nn.Sequential(*(TransformerLayer(width, HEADS) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.project = conv_norm(conv(width, channels, kernel=1), norm(channels), nn.SiLU())
        self.fuse = conv_norm(conv(2 * channels, channels, kernel=3), norm(channels), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        y = self.widen(self.local(x))
        height, width = (-(-side // PATCH) * PATCH for side in size)
        y = fold(self.norm(self.transformer(unfold(_resize(y, height, width), PATCH))), height, width, PATCH)
        y = self.project(_resize(y, *size))
        fused: Tensor = self.fuse(torch.cat([x, y], dim=1))
        return fused


class TransformerLayer(nn.Module):
    """Self-attention and then a two-layer perceptron, each on the normalised input and added to it.

    x [N, tokens, width] -> same shape.

    >>> TransformerLayer(48, heads=4)(torch.zeros(2, 9, 48)).shape
    torch.Size([2, 9, 48])
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise GraspError(f"the width of a transformer must be a multiple of its {heads} heads, not {width}")
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            OrderedDict(
                norm=nn.LayerNorm(width),
                hidden=nn.Linear(width, 2 * width),
                act=nn.SiLU(),
                out=nn.Linear(2 * width, width),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        # [N, tokens, 3 width] -> three of [N, heads, tokens, width / heads]
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        mixed: Tensor = x + self.mlp(x)
        return mixed


def unfold(x: Tensor, patch: int) -> Tensor:
    """Tokens of patches of `patch` x `patch` locations: x [N, C, H, W] -> [N·patch², H·W / patch², C].

    A row holds the locations of one place in their patches, so that attention within it reaches over the whole map.

    >>> unfold(torch.arange(16.0).reshape(1, 1, 4, 4), 2)[..., 0].int().tolist()
    [[0, 2, 8, 10], [1, 3, 9, 11], [4, 6, 12, 14], [5, 7, 13, 15]]
    """
    n, channels, height, width = x.shape
    split = x.permute(0, 2, 3, 1).reshape(n, height // patch, patch, width // patch, patch, channels)
    return split.permute(0, 2, 4, 1, 3, 5).reshape(n * patch**2, -1, channels)


def fold(tokens: Tensor, height: int, width: int, patch: int) -> Tensor:
    """The inverse of `unfold`: tokens [N·patch², H·W / patch², C] -> [N, C, H, W], channels last in memory.

    >>> x = torch.arange(24.0).reshape(1, 1, 4, 6)
    >>> torch.equal(fold(unfold(x, 2), 4, 6, 2), x)
    True
    """
    split = tokens.reshape(-1, patch, patch, height // patch, width // patch, tokens.shape[-1])
    return split.permute(0, 3, 1, 4, 2, 5).reshape(-1, height, width, tokens.shape[-1]).permute(0, 3, 1, 2)


def _resize(x: Tensor, height: int, width: int) -> Tensor:
    if x.shape[-2:] == (height, width):
        return x
    return F.interpolate(x, (height, width), mode="bilinear", align_corners=False)


def _body(split: int) -> nn.Sequential:
    """The layers 0..11; up to `split` in the frozen form, then in the plastic one."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["layer0"] = _conv(0, split, 3, STEM, kernel=3, stride=2)
    channels = STEM
    for index, block in enumerate(BLOCKS, start=1):
        norm = _norm_of(index, split)
        if isinstance(block, _Attending):
            conv = _conv_of(index, split)
            layers[f"layer{index}"] = MobileViTBlock(channels, block.width, block.depth, conv=conv, norm=norm)
        else:
            layers[f"layer{index}"] = InvertedResidual(
                channels,
                channels * EXPANSION,
                block.out,
                kernel=3,
                stride=block.stride,
                conv=PaddedConv2d,
                norm=norm,
                act=nn.SiLU,
            )
            channels = block.out
    last = LAYERS - 1
    layers[f"layer{last}"] = _conv(last, split, channels, EMBEDDING, kernel=1)
    return nn.Sequential(layers)


def _conv(index: int, split: int, in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Module:
    conv = _conv_of(index, split)(in_channels, out_channels, kernel=kernel, stride=stride)
    return conv_norm(conv, _norm_of(index, split)(out_channels), nn.SiLU())


def _conv_of(index: int, split: int) -> MakeConv:
    return PaddedConv2d if index <= split else StandardizedConv2d


def _norm_of(index: int, split: int) -> MakeNorm:
    return nn.BatchNorm2d if index <= split else partial(nn.GroupNorm, 16)
