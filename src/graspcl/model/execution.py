"""How a network is executed: device, precision and compilation."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from graspcl import machine
from graspcl.checks import checked
from graspcl.errors import GraspError
from graspcl.model.layers import ChannelsLast, ImageInput

M = TypeVar("M", bound=nn.Module)

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@checked
@dataclass(frozen=True)
class Execution:
    """Settings of how a network is executed. The defaults work everywhere.

    Args:
        precision: of matrix products and convolutions, "fp32", "bf16" or "fp16". Parameters, gradients and the
            optimiser stay in float32.
        compile: compile modules with torch.compile (`compiled`).
        device: torch's name of a device, or "auto": cuda if available, else cpu.
        channels_last: the memory layout of images.

    >>> execution = Execution(device="cpu").resolve()
    >>> layer, scaler = execution.prepare(nn.Linear(4, 2)), execution.scaler()
    >>> with execution.autocast():
    ...     loss = execution.compiled(layer)(torch.ones(3, 4)).square().mean()
    >>> scaler.scale(loss).backward()  # then scaler.step(optimizer) and scaler.update()
    >>> layer.weight.grad.dtype
    torch.float32
    """

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    compile: bool = False
    device: str = "auto"
    channels_last: bool = True

    def resolve(self) -> Execution:
        """Return these settings with a definite device; raises an error if they cannot work on this machine.

        Call it before any work is done. It tries out bf16 and compile if set, which takes seconds; later calls in the
        same process reuse the answer.
        """
        device = _choose(self.device)
        _check_device(device)
        kind = torch.device(device).type
        if self.precision == "fp16" and kind != "cuda":
            raise GraspError(
                "fp16 requires cuda, where torch scales losses so that small gradients do not vanish; "
                f"on {kind} use fp32 or bf16"
            )
        if self.precision == "bf16" and (reason := machine.can_bf16() if kind == "cpu" else _cannot_multiply(device)):
            raise GraspError(f"bf16 does not work on {device} here: {reason}; use fp32")
        if self.compile and (reason := _cannot_compile(device)):
            raise GraspError(
                f"torch.compile does not work on {device} here: {reason}. On a CPU it needs a C++ compiler "
                "(g++, or the one that CXX names) and Python's headers; install them, or turn compile off"
            )
        return replace(self, device=device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context for the forward pass and the loss, in which products and convolutions use `precision`."""
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self._device.type, dtype=_DTYPES[self.precision])

    def scaler(self) -> torch.amp.GradScaler:
        """Return a scaler that keeps small gradients from vanishing in fp16; in other precisions it does nothing."""
        kind = self._device.type
        return torch.amp.GradScaler(kind, enabled=self.precision == "fp16" and kind == "cuda")

    def prepare(self, network: M) -> M:
        """Move `network` to the device, and return it; parameters stay the same objects.

        `ImageInput` and `ChannelsLast` put channels last. Without `channels_last`, their outputs become contiguous.
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
        """Compile `module` if `compile` is set, and return it; results and state_dict stay the same.

        The first call in each mode (train or eval, with or without gradients) compiles, which takes minutes. The first
        call with another batch size compiles once more, for all sizes. Copies are not compiled. Pass a part whose
        parameters stay, such as `network.plastic`: a growing head would be compiled again for every new class.
        """
        module._compiled_call_impl = None  # of an earlier execution
        if self.compile:
            # Module.compile() would set the same, but it compiles each layer of nn.Sequential by itself, up to a limit
            # of eight. Shapes are not declared dynamic: that made training steps of MobileNetV3 twice as slow.
            module._compiled_call_impl = torch.compile(module.forward)
        return module

    @property
    def _device(self) -> torch.device:
        return torch.device(_choose(self.device))


def _contiguous(part: nn.Module, inputs: Any, x: Tensor) -> Tensor:
    return x.contiguous()


def _choose(device: str) -> str:
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def _check_device(device: str) -> None:
    if device.startswith("mps"):
        raise GraspError("mps has no float64, which sums of class means and distances need; use device cpu")
    if reason := _failure(lambda: torch.ones(2, device=device).sum().item()):
        raise GraspError(
            f"device {device!r} cannot be used here: {reason}; "
            f"device 'auto' chooses an available one, now {_choose('auto')!r}"
        )


def _cannot_multiply(device: str) -> str | None:
    ones = functools.partial(torch.ones, 2, 2, device=device, dtype=torch.bfloat16)
    return _failure(lambda: (ones() @ ones()).sum().item())


@functools.cache
def _cannot_compile(device: str) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # raised while the compiler is loaded
        return _failure(lambda: torch.compile(lambda x: x.sin() + 1)(torch.zeros(2, device=device)))


def _failure(attempt: Callable[[], Any]) -> str | None:
    """Return in one sentence why `attempt` fails; None if it works."""
    try:
        attempt()
    except Exception as error:  # torch raises many kinds
        # A line such as "backend='inductor' raised:" only announces the next one.
        lines = (line.strip() for line in str(error).splitlines() if line.strip() and not line.endswith(":"))
        return next(lines, type(error).__name__).split(". ")[0].rstrip(".")
    return None
