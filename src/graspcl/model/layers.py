"""Layers that the networks share, and weights drawn from a given generator, never from the global one."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.checks import Range, checked
from graspcl.errors import GraspError

M = TypeVar("M", bound=nn.Module)
Dropout = Annotated[float, Range(0, 1, below=True)]


# -- seeded weights ---------------------------------------------------------------------------------------------------


def fork(generator: torch.Generator) -> torch.Generator:
    """Return a new generator, seeded by one draw from `generator`; afterwards the two are independent.

    >>> a, b = (fork(torch.Generator().manual_seed(1)) for _ in range(2))
    >>> a.initial_seed() == b.initial_seed()
    True
    """
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return torch.Generator().manual_seed(int(seed))


@contextlib.contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Seed torch's global generator on the CPU, for libraries that draw from it, and restore it afterwards.

    >>> with global_seed(3):
    ...     first = torch.rand(2)
    >>> with global_seed(3):
    ...     torch.equal(first, torch.rand(2))
    True
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also change the generators of all devices
        yield


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Initialise every parameter of `module` in place.

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
                part.reset_parameters()  # weight 1, bias 0; for BatchNorm also running mean 0 and variance 1
            elif next(part.parameters(recurse=False), None) is not None:
                raise GraspError(
                    f"no rule to initialise {type(part).__name__}; "
                    "use Conv2d, Linear, BatchNorm2d, GroupNorm, LayerNorm or subclasses of them"
                )


def build(factory: Callable[[], M], generator: torch.Generator) -> M:
    """Return the module that `factory` creates, initialised from `generator` alone.

    torch's layers draw from the global generator when they are constructed. On the meta device they have nothing to
    initialise, so the global generator is not used.

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


# -- layers -----------------------------------------------------------------------------------------------------------


class PaddedConv2d(nn.Conv2d):
    """Convolution without bias, padded by (kernel - 1) / 2 on all sides.

    x [N, in, H, W] -> [N, out, ceil(H / stride), ceil(W / stride)], for odd kernels.

    >>> PaddedConv2d(3, 8, kernel=3, stride=2)(torch.zeros(1, 3, 7, 7)).shape
    torch.Size([1, 8, 4, 4])
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(in_channels, out_channels, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)


class StandardizedConv2d(PaddedConv2d):
    """Convolution whose filters are standardised at each use: over in-channels and kernel, mean 0 and deviation 1.

    >>> StandardizedConv2d(3, 8, kernel=3)(torch.zeros(1, 3, 7, 7)).shape
    torch.Size([1, 8, 7, 7])
    """

    def forward(self, x: Tensor) -> Tensor:
        std, mean = torch.std_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        weight = (self.weight - mean) / (std + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class SameConv2d(PaddedConv2d):
    """Convolution with TensorFlow's "same" padding: if the total is odd, the extra row and column come last.

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
    """BatchNorm that normalises with its running statistics even in train mode; weight and bias stay trainable.

    For plastic layers with pretrained BatchNorm, whose statistics rehearsal must not change. x [N, C, H, W] -> same.

    >>> norm = FrozenBatchNorm2d(2).train()
    >>> norm(torch.full((1, 2, 1, 1), 5.0)).flatten().round().tolist(), norm.running_mean.tolist()
    ([5.0, 5.0], [0.0, 0.0])
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


@checked
class SeededDropout(nn.Module):
    """Dropout with its own random generator, whose state is part of `state_dict`. x [...] -> same shape.

    Args:
        p: probability that a value is dropped.
        generator: seeds the layer's own generator.

    >>> drop = SeededDropout(0.5, torch.Generator().manual_seed(0))
    >>> sorted(set(drop(torch.ones(1000)).tolist())), drop.eval()(torch.ones(2)).tolist()
    ([0.0, 2.0], [1.0, 1.0])
    """

    def __init__(self, p: Dropout, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.p = p
        self.generator = torch.Generator() if generator is None else fork(generator)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        # Drawn on the CPU, so that the masks are the same on every device.
        keep = torch.empty(x.shape).bernoulli_(1.0 - self.p, generator=self.generator)
        return x * keep.to(x) / (1.0 - self.p)

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())

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
    """The same x [N, C, H, W] with channels last in memory, the fastest layout for convolutions.

    >>> ChannelsLast()(torch.zeros(1, 3, 4, 4)).stride()
    (48, 1, 12, 3)
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)


