"""How long a workspace trains: passes over its memory while held-out accuracy rises, a part of one, or a budget."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from graspcl.checks import shown
from graspcl.errors import GraspError
from graspcl.learner import Learner
from graspcl.learner.rehearsal import Rehearsal
from graspcl.machine import give_back_memory
from graspcl.policy import Budget
from graspcl.progress import Progress
from graspcl.workspace.version import Version

_PASSES = 3  # over the memory at most
_PART = 0.5  # passes of a change after the first: a tenth of the time of ten passes over everything
_FEW = 100  # updates that a change may always make within three passes: they take seconds
_TRIAL = 3  # updates that show how long one takes
_MEASURING = 1 / 3  # of the time of an update: passing its samples forward once, as the end of a session does
_UNITS = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600}


@dataclass(frozen=True)
class Effort:
    """How much a change may train: `updates` mini-batches, or about `seconds` in all, or as long as it helps."""

    updates: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Trained:
    """What was trained: updates that were kept, passes over the memory, and why training ended."""

    updates: int
    passes: float
    reason: str


def parse_seconds(budget: str | float) -> float:
    """Return a time such as "2min", "90s" or "1.5h" in seconds; a number is one of seconds.

    >>> parse_seconds("2min"), parse_seconds("90"), parse_seconds(5)
    (120.0, 90.0, 5.0)
    """
    text = str(budget).strip()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip() or "s"
    try:
        seconds = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        seconds = np.nan
    if not 0 < seconds < np.inf:
        raise GraspError(f"a budget is a time such as 90s, 2min or 1h, got {shown(budget)} (set --budget)")
    return seconds


def train(
    version: Version, effort: Effort, batch_size: int, began: float, progress: Progress, first: bool = True
) -> Trained:
    """Rehearse what a version stores.

    Args:
        effort: by default one pass over the memory, and up to two more while held-out accuracy rises and is below
            100 %. A pass after which it is lower than before by more than its standard error is taken back.
        began: when the change began, by `time.monotonic`; the time of the effort counts from there.
        first: whether nothing was learned before. Later, half a pass is the most by default, unless that is less than
            100 updates.
    """
    learner, held = version.learner, len(version.held)
    whole = max(1, round(len(learner.buffer) / batch_size))
    if effort.updates is not None:
        _session(version, effort.updates, batch_size, None, progress, "training")
        return Trained(effort.updates, effort.updates / whole, "the given number of updates")
    deadline, limit, reason = None, _PASSES * whole, f"{_PASSES} passes are the most"
    if effort.seconds is not None:
        deadline = began + effort.seconds
        limit = min(limit, _affordable(learner, batch_size, whole, deadline))
    elif not first and limit > _FEW:
        limit = max(_FEW, round(_PART * whole))
        most = "half a pass over the memory" if limit > _FEW else f"{_FEW} updates"
        reason = f"{most}, the most without --updates or --budget"
    updates, best = 0, version.accuracy()
    while updates < limit:
        number = min(whole, limit - updates)
        before = learner.knowledge()
        title = f"training, pass {updates // whole + 1} of at most {math.ceil(limit / whole)}"
        done = _session(version, number, batch_size, deadline, progress, title)
        now = version.accuracy()
        if now < best - (best * (1 - best) / max(1, held)) ** 0.5:
            learner.restore(before)
            version.retrained()
            reason = f"{'another' if updates else 'a'} pass over the memory lowered held-out accuracy and was undone"
            reason += "" if updates else "; the last layer still learned the new samples, in one step"
            break
        updates += done
        if deadline is not None and (done < number or updates >= limit):
            reason = "the time was over"
            break
        if deadline is None and (now == 1 or now <= best):
            reason = "all held-out samples are predicted correctly" if now == 1 else "held-out accuracy rose no more"
            reason = reason if held else "no sample is held out, so nothing tells whether more would help"
            break
        best = max(best, now)
    if not limit:
        reason = "there was no time left to train"
    return Trained(updates, updates / whole, reason)


def _session(
    version: Version, updates: int, batch_size: int, deadline: float | None, progress: Progress, title: str
) -> int:
    """Run one session and return its updates; stop it when the time is over."""
    learner = version.learner
    session = Rehearsal(learner, learner.session_budget(Budget(updates, batch_size)))
    with progress.task(title, updates) as advance:
        while not session.done:
            session.step()
            advance(1)
            if deadline is not None and time.monotonic() > deadline:
                session.stop()
    give_back_memory()
    session.finish()
    version.retrained()
    return session.updates


def _affordable(learner: Learner, batch_size: int, whole: int, deadline: float) -> int:
    """Return how many updates can be made before the deadline, as a few updates on trial show."""
    session = Rehearsal(learner, learner.session_budget(Budget(_TRIAL, batch_size)))
    start = time.monotonic()
    for _ in range(_TRIAL):
        session.step()
    seconds = (time.monotonic() - start) / _TRIAL
    session.abandon()
    left = deadline - time.monotonic()
    return max(0, int(left / seconds - _MEASURING * whole))
