"""Randomness and initialisation: everything comes from a generator that is passed in, nothing from the global one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from graspcl.errors import GraspError

M = TypeVar("M", bound=nn.Module)


def fork(generator: torch.Generator) -> torch.Generator:
    """A new generator, seeded by one draw from `generator`; afterwards the two are independent.

    >>> a, b = (fork(torch.Generator().manual_seed(1)) for _ in range(2))
    >>> a.initial_seed() == b.initial_seed()
    True
    """
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return torch.Generator().manual_seed(int(seed))


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Fill every parameter of `module` in place.

    Weights of convolutions and linear layers are N(0, 2 / fan-in) (He et al. 2015), biases 0, norms 1 and 0.

    >>> layer = nn.utils.skip_init(nn.Linear, 200, 100)
    >>> initialise(layer, torch.Generator().manual_seed(0))
    >>> round(layer.weight.std().item(), 2), layer.bias.abs().max().item()
    (0.1, 0.0)
    """
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Conv2d | nn.Linear):
                fan_in = part.weight[0].numel()
                part.weight.normal_(0.0, math.sqrt(2.0 / fan_in), generator=generator)
                if part.bias is not None:
                    part.bias.zero_()
            elif isinstance(part, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
                part.reset_parameters()  # weight 1, bias 0; of BatchNorm also running mean 0 and variance 1
            elif next(part.parameters(recurse=False), None) is not None:
                raise GraspError(
                    f"no rule to initialise {type(part).__name__}; "
                    "known are Conv2d, Linear, BatchNorm2d, GroupNorm and LayerNorm and what derives from them"
                )


def build(factory: Callable[[], M], generator: torch.Generator) -> M:
    """The module that `factory` makes, initialised from `generator` alone.

    torch's layers draw from the global generator when they are constructed; on the meta device they have nothing to
    fill, so the global generator is neither used nor moved.

    >>> before = torch.get_rng_state()
    >>> layer = build(lambda: nn.Linear(4, 2), torch.Generator().manual_seed(0))
    >>> torch.equal(before, torch.get_rng_state())
    True
    """
    with torch.device("meta"):
        module = factory()
    module.to_empty(device="cpu")
    initialise(module, generator)
    return module
