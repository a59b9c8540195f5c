"""How a session updates the plastic part: optimiser, layer-wise rates and schedule (Appendix B)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from graspcl.errors import GraspError

Named = Sequence[tuple[str, nn.Parameter]]


@dataclass(frozen=True)
class Optimiser:
    """Settings of a session's optimiser; the defaults are the paper's for latent rehearsal on ImageNet.

    `lr` is the peak rate of the last layer; each earlier layer has `layer_decay` times the rate of the one after it,
    over the whole OneCycle schedule. `momentum` is used as given: the schedule does not cycle it.
    """

    name: Literal["sgd", "adamw"] = "sgd"
    lr: float = 1.6
    momentum: float = 0.9
    weight_decay: float = 1e-5
    layer_decay: float = 0.99
    schedule: Literal["onecycle", "constant"] = "onecycle"

    def __post_init__(self) -> None:
        if not self.lr > 0 or not 0 < self.layer_decay <= 1:
            raise GraspError(f"lr must be above 0 and layer_decay in (0, 1], not {self.lr} and {self.layer_decay}")
        if not 0 <= self.momentum < 1 or not self.weight_decay >= 0:
            raise GraspError(
                f"momentum lies in [0, 1) and weight_decay is not negative, not {self.momentum}, {self.weight_decay}"
            )

    def build(self, parameters: Named) -> torch.optim.Optimizer:
        """The optimiser over `parameters`, given from first to last layer."""
        layers = _layers(parameters)
        groups = [
            {"params": layer, "lr": self.lr * self.layer_decay ** (len(layers) - 1 - depth)}
            for depth, layer in enumerate(layers)
        ]
        if self.name == "adamw":
            return torch.optim.AdamW(groups, weight_decay=self.weight_decay)
        return torch.optim.SGD(groups, momentum=self.momentum, weight_decay=self.weight_decay)

    def scheduler(self, optimizer: torch.optim.Optimizer, updates: int) -> torch.optim.lr_scheduler.LRScheduler:
        """The schedule of one session of `updates` steps."""
        # OneCycle has no shape below four steps: too few to rise and fall.
        if self.schedule == "constant" or updates < 4:
            return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        # A list, not a number: a single max_lr would give every layer the same rates.
        rates = [group["lr"] for group in optimizer.param_groups]
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rates, total_steps=updates, cycle_momentum=False)


def _layers(parameters: Named) -> list[list[nn.Parameter]]:
    """Parameters of one module (a weight and its bias) form one layer."""
    layers: dict[str, list[nn.Parameter]] = {}
    for name, parameter in parameters:
        layers.setdefault(name.rpartition(".")[0], []).append(parameter)
    return list(layers.values())
