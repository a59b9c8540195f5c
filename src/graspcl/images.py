"""The decoder of image files: turns encoded bytes or a file into a square of RGB pixels.

`FORMATS` alone are opened, whatever a file's name says: some of Pillow's other loaders start programs. The size in the
header decides whether an image is decoded at all (`graspcl.limits`).
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graspcl.checks import Side, checked
from graspcl.errors import GraspError, require
from graspcl.files import open_regular
from graspcl.limits import beyond
from graspcl.machine import cores

Stored = bytes | str | Path
Source = Stored | Callable[[], Stored]
Pixels = NDArray[np.uint8]

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
_LARGE = 16_000_000  # pixels; larger images are decoded one at a time, since each takes up to 13 bytes per pixel
_one_large = threading.Lock()
_SCAN = re.compile(rb"\xff\xda\x00[\x08\x0a\x0c\x0e]")  # begins each scan of a JPEG; the end is its length in bytes
_MARGIN = 256 / 224  # the shorter side before the centre crop, relative to the crop (reference: 256, then 224)


def decode_images(
    sources: Sequence[Source], pixels: int, names: Sequence[str] | None = None, whole: bool = False
) -> Pixels:
    """Decode n images to RGB uint8 [n, pixels, pixels, 3], and raise an error at the first unreadable one.

    The shorter side is resized to 256/224 · `pixels`, then the centre `pixels` x `pixels` is cropped. An image is never
    enlarged for that margin: if its shorter side is smaller, less is cropped, and only an image smaller than `pixels`
    is enlarged. Greyscale, CMYK, palette and 16-bit images become RGB. Transparency and EXIF rotation are ignored.

    Args:
        sources: encoded bytes, paths, or functions that return one of them. Threads call the functions and decode.
        pixels: height and width of the result.
        names: names of the images in error messages, by default their paths.
        whole: keep the whole shorter side, without a margin.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("L", (300, 200), 7).save(file, "PNG")
    >>> decode_images([file.getvalue()], 64).shape
    (1, 64, 64, 3)
    """
    images, _, problems = decode_some(sources, pixels, names, whole)
    if problems:
        raise GraspError(problems[0])
    return images


@checked
def decode_some(
    sources: Sequence[Source], pixels: Side, names: Sequence[str] | None = None, whole: bool = False
) -> tuple[Pixels, NDArray[np.int64], list[str]]:
    """Decode n images like `decode_images`, but skip unreadable ones.

    Returns:
        The readable images, their positions in `sources` (ascending), and a message for each of the others.

    >>> images, kept, problems = decode_some([b"text"], 4, names=["a.png"])
    >>> images.shape, kept.tolist(), problems
    ((0, 4, 4, 3), [], ['a.png cannot be read: it is not an image'])
    """
    require("PIL.Image", "images")
    images = np.empty((len(sources), pixels, pixels, 3), dtype=np.uint8)
    names = [""] * len(sources) if names is None else names
    decode = partial(_decode, whole=whole)
    if len(sources) > 1 and cores() > 1:
        with ThreadPoolExecutor(min(cores(), len(sources))) as pool:
            problems = list(pool.map(decode, sources, names, images))
    else:
        problems = list(map(decode, sources, names, images))
    kept = np.array([place for place, problem in enumerate(problems) if problem is None], np.int64)
    some = images if len(kept) == len(images) else images[kept]
    return some, kept, [problem for problem in problems if problem is not None]


def shorter_sides(stored: Sequence[Stored]) -> NDArray[np.int64]:
    """Return the shorter side in pixels of each image that can be opened; the images are not decoded.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("L", (300, 200)).save(file, "PNG")
    >>> shorter_sides([file.getvalue(), b"text"])
    array([200])
    """
    require("PIL.Image", "images")
    sides = []
    for source in stored:
        with contextlib.suppress(Exception), _opened(source) as image:  # the run reports what cannot be read
            sides.append(min(image.size))
    if not sides:
        raise GraspError("none of the images can be read")
    return np.array(sides, np.int64)


def thumbnail(image: Pixels, most: int) -> str:
    """Encode an RGB image, uint8 [H, W, 3], as a data: URL of a JPEG of at most `most` pixels a side.

    >>> thumbnail(np.zeros((100, 100, 3), np.uint8), 72)[:23]
    'data:image/jpeg;base64,'
    """
    small = require("PIL.Image", "images").fromarray(image)
    small.thumbnail((most, most))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=75, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def _decode(source: Source, name: str, out: Pixels, whole: bool) -> str | None:
    """Write the image to `out` [pixels, pixels, 3]. Return None, or what is wrong with the image."""
    from PIL import UnidentifiedImageError

    try:
        source = source() if callable(source) else source
        with _opened(source) as image:
            out[:] = _square(image, len(out), whole)
            return None
    except GraspError as error:  # raised by a source that is a function
        return str(error)
    except Exception as error:  # Pillow raises many kinds of errors for a damaged file
        plain = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        reason = "it is not an image" if isinstance(error, UnidentifiedImageError) else plain or type(error).__name__
        if not name:
            what = f"an image of {len(source)} bytes" if isinstance(source, bytes) else str(source)
            name = "an image" if callable(source) else what
        return f"{name} cannot be read: {reason}"


@contextlib.contextmanager
def _opened(source: Stored) -> Iterator[Any]:
    """Open an image of `FORMATS`; refuse a JPEG with too many scans. Each scan takes as long as decoding all pixels."""
    from PIL import Image

    file = io.BytesIO(source) if isinstance(source, bytes) else open_regular(source)
    with file, Image.open(file, formats=FORMATS) as image:
        if image.format in ("JPEG", "MPO"):
            place, scans = file.tell(), 0
            file.seek(0)
            while piece := file.read(2**20):  # a marker across two pieces is not counted
                scans += len(_SCAN.findall(piece))
            file.seek(place)
            if fault := beyond("scans", scans, "scans"):
                raise ValueError(fault)
        yield image


def margin(pixels: int) -> int:
    """Return the shorter side of an image before its centre `pixels` x `pixels` is cropped."""
    return round(_MARGIN * pixels)


def _square(image: Any, pixels: int, whole: bool) -> Pixels:
    """Decode an opened image, as large as needed, and return its centre [pixels, pixels, 3]."""
    from PIL import Image, ImageOps

    shorter, stored = min(image.size), image.width * image.height
    target = pixels if whole else min(max(shorter, pixels), margin(pixels))
    # Decode a JPEG at half its size or less if that is still large enough.
    image.draft("RGB", (pixels, pixels) if whole else tuple(side * target // shorter for side in image.size))
    # A progressive one takes memory for its full size all the same.
    decoded = stored if "progressive" in image.info else image.width * image.height
    if fault := beyond("pixels", decoded, "pixels"):
        raise ValueError(fault)
    with _one_large if decoded > _LARGE else contextlib.nullcontext():
        if whole:
            return np.asarray(ImageOps.fit(_as_rgb(image), (pixels, pixels), Image.Resampling.BICUBIC))
        side = min(image.size) * pixels / target  # of the square that is kept
        left, top = (image.width - side) / 2, (image.height - side) / 2
        if side == pixels:  # crop at whole pixels, since nothing is resized
            left, top = left // 1, top // 1
        box = (left, top, left + side, top + side)
        return np.asarray(_as_rgb(image).resize((pixels, pixels), Image.Resampling.BILINEAR, box=box))


def _as_rgb(image: Any) -> Any:
    from PIL import Image

    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")
