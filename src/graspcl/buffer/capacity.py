"""How much a buffer may hold: a number of samples, a number of bytes, or no bound."""

from __future__ import annotations

import re

import numpy as np

from graspcl.checks import shown
from graspcl.errors import GraspError

# Bytes kept beside each code: label 4, id 8, birth 8, class index 8 and its unused room. 32 bytes suffice for at least
# 2 classes averaging 20 samples.
METADATA_BYTES = 32

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(text: str) -> int:
    """Return the bytes in a size such as "1.5GB" (decimal, as in the paper) or "512 MiB".

    >>> parse_bytes("1.5GB")
    1500000000
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]+)\s*", text)
    if match is None or match[2].upper() not in _UNITS:
        raise GraspError(f"{shown(text)} is not a size; write a number and a unit, such as '1.5GB' or '512MiB'")
    if (size := float(match[1]) * _UNITS[match[2].upper()]) >= 2**63:
        raise GraspError(f"{shown(text)} is more than any machine has; a size must be below 2^63 bytes")
    return round(size)


def capacity_in_samples(capacity: int | str | None, sample_bytes: int, codec_bytes: int) -> int | None:
    """Return how many samples fit. Each takes `sample_bytes` and its metadata; the codec's tables come first.

    >>> capacity_in_samples("1.5GB", sample_bytes=1568, codec_bytes=107520)
    937432
    """
    if capacity is None:
        return None
    if isinstance(capacity, str):
        room = parse_bytes(capacity)
        fits = (room - codec_bytes) // (sample_bytes + METADATA_BYTES)
        if fits < 1:
            least = codec_bytes + sample_bytes + METADATA_BYTES
            raise GraspError(f"a buffer of {capacity} holds no sample: one needs {least:,} bytes with its codec")
        return fits
    if isinstance(capacity, bool) or not isinstance(capacity, int | np.integer) or not 0 < capacity < 2**63:
        wanted = "a positive number of samples, a size or None"
        raise GraspError(f"buffer capacity must be {wanted}, got {shown(capacity)}")
    return int(capacity)
