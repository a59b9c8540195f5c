"""Images as files: encoded bytes or paths, decoded when they are fetched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from graspcl.checks import Array, Side, checked
from graspcl.codec.codec import Codec, codecs
from graspcl.errors import GraspError
from graspcl.images import decode_images


@codecs.register("encoded")
@checked
@dataclass
class Encoded(Codec):
    """Stores the JPEG or PNG bytes of an image, or the path of its file, for veridical rehearsal.

    Images are decoded when they are rehearsed, to RGB uint8 [n, 3, pixels, pixels]. The bytes of the file count against
    the buffer's capacity, also for a path.

    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (8, 6), "red").save(file, "PNG")
    >>> codec = Encoded(pixels=4)
    >>> codes = codec.encode([file.getvalue()])
    >>> codec.decode(codes)[0, :, 0, 0].tolist(), int(codec.lengths(codes)[0]) == len(file.getvalue())
    ([255, 0, 0], True)
    """

    pixels: Side = 224
    whole: bool = False  # keep the whole shorter side, without a margin
    ragged = True

    def encode(self, inputs: Sequence[bytes | str | Path] | Array) -> Array:
        """Return bytes unmodified and paths as absolute ones [n]."""
        codes = np.empty(len(inputs), object)
        for i, image in enumerate(inputs):
            if not isinstance(image, bytes | str | Path):
                kind = f"got {type(image).__name__} as input {i} (use the codec 'identity' for tensors)"
                raise GraspError(f"the codec 'encoded' takes the bytes or the path of an image file, {kind}")
            codes[i] = image if isinstance(image, bytes) else os.path.abspath(image)
        return codes

    def decode(self, codes: Array) -> torch.Tensor:
        images = decode_images(codes.tolist(), self.pixels, whole=self.whole)
        return torch.from_numpy(images).permute(0, 3, 1, 2)

    def lengths(self, codes: Array) -> Array:
        return np.array([_length(code) for code in codes], np.int64)


def _length(code: bytes | str) -> int:
    if isinstance(code, bytes):
        return len(code)
    try:
        return os.stat(code).st_size
    except OSError as error:
        raise GraspError(f"the image {code} cannot be read: {error.strerror}; nothing was stored") from error
