"""One thread at a time in the methods of an object."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

S = TypeVar("S", bound="Guarded")
P = ParamSpec("P")
R = TypeVar("R")


class Guarded:
    """An object whose methods marked with `alone` wait for each other. Copies have guards of their own."""

    def __init__(self) -> None:
        self._guard = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_guard"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _guard=threading.RLock())


def alone(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Let only one thread at a time into the marked methods of an object."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._guard:
            return method(self, *args, **kwargs)

    return call
