"""Image files of noise, in folders and in zip files, sound and damaged."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("PIL", reason="needs graspcl[images]")
from PIL import Image

from graspcl.data import Samples


def noise(width: int, height: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(array: np.ndarray[Any, Any] | Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    (array if isinstance(array, Image.Image) else Image.fromarray(array)).save(file, kind)
    return file.getvalue()


def write(root: Path, names: list[str], size: tuple[int, int] = (20, 16)) -> Path:
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encoded(noise(*size, seed=number), "JPEG" if name.endswith("jpg") else "PNG"))
    return root


def pack(folder: Path, archive: Path, wrap: str = "") -> Path:
    with zipfile.ZipFile(archive, "w") as zipped:
        for file in sorted(folder.rglob("*")):
            zipped.write(file, wrap + str(file.relative_to(folder)))
    return archive


def stored(images: Samples[Any], indices: Any) -> list[bytes]:
    """The image files at `indices`, byte for byte."""
    return [code if isinstance(code, bytes) else Path(code).read_bytes() for code in images.encoded_some(indices)[0]]


def paths(images: Samples[Any], indices: Any) -> list[Path]:
    """The image files at `indices`."""
    return [Path(code) for code in images.encoded_some(indices)[0]]


def spoil(archive: Path, content: bytes) -> None:
    """Change a byte in the middle of the member with this content."""
    whole = archive.read_bytes()
    at = whole.index(content) + len(content) // 2
    archive.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])


# What happens to files, and the reason that is given.
DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut short": (lambda image: image[: len(image) // 2], "truncated"),
    "without a byte": (lambda image: b"", "it is not an image"),
    "a text": (lambda image: b"404: not found\n", "it is not an image"),
}
