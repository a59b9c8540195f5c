"""Errors meant for people: what was wrong, where, and what would be right."""

from __future__ import annotations

import difflib
import importlib
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


def require(module: str, extra: str) -> ModuleType:
    """Import an optional `module`, or say in one line which extra of graspcl brings it.

    >>> require("json", "demo").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{module} is not installed; install it with: pip install 'graspcl[{extra}]'") from error
