"""Twelve augmentations of images, for policies that ask how the network's answer changes with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample


def image_view(images: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Return one of twelve views of images, uint8 [n, C, H, W]; after the twelfth they start again.

    1-4. a black square of 8, 16, 24 or 32 pixels a side, at a random place of each image
    5-6. mirrored from left to right, or upside down
    7-8. rotated by a random angle of up to 45 or 90 degrees, to either side
    9-12. inverted, or inverted where a value is at least 128, 64 or 32 (solarised)

    These are the views "vr" of the program of Bang et al., which mirrors only half of the images, by chance.

    >>> image_view(torch.tensor([[[[0, 50, 200]]]], dtype=torch.uint8), 9, torch.Generator()).tolist()
    [[[[0, 50, 55]]]]
    """
    return _VIEWS[number % len(_VIEWS)](images, generator)


def cut_out(images: Tensor, generator: torch.Generator, size: int) -> Tensor:
    """Blacken a square around a random pixel of each image; the image's border cuts it off."""

    def inside(length: int) -> Tensor:
        centre = torch.randint(length, (len(images), 1), generator=generator)
        offset = torch.arange(length) - (centre - size // 2)
        return ((offset >= 0) & (offset < size)).to(images.device)

    rows, columns = inside(images.shape[2]), inside(images.shape[3])
    return images.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate each image counter-clockwise about its centre by `degrees` [n]; what comes in from outside is black."""
    height, width = images.shape[2:]
    cos, sin, zero = torch.cos(torch.deg2rad(degrees)), torch.sin(torch.deg2rad(degrees)), torch.zeros_like(degrees)
    theta = torch.stack([cos, -sin * height / width, zero, sin * width / height, cos, zero], 1).view(-1, 2, 3)
    grid = affine_grid(theta.to(images.device), list(images.shape), align_corners=False)
    return grid_sample(images.float(), grid, mode="nearest", align_corners=False).to(images.dtype)


def _rotate_within(images: Tensor, generator: torch.Generator, most: float) -> Tensor:
    return rotate(images, most * (2 * torch.rand(len(images), generator=generator) - 1))


def _solarise(images: Tensor, generator: torch.Generator, threshold: int) -> Tensor:
    return torch.where(images >= threshold, 255 - images, images)


def _flip(images: Tensor, generator: torch.Generator, axis: int) -> Tensor:
    return images.flip(axis)


_VIEWS: list[Callable[[Tensor, torch.Generator], Tensor]] = [
    *(partial(cut_out, size=size) for size in (8, 16, 24, 32)),
    *(partial(_flip, axis=axis) for axis in (3, 2)),
    *(partial(_rotate_within, most=most) for most in (45, 90)),
    *(partial(_solarise, threshold=threshold) for threshold in (0, 128, 64, 32)),
]
