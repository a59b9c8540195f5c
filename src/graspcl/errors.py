"""Errors for users: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType

_LISTED = 30  # valid names in a message


class GraspError(Exception):
    """An error that the user can fix. The command line prints only its message, without a traceback."""


class MissingExtra(GraspError):
    """An optional package is not installed."""


def missing_extra(package: str, extra: str) -> MissingExtra:
    """Return the error that `package` is not installed, with the extra of graspcl that brings it."""
    return MissingExtra(f"{package} is not installed; in the folder of graspcl's source run: pip install '.[{extra}]'")


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a hint with the valid name closest to `name`, or with all of them, 30 at most, if none is close.

    >>> nearest("graps", ["grasp", "uniform"])
    "did you mean 'grasp'?"
    >>> nearest("x", map(str, range(1000)))[-21:]
    '123, 124 and 970 more'
    """
    words = sorted(valid)
    close = difflib.get_close_matches(name, words, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f" and {len(words) - _LISTED:,} more" if len(words) > _LISTED else ""
    return f"valid names: {', '.join(words[:_LISTED])}{more}"


def require(module: str, extra: str) -> ModuleType:
    """Import an optional `module`, or raise an error that names the extra of graspcl to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra(module, extra) from error
