"""Ctrl-C and SIGTERM while a run works: it saves a checkpoint first, and then leaves."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Callable
from typing import Any


class StopSignals:
    """Holds SIGINT and SIGTERM back while the context is open, for a run that saves itself before it leaves.

    `asked` is the signal that came. `leave` delivers it to whoever handled it before. A second signal is delivered at
    once; in a worker process it is ignored, since the parent kills workers that it does not wait for. Signals that were
    ignored before, and those of a run outside the main thread, are left alone. `unless` is added to
    what is said about the checkpoint.
    """

    def __init__(self, note: Callable[[str], None], unless: str = "") -> None:
        self.asked: int | None = None
        self._note, self._unless = note, unless
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._hold)
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self._restore()
        if kind is None:  # the run was finished in the meantime
            self.leave()

    def leave(self) -> None:
        """Deliver the signal that came, if any."""
        self._restore()
        if self.asked is not None:
            signal.raise_signal(self.asked)

    def _hold(self, number: int, frame: object) -> None:
        if self.asked is None:
            self.asked = number
            with contextlib.suppress(RuntimeError):  # the signal came amid a line of output
                self._note(
                    f"stopping: a checkpoint is saved first{self._unless}; press Ctrl-C again to leave without one"
                )
        elif multiprocessing.parent_process() is None:
            self.leave()

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())
