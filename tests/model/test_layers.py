"""Layers against direct formulas."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from graspcl.errors import GraspError
from graspcl.model import ImageInput, SeededDropout, build
from graspcl.model.layers import (
    Form,
    FrozenBatchNorm2d,
    InvertedResidual,
    PaddedConv2d,
    SameConv2d,
    SmallDepthwise,
    SqueezeExcitation,
    StandardizedConv2d,
    fork,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(seed))


@pytest.mark.parametrize(("kernel", "groups"), [(3, 1), (1, 1), (5, 4)])
def test_weight_standardisation_is_the_formula(kernel: int, groups: int) -> None:
    conv = build(lambda: StandardizedConv2d(4, 8, kernel=kernel, stride=2, groups=groups), seeded())
    x = randn(2, 4, 9, 9)
    rows = conv.weight.detach().reshape(8, -1)
    centred = rows - rows.sum(1, keepdim=True) / rows.shape[1]
    std = (centred.square().sum(1, keepdim=True) / (rows.shape[1] - 1)).sqrt()
    weight = (centred / (std + 1e-5)).reshape(conv.weight.shape)
    expected = F.conv2d(x, weight, stride=2, padding=(kernel - 1) // 2, groups=groups)
    torch.testing.assert_close(conv(x), expected)


def test_weight_standardisation_ignores_shift_and_scale_of_the_weights() -> None:
    conv = build(lambda: StandardizedConv2d(4, 8, kernel=3), seeded())
    moved = copy.deepcopy(conv)
    with torch.no_grad():
        moved.weight.mul_(7.0).add_(3.0)
    x = randn(1, 4, 6, 6)
    torch.testing.assert_close(conv(x), moved(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("size", [(7, 7), (8, 8), (14, 15), (9, 6)])
@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_same_padding_is_tensorflows(size: tuple[int, int], kernel: int, stride: int) -> None:
    conv = build(lambda: SameConv2d(3, 4, kernel=kernel, stride=stride), seeded())
    x = randn(2, 3, *size)
    pads = []
    for n in reversed(size):  # F.pad takes the last dimension first
        total = max((-(-n // stride) - 1) * stride + kernel - n, 0)
        pads += [total // 2, total - total // 2]
    expected = F.conv2d(F.pad(x, pads), conv.weight, stride=stride)
    assert expected.shape[-2:] == tuple(-(-n // stride) for n in size)
    torch.testing.assert_close(conv(x), expected)


@pytest.mark.parametrize(
    ("size", "kernel"), [((1, 1), 3), ((2, 2), 3), ((1, 1), 5), ((2, 2), 5), ((4, 4), 5), ((3, 5), 5), ((8, 8), 5)]
)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("form", [PaddedConv2d, SameConv2d, StandardizedConv2d])
def test_gradients_of_small_depthwise_convolutions_are_pytorchs(
    size: tuple[int, int], kernel: int, stride: int, form: type[PaddedConv2d]
) -> None:
    seeded = torch.Generator().manual_seed(0)
    layer = build(lambda: form(6, 6, kernel, stride, groups=6), seeded).double()
    x = torch.randn(3, 6, *size, generator=seeded, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()

    def gradients() -> tuple[torch.Tensor, ...]:
        output = layer(x)
        towards = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return (output, *torch.autograd.grad(output, [x, layer.weight], towards))

    fast = gradients()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SmallDepthwise, "suits", staticmethod(lambda *given: False))
        plain = gradients()
    assert "SmallDepthwise" in str(layer(x).grad_fn)
    assert "SmallDepthwise" not in str(plain[0].grad_fn)
    for ours, theirs in zip(fast, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_only_depthwise_convolutions_of_small_maps_that_train_are_special() -> None:
    seeded = torch.Generator().manual_seed(0)
    depthwise, grouped = (build(lambda n=n: PaddedConv2d(4, 4, 5, groups=n), seeded) for n in (4, 2))
    narrow = build(lambda: PaddedConv2d(4, 4, 3, groups=4), seeded)
    small, large = torch.ones(1, 4, 8, 8), torch.ones(1, 4, 9, 9)
    for slower in (narrow(small), depthwise(torch.ones(64, 4, 8, 8)), depthwise(small[0])):
        assert "SmallDepthwise" not in str(slower.grad_fn)
    assert "SmallDepthwise" in str(depthwise(small).grad_fn)
    assert "SmallDepthwise" not in str(depthwise(large).grad_fn)
    assert "SmallDepthwise" not in str(grouped(small).grad_fn)
    with torch.no_grad():
        assert depthwise(small).grad_fn is None
    assert "SmallDepthwise" not in str(depthwise.requires_grad_(False)(small.requires_grad_()).grad_fn)


def test_frozen_batch_norm_keeps_its_statistics_and_trains_its_affine() -> None:
    norm = build(lambda: FrozenBatchNorm2d(3, eps=1e-3), seeded()).train()
    assert norm.running_mean is not None and norm.running_var is not None
    norm.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    norm.running_var.copy_(torch.tensor([4.0, 1.0, 0.25]))
    before = copy.deepcopy(norm.state_dict())
    x = randn(5, 3, 4, 4)
    out = norm(x)
    out.square().sum().backward()
    mean, var = norm.running_mean[:, None, None], norm.running_var[:, None, None]
    torch.testing.assert_close(out, (x - mean) / (var + 1e-3).sqrt())
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    assert norm.weight.grad is not None and norm.weight.grad.abs().min() > 0


def test_dropout_keeps_the_expectation_and_is_nothing_in_eval_mode() -> None:
    drop = SeededDropout(0.2, seeded())
    x = torch.ones(100, 100)
    out = drop(x)
    assert abs((out == 0).float().mean().item() - 0.2) < 0.02
    assert torch.allclose(out[out > 0], torch.tensor(1.25))
    assert drop.eval()(x) is x


def test_dropout_resumes_from_its_state() -> None:
    drop = SeededDropout(0.5, seeded(3))
    x = torch.ones(50)
    drop(x)
    other = SeededDropout(0.5)
    other.load_state_dict(drop.state_dict())
    assert drop.state_dict()["_extra_state"].dtype == torch.uint8
    assert torch.equal(drop(x), other(x))
    assert torch.equal(copy.deepcopy(drop)(x), drop(x))


def test_dropout_does_not_share_the_generator_it_was_given() -> None:
    generator = seeded()
    drop = SeededDropout(0.5, generator)
    before = generator.get_state()
    drop(torch.ones(10))
    assert torch.equal(before, generator.get_state())


@pytest.mark.parametrize("p", [-0.1, 1.0, 2.0])
def test_dropout_refuses_what_is_no_share(p: float) -> None:
    with pytest.raises(GraspError, match=r"p must be a number in \[0, 1\)"):
        SeededDropout(p)


def test_squeeze_excitation_is_the_formula() -> None:
    se = build(lambda: SqueezeExcitation(8, 4, nn.GELU), seeded())
    x = randn(3, 8, 5, 5)
    reduce, expand = (part for part in se.gate if isinstance(part, nn.Conv2d))
    hidden = F.gelu(x.mean((2, 3)) @ reduce.weight[:, :, 0, 0].T + reduce.bias)
    gate = ((hidden @ expand.weight[:, :, 0, 0].T + expand.bias) / 6 + 0.5).clamp(0, 1)
    torch.testing.assert_close(se(x), x * gate[:, :, None, None])


def block(in_channels: int, expanded: int, out: int, stride: int, squeezed: int = 0) -> InvertedResidual:
    return build(
        lambda: InvertedResidual(
            in_channels,
            expanded,
            out,
            kernel=3,
            stride=stride,
            squeezed=squeezed,
            form=Form(PaddedConv2d, nn.BatchNorm2d, nn.ReLU6),
        ),
        seeded(),
    ).eval()


def test_inverted_residual_adds_its_input_only_where_shapes_agree() -> None:
    x = randn(2, 8, 6, 6)
    same = block(8, 16, 8, stride=1)
    assert torch.equal(same(x), x + same.branch(x))
    for other in (block(8, 16, 8, stride=2), block(8, 16, 12, stride=1)):
        assert torch.equal(other(x), other.branch(x))


def test_inverted_residual_orders_its_parts_and_leaves_out_what_is_not_asked_for() -> None:
    assert [name for name, _ in block(8, 16, 8, 1, squeezed=8).branch.named_children()] == [
        "expand",
        "depthwise",
        "excite",
        "project",
    ]
    assert [name for name, _ in block(8, 8, 8, 1).branch.named_children()] == ["depthwise", "project"]


def test_image_input_takes_bytes_and_numbers_per_channel() -> None:
    x = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8, generator=seeded())
    torch.testing.assert_close(ImageInput(127, 128)(x), (x.float() - 127) / 128)
    out = ImageInput((1, 2, 3), (4, 5, 6))(x)
    torch.testing.assert_close(out[:, 1], (x[:, 1].float() - 2) / 5)
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert not ImageInput(127, 128).state_dict()


def test_image_input_is_imagenets_by_default() -> None:
    found = ImageInput()
    torch.testing.assert_close(found.mean.flatten(), torch.tensor([123.675, 116.28, 103.53]))
    torch.testing.assert_close(found.scale.flatten(), torch.tensor([58.395, 57.12, 57.375]))


def test_initialise_follows_the_fan_in() -> None:
    conv = build(lambda: PaddedConv2d(32, 64, kernel=3), seeded())
    assert conv.weight.std().item() == pytest.approx((2 / (32 * 9)) ** 0.5, rel=0.02)
    norm = build(lambda: nn.BatchNorm2d(4), seeded())
    assert [value.flatten().tolist() for value in norm.state_dict().values()] == [
        [1] * 4,
        [0] * 4,
        [0] * 4,
        [1] * 4,
        [0],
    ]


def test_initialise_resets_the_norms_that_have_no_statistics() -> None:
    for norm in (build(lambda: nn.LayerNorm(4), seeded()), build(lambda: nn.GroupNorm(2, 4), seeded())):
        assert norm.weight.tolist() == [1] * 4 and norm.bias.tolist() == [0] * 4


def test_initialise_leaves_nothing_out_silently() -> None:
    with pytest.raises(GraspError, match="no rule to initialise Embedding"):
        build(lambda: nn.Embedding(2, 3), seeded())


def test_forks_differ_from_each_other() -> None:
    generator = seeded()
    assert fork(generator).initial_seed() != fork(generator).initial_seed()


def test_a_network_is_made_without_importing_sympy():
    """It would be a fifth of the time until a picture is predicted."""
    code = (
        "import sys, torch; from torch import nn; from graspcl.model import build;"
        "made = build(lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)), torch.Generator().manual_seed(0));"
        "assert 'sympy' not in sys.modules and not any(part.is_meta for part in made.state_dict().values())"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
