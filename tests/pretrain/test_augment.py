"""Random views, colours and blur: what they do to each image, and what they leave alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from graspcl.pretrain.augment import random_blur, random_colours, random_views


def ramps(number: int, pixels: int = 32) -> torch.Tensor:
    """Images whose first channel is the column and whose second is the row: a view tells where it was cut."""
    line = torch.arange(pixels, dtype=torch.float32)
    one = torch.stack([line.expand(pixels, pixels), line[:, None].expand(pixels, pixels), torch.zeros(pixels, pixels)])
    return one.expand(number, 3, pixels, pixels)


def corners(views: torch.Tensor, pixels: int = 32) -> tuple[np.ndarray, ...]:
    """Left, right, top and bottom edges of each crop in pixels, from the ramps in it; mirrored ones run backwards."""
    size = views.shape[-1]
    x, y = views[:, 0, size // 2], views[:, 1, :, size // 2]
    edges = []
    for line in (x, y):
        # Inner points, since the border of the image is repeated beyond its centre of the outermost pixel.
        step = (line[:, 3 * size // 4] - line[:, size // 4]) / (3 * size // 4 - size // 4)
        begin = line[:, size // 4] - step * (size // 4 + 0.5) + 0.5
        edges += [begin, begin + step * size]
    return tuple(edge.numpy() for edge in edges)


def test_views_are_crops_of_the_asked_area_and_ratio_within_the_image() -> None:
    left, right, top, bottom = corners(random_views(ramps(2000), 24, np.random.default_rng(0), (0.2, 0.6), flip=0.0))
    width, height = right - left, bottom - top
    area, ratio = width * height / 32**2, width / height
    assert area.min() > 0.199 and area.max() < 0.601
    assert ratio.min() > 0.749 and ratio.max() < 1.334
    for low, high in ((left, right), (top, bottom)):
        assert low.min() > -1e-3 and high.max() < 32 + 1e-3
    assert abs(area.mean() - 0.4) < 0.01 and abs(np.log(ratio).mean()) < 0.01
    # Everywhere, not in the middle alone: the place is uniform in the room that is left.
    place = left / (32 - width)
    assert np.quantile(place, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.03)


def test_half_of_the_views_are_mirrored() -> None:
    left, right, top, bottom = corners(random_views(ramps(2000), 16, np.random.default_rng(1)))
    assert 0.46 < (right < left).mean() < 0.54
    assert (bottom > top).all()


def test_a_whole_view_is_the_image_itself() -> None:
    images = torch.randint(0, 256, (3, 3, 20, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    views = random_views(images, 20, np.random.default_rng(0), (1.0, 1.0), (1.0, 1.0), flip=0.0)
    torch.testing.assert_close(views, images.float(), rtol=0, atol=0.01)
    mirrored = random_views(images, 20, np.random.default_rng(0), (1.0, 1.0), (1.0, 1.0), flip=1.0)
    torch.testing.assert_close(mirrored, images.float().flip(-1), rtol=0, atol=0.01)


def test_wide_images_are_cut_too() -> None:
    views = random_views(torch.zeros(50, 3, 8, 64), 16, np.random.default_rng(0), (1.0, 1.0))
    assert views.shape == (50, 3, 16, 16)


def test_views_depend_on_the_generator_alone() -> None:
    images = ramps(4)
    state = torch.get_rng_state()
    first, again = (random_views(images, 16, np.random.default_rng(5)) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, random_views(images, 16, np.random.default_rng(6)))
    assert torch.equal(state, torch.get_rng_state())


def test_colours_without_strength_are_left_alone() -> None:
    images = 255 * torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    same = random_colours(images, np.random.default_rng(0), strength=0.0, jitter=1.0, grey=0.0)
    torch.testing.assert_close(same, images, rtol=1e-4, atol=0.01)
    plain = random_colours(images, np.random.default_rng(0), strength=1.0, jitter=0.0, grey=0.0)
    torch.testing.assert_close(plain, images, rtol=1e-4, atol=0.01)


def test_grey_is_the_brightness_in_all_channels() -> None:
    images = 255 * torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    grey = random_colours(images, np.random.default_rng(0), jitter=0.0, grey=1.0)
    luma = 0.299 * images[:, 0] + 0.587 * images[:, 1] + 0.114 * images[:, 2]
    for channel in range(3):
        torch.testing.assert_close(grey[:, channel], luma, rtol=1e-3, atol=0.1)


def test_every_image_has_colours_of_its_own_within_range() -> None:
    images = torch.tensor([200.0, 100.0, 50.0])[None, :, None, None].expand(100, 3, 4, 4)
    changed = random_colours(images, np.random.default_rng(0))
    assert len(torch.unique(changed[:, :, 0, 0].round(), dim=0)) > 60
    assert changed.min() >= 0 and changed.max() <= 255
    untouched = (changed - images).abs().amax((1, 2, 3)) < 0.1  # a fifth keeps its colours, of which a fifth is grey
    assert 8 < int(untouched.sum()) < 26


def test_blur_is_a_mean_of_neighbours() -> None:
    point = torch.zeros(40, 3, 112, 112)
    point[:, :, 56, 56] = 1.0
    blurred = random_blur(point, np.random.default_rng(0), 1.0)
    torch.testing.assert_close(blurred.sum((2, 3)), torch.ones(40, 3))
    spread = (blurred[:, 0] > 1e-3).sum((1, 2))
    assert spread.max() > 9 and spread.min() == 1
    torch.testing.assert_close(blurred, blurred.transpose(2, 3))  # round
    flat = torch.full((4, 3, 32, 32), 7.0)
    torch.testing.assert_close(random_blur(flat, np.random.default_rng(0), 1.0), flat)


def test_blur_of_some() -> None:
    images = torch.rand(200, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    changed = {
        p: (random_blur(images, np.random.default_rng(0), p) != images).any(-1).any(-1).any(-1) for p in (0.5, 1)
    }
    # A narrow Gaussian at 64 px changes nothing, so not all are changed even at 1.
    assert 0.4 < changed[0.5].sum() / changed[1].sum() < 0.6 and changed[1].sum() > 130
    assert torch.equal(random_blur(images, np.random.default_rng(0), 0.0), images)
