"""How an experiment tells what it is doing, without knowing who listens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """Someone to tell."""

    def task(self, title: str, total: int) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """A long step of `total` parts; within, call what is given with the number of parts just done."""

    def note(self, text: str) -> None:
        """One line worth knowing."""


class Silent:
    """Tells nobody."""

    def task(self, title: str, total: int) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """Counts nothing."""
        return contextlib.nullcontext(lambda done: None)

    def note(self, text: str) -> None:
        """Says nothing."""
