"""How a network is executed: on which device, in which precision, compiled or not."""

from __future__ import annotations

import functools
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from graspcl import machine
from graspcl.errors import GraspError, nearest
from graspcl.model.layers import ChannelsLast, ImageInput

Precision = Literal["fp32", "bf16", "fp16"]
M = TypeVar("M", bound=nn.Module)

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Execution:
    """Settings of how a network is executed. The defaults change nothing but the device, and run everywhere.

    `precision` is that of products and convolutions; parameters, their gradients and the optimiser stay in float32.
    `compile` lets torch.compile translate what `compiled` is given. `device` is torch's name of one, or "auto": cuda
    where there is one, else cpu. `channels_last` is the layout of images in memory.

    >>> execution = Execution(device="cpu").resolve()
    >>> layer, scaler = execution.prepare(nn.Linear(4, 2)), execution.scaler()
    >>> with execution.autocast():
    ...     loss = execution.compiled(layer)(torch.ones(3, 4)).square().mean()
    >>> scaler.scale(loss).backward()  # then scaler.step(optimizer) and scaler.update()
    >>> layer.weight.grad.dtype
    torch.float32
    """

    precision: Precision = "fp32"
    compile: bool = False
    device: str = "auto"
    channels_last: bool = True

    def __post_init__(self) -> None:
        if self.precision not in _DTYPES:
            raise GraspError(f"precision {self.precision!r} is unknown; {nearest(self.precision, get_args(Precision))}")

    def resolve(self) -> Execution:
        """The same with the device that "auto" stands for; refused with the reason if it cannot work on this machine.

        Call it before any work is done. Where bf16 or compile is asked for it tries them, which takes seconds; later
        calls in the same process remember the answer.

        >>> Execution(device="cpu", precision="fp16").resolve()
        Traceback (most recent call last):
        graspcl.errors.GraspError: fp16 is for cuda, where torch scales losses so that small gradients do not \
vanish; on cpu use fp32 or bf16
        """
        resolved = replace(self, device=_choose(self.device))
        _check_device(resolved.device)
        _check_precision(resolved.precision, resolved.device)
        if self.compile and (reason := _cannot_compile(resolved.device)):
            raise GraspError(
                f"torch.compile does not work on {resolved.device} here: {reason}. On a CPU it needs a C++ compiler "
                "(g++, or the one that CXX names) and Python's headers; install them, or do without compile"
            )
        return resolved

    def autocast(self) -> AbstractContextManager[Any]:
        """A context for the forward pass and the loss, in which products and convolutions have the precision."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self._device.type, dtype=_DTYPES[self.precision])

    def scaler(self) -> torch.amp.GradScaler:
        """What scales losses so that gradients in fp16 do not vanish; in other precisions it passes all through."""
        kind = self._device.type
        return torch.amp.GradScaler(kind, enabled=self.precision == "fp16" and kind == "cuda")

    def prepare(self, network: M) -> M:
        """`network` itself, moved to the device; parameters stay the same objects.

        The layers `ImageInput` and `ChannelsLast` put channels last already; without `channels_last` what they give is
        made contiguous again.
        """
        network.to(self._device)
        for part in network.modules():
            if isinstance(part, ChannelsLast | ImageInput):
                for number in [n for n, hook in part._forward_hooks.items() if hook is _contiguous]:
                    del part._forward_hooks[number]  # of an earlier execution
                if not self.channels_last:
                    part.register_forward_hook(_contiguous)
        return network

    def compiled(self, module: M) -> M:
        """`module` itself; if `compile` is set, calls of it run compiled code from now on, with the same results.

        Its state_dict stays as it is, and a copy of it is not compiled. The first call in each mode (train or eval,
        with gradients or without) compiles, for minutes; the first of another batch size does so once more, and then
        for all sizes. Give it a part whose parameters stay, such as `network.plastic`: a head that grows would be
        compiled anew at every new class.
        """
        module._compiled_call_impl = None  # of an earlier execution
        if self.compile:
            # What Module.compile() sets; but that leaves out the frame of nn.Sequential and compiles each of its layers
            # by itself, up to the limit of eight, after which the rest stays uncompiled. Shapes are left to be found
            # out: with dynamic=True training steps of MobileNetV3 came out twice as slow as uncompiled.
            module._compiled_call_impl = torch.compile(module.forward)
        return module

    @property
    def _device(self) -> torch.device:
        return torch.device(_choose(self.device))


def _contiguous(part: nn.Module, inputs: Any, x: Tensor) -> Tensor:
    return x.contiguous()


def _choose(device: str) -> str:
    if device != "auto":
        return device
    if torch.cuda.is_available():
        return "cuda"
    return "cpu"


def _check_device(device: str) -> None:
    if device.startswith("mps"):
        raise GraspError("mps has no float64, in which class means and distances are summed up; use device cpu")
    try:
        torch.ones(2, device=device).sum().item()
    # torch says by all of these that a device is not known, not built in or not there.
    except (RuntimeError, AssertionError, ImportError) as error:
        raise GraspError(
            f"device {device!r} cannot be used here: {_first_sentence(error)}; "
            f"device 'auto' takes what is there, now {_choose('auto')!r}"
        ) from error


def _check_precision(precision: Precision, device: str) -> None:
    kind = torch.device(device).type
    if precision == "fp16" and kind != "cuda":
        raise GraspError(
            "fp16 is for cuda, where torch scales losses so that small gradients do not vanish; "
            f"on {kind} use fp32 or bf16"
        )
    if precision == "bf16" and (reason := machine.can_bf16() if kind == "cpu" else _cannot_multiply(device)):
        raise GraspError(f"bf16 does not work on {device} here: {reason}; use fp32")


def _cannot_multiply(device: str) -> str | None:
    ones = functools.partial(torch.ones, 2, 2, device=device, dtype=torch.bfloat16)
    try:
        (ones() @ ones()).sum().item()
    except (RuntimeError, TypeError) as error:
        return _first_sentence(error)
    return None


@functools.cache
def _cannot_compile(device: str) -> str | None:
    """Why torch.compile does not work, found by compiling a line of code; None if it does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler's own parts, when they are loaded
            torch.compile(lambda x: x.sin() + 1)(torch.zeros(2, device=device))
    except Exception as error:  # the compiler, the loader and the many layers between raise what they like
        return _first_sentence(error)
    return None


def _first_sentence(error: Exception) -> str:
    # A line such as "backend='inductor' raised:" only announces what is said in the next.
    lines = (line.strip() for line in str(error).splitlines() if line.strip() and not line.endswith(":"))
    return next(lines, type(error).__name__).split(". ")[0].rstrip(".")
