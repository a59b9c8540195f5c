"""How long a workspace trains: passes over its memory while held-out accuracy rises, or within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graspcl.errors import GraspError
from graspcl.learner import Learner
from graspcl.learner.rehearsal import Rehearsal
from graspcl.policy import Budget
from graspcl.progress import Progress

_PASSES = 3  # over the memory at most
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


def parse_seconds(text: str) -> float:
    """Return a time such as "2min", "90s" or "1.5h" in seconds.

    >>> parse_seconds("2min"), parse_seconds("90")
    (120.0, 90.0)
    """
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text.strip()[len(number) :].strip() or "s"
    try:
        seconds = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        seconds = np.nan
    if not 0 < seconds < np.inf:
        raise GraspError(f"a budget is a time such as 90s, 2min or 1h, got {text!r} (set --budget)")
    return seconds


def train(
    learner: Learner, accuracy: Callable[[], float], held: int, effort: Effort, batch_size: int, began: float,
    progress: Progress,
) -> Trained:  # fmt: skip
    """Rehearse what the learner stores.

    Args:
        accuracy: returns the share of held-out samples that the learner predicts correctly now.
        held: number of these samples.
        effort: by default one pass over the memory, and up to two more while held-out accuracy rises and is below
            100 %. A pass after which it is lower than before by more than its standard error is taken back.
        began: when the change began, by `time.monotonic`; the time of the effort counts from there.
    """
    stored = len(learner.buffer)
    whole = max(1, round(stored / batch_size))
    if effort.updates is not None:
        _session(learner, effort.updates, batch_size, None, progress, "training")
        return Trained(effort.updates, effort.updates / whole, "the given number of updates")
    deadline, limit = None, _PASSES * whole
    if effort.seconds is not None:
        deadline = began + effort.seconds
        limit = min(limit, _affordable(learner, batch_size, whole, deadline))
    updates, best = 0, accuracy()
    reason = f"{_PASSES} passes are the most"
    while updates < limit:
        number = min(whole, limit - updates)
        before = learner.knowledge()
        title = f"training, pass {updates // whole + 1} of at most {_PASSES}"
        done = _session(learner, number, batch_size, deadline, progress, title)
        now = accuracy()
        if now < best - (best * (1 - best) / max(1, held)) ** 0.5:
            learner.restore(before)
            reason = f"{'another' if updates else 'a'} pass over the memory lowered held-out accuracy and was undone"
            reason += "" if updates else "; the last layer still learned the new samples, in one step"
            break
        updates += done
        if deadline is not None and (done < number or updates >= limit):
            reason = "the time was over"
            break
        if deadline is None and (now == 1 or now <= best):
            reason = "all held-out samples are predicted correctly" if now == 1 else "held-out accuracy rose no more"
            break
        best = max(best, now)
    if not limit:
        reason = "there was no time left to train"
    return Trained(updates, updates / whole, reason)


def _session(
    learner: Learner, updates: int, batch_size: int, deadline: float | None, progress: Progress, title: str
) -> int:
    """Run one session and return its updates; stop it when the time is over."""
    session = Rehearsal(learner, learner.session_budget(Budget(updates, batch_size)))
    with progress.task(title, updates) as advance:
        while not session.done:
            session.step()
            advance(1)
            if deadline is not None and time.monotonic() > deadline:
                session.stop()
    session.finish()
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
