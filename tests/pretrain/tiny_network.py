"""A network that is small enough to train in a test, and pictures that it can learn."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from graspcl.model import CosineHead, GlobalAveragePool, ImageInput, SeededDropout, SplitNetwork, build


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny(seed: int = 0, classes: int = 0, width: int = 8, split: int = 1, dropout: float = 0.1) -> SplitNetwork:
    """Four convolutions with BatchNorm, the first `split` + 1 of them frozen, called layer0..layer3."""
    generator = seeded(seed)
    sizes = (3, width, 2 * width, 4 * width, 4 * width)

    def body() -> nn.Sequential:
        layers = OrderedDict(
            (f"layer{i}", nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()))
            for i, (a, b) in enumerate(pairwise(sizes))
        )
        return nn.Sequential(layers)

    frozen, plastic = nn.Sequential(OrderedDict(input=ImageInput(127, 64))), nn.Sequential()
    for index, (name, layer) in enumerate(build(body, generator).named_children()):
        (frozen if index <= split else plastic).add_module(name, layer)
    plastic.add_module("pool", GlobalAveragePool())
    head = CosineHead(sizes[-1], classes, generator=generator, scale=8.0)
    return SplitNetwork(frozen, plastic, head, nn.Sequential(nn.ReLU(), SeededDropout(dropout, generator))).eval()


def stripes(number: int = 48, classes: int = 4, pixels: int = 16, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    """Noisy pictures uint8 [number, 3, pixels, pixels] whose class is the direction and width of their stripes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(number) % classes
    angle, wave = np.pi * labels / classes, 2 * np.pi / (4 + 2 * (labels % 2))
    y, x = np.mgrid[:pixels, :pixels]
    phase = np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y
    picture = np.sin(wave[:, None, None] * phase + rng.uniform(0, 6, number)[:, None, None])
    images = 127 + 90 * picture[:, None] + rng.normal(0, 15, (number, 3, pixels, pixels))
    return torch.from_numpy(images.clip(0, 255).astype(np.uint8)), labels


def same(a: nn.Module, b: nn.Module) -> bool:
    """Whether two modules have the same state, bit for bit."""
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
