"""Errors meant for people: what was wrong, where, and what would be right."""

from __future__ import annotations

import difflib
import importlib
import math
from collections.abc import Iterable
from types import ModuleType


class GraspError(Exception):
    """A mistake that the user can mend. The command line prints its text alone, without a traceback."""


class MissingExtra(GraspError):
    """A part of graspcl needs a package that is not installed."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """A hint naming the valid word closest to `name`, or all of them when none is close.

    >>> nearest("graps", ["grasp", "uniform"])
    "did you mean 'grasp'?"
    """
    words = sorted(valid)
    close = difflib.get_close_matches(name, words, n=1)
    return f"did you mean {close[0]!r}?" if close else f"valid names: {', '.join(words)}"


def expect(name: str, value: object, kind: type) -> None:
    """Refuse a setting of another kind: a number where one is due, and nothing but true or false for a switch.

    >>> expect("teacher", "no", bool)
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: teacher must be true or false, not 'no'
    """
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not (number if kind is float else isinstance(value, kind)):
        raise GraspError(f"{name} must be {'true or false' if kind is bool else 'a number'}, not {value!r}")


def require(module: str, extra: str) -> ModuleType:
    """Import an optional `module`, or say in one line which extra of graspcl brings it.

    >>> require("json", "demo").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{module} is not installed; install it with: pip install 'graspcl[{extra}]'") from error
