"""Progress of a run at work: its bar, one line per session, and progress.json for those who watch from outside."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from graspcl.experiment.measure import session_budget
from graspcl.integrity import seal_object
from graspcl.learner import Rehearsal
from graspcl.machine import process_start
from graspcl.settings.config import BudgetConfig
from graspcl.state import write_whole
from graspcl.stream import Stream

_PAUSE = 2.0  # seconds between two writes


class ProgressFile:
    """progress.json in a run folder: it exists while a process works, and is rewritten every few seconds.

    It names the process and the machine. Nothing resumes from it, and a failure to write it stops nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / "progress.json"  # None: another process writes it
        self._facts: dict[str, Any] = {}
        self._due = 0.0
        self._ends: list[int] = []  # of sessions, in updates of the whole run; the first is 0
        self._advance: Callable[[int], None] = lambda updates: None
        self._at = 0
        self._begun: tuple[float, int] | None = None  # time and place of the first update in this process
        self.beat()

    def close(self) -> None:
        """Remove the file: no process works any more."""
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.unlink(missing_ok=True)

    def follow(self, plan: Sequence[int], advance: Callable[[int], None]) -> None:
        """Call `advance` with the updates just done, of sessions with the lengths `plan`."""
        self._ends, self._advance = list(itertools.accumulate(plan, initial=0)), advance

    def step(self, number: int, rehearsal: Rehearsal) -> None:
        """Note an update of session `number`."""
        begin, end = self._ends[number - 1 : number + 1]
        # A session that is longer or shorter than planned still fills its planned part of the bar.
        self._go_to(begin + (end - begin) * rehearsal.updates // max(1, rehearsal.budget.updates))
        now, total = time.monotonic(), self._ends[-1]
        begun, place = self._begun = self._begun or (now, self._at)
        if now >= self._due:
            costs, loss, done = rehearsal.session.costs, rehearsal.loss, self._at - place
            self._facts = {
                "session": number, "update": rehearsal.updates, "updates": rehearsal.budget.updates,
                "loss": loss if math.isfinite(loss) else None,
                "seconds": costs.training_seconds + costs.selection_seconds,
                "done": self._at, "total": total,
                "seconds_left": (total - self._at) * (now - begun) / done if done else None,
            }  # fmt: skip
            self.beat()

    def passed(self, sessions: int) -> None:
        """Note that this many sessions are over, whether they spent their budgets or not."""
        self._go_to(self._ends[sessions])

    def beat(self) -> None:
        """Rewrite the file if it is old enough; writing takes at most a twentieth of the time."""
        if (begin := time.monotonic()) < self._due or (place := self._file) is None:
            return
        process = {"pid": os.getpid(), "started": process_start(os.getpid()), "host": socket.gethostname()}
        facts = {**self._facts, **process, "time": time.time()}
        with contextlib.suppress(OSError):
            write_whole(place, lambda file: file.write(seal_object(facts)))
        now = time.monotonic()
        self._due = now + max(_PAUSE, 20 * (now - begin))

    def _go_to(self, place: int) -> None:
        if place > self._at:
            self._advance(place - self._at)
            self._at = place


def planned(settings: BudgetConfig, stream: Stream, fits: int | None) -> list[int]:
    """Estimate the updates of each session, at least one; `fits` as in `session_budget`.

    Held-out samples, early stopping and learners that take more change the real number.

    >>> planned(BudgetConfig(passes=1.0, batch_size=10), Stream(range(40), [range(40, 60), range(60, 80)]), None)
    [6, 8]
    """
    seen = itertools.accumulate(map(len, stream.sessions), initial=len(stream.base))
    after = enumerate(itertools.islice(seen, 1, None), start=1)
    return [max(1, session_budget(settings, number, fits, session).updates) for session, number in after]


def one_line(record: dict[str, Any], sessions: int) -> str:
    """Return one line about a session, of `sessions` in all.

    >>> one_line({"session": 1, "accuracy": 56.0, "loss": 0.4119, "updates": 600, "training_seconds": 40.0,
    ...           "selection_seconds": 0.9}, 2)
    'session 1 of 2: accuracy 56.00 %, loss 0.412, 600 updates in 40.9 s'
    """
    said = ["no test samples yet" if record["accuracy"] is None else f"accuracy {record['accuracy']:.2f} %"]
    said += [] if record["loss"] is None else [f"loss {record['loss']:.3f}"]
    said += [f"{record['updates']} updates in {record['training_seconds'] + record['selection_seconds']:.1f} s"]
    return f"session {record['session']} of {sessions}: {', '.join(said)}"
