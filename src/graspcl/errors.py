"""Errors for users: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Iterable
from types import ModuleType


class GraspError(Exception):
    """An error that the user can fix. The command line prints only its message, without a traceback."""


class MissingExtra(GraspError):
    """An optional package is not installed."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a hint with the valid name closest to `name`, or with all of them if none is close.

    >>> nearest("graps", ["grasp", "uniform"])
    "did you mean 'grasp'?"
    """
    words = sorted(valid)
    close = difflib.get_close_matches(name, words, n=1)
    return f"did you mean {close[0]!r}?" if close else f"valid names: {', '.join(words)}"


def expect(name: str, value: object, kind: type) -> None:
    """Raise an error unless `value` is of `kind`: `float` for any finite number, or `bool`.

    >>> expect("teacher", "no", bool)
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: teacher must be true or false, not 'no'
    """
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not (number if kind is float else isinstance(value, kind)):
        raise GraspError(f"{name} must be {'true or false' if kind is bool else 'a number'}, not {value!r}")


def require(module: str, extra: str) -> ModuleType:
    """Import an optional `module`, or raise an error that names the extra of graspcl to install.

    >>> require("json", "demo").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{module} is not installed; install it with: pip install 'graspcl[{extra}]'") from error