class ImageInput(nn.Module):
    """Normalise raw images: (x - mean) / scale, with one number for all channels or one per channel.

    x [N, C, H, W] in 0..255, uint8 or float -> float [N, C, H, W], channels last.

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
    """Normalise images in 0..255 with ImageNet's mean and deviation of each channel.

    >>> imagenet_input().mean.flatten().round().tolist()
    [124.0, 116.0, 104.0]
    """
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return ImageInput([255 * value for value in mean], [255 * value for value in deviation])


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate in 0..1 computed from all channels' means. x [N, C, H, W] -> same shape.

    As in MobileNetV3 (figure 4): plain convolutions with biases, and a hard sigmoid as the gate.

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


# -- blocks of a convolutional network --------------------------------------------------------------------------------


class MakeConv(Protocol):
    """Creates a convolution: `PaddedConv2d`, `StandardizedConv2d` or `SameConv2d`."""

    def __call__(
        self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> nn.Module: ...


class Form(NamedTuple):
    """What the layers of a network are made of; frozen and plastic layers differ in it."""

    conv: MakeConv
    norm: Callable[[int], nn.Module]
    act: Callable[[], nn.Module]

    def conv_norm(
        self, in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True
    ) -> nn.Sequential:
        """Create a convolution and its norm, followed by the activation if `act`. [N, in, H, W] -> [N, out, H', W'].

        >>> form = Form(PaddedConv2d, nn.BatchNorm2d, nn.ReLU)
        >>> list(form.conv_norm(3, 8, kernel=3)._modules)
        ['conv', 'norm', 'act']
        """
        conv = self.conv(in_channels, out_channels, kernel=kernel, stride=stride, groups=groups)
        parts: OrderedDict[str, nn.Module] = OrderedDict(conv=conv, norm=self.norm(out_channels))
        if act:
            parts["act"] = self.act()
        return nn.Sequential(parts)


class InvertedResidual(nn.Module):
    """Expand with a 1x1 convolution, filter each channel, optionally squeeze and excite, and project with a 1x1.

    x [N, in, H, W] -> [N, out, ceil(H / stride), ceil(W / stride)]; x is added where the shapes agree. Nothing is
    expanded where `expanded` equals `in_channels`.

    >>> form = Form(SameConv2d, nn.BatchNorm2d, nn.ReLU6)
    >>> block = InvertedResidual(8, 24, 16, kernel=3, stride=2, squeezed=8, form=form)
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
        form: Form,
        squeezed: int | None = None,
    ) -> None:
        super().__init__()
        self.residual = stride == 1 and in_channels == out_channels
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        if expanded != in_channels:
            parts["expand"] = form.conv_norm(in_channels, expanded, kernel=1)
        parts["depthwise"] = form.conv_norm(expanded, expanded, kernel, stride, groups=expanded)
        if squeezed is not None:
            parts["excite"] = SqueezeExcitation(expanded, squeezed, form.act)
        parts["project"] = form.conv_norm(expanded, out_channels, kernel=1, act=False)
        self.branch = nn.Sequential(parts)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.branch(x)
        return x + out if self.residual else out


def split_body(
    body: nn.Sequential, frozen_layers: int, input: ImageInput, embedding: nn.Module | None = None
) -> tuple[nn.Sequential, nn.Sequential]:
    """Split the layers of a convolutional network into its frozen and its plastic part.

    Args:
        body: the layers, by name.
        frozen_layers: how many of them are frozen.
        input: comes before the first layer.
        embedding: comes last, after average pooling.

    >>> body = nn.Sequential(OrderedDict(a=nn.Conv2d(3, 4, 1), b=nn.Conv2d(4, 5, 1)))
    >>> [list(part._modules) for part in split_body(body, 1, imagenet_input())]
    [['input', 'a'], ['channels_last', 'b', 'pool']]
    """
    layers = list(body.named_children())
    last: list[tuple[str, nn.Module]] = [("pool", GlobalAveragePool())]
    last += [] if embedding is None else [("embedding", embedding)]
    frozen = OrderedDict([("input", input), *layers[:frozen_layers]])
    plastic = OrderedDict([("channels_last", ChannelsLast()), *layers[frozen_layers:], *last])
    return nn.Sequential(frozen), nn.Sequential(plastic)
