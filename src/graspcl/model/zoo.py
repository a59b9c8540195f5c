"""Networks by name, so that settings can name one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from graspcl.errors import GraspError, nearest
from graspcl.model.efficientnet import efficientnet_lite0
from graspcl.model.mobilenet import mobilenet_v3_large
from graspcl.model.mobilevit import mobilevit_s
from graspcl.model.network import SplitNetwork
from graspcl.model.small import small_network, vector_network
from graspcl.model.timm import timm_network
from graspcl.model.transformer import transformer_network
from graspcl.registry import parameter_names

MakeNetwork = Callable[..., SplitNetwork]

NETWORKS: dict[str, MakeNetwork] = {
    "efficientnet_lite0": efficientnet_lite0,
    "mobilenet_v3_large": mobilenet_v3_large,
    "mobilevit_s": mobilevit_s,
    "small": small_network,
    "transformer": transformer_network,
    "vector": vector_network,
}
"""What `make_network` knows beside timm's networks; one's own function with `classes` and `generator` may be added."""


def make_network(name: str, classes: int = 0, *, generator: torch.Generator, **options: Any) -> SplitNetwork:
    """The network called `name` in `NETWORKS`, or `timm:NAME` for one of timm's, with the options of its function.

    An unknown name or option is an error that suggests the nearest valid one.

    >>> net = make_network("vector", classes=3, dim=8, generator=torch.Generator().manual_seed(0))
    >>> net(torch.zeros(2, 8)).logits.shape
    torch.Size([2, 3])
    >>> make_network("small", splt=2, generator=torch.Generator())
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: network 'small' has no option 'splt'; did you mean 'split'?
    """
    make = _find(name)
    valid = [option for option in parameter_names(make) if option not in ("classes", "generator")]
    for option in options:
        if option not in valid:
            raise GraspError(f"network {name!r} has no option {option!r}; {nearest(option, valid)}")
    try:
        return make(classes=classes, generator=generator, **options)
    except TypeError as error:
        raise GraspError(f"network {name!r} cannot be made: {error}; its options are {', '.join(valid)}") from error


def _find(name: str) -> MakeNetwork:
    kind, _, timm_name = name.partition(":")
    if kind == "timm" and timm_name:
        return partial(timm_network, timm_name)
    if name not in NETWORKS:
        raise GraspError(f"there is no network called {name!r}; {nearest(name, [*NETWORKS, 'timm:NAME'])}")
    return NETWORKS[name]
