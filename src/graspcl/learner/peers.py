"""The processes that learn together, as a learner sees them: what it sums over samples, each computes of its part."""

from __future__ import annotations

import contextlib

from torch import Tensor

from graspcl.checks import Array


class Peers:
    """The processes that learn together; here this one is alone, and does everything.

    Statistics are sums over samples. Each process computes them of its part, and `total` adds them up. What all
    processes know already must count once: it is the first one's.

    >>> import numpy as np, torch
    >>> Peers().part(np.arange(3)).tolist(), Peers().total(torch.ones(2)).tolist()
    ([0, 1, 2], [1.0, 1.0])
    """

    first, number = True, 1  # whether this is the first of the processes, and how many there are

    def part(self, slots: Array) -> Array:
        """Return those of the stored samples in `slots` [n] that this process computes."""
        return slots

    def share(self, number: int) -> slice:
        """Return which of `number` new samples this process computes."""
        return slice(0, number)

    def apart(self) -> contextlib.AbstractContextManager[None]:
        """Let this process compute by itself: nothing within waits for the others."""
        return contextlib.nullcontext()

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over the processes."""
        return values
