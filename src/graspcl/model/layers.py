"""Randomness and initialisation: everything comes from a generator that is passed in, nothing from the global one."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.errors import GraspError

M = TypeVar("M", bound=nn.Module)


def fork(generator: torch.Generator) -> torch.Generator:
    """A new generator, seeded by one draw from `generator`; afterwards the two are independent.

    >>> a, b = (fork(torch.Generator().manual_seed(1)) for _ in range(2))
    >>> a.initial_seed() == b.initial_seed()
    True
    """
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return torch.Generator().manual_seed(int(seed))


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Fill every parameter of `module` in place.

    Weights of convolutions and linear layers are N(0, 2 / fan-in) (He et al. 2015), biases 0, norms 1 and 0.

    >>> layer = nn.utils.skip_init(nn.Linear, 200, 100)
    >>> initialise(layer, torch.Generator().manual_seed(0))
    >>> round(layer.weight.std().item(), 2), layer.bias.abs().max().item()
    (0.1, 0.0)
    """
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Conv2d | nn.Linear):
                fan_in = part.weight[0].numel()
                part.weight.normal_(0.0, math.sqrt(2.0 / fan_in), generator=generator)
                if part.bias is not None:
                    part.bias.zero_()
            elif isinstance(part, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
                part.reset_parameters()  # weight 1, bias 0; of BatchNorm also running mean 0 and variance 1
            elif next(part.parameters(recurse=False), None) is not None:
                raise GraspError(
                    f"no rule to initialise {type(part).__name__}; "
                    "known are Conv2d, Linear, BatchNorm2d, GroupNorm and LayerNorm and what derives from them"
                )


def build(factory: Callable[[], M], generator: torch.Generator) -> M:
    """The module that `factory` makes, initialised from `generator` alone.

    torch's layers draw from the global generator when they are constructed; on the meta device they have nothing to
    fill, so the global generator is neither used nor moved.

    >>> before = torch.get_rng_state()
    >>> layer = build(lambda: nn.Linear(4, 2), torch.Generator().manual_seed(0))
    >>> torch.equal(before, torch.get_rng_state())
    True
    """
    with torch.device("meta"):
        module = factory()
    module.to_empty(device="cpu")
    initialise(module, generator)
    return module


class PaddedConv2d(nn.Conv2d):
    """Convolution without bias whose padding (kernel - 1) / 2 is the same on all sides.

    x [N, in, H, W] -> [N, out, ceil(H / stride), ceil(W / stride)], for odd kernels.

    >>> PaddedConv2d(3, 8, kernel=3, stride=2)(torch.zeros(1, 3, 7, 7)).shape
    torch.Size([1, 8, 4, 4])
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(in_channels, out_channels, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)


class StandardizedConv2d(PaddedConv2d):
    """Convolution whose filters are standardised at each use: mean over in-channels and kernel 0, standard deviation 1.

    x [N, in, H, W] -> [N, out, ceil(H / stride), ceil(W / stride)].

    >>> StandardizedConv2d(3, 8, kernel=3)(torch.zeros(1, 3, 7, 7)).shape
    torch.Size([1, 8, 7, 7])
    """

    def forward(self, x: Tensor) -> Tensor:
        std, mean = torch.std_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        weight = (self.weight - mean) / (std + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class SameConv2d(PaddedConv2d):
    """Convolution with TensorFlow's "same" padding: where the total is odd, the extra row and column come last.

    x [N, in, H, W] -> [N, out, ceil(H / stride), ceil(W / stride)].

    >>> SameConv2d(3, 8, kernel=3, stride=2)(torch.zeros(1, 3, 8, 8)).shape
    torch.Size([1, 8, 4, 4])
    """

    def forward(self, x: Tensor) -> Tensor:
        (top, bottom), (left, right) = (
            _same_padding(size, kernel, stride)
            for size, kernel, stride in zip(x.shape[-2:], self.kernel_size, self.stride, strict=True)
        )
        if top != bottom or left != right:
            x, top, left = F.pad(x, (left, right, top, bottom)), 0, 0
        return F.conv2d(x, self.weight, self.bias, self.stride, (top, left), self.dilation, self.groups)


def _same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    steps = -(-size // stride)
    total = max((steps - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class FrozenBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm that always normalises with its running statistics, also in train mode; weight and bias stay trainable.

    For plastic layers with pretrained BatchNorm, whose statistics rehearsal must not move. x [N, C, H, W] -> same.

    >>> norm = FrozenBatchNorm2d(2).train()
    >>> norm(torch.full((1, 2, 1, 1), 5.0)).flatten().round().tolist(), norm.running_mean.tolist()
    ([5.0, 5.0], [0.0, 0.0])
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


class SeededDropout(nn.Module):
    """Dropout whose masks come from a generator of its own, so that a checkpoint can restore it. x [...] -> same shape.

    A given `generator` seeds that own generator and is free afterwards. Its state travels in `state_dict`.

    >>> drop = SeededDropout(0.5, torch.Generator().manual_seed(0))
    >>> sorted(set(drop(torch.ones(1000)).tolist())), drop.eval()(torch.ones(2)).tolist()
    ([0.0, 2.0], [1.0, 1.0])
    """

    def __init__(self, p: float, generator: torch.Generator | None = None) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise GraspError(f"dropout must be at least 0 and below 1, not {p}")
        self.p = p
        self.generator = torch.Generator() if generator is None else fork(generator)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        # Drawn on the CPU whatever the device of x: the same masks everywhere.
        keep = torch.empty(x.shape).bernoulli_(1.0 - self.p, generator=self.generator)
        return x * keep.to(x) / (1.0 - self.p)

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())

    def extra_repr(self) -> str:
        return f"p={self.p}"


class GlobalAveragePool(nn.Module):
    """Mean over all locations: x [N, C, H, W] -> [N, C].

    >>> GlobalAveragePool()(torch.ones(2, 3, 4, 4)).shape
    torch.Size([2, 3])
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


class ChannelsLast(nn.Module):
    """The same x [N, C, H, W] with its channels adjacent in memory, the layout in which convolutions are fastest.

    >>> ChannelsLast()(torch.zeros(1, 3, 4, 4)).stride()
    (48, 1, 12, 3)
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)


class ImageInput(nn.Module):
    """Raw images to what the network was trained on: (x - mean) / scale, with one number for all or per channel.

    x [N, C, H, W], uint8 (or floats in 0..255) -> float [N, C, H, W], channels last.

    >>> ImageInput(127, 128)(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)).unique().tolist()
    [1.0]
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: float | Sequence[float], scale: float | Sequence[float]) -> None:
        super().__init__()
        for name, value in (("mean", mean), ("scale", scale)):
            column = torch.as_tensor(value, dtype=torch.float32).reshape(-1, 1, 1)
            self.register_buffer(name, column, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.mean.dtype, memory_format=torch.channels_last)
        return (x - self.mean) / self.scale


