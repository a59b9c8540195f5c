"""Progress: how long work reports what it does, without knowing who listens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol


class Progress(Protocol):
    """Receives the steps and notes of an experiment."""

    def task(self, title: str, total: int) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """Start a step of `total` parts; call the returned function with the number of parts just done."""

    def note(self, text: str) -> None:
        """Show one line."""


class Silent:
    """Shows nothing."""

    def task(self, title: str, total: int) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        return contextlib.nullcontext(lambda done: None)

    def note(self, text: str) -> None:
        """Show nothing."""
