"""Stages of base initialisation: what happens to a network before the stream, each with settings of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch

from graspcl.checks import Count, Natural, NonNegative, Positive, Range, checked
from graspcl.errors import GraspError
from graspcl.registry import Registry

if TYPE_CHECKING:
    from graspcl.pretrain.trainer import Trainer

stages: Registry[Any] = Registry("stage", "graspcl.pretrain")
"""Stages by name. A stage that trains is a subclass of `Settings`."""

Part = Literal["all", "plastic"]
_TRUST = 1e-3  # LARS: length of a step relative to that of the weights


@stages.register("weights")
@checked
@dataclass(frozen=True)
class WeightsStage:
    """Load weights: a file of `graspcl pretrain`, another safetensors file, or a state dict saved by torch.

    With `preset` instead of `file`, the base of that preset is trained first, on the images of `base.data`.
    """

    file: str | None = None
    preset: str | None = None
    scale: Literal["full", "small", "smoke"] = "full"  # of the preset
    seen: Literal["refuse", "report"] = "refuse"  # if the weights were trained on classes of the stream

    def __post_init__(self) -> None:
        if (self.file is None) == (self.preset is None):
            raise GraspError("base.stages: weights needs a file or a preset: set --base.stages 'weights(file=FILE)'")

    @property
    def idle(self) -> dict[str, str]:
        """Return settings that have no effect given the others, with the reason."""
        return because(("scale", self.preset is None, "it is the scale of a preset"))


@checked
@dataclass(frozen=True)
class Settings:
    """Settings of every stage that trains."""

    name: ClassVar[str]  # in `stages`
    labelled: ClassVar[bool] = False  # whether the head learns the base classes
    epochs: Count = 50  # passes over the samples
    batch_size: Annotated[int, Range(2)] = 256  # images per update
    optimiser: Literal["sgd", "adamw", "lars"] = "sgd"
    lr: Positive = 0.2  # the highest rate
    momentum: Annotated[float, Range(0, 1, below=True)] = 0.9
    weight_decay: NonNegative = 1e-5
    schedule: Literal["steps", "onecycle", "cosine"] = "steps"
    step: Count = 15  # steps: epochs after which the rate is multiplied by gamma
    gamma: Annotated[float, Range(0, 1, above=True)] = 0.1
    warmup: Natural = 0  # cosine: epochs over which the rate rises first
    final_lr: NonNegative = 0.0  # cosine: the rate at the end
    part: Part = "all"  # what learns

    def __post_init__(self) -> None:
        if self.warmup >= self.epochs:
            raise GraspError(f"warmup must be shorter than the {self.epochs} epochs, got {self.warmup}")

    def trainer(self) -> type[Trainer[Any]]:
        """Return the class that trains with these settings."""
        raise GraspError(f"stage {type(self).__name__} must define trainer()")

    @property
    def idle(self) -> dict[str, str]:
        """Return settings that have no effect given the others, with the reason."""
        return because(
            ("momentum", self.optimiser == "adamw", "AdamW has none"),
            ("step gamma", self.schedule != "steps", f"the schedule is {self.schedule}, not steps"),
            ("warmup final_lr", self.schedule != "cosine", f"the schedule is {self.schedule}, not cosine"),
        )

    def rate(self, epoch: float) -> float:
        """Return the learning rate after `epoch` epochs.

        >>> settings = Settings(epochs=10, lr=1.0, schedule="onecycle")
        >>> [round(settings.rate(epoch), 3) for epoch in (0, 3, 10)]
        [0.04, 1.0, 0.0]
        """
        if self.schedule == "steps":
            return self.lr * self.gamma ** (int(epoch) // self.step)
        if self.schedule == "onecycle":  # as torch's OneCycleLR: up over 30 % of the time, then down
            start, end, peak = self.lr / 25, self.lr / 25e4, 0.3 * self.epochs
            if epoch < peak:
                return _between(start, self.lr, epoch / peak)
            return _between(self.lr, end, (epoch - peak) / (self.epochs - peak))
        if epoch < self.warmup:
            return self.lr * epoch / self.warmup
        return _between(self.lr, self.final_lr, (epoch - self.warmup) / (self.epochs - self.warmup))

    def optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Create the optimiser of `parameters`."""
        if self.optimiser == "adamw":
            return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)
        kind = Lars if self.optimiser == "lars" else torch.optim.SGD
        return kind(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)


def check_shares(**shares: tuple[float, float]) -> None:
    """Refuse shares of an area, each (least, largest), of which the least is above the largest."""
    for name, (least, largest) in shares.items():
        if least > largest:
            raise GraspError(f"{name} must be the least and the largest share, in this order, got ({least}, {largest})")


def because(*rows: tuple[str, bool, str]) -> dict[str, str]:
    """Return the reason for each name in the rows (names, whether they are idle, reason) that apply."""
    return {name: reason for names, idle, reason in rows if idle for name in names.split()}


def _between(start: float, end: float, done: float) -> float:
    """Go from `start` to `end` along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2


class Lars(torch.optim.SGD):
    """SGD that scales the gradient of each tensor to the length of its weights (You et al. 2017).

    The gradient with weight decay, g + λw, is multiplied by 0.001·|w| / (|g| + λ|w|), as in the training of SwAV.
    A tensor whose weights or whose gradient are all zero is updated with its gradient alone: without λw and factor.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Apply one update."""
        decays = [group["weight_decay"] for group in self.param_groups]
        try:
            for group in self.param_groups:
                _scale([one for one in group["params"] if one.grad is not None], group["weight_decay"])
                group["weight_decay"] = 0.0  # it is part of the gradient now
            return super().step(closure)
        finally:
            for group, decay in zip(self.param_groups, decays, strict=True):
                group["weight_decay"] = decay


def _scale(weights: list[Any], decay: float) -> None:
    """Turn the gradients of `weights` into those of `Lars`."""
    if not weights:
        return
    gradients = [one.grad for one in weights]
    sizes, lengths = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(gradients))
    factors = torch.where(sizes > 0, _TRUST * sizes / (lengths + decay * sizes), 1.0)
    factors = torch.where(lengths > 0, factors, 0.0)  # a gradient of 0 stays 0
    torch._foreach_add_(gradients, weights, alpha=decay)
    torch._foreach_mul_(gradients, list(factors.unbind()))