def imagenet_input() -> ImageInput:
    """Images in 0..255 minus ImageNet's mean, by its deviation, per channel.

    >>> imagenet_input().mean.flatten().round().tolist()
    [124.0, 116.0, 104.0]
    """
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return ImageInput([255 * value for value in mean], [255 * value for value in deviation])


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate in 0..1 computed from all channels' means. x [N, C, H, W] -> same shape.

    MobileNetV3, figure 4: plain convolutions with biases, and a hard sigmoid as the gate.

    >>> SqueezeExcitation(16, 8, nn.GELU)(torch.zeros(2, 16, 4, 4)).shape
    torch.Size([2, 16, 4, 4])
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


class MakeConv(Protocol):
    """How a network makes its convolutions: `PaddedConv2d`, `StandardizedConv2d` or `SameConv2d`."""

    def __call__(
        self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> nn.Module: ...


MakeNorm = Callable[[int], nn.Module]
MakeActivation = Callable[[], nn.Module]


def conv_norm(conv: nn.Module, norm: nn.Module, activation: nn.Module | None = None) -> nn.Sequential:
    """Convolution, norm and, where given, activation. [N, in, H, W] -> [N, out, H', W'].

    >>> list(conv_norm(PaddedConv2d(3, 8, kernel=3), nn.GroupNorm(8, 8))._modules)
    ['conv', 'norm']
    """
    parts: OrderedDict[str, nn.Module] = OrderedDict(conv=conv, norm=norm)
    if activation is not None:
        parts["act"] = activation
    return nn.Sequential(parts)


class InvertedResidual(nn.Module):
    """Expand by a 1x1, filter each channel by itself, perhaps squeeze and excite, project by a 1x1 without activation.

    x [N, in, H, W] -> [N, out, ceil(H / stride), ceil(W / stride)]; x is added where the shapes agree. There is no
    expansion where `expanded` equals `in_channels`. The padding is that of the convolutions that `conv` makes.

    >>> make = {"conv": SameConv2d, "norm": nn.BatchNorm2d, "act": nn.ReLU6}
    >>> block = InvertedResidual(8, 24, 16, kernel=3, stride=2, squeezed=8, **make)
    >>> block(torch.zeros(2, 8, 14, 14)).shape
    torch.Size([2, 16, 7, 7])
    """

    def __init__(
        self,
        in_channels: int,
        expanded: int,
        out_channels: int,
        *,
        kernel: int,
        stride: int,
        squeezed: int | None = None,
        conv: MakeConv,
        norm: MakeNorm,
        act: MakeActivation,
    ) -> None:
        super().__init__()
        self.residual = stride == 1 and in_channels == out_channels
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        if expanded != in_channels:
            parts["expand"] = conv_norm(conv(in_channels, expanded, kernel=1), norm(expanded), act())
        depthwise = conv(expanded, expanded, kernel=kernel, stride=stride, groups=expanded)
        parts["depthwise"] = conv_norm(depthwise, norm(expanded), act())
        if squeezed is not None:
            parts["excite"] = SqueezeExcitation(expanded, squeezed, act)
        parts["project"] = conv_norm(conv(expanded, out_channels, kernel=1), norm(out_channels))
        self.branch = nn.Sequential(parts)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.branch(x)
        return x + out if self.residual else out
