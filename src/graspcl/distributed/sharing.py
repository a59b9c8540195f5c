"""One mini-batch on several ranks: each computes its share of the network's outputs, and all see all of them.

The rows of a batch are divided among the ranks. Each passes its share through the network, and the outputs are
gathered. So every rank has the outputs of the whole batch, and every loss is that of one process, whatever it compares
within the batch.

The backward pass goes through a rank's own rows alone, where its slope is multiplied by the number of ranks. The mean
of all ranks' gradients is then the gradient of one process:

- What a parameter does through the gathered outputs, each rank has its part of, times the number of ranks.
- What a parameter does behind them, in a loss with parameters of its own, each rank has completely.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch
from torch import nn

from graspcl.checks import Array
from graspcl.distributed.ranks import Ranks
from graspcl.distributed.shards import ShardedBuffer
from graspcl.learner import Learner
from graspcl.learner.peers import Peers
from graspcl.model import Outputs, SeededDropout, SplitNetwork


class SharedForward:
    """Divides the rows that a network is called with among the ranks, and gathers its outputs.

    Rows are divided in updates (train mode, with gradients) and in measurements (eval mode, without). A policy's own
    gradients (eval mode, with gradients) are computed by every rank, and so are fewer rows than ranks.
    """

    def __init__(self, ranks: Ranks, network: SplitNetwork) -> None:
        self.ranks = ranks
        self._counts: list[int] | None = None  # rows of each rank while a divided batch is in the network
        self._dropouts = [part for part in network.modules() if isinstance(part, SeededDropout)]
        network.register_forward_pre_hook(self._divide)
        network.register_forward_hook(self._gather)

    def _divide(self, network: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (inputs,), ranks = arguments, self.ranks
        divided = network.training == torch.is_grad_enabled() and len(inputs) >= ranks.world and not ranks.separate
        self._counts = ranks.share(len(inputs)) if divided else None
        rows = slice(0, len(inputs)) if self._counts is None else _own(self._counts, ranks.rank)
        for dropout in self._dropouts:
            dropout.rows = None if self._counts is None else (rows, len(inputs))
        return (inputs[rows],)

    def _gather(self, network: nn.Module, arguments: Any, outputs: Outputs) -> Outputs | None:
        counts, self._counts = self._counts, None
        if counts is None:
            return None
        rows = torch.cat(outputs, dim=1)
        whole: torch.Tensor = _Gathered.apply(rows, self.ranks, counts)  # type: ignore[no-untyped-call]
        return Outputs(*whole.split([part.shape[1] for part in outputs], dim=1))


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, ranks: Ranks, counts: list[int]) -> torch.Tensor:
        ctx.ranks, ctx.counts = ranks, counts
        return ranks.gather(rows, counts, "outputs")

    @staticmethod
    def backward(ctx: Any, slopes: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return slopes[_own(ctx.counts, ctx.ranks.rank)] * ctx.ranks.world, None, None


def _own(counts: list[int], rank: int) -> slice:
    begin = sum(counts[:rank])
    return slice(begin, begin + counts[rank])


class RankPeers(Peers):
    """The ranks that learn together, as a learner sees them."""

    def __init__(self, ranks: Ranks, learner: Learner) -> None:
        self.ranks, self.learner = ranks, learner
        self.first, self.number = ranks.rank == 0, ranks.world

    def part(self, slots: Array) -> Array:
        """Return those of `slots` [n] whose codes this rank holds; where every rank holds all, every R-th."""
        ranks, buffer = self.ranks, self.learner.buffer
        if isinstance(buffer, ShardedBuffer):
            return np.asarray(slots[buffer.holders(slots) == ranks.rank])
        return slots[ranks.rank :: ranks.world]

    def share(self, number: int) -> slice:
        return _own(self.ranks.share(number), self.ranks.rank)

    def apart(self) -> contextlib.AbstractContextManager[None]:
        return self.ranks.apart()

    def total(self, values: torch.Tensor) -> torch.Tensor:
        return self.ranks.add(values, "moments")


def average_gradients(learner: Learner, ranks: Ranks) -> None:
    """Replace the gradients of the plastic part by their mean over the ranks."""
    slopes = [value.grad for _, value in learner.network.plastic_parameters() if value.grad is not None]
    if ranks.world == 1 or not slopes:
        return
    flat = ranks.add(torch.cat([slope.reshape(-1) for slope in slopes]), "gradients") / ranks.world
    for slope, mean in zip(slopes, flat.split([slope.numel() for slope in slopes]), strict=True):
        slope.copy_(mean.view(slope.shape))
