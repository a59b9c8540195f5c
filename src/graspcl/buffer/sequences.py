"""Codes of different lengths: sequences, cut where a text ends and padded again when fetched; and their states."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError

if TYPE_CHECKING:
    import torch

    from graspcl.codec import Codec

_OVERHEAD = sys.getsizeof(b"")  # bytes that Python adds to each cut code
_CHUNK = 256  # codes that are compared at a time


class Sequences:
    """Cuts codes of latents [n, C, L] before the locations at their end that equal a padded one.

    What is cut off is the padding's code, bit by bit, so `fill` returns exactly what `cut` was given.

    Args:
        codec: what made the codes; None if they are the latents.
        latent: the latent [C, 1] of a padded location.

    >>> import torch
    >>> sequences = Sequences(None, torch.tensor([[-4.0]]))
    >>> codes = np.array([[[1, 2, -4, -4]], [[3, -4, 5, -4]]], np.float32)
    >>> cut = sequences.cut(codes)
    >>> [len(code) for code in cut], sequences.fill(cut, (1, 4)).tolist() == codes.tolist()
    ([8, 12], True)
    """

    def __init__(self, codec: Codec | None, latent: torch.Tensor) -> None:
        if codec is not None and codec.ragged:
            raise GraspError(f"codec {type(codec).__name__} stores files, which have no padding; leave out `padding`")
        self._codec, self._latent = codec, latent.detach().cpu()
        self.padding: Array | None = None  # the code of a padded location [W]; encoded when it is first needed

    @property
    def nbytes(self) -> int:
        """Bytes of the padding's code, which is stored once."""
        return 0 if self.padding is None else self.padding.nbytes

    def cut(self, codes: Array) -> Array:
        """Return the bytes of each code [n] before its padding, location by location."""
        padding, found = self._encoded(), np.empty(len(codes), object)
        bits = f"u{padding.itemsize}"  # compare bits, not numbers: nothing that differs is lost
        places = np.moveaxis(codes, self._axis, 1)
        if math.prod(codes.shape[1:]) != places.shape[1] * len(padding):
            wanted = f"sequences with {len(padding)} numbers per location, as their padding has"
            raise GraspError(f"the buffer stores {wanted}, got codes of shape {codes.shape[1:]}")
        for begin in range(0, len(codes), _CHUNK):
            part = places[begin : begin + _CHUNK].reshape(-1, places.shape[1], len(padding))
            part = part.astype(padding.dtype, copy=False)
            real = (part.view(bits) != padding.view(bits)).any(2)
            lengths = (real * np.arange(1, real.shape[1] + 1)).max(1, initial=0)
            raw = part[_before(lengths, real.shape[1])].tobytes()
            ends = (np.cumsum(lengths) * padding.nbytes).tolist()
            found[begin : begin + _CHUNK] = [raw[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        return found

    def fill(self, codes: Array, shape: tuple[int, ...]) -> Array:
        """Return codes [n, …], each of `shape`, from bytes [n] of `cut`."""
        padding, number = self._encoded(), shape[self._axis]
        lengths = (self.lengths(codes) - _OVERHEAD) // padding.nbytes
        places = np.empty((len(codes), number, len(padding)), padding.dtype)
        places[:] = padding
        places[_before(lengths, number)] = np.frombuffer(b"".join(codes), padding.dtype).reshape(-1, len(padding))
        return np.moveaxis(places, 1, self._axis).reshape(len(codes), *shape)

    def lengths(self, codes: Array) -> Array:
        """Return the bytes [n] that cut codes [n] take in memory."""
        return np.fromiter(map(len, codes), np.int64, len(codes)) + _OVERHEAD

    @property
    def _axis(self) -> int:
        return -1 if self._codec is None else self._codec.locations

    def _encoded(self) -> Array:
        if self.padding is None:
            code: Any = self._latent[None] if self._codec is None else self._codec.encode(self._latent[None])
            self.padding = code.numpy().ravel()
        return self.padding


def is_cut(codes: Any) -> TypeGuard[Array]:
    """Whether codes are objects, as `Sequences.cut` returns."""
    return isinstance(codes, np.ndarray) and codes.dtype.hasobject


def _before(lengths: Array, number: int) -> Array:
    """Mark the first `lengths` [n] of `number` locations: bool [n, number]."""
    return np.asarray(np.arange(number) < lengths[:, None])


# -- codes of different lengths in states ------------------------------------------------------------------------------


def pack(codes: Array) -> dict[str, Array]:
    """Turn objects [n] into plain arrays that can be saved: all bytes, the end of each code, and which are paths.

    >>> codes = np.array([b"abc", "d.jpg"], dtype=object)
    >>> pack(codes)["ends"].tolist(), unpack(pack(codes)).tolist()
    ([3, 8], [b'abc', 'd.jpg'])
    """
    raw = [code if isinstance(code, bytes) else code.encode("utf-8", "surrogateescape") for code in codes]
    return {
        "bytes": np.frombuffer(b"".join(raw), np.uint8),
        "ends": np.cumsum([len(code) for code in raw], dtype=np.int64),
        "paths": np.array([isinstance(code, str) for code in codes], bool),
    }


def unpack(packed: dict[str, Any]) -> Array:
    """Return the objects [n] that were given to `pack`."""
    raw, ends = np.asarray(packed["bytes"], np.uint8).tobytes(), np.asarray(packed["ends"]).tolist()
    codes = np.empty(len(ends), object)
    for i, (begin, end, path) in enumerate(zip([0, *ends], ends, np.asarray(packed["paths"]).tolist(), strict=False)):
        codes[i] = raw[begin:end].decode("utf-8", "surrogateescape") if path else raw[begin:end]
    return codes
