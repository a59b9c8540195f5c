"""One seed makes independent named generators; nothing in graspcl touches a global one.

The names are the places where chance enters a run: `stream` (order of arrival), `init` (weights), `buffer` (eviction),
`policy` (selection) and `loader` (order of batches). Changing what one of them consumes leaves the others as they were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


def generator(seed: int, name: str) -> np.random.Generator:
    """The numpy generator called `name` of a run with this seed.

    >>> bool(generator(0, "policy").random() == generator(0, "policy").random())
    True
    >>> bool(generator(0, "policy").random() == generator(0, "buffer").random())
    False
    """
    return np.random.default_rng([seed, *name.encode()])


def torch_generator(seed: int, name: str) -> torch.Generator:
    """The torch generator called `name` (on the CPU, so that a run is the same on every device)."""
    import torch

    return torch.Generator().manual_seed(int(generator(seed, name).integers(2**63)))


def rng_state(rng: np.random.Generator) -> dict[str, Any]:
    """A generator's state as plain numbers, fit for JSON.

    >>> rng = generator(0, "policy"); state = rng_state(rng); first = rng.random()
    >>> restore_rng(rng, state); bool(rng.random() == first)
    True
    """
    return dict(rng.bit_generator.state)


def restore_rng(rng: np.random.Generator, state: dict[str, Any]) -> None:
    """Put a generator back into a state taken by `rng_state`."""
    rng.bit_generator.state = state
