"""Latents in one byte per number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from graspcl.codec.codec import Codec, codecs
from graspcl.errors import GraspError

_MARGIN = 0.2


@codecs.register("int8")
@dataclass
class Int8(Codec):
    """Stores one byte per number: 256 steps over the range of each channel.

    `fit` finds the ranges on base latents [n, C, …] and widens them by a fifth on both sides, since later samples may
    exceed them. Numbers beyond that become the nearest one within.

    >>> codec = Int8().fit(torch.tensor([[0.0, -1.0], [100.0, 1.0]]))
    >>> codec.decode(codec.encode(torch.tensor([[10.0, 7.0]]))).round(decimals=1)
    tensor([[10.2000,  1.4000]])
    """

    error = "1/360 of the range of a channel"
    _low: torch.Tensor | None = field(default=None, init=False, repr=False)  # [C]
    _step: torch.Tensor | None = field(default=None, init=False, repr=False)  # [C]

    @property
    def nbytes(self) -> int:
        return sum(table.numel() * table.element_size() for table in self.state_dict().values())

    def fit(self, inputs: torch.Tensor) -> Int8:
        channels = inputs.detach().float().cpu().movedim(1, -1).flatten(0, -2)
        low, high = channels.amin(0), channels.amax(0)
        self._low, self._step = low - _MARGIN * (high - low), (1 + 2 * _MARGIN) * (high - low) / 255
        return self

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        low, step = self._tables(inputs)
        steps = (inputs.detach().float() - low) / step.clamp_min(torch.finfo(torch.float32).tiny)
        return steps.round().clamp(0, 255).byte().cpu()

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        low, step = self._tables(codes)
        return codes.float() * step + low

    def state_dict(self) -> dict[str, Any]:
        return {} if self._low is None else {"low": self._low, "step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._low, self._step = torch.as_tensor(state["low"]), torch.as_tensor(state["step"])

    def _tables(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self._low is None or self._step is None:
            raise GraspError("this int8 codec is not trained: call fit(latents) on base latents first")
        if values.ndim < 2 or values.shape[1] != len(self._low):
            raise GraspError(f"this int8 codec was trained on {len(self._low)} channels, got {list(values.shape)}")
        shape = (-1, *[1] * (values.ndim - 2))
        return self._low.to(values.device).reshape(shape), self._step.to(values.device).reshape(shape)
