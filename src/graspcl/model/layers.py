"""Layers that the networks share, and weights drawn from a given generator, never from the global one."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.checks import Range, checked
from graspcl.errors import GraspError

M = TypeVar("M", bound=nn.Module)
Dropout = Annotated[float, Range(0, 1, below=True)]


def fork(generator: torch.Generator) -> torch.Generator:
    """Return a new generator, seeded by one draw from `generator`; afterwards the two are independent."""
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return torch.Generator().manual_seed(int(seed))


@contextlib.contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Seed torch's global generator on the CPU, for libraries that draw from it, and restore it afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also change the generators of all devices
        yield


def build(factory: Callable[[], M], generator: torch.Generator) -> M:
    """Return the module that `factory` creates, initialised from `generator` alone.

    Weights of convolutions and linear layers are N(0, 2 / fan-in) (He et al. 2015), biases 0, norms 1 and 0. torch's
    layers would draw from the global generator; on the meta device they have nothing to initialise.

    >>> before = torch.get_rng_state()
    >>> layer = build(lambda: nn.Linear(4, 2), torch.Generator().manual_seed(0))
    >>> torch.equal(before, torch.get_rng_state())
    True
    """
    with torch.device("meta"):
        module = factory()
    for part in module.modules():
        # Not `to_empty`: on meta tensors it imports sympy, a fifth of the time until a picture is predicted.
        for name, weight in part.named_parameters(recurse=False):
            setattr(part, name, nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype), weight.requires_grad))
        for name, value in part.named_buffers(recurse=False):
            setattr(part, name, torch.empty(value.shape, dtype=value.dtype))
        if isinstance(part, nn.Conv2d | nn.Linear):
            nn.init.normal_(part.weight, 0.0, math.sqrt(2.0 / part.weight[0].numel()), generator)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
            part.reset_parameters()  # weight 1, bias 0; for BatchNorm also running mean 0 and variance 1
        elif next(part.parameters(recurse=False), None) is not None:
            known = "Conv2d, Linear, BatchNorm2d, GroupNorm, LayerNorm or subclasses of them"
            raise GraspError(f"no rule to initialise {type(part).__name__}; use {known}")
    return module


_FEW = 4  # locations
_TOGETHER = 2048  # locations of a batch, above which products of maps no longer fit into the processor's cache


class SmallDepthwise(torch.autograd.Function):
    """Depthwise convolution on the CPU whose gradient is fast for maps of a few locations.

    The gradient of the filters adds up, for each place in the filter, products of shifted inputs and gradients. PyTorch
    2.13 takes 1.3 times as long for maps of 8 x 8 locations, and 3 times for 4 x 4 (`graspcl bench filters`).

    >>> x, weight = torch.rand(2, 3, 4, 4), torch.ones(3, 1, 3, 3)
    >>> torch.equal(SmallDepthwise.apply(x, weight, (1, 1), (1, 1)), F.conv2d(x, weight, padding=1, groups=3))
    True
    """

    largest = 64  # locations of the output, above which PyTorch's own gradient is as fast; for 3 x 3 filters `_FEW`

    @staticmethod
    def suits(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> bool:
        """Whether the gradient of the filters is needed, and faster in this way."""
        locations = [
            (size + 2 * pad - kernel) // step + 1
            for size, pad, kernel, step in zip(x.shape[-2:], padding, weight.shape[-2:], stride, strict=True)
        ]
        return (
            weight.requires_grad
            and torch.is_grad_enabled()
            and x.device.type == "cpu"
            and not torch.is_autocast_enabled("cpu")
            and x.ndim == 4
            and len(weight) == x.shape[1] > weight.shape[1] == 1
            and math.prod(locations) <= (SmallDepthwise.largest if weight[0, 0].numel() > 9 else _FEW)
            and len(x) * math.prod(locations) <= _TOGETHER
        )

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Tensor:
        return F.conv2d(x, weight, None, stride, padding, groups=len(weight))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        of_x: Tensor | None = None
        if ctx.needs_input_grad[0]:
            one, none = [1, 1], [0, 0]
            of_x = torch.ops.aten.convolution_backward(
                gradient, x, weight, None, ctx.stride, ctx.padding, one, False, none, len(weight), [True, False, False]
            )[0]
        # With channels last, a product of shifted maps reads memory in order.
        inputs, gradient = x.permute(0, 2, 3, 1), gradient.permute(0, 2, 3, 1)
        of_weight = torch.zeros(*weight.shape[-2:], len(weight), dtype=weight.dtype)
        axes = tuple(zip(inputs.shape[1:3], gradient.shape[1:3], ctx.padding, ctx.stride, strict=True))
        for row, column in itertools.product(*map(range, weight.shape[-2:])):
            (rows, to_rows), (columns, to_columns) = (
                _met(place, *axis) for place, axis in zip((row, column), axes, strict=True)
            )
            products = inputs[:, rows, columns] * gradient[:, to_rows, to_columns]
            of_weight[row, column] = products.sum((0, 1, 2))
        return of_x, of_weight.permute(2, 0, 1)[:, None], None, None


def _met(place: int, size: int, locations: int, padding: int, stride: int) -> tuple[slice, slice]:
    """Return along one axis which inputs a place of the filter meets, and at which locations of the output."""
    first = max(0, -(-(padding - place) // stride))
    end = max(first, min(locations, (size - 1 - place + padding) // stride + 1))
    start = first * stride + place - padding
    return slice(start, start + (end - first - 1) * stride + 1 if end > first else start, stride), slice(first, end)


class PaddedConv2d(nn.Conv2d):
    """Convolution without bias, padded by (kernel - 1) / 2 on all sides.

    x [N, in, H, W] -> [N, out, ceil(H / stride), ceil(W / stride)], for odd kernels.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(in_channels, out_channels, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
        self._padded = (kernel - 1) // 2, (kernel - 1) // 2

    def forward(self, x: Tensor) -> Tensor:
        return self.convolve(x, self.weight, self._padded)

    def convolve(self, x: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
        """Return the convolution of x with filters `weight`."""
        if SmallDepthwise.suits(x, weight, self.stride, padding):
            small: Tensor = SmallDepthwise.apply(x, weight, self.stride, padding)  # type: ignore[no-untyped-call]
            return small
        return F.conv2d(x, weight, self.bias, self.stride, padding, self.dilation, self.groups)


class StandardizedConv2d(PaddedConv2d):
    """Convolution whose filters are standardised at each use: over in-channels and kernel, mean 0 and deviation 1."""

    def forward(self, x: Tensor) -> Tensor:
        std, mean = torch.std_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        weight = (self.weight - mean) / (std + 1e-5)
        return self.convolve(x, weight, self._padded)


class SameConv2d(PaddedConv2d):
    """Convolution with TensorFlow's "same" padding: if the total is odd, the extra row and column come last."""

    def forward(self, x: Tensor) -> Tensor:
        sizes = zip(x.shape[-2:], self.kernel_size, self.stride, strict=True)
        rows, columns = (max((-(-size // stride) - 1) * stride + kernel - size, 0) for size, kernel, stride in sizes)
        top, left = rows // 2, columns // 2
        if rows % 2 or columns % 2:
            x, top, left = F.pad(x, (left, columns - left, top, rows - top)), 0, 0
        return self.convolve(x, self.weight, (top, left))


class FrozenBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm that normalises with its running statistics even in train mode; weight and bias stay trainable.

    For plastic layers with pretrained BatchNorm, whose statistics rehearsal must not change. x [N, C, H, W] -> same.
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


class Seeded(nn.Module):
    """Base class: a module with its own random generator, whose state is part of `state_dict`."""

    generator: torch.Generator

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())


@checked
class SeededDropout(Seeded):
    """Dropout with its own random generator. x [...] -> same shape.

    Args:
        p: probability that a value is dropped.
        generator: seeds the layer's own generator.

    `rows` says which rows of a larger batch x is, as (slice, number of all rows). Its values are then dropped as they
    would be in the whole batch.

    >>> drop = SeededDropout(0.5, torch.Generator().manual_seed(0))
    >>> sorted(set(drop(torch.ones(1000)).tolist())), drop.eval()(torch.ones(2)).tolist()
    ([0.0, 2.0], [1.0, 1.0])
    """

    rows: tuple[slice, int] | None = None

    def __init__(self, p: Dropout, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.p = p
        self.generator = torch.Generator() if generator is None else fork(generator)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        # Drawn on the CPU, so that the masks are the same on every device.
        part, number = (slice(None), len(x)) if self.rows is None else self.rows
        keep = torch.empty(number, *x.shape[1:]).bernoulli_(1.0 - self.p, generator=self.generator)[part]
        return x * keep.to(x) / (1.0 - self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def seed_dropout(module: nn.Module, generator: torch.Generator) -> None:
    """Replace every torch dropout within `module` by a seeded one."""
    for part in module.modules():
        for name, child in part.named_children():
            if isinstance(child, nn.Dropout):
                setattr(part, name, SeededDropout(child.p, generator))


class GlobalAveragePool(nn.Module):
    """Mean over all locations: x [N, C, H, W] -> [N, C].

    >>> GlobalAveragePool()(torch.ones(2, 3, 4, 4)).shape
    torch.Size([2, 3])
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


class ChannelsLast(nn.Module):
    """The same x [N, C, H, W] with channels last in memory, the fastest layout for convolutions."""

    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)


class ImageInput(nn.Module):
    """Normalise raw images: (x - mean) / scale, with one number for all channels or one per channel.

    The defaults are ImageNet's mean and deviation. x [N, C, H, W] in 0..255, uint8 or float -> float, channels last.

    >>> ImageInput(127, 128)(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)).unique().tolist()
    [1.0]
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        mean: float | Sequence[float] = (255 * 0.485, 255 * 0.456, 255 * 0.406),
        scale: float | Sequence[float] = (255 * 0.229, 255 * 0.224, 255 * 0.225),
    ) -> None:
        super().__init__()
        for name, value in (("mean", mean), ("scale", scale)):
            column = torch.as_tensor(value, dtype=torch.float32).reshape(-1, 1, 1)
            self.register_buffer(name, column, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.mean.dtype, memory_format=torch.channels_last)
        return (x - self.mean) / self.scale


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate in 0..1 computed from all channels' means. x [N, C, H, W] -> same shape.

    As in MobileNetV3 (figure 4): plain convolutions with biases, and a hard sigmoid as the gate.
    """

    def __init__(self, channels: int, squeezed: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            OrderedDict(
                reduce=nn.Conv2d(channels, squeezed, 1),
                act=activation(),
                expand=nn.Conv2d(squeezed, channels, 1),
                hard_sigmoid=nn.Hardsigmoid(),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.gate(x.mean(dim=(2, 3), keepdim=True))
        return x * gate


class Form(NamedTuple):
    """What the layers of a network are made of; frozen and plastic layers differ in it."""

    conv: type[PaddedConv2d]
    norm: Callable[[int], nn.Module]
    act: Callable[[], nn.Module]

    def conv_norm(
        self, channels: int, out: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True
    ) -> nn.Sequential:
        """Create a convolution and its norm, followed by the activation if `act`."""
        conv = self.conv(channels, out, kernel, stride, groups)
        parts: OrderedDict[str, nn.Module] = OrderedDict(conv=conv, norm=self.norm(out))
        if act:
            parts["act"] = self.act()
        return nn.Sequential(parts)


class InvertedResidual(nn.Module):
    """Expand with a 1x1 convolution, filter each channel, optionally squeeze and excite, and project with a 1x1.

    x [N, channels, H, W] -> [N, out, ceil(H / stride), ceil(W / stride)]; x is added where the shapes agree. Nothing is
    expanded where `expanded` equals `channels`, and nothing squeezed where `squeezed` is 0.
    """

    def __init__(
        self, channels: int, expanded: int, out: int, *, kernel: int, stride: int, form: Form, squeezed: int = 0
    ) -> None:
        super().__init__()
        self.residual = stride == 1 and channels == out
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        if expanded != channels:
            parts["expand"] = form.conv_norm(channels, expanded, kernel=1)
        parts["depthwise"] = form.conv_norm(expanded, expanded, kernel, stride, groups=expanded)
        if squeezed:
            parts["excite"] = SqueezeExcitation(expanded, squeezed, form.act)
        parts["project"] = form.conv_norm(expanded, out, kernel=1, act=False)
        self.branch = nn.Sequential(parts)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.branch(x)
        return x + y if self.residual else y
