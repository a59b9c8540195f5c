"""Random views of images: crops, flips, colours and blur, drawn per image and computed for the whole batch."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

# RGB to brightness and two axes of colour (YIQ): rotating those two changes only the hue.
_YIQ = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))


def random_views(
    images: Tensor,
    size: int,
    rng: np.random.Generator,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
) -> Tensor:
    """Return a random crop of each image, resized and possibly mirrored: float [n, 3, size, size] in 0..255.

    Images are [n, 3, H, W] in 0..255, uint8 or float. A crop's share of the area is uniform in `scale`, its ratio of
    width to height log-uniform in `ratio`. `flip` is the probability of mirroring.

    >>> random_views(torch.zeros(4, 3, 32, 32, dtype=torch.uint8), 16, np.random.default_rng(0)).shape
    torch.Size([4, 3, 16, 16])
    """
    number, _, height, width = images.shape
    # Widths and heights as shares of the image's: the first of ten draws that fits, else clipped.
    area = rng.uniform(*scale, (10, number))
    shape = np.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1]), (10, number)))
    w, h = np.sqrt(area * shape / (width / height)), np.sqrt(area / shape * (width / height))
    chosen = np.argmax((w <= 1) & (h <= 1), axis=0), np.arange(number)
    w, h = np.minimum(w[chosen], 1.0), np.minimum(h[chosen], 1.0)
    # A crop's centre, in -1..1 across the image; a negative width mirrors it.
    x, y = (1 - w) * rng.uniform(-1, 1, number), (1 - h) * rng.uniform(-1, 1, number)
    w = np.where(rng.random(number) < flip, -w, w)
    zero = np.zeros(number)
    theta = torch.from_numpy(np.stack([w, zero, x, zero, h, y], axis=1).reshape(number, 2, 3)).to(images.device)
    grid = F.affine_grid(theta.float(), [number, 3, size, size], align_corners=False)
    return F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)


def random_colours(
    images: Tensor, rng: np.random.Generator, strength: float = 1.0, jitter: float = 0.8, grey: float = 0.2
) -> Tensor:
    """Change brightness, contrast, saturation and hue of images at random (SimCLR's and SwAV's distortion).

    Images are float [n, 3, H, W] in 0..255. Factors lie in 1 ± 0.8·strength, and the hue turns by up to ± 0.2·strength
    of the circle. An image changes with probability `jitter`, and becomes grey with probability `grey`.

    >>> images = torch.full((2, 3, 4, 4), 100.0)
    >>> random_colours(images, np.random.default_rng(0), grey=0.0).std((2, 3)).max().item() < 1e-3
    True
    """
    number, bound = len(images), 0.8 * strength
    brightness, contrast, saturation = rng.uniform(max(0.0, 1 - bound), 1 + bound, (3, number))
    hue = rng.uniform(-0.2 * strength, 0.2 * strength, number) * 2 * math.pi
    plain, colourless = rng.random(number) >= jitter, rng.random(number) < grey
    hue = np.where(plain, 0.0, hue)
    brightness, contrast, saturation = (np.where(plain, 1.0, x) for x in (brightness, contrast, saturation))
    saturation = np.where(colourless, 0.0, saturation)
    yiq = torch.tensor(_YIQ, dtype=torch.float64)
    turn = torch.zeros(number, 3, 3, dtype=torch.float64)
    cos, sin = (torch.from_numpy(saturation * f(hue)) for f in (np.cos, np.sin))
    turn[:, 0, 0] = 1.0
    turn[:, 1, 1], turn[:, 1, 2], turn[:, 2, 1], turn[:, 2, 2] = cos, -sin, sin, cos
    factor = torch.from_numpy(brightness * contrast)[:, None, None]
    mix = (factor * (torch.linalg.inv(yiq) @ turn @ yiq)).to(images)
    # Contrast is relative to the mean brightness of the image.
    mean = torch.einsum("nchw,c->n", images, images.new_tensor(_YIQ[0])) / images[0, 0].numel()
    offset = torch.from_numpy(brightness * (1 - contrast)).to(images) * mean
    return (torch.einsum("nchw,ndc->ndhw", images, mix) + offset[:, None, None, None]).clamp(0, 255)


def random_blur(images: Tensor, rng: np.random.Generator, probability: float = 0.5) -> Tensor:
    """Blur each image, float [n, 3, H, W], with this probability, by a Gaussian of σ in 0.1..2 pixels of 224 (SwAV).

    >>> images = torch.eye(64).expand(8, 3, 64, 64)
    >>> bool(random_blur(images, np.random.default_rng(0), 1.0).std() < images.std())
    True
    """
    chosen = np.flatnonzero(rng.random(len(images)) < probability)
    number, (height, width) = len(chosen), images.shape[2:]
    if not number:
        return images
    scale = min(height, width) / 224
    reach = max(1, math.ceil(2 * 2.0 * scale))  # two times the largest σ
    sigma = torch.from_numpy(rng.uniform(0.1, 2.0, number) * scale).to(images)
    steps = torch.arange(-reach, reach + 1).to(images)
    kernel = F.normalize(torch.exp(-0.5 * (steps / sigma[:, None]) ** 2), p=1.0, dim=1).repeat_interleave(3, 0)
    # All images as channels of one, so that each has its own kernel; first vertically, then horizontally.
    at = torch.from_numpy(chosen).to(images.device)
    stacked = F.pad(images[at], (reach,) * 4, mode="replicate").reshape(1, 3 * number, height + 2 * reach, -1)
    stacked = F.conv2d(stacked, kernel[:, None, :, None], groups=3 * number)
    stacked = F.conv2d(stacked, kernel[:, None, None, :], groups=3 * number)
    return images.index_copy(0, at, stacked.reshape(number, 3, height, width))
