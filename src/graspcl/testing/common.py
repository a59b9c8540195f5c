"""Helpers that several contracts, and tests of your own parts, share: a toy network, a seeded generator, guards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn


def seeded(seed: int = 0) -> torch.Generator:
    """Return a torch generator with this seed.

    >>> bool(torch.rand(1, generator=seeded(3)) == torch.rand(1, generator=seeded(3)))
    True
    """
    return torch.Generator().manual_seed(seed)


class Outputs(NamedTuple):
    """What a network returns, and what a policy's `observe` receives."""

    embedding: torch.Tensor
    logits: torch.Tensor
    losses: torch.Tensor = torch.empty(0)


class ToyNetwork(nn.Module):
    """Two layers on vectors. Batch norm and dropout make train and eval mode differ, so that a forgotten mode shows.

    `passes` lists the number of samples of each forward pass.

    >>> ToyNetwork(4, classes=3)(torch.ones(2, 4)).logits.shape
    torch.Size([2, 3])
    """

    def __init__(self, inputs: int, classes: int, hidden: int = 8) -> None:
        super().__init__()
        generator = seeded()
        self.weight = nn.Parameter(torch.randn(inputs, hidden, generator=generator))
        self.norm, self.drop = nn.BatchNorm1d(hidden), nn.Dropout(0.5)
        self.head = nn.Parameter(torch.randn(hidden, classes, generator=generator))
        self.passes: list[int] = []

    def forward(self, inputs: torch.Tensor) -> Outputs:
        self.passes.append(len(inputs))
        embedding = self.drop(self.norm(inputs @ self.weight))
        return Outputs(embedding, embedding @ self.head)


@contextmanager
def contract(part: str) -> Iterator[None]:
    """Name the part in every failed assertion. Run torch on one thread: small tensors make threads wait for each other.

    >>> with contract("my codec"):
    ...     assert not "lossless", "loses something"
    Traceback (most recent call last):
        ...
    AssertionError: my codec: loses something
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{part}: {error}") from error
    finally:
        torch.set_num_threads(threads)


@contextmanager
def global_chance_untouched(name: str) -> Iterator[None]:
    """Assert that the code within does not use the global generators of Python, numpy and torch."""
    before = _global_chance()
    yield
    for which, now in _global_chance().items():
        assert same(before[which], now), f"{name} draws from {which}'s global generator"


def _global_chance() -> dict[str, Any]:
    return {"Python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}  # noqa: NPY002


def same(a: Any, b: Any) -> bool:
    """Compare dictionaries, sequences, arrays and tensors, nested in any way.

    >>> same({"a": [np.ones(2)]}, {"a": [np.ones(2)]}), same(torch.ones(1), torch.zeros(1))
    (True, False)
    """
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(value, b[name]) for name, value in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)
