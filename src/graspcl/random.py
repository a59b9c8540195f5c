"""Independent named generators from one seed. Nothing in graspcl uses a global generator.

The names are the places where a run is random: `stream` (order of arrival), `init` (weights), `buffer` (eviction),
`policy` (selection) and `loader` (order of batches). Draws of one generator do not affect the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


def generator(seed: int, name: str) -> np.random.Generator:
    """Return the numpy generator `name` of a run with this seed.

    >>> bool(generator(0, "policy").random() == generator(0, "policy").random())
    True
    >>> bool(generator(0, "policy").random() == generator(0, "buffer").random())
    False
    """
    return np.random.default_rng([seed, *name.encode()])


def torch_generator(seed: int, name: str) -> torch.Generator:
    """Return the torch generator `name`, on the CPU, so that a run is the same on every device."""
    import torch

    return torch.Generator().manual_seed(int(generator(seed, name).integers(2**63)))


def rng_state(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a generator as plain numbers that fit into JSON.

    >>> rng = generator(0, "policy"); state = rng_state(rng); first = rng.random()
    >>> restore_rng(rng, state); bool(rng.random() == first)
    True
    """
    return dict(rng.bit_generator.state)


def restore_rng(rng: np.random.Generator, state: dict[str, Any]) -> None:
    """Restore the state of a generator from `rng_state`."""
    rng.bit_generator.state = state
