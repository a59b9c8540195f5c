"""The optimiser of a session: learning rates by layer, and their schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import nn

from graspcl.checks import Count, NonNegative, Positive, Range, checked

_FUSED = ("cpu", "cuda")  # where one kernel updates all of AdamW's numbers: a third of the time on CPUs


@checked
@dataclass(frozen=True)
class Optimiser:
    """Settings of a session's updates (Appendix B); the defaults are the paper's for latent rehearsal on ImageNet.

    >>> Optimiser("adam")
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: name must be 'sgd' or 'adamw', got 'adam'
    """

    name: Literal["sgd", "adamw"] = "sgd"
    lr: Positive = 1.6  # peak rate of the last layer
    momentum: Annotated[float, Range(0, 1, below=True)] = 0.9  # of SGD; the schedule does not cycle it
    weight_decay: NonNegative = 1e-5  # L2 penalty of SGD, decoupled for AdamW
    layer_decay: Annotated[float, Range(0, 1, above=True)] = 0.99  # a layer's rate, relative to the layer after it
    schedule: Literal["onecycle", "linear", "constant"] = "onecycle"  # over the whole session
    # updates over which a constant or linear rate first rises, at the start of each session; linear: a tenth by default
    warmup: Count | None = None

    def build(self, parameters: Sequence[tuple[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """Create the optimiser of named `parameters`, ordered from the first to the last layer."""
        layers: dict[str, list[nn.Parameter]] = {}  # parameters of one module, a weight and its bias, form a layer
        for name, parameter in parameters:
            layers.setdefault(name.rpartition(".")[0], []).append(parameter)
        groups = [
            {"params": layer, "lr": self.lr * self.layer_decay ** (len(layers) - 1 - depth)}
            for depth, layer in enumerate(layers.values())
        ]
        if self.name == "adamw":
            fused = all(value.device.type in _FUSED and value.is_floating_point() for _, value in parameters)
            return torch.optim.AdamW(groups, weight_decay=self.weight_decay, fused=fused or None)
        return torch.optim.SGD(groups, momentum=self.momentum, weight_decay=self.weight_decay)

    def scheduler(self, optimizer: torch.optim.Optimizer, updates: int) -> torch.optim.lr_scheduler.LRScheduler:
        """Create the learning-rate schedule of a session of `updates` steps."""
        # OneCycle needs at least four steps to rise and fall.
        if self.schedule == "linear":
            rise = self.warmup or max(1, round(updates / 10))
            fall = max(1, updates - rise)
            return torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: min((step + 1) / rise, max(0.0, (updates - step) / fall))
            )
        if self.schedule == "constant" or updates < 4:
            rise = self.warmup or 1
            return torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / rise, total_iters=rise)
        # A list, because a single max_lr would give every layer the same rate.
        rates = [group["lr"] for group in optimizer.param_groups]
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rates, total_steps=updates, cycle_momentum=False)
