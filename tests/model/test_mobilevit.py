"""MobileViT-S: its size against the stock network, its cut, its attention and its patches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from graspcl.errors import GraspError
from graspcl.model import build, mobilevit_s
from graspcl.model.layers import Form, PaddedConv2d, StandardizedConv2d
from graspcl.model.mobilevit import MobileViTBlock, TransformerLayer, fold, unfold


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(seed))


def images(n: int, height: int, width: int | None = None) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, height, width or height), dtype=torch.uint8, generator=seeded(9))


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# Parameters of the stock MobileViT-S, layer by layer, as both transformers (MobileViTConfig()) and timm (mobilevit_s)
# build it. A norm has as many parameters in the paper's form, and a standardised convolution as many as a plain one.
STOCK = [464, 3_968, 14_080, 36_224, 36_224, 44_480, 612_288, 91_264, 1_680_768, 154_432, 2_159_760, 103_680]


@pytest.mark.parametrize("split", [0, 7, 11])
def test_every_layer_has_the_stock_number_of_parameters(split: int) -> None:
    net = mobilevit_s(split=split, generator=seeded())
    layers = {**dict(net.frozen.named_children()), **dict(net.plastic.named_children())}
    assert [size(layers[f"layer{index}"]) for index in range(12)] == STOCK
    assert size(net) == sum(STOCK) + 1  # sigma


def test_the_whole_network_and_its_plastic_share() -> None:
    net = mobilevit_s(classes=1000, generator=seeded())
    assert size(net) == 5_578_632 + 1  # the stock network of 1000 classes, and sigma
    assert size(net.frozen) == 838_992 and size(net.plastic) == 4_098_640
    assert round(100 * net.share_plastic(), 2) == 84.96
    assert round(100 * mobilevit_s(generator=seeded()).share_plastic(), 2) == 83.01


def test_the_paper_freezes_the_stem_six_inverted_residuals_and_one_mobilevit_block() -> None:
    net = mobilevit_s(generator=seeded())
    kinds = [[type(layer).__name__ for layer in part.children()] for part in (net.frozen, net.plastic)]
    frozen, plastic = ([kind for kind in part if kind in ("InvertedResidual", "MobileViTBlock")] for part in kinds)
    assert len(kinds[0]) == 1 + 8  # scaling, then 8 blocks
    assert frozen.count("InvertedResidual") == 6 and frozen.count("MobileViTBlock") == 1
    assert plastic.count("InvertedResidual") == 1 and plastic.count("MobileViTBlock") == 2


@pytest.mark.parametrize(("pixels", "side"), [(64, 4), (128, 8), (224, 14), (256, 16)])
def test_shapes(pixels: int, side: int) -> None:
    net = mobilevit_s(classes=3, generator=seeded()).eval()
    latents = net.encode(images(1, pixels))
    assert latents.shape == (1, 128, side, side)
    out = net(latents)
    assert out.embedding.shape == out.features.shape == (1, 640) and out.logits.shape == (1, 3)
    # A latent that comes back from a buffer in the default layout gives the same outputs.
    torch.testing.assert_close(net(latents.contiguous()).logits, out.logits)


@pytest.mark.parametrize(("split", "shape"), [(0, (16, 32, 32)), (4, (64, 16, 16)), (6, (96, 8, 8)), (11, (640, 2, 2))])
@pytest.mark.parametrize("frozen_norm", ["batch", "group"])
def test_splits_anywhere(split: int, shape: tuple[int, ...], frozen_norm: str) -> None:
    net = mobilevit_s(classes=3, split=split, generator=seeded(), frozen_norm=frozen_norm)  # type: ignore[arg-type]
    latents = net.encode(images(1, 64))
    assert latents.shape[1:] == shape and net(latents).logits.shape == (1, 3)
    other = nn.GroupNorm if frozen_norm == "batch" else nn.BatchNorm2d
    assert not any(isinstance(module, other) for module in net.frozen.modules())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in net.plastic.modules())


def standardised(module: nn.Module) -> set[str]:
    return {name for name, part in module.named_modules() if isinstance(part, StandardizedConv2d)}


def test_which_convolutions_are_standardised() -> None:
    blocks = {f"layer{index}.{part}.conv" for index in (8, 10) for part in ("local", "project", "fuse")}
    net = mobilevit_s(generator=seeded())  # the paper: group norm and weight standardisation, also in the frozen part
    normed = {name.replace(".norm", ".conv") for name, part in net.named_modules() if isinstance(part, nn.GroupNorm)}
    assert standardised(net) == normed and {"frozen.layer0.conv", "frozen.layer1.branch.depthwise.conv"} < normed
    assert not any(isinstance(part, nn.BatchNorm2d) for part in net.modules())
    reference = mobilevit_s(generator=seeded(), standardised="blocks")
    block = {f"layer6.{part}.conv" for part in ("local", "project", "fuse")}
    assert standardised(reference.frozen) == {"layer0.conv", *block}
    assert standardised(reference.plastic) == {*blocks, "layer11.conv"}
    assert standardised(mobilevit_s(generator=seeded(), frozen_norm="batch").frozen) == set()
    groups = {part.num_groups for part in net.modules() if isinstance(part, nn.GroupNorm)}
    assert groups == {16}


@pytest.mark.parametrize(("height", "width"), [(32, 32), (70, 101), (224, 160)])
def test_any_size_of_image_works(height: int, width: int) -> None:
    net = mobilevit_s(classes=3, generator=seeded()).eval()
    out = net(net.encode(images(1, height, width)))
    assert out.logits.shape == (1, 3) and out.embedding.isfinite().all()


def test_gradients_reach_all_of_the_plastic_part_and_nothing_else() -> None:
    net = mobilevit_s(classes=2, generator=seeded()).train()
    x = images(2, 64)
    nn.functional.cross_entropy(net(net.encode(x)).logits, torch.tensor([0, 1])).backward()
    assert all(p.grad is None for p in net.frozen.parameters())
    gradients = {name: p.grad for name, p in net.plastic_parameters()}
    for name, gradient in gradients.items():
        assert gradient is not None and gradient.isfinite().all() and gradient.abs().sum() > 0, name


@pytest.mark.parametrize(("height", "width"), [(2, 2), (4, 6), (16, 8)])
def test_unfolding_gathers_equal_places_and_folding_undoes_it(height: int, width: int) -> None:
    x = randn(3, 5, height, width)
    tokens = unfold(x, 2)
    assert tokens.shape == (3 * 4, height * width // 4, 5)
    for n, row, column in [(0, 0, 0), (1, height - 1, 1), (2, 1, width - 2)]:
        place, patch = (row % 2) * 2 + column % 2, (row // 2) * (width // 2) + column // 2
        assert torch.equal(tokens[n * 4 + place, patch], x[n, :, row, column])
    assert torch.equal(fold(tokens, height, width, 2), x)
    assert torch.equal(fold(unfold(x.contiguous(memory_format=torch.channels_last), 2), height, width, 2), x)


def test_transformer_layer_is_the_formula() -> None:
    layer = build(lambda: TransformerLayer(8, heads=2), seeded())
    with torch.no_grad():
        for parameter in layer.parameters():  # so that norms and biases matter
            parameter.add_(torch.randn(parameter.shape, generator=seeded(2)) * 0.1)
    x = randn(3, 5, 8)
    q, k, v = layer.qkv(layer.attention_norm(x)).split(8, dim=2)
    heads = []
    for part in (slice(0, 4), slice(4, 8)):
        weights = (q[..., part] @ k[..., part].transpose(1, 2) / math.sqrt(4)).softmax(2)
        heads.append(weights @ v[..., part])
    y = x + layer.out(torch.cat(heads, dim=2))
    torch.testing.assert_close(layer(x), y + layer.mlp(y))


def block(channels: int = 16) -> MobileViTBlock:
    form = Form(PaddedConv2d, lambda c: nn.GroupNorm(8, c), nn.SiLU)
    return build(lambda: MobileViTBlock(channels, 24, 2, form), seeded()).eval()


def test_attention_reaches_over_the_whole_map() -> None:
    x = randn(1, 16, 16, 16)
    far = x.clone()
    far[:, :, 15, 15] += 5.0
    whole = block()
    moved = (whole(x) - whole(far)).abs().amax(1)[0]
    assert moved[0, 0] > 0  # three 3x3 convolutions alone reach 3 locations


def test_even_maps_are_not_interpolated_and_odd_ones_keep_their_size() -> None:
    net = block()
    assert net(randn(2, 16, 5, 7)).shape == (2, 16, 5, 7)
    assert net(randn(2, 16, 1, 1)).isfinite().all()
    x = randn(1, 16, 6, 6)
    y = net.widen(net.local(x))
    y = fold(net.norm(net.transformer(unfold(y, 2))), 6, 6, 2)
    assert torch.equal(net(x), net.fuse(torch.cat([x, net.project(y)], dim=1)))


def test_mistakes_are_explained() -> None:
    for split in (-1, 12):
        with pytest.raises(GraspError, match=rf"split must be a whole number in \[0, 11\], got {split}"):
            mobilevit_s(split=split, generator=seeded())
    with pytest.raises(GraspError, match="frozen_norm must be 'group' or 'batch', got 'bach'"):
        mobilevit_s(generator=seeded(), frozen_norm="bach")  # type: ignore[arg-type]
