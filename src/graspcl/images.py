"""The one decoder of images: encoded bytes or a file in, a square of RGB pixels out."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from graspcl.errors import GraspError, require
from graspcl.machine import cores

Stored = bytes | str | Path
Source = Stored | Callable[[], Stored]
Pixels = NDArray[np.uint8]
Outcome = TypeVar("Outcome")

_MARGIN = 256 / 224  # the shorter side before the centre crop, as a multiple of the crop (reference: 256, then 224)


def decode_image(source: Source, pixels: int, name: str = "") -> Pixels:
    """The image in `source` (its encoded bytes, its path, or a function that opens it, which then happens in the thread
    that decodes) as RGB uint8 [pixels, pixels, 3].

    The shorter side is brought to 256/224 · `pixels` and the middle `pixels` x `pixels` are kept. An image is never
    enlarged for the sake of that margin: where its shorter side is smaller, less is cut off, and only an image smaller
    than `pixels` grows. Greyscale, CMYK, palette and 16-bit images become RGB; transparency and EXIF rotation are
    ignored. An unreadable image is an error that calls it `name`, by default its path.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("L", (300, 200), 7).save(file, "PNG")
    >>> decode_image(file.getvalue(), 64).shape
    (64, 64, 3)
    """
    (image,) = decode_images([source], pixels, names=[name])
    return np.asarray(image)


def decode_images(
    sources: Sequence[Source],
    pixels: int,
    threads: int | None = None,
    names: Sequence[str] | None = None,
    whole: bool = False,
) -> Pixels:
    """n images as RGB uint8 [n, pixels, pixels, 3], decoded like `decode_image` in `threads` threads (None: all cores).

    With `whole` all of the shorter side is kept, without a margin.

    >>> decode_images([], 32).shape
    (0, 32, 32, 3)
    """
    return _each(partial(_decode, whole=whole), sources, pixels, threads, names)[0]


def decode_some(
    sources: Sequence[Source],
    pixels: int,
    threads: int | None = None,
    names: Sequence[str] | None = None,
    whole: bool = False,
) -> tuple[Pixels, NDArray[np.int64], list[str]]:
    """Like `decode_images`, but goes on at an unreadable image: those that can be read, which ones they are (positions
    in `sources`, ascending), and what is wrong with each of the others.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("L", (6, 6), 7).save(file, "PNG")
    >>> images, kept, problems = decode_some([b"text", file.getvalue()], 4, names=["a.png", "b.png"])
    >>> images.shape, kept.tolist(), problems
    ((1, 4, 4, 3), [1], ['a.png cannot be read: it is not an image'])
    """
    images, problems = _each(partial(_attempt, whole=whole), sources, pixels, threads, names)
    kept = np.array([place for place, problem in enumerate(problems) if problem is None], np.int64)
    some = images if len(kept) == len(images) else images[kept]
    return some, kept, [problem for problem in problems if problem is not None]


def _each(
    decode: Callable[[Source, str, Pixels], Outcome],
    sources: Sequence[Source],
    pixels: int,
    threads: int | None,
    names: Sequence[str] | None,
) -> tuple[Pixels, list[Outcome]]:
    """All images, and what `decode` returned for each."""
    require("PIL.Image", "images")
    if pixels < 1:
        raise GraspError(f"pixels must be at least 1, not {pixels}")
    images = np.empty((len(sources), pixels, pixels, 3), dtype=np.uint8)
    names = [""] * len(sources) if names is None else names
    workers = min(cores() if threads is None else max(1, threads), len(sources))
    if workers <= 1:
        return images, [decode(*work) for work in zip(sources, names, images, strict=True)]
    with ThreadPoolExecutor(workers) as pool:  # Pillow lets go of the interpreter while it decodes and resizes
        return images, list(pool.map(decode, sources, names, images))


def _attempt(source: Source, name: str, out: Pixels, whole: bool) -> str | None:
    """What is wrong with the image in `source`; None once it is written to `out`."""
    try:
        _decode(source, name, out, whole)
    except GraspError as error:
        return str(error)
    return None


def _decode(source: Source, name: str, out: Pixels, whole: bool) -> None:
    """Write the image in `source` to `out` [pixels, pixels, 3]."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    pixels = len(out)
    try:
        source = source() if callable(source) else source
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            if whole:
                image.draft("RGB", (pixels, pixels))
                out[:] = np.asarray(ImageOps.fit(_as_rgb(image), (pixels, pixels), Image.Resampling.BICUBIC))
                return
            shorter = min(image.size)
            target = min(max(shorter, pixels), round(_MARGIN * pixels))
            # A JPEG is decoded at half its size or less where that is still large enough.
            image.draft("RGB", (image.width * target // shorter, image.height * target // shorter))
            side = min(image.size) * pixels / target  # of the square that is kept
            left, top = (image.width - side) / 2, (image.height - side) / 2
            if side == pixels:  # nothing is resized: whole pixels
                left, top = left // 1, top // 1
            box = (left, top, left + side, top + side)
            out[:] = np.asarray(_as_rgb(image).resize((pixels, pixels), Image.Resampling.BILINEAR, box=box))
    except GraspError:  # from the function that opens it, and says what is wrong
        raise
    except Exception as error:  # a damaged file makes Pillow's readers raise errors of many kinds
        if not name:
            what = f"an image of {len(source)} bytes" if isinstance(source, bytes) else str(source)
            name = "an image" if callable(source) else what
        plain = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = "it is not an image" if isinstance(error, UnidentifiedImageError) else plain or type(error).__name__
        raise GraspError(f"{name} cannot be read: {reason}") from error


def thumbnail(image: Pixels, most: int) -> str:
    """An RGB image, uint8 [H, W, 3], as a data: address of a JPEG of at most `most` pixels a side.

    >>> thumbnail(np.zeros((100, 100, 3), np.uint8), 72)[:23]
    'data:image/jpeg;base64,'
    """
    small = require("PIL.Image", "images").fromarray(image)
    small.thumbnail((most, most))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=75, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _as_rgb(image: Any) -> Any:
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")
