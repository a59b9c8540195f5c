"""How much of a foreign file is read: the limits that keep one input from exhausting memory or time.

What lies beyond a limit is left out and reported like any other unreadable sample. To change a limit, set the
environment variable `GRASPCL_MAX_NAME`, for example `GRASPCL_MAX_PIXELS=200000000`.

>>> limit("pixels")
50000000
"""

from __future__ import annotations

import os

from graspcl.errors import GraspError

TEXT = 100_000  # characters of a text that are used; fixed, since what is cut decides what is learned
DEFAULTS = {
    "pixels": 50_000_000,  # of an image, as it is decoded
    "scans": 100,  # of a JPEG; progressive ones have about 10
    "file": 256 * 2**20,  # bytes of an image or list, unpacked
    "ratio": 100,  # bytes unpacked per byte of a zip or Parquet file
    "table": 8 * 2**30,  # bytes of a table
    "row": 16 * 2**20,  # characters of a row of a table
    "rows": 20_000_000,  # rows of a Parquet file
}
SMALL = 100 * 2**20  # bytes that any archive may unpack to, whatever its ratio


def limit(name: str) -> int:
    """Return a limit of `DEFAULTS`, or what the environment sets it to."""
    given = os.environ.get(variable(name), "")
    if given and not (given.isascii() and given.isdecimal() and len(given) < 19 and int(given)):
        raise GraspError(f"{variable(name)} must be a whole number from 1 to 10^18, got {given[:40]!r}")
    return int(given) if given else DEFAULTS[name]


def changed() -> dict[str, int]:
    """Return the limits that differ from the defaults: they decide which samples can be read."""
    return {name: found for name, usual in DEFAULTS.items() if (found := limit(name)) != usual}


def variable(name: str) -> str:
    """Return the environment variable that sets a limit."""
    return f"GRASPCL_MAX_{name.upper()}"


def beyond(what: str, size: int, name: str) -> str:
    """Return why something of this size is not read, and how to read it nevertheless; empty if it may be read.

    >>> beyond("pixels", 169_000_000, "pixels")
    'it has 169,000,000 pixels, more than 50,000,000 (set GRASPCL_MAX_PIXELS to read it)'
    """
    most = limit(name)
    return f"it has {size:,} {what}, more than {most:,} (set {variable(name)} to read it)" if size > most else ""


def unpacks_too_far(packed: int, unpacked: int) -> str:
    """Return why an archive is not unpacked: it is small, and its content is not. Empty if it may be unpacked.

    >>> unpacks_too_far(4_300_000, 2_750_000_000)
    'it unpacks to 2,750,000,000 bytes, more than 100 times its size (set GRASPCL_MAX_RATIO to read it)'
    """
    if unpacked <= max(SMALL, limit("ratio") * packed):
        return ""
    most = f"more than {limit('ratio')} times its size"
    return f"it unpacks to {unpacked:,} bytes, {most} (set {variable('ratio')} to read it)"
