"""Codes of different lengths: encoded images or the paths of files, as objects in a column of their own.

A codec that is `ragged` encodes to an array [n] of `bytes` or `str` instead of a tensor.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def pack(codes: Array) -> dict[str, Array]:
    """Objects [n] as plain arrays, fit to be saved: all bytes in a row, where each code ends, and which are paths.

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
    """The objects [n] that `pack` was given."""
    raw, ends = np.asarray(packed["bytes"], np.uint8).tobytes(), np.asarray(packed["ends"]).tolist()
    codes = np.empty(len(ends), object)
    for i, (begin, end, path) in enumerate(zip([0, *ends], ends, np.asarray(packed["paths"]).tolist(), strict=False)):
        codes[i] = raw[begin:end].decode("utf-8", "surrogateescape") if path else raw[begin:end]
    return codes
