"""What is measured in a run beside its costs: predictions, representation drift, and how prototypical samples are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from graspcl.buffer import Buffer, Codes
from graspcl.buffer.capacity import capacity_in_samples
from graspcl.checks import Array
from graspcl.codec import Codec
from graspcl.data import Samples
from graspcl.learner import Learner
from graspcl.metric import drift
from graspcl.policy import Budget, prototype_distances
from graspcl.random import restore_rng, rng_state
from graspcl.settings.config import BudgetConfig, Config, StopConfig
from graspcl.stream import Stream

_CHUNK = 4096


class TestSet:
    """The test samples: codes [n, …], labels [n] and the session `arrived` [n] that brought their classes."""

    __test__ = False  # not a test of pytest's

    def __init__(self, codes: Codes, labels: Array, arrived: Array) -> None:
        self.codes, self.labels, self.arrived = codes, labels, arrived

    def predict(self, learner: Learner, session: int) -> tuple[Array, float]:
        """After a session: predictions [n], -1 for samples of classes to come; and the percent of the others whose
        label is among the five most likely."""
        known = np.flatnonzero(self.arrived <= session)
        predicted = np.full(len(self.labels), -1)
        hits = 0
        for begin in range(0, len(known) if learner.classes else 0, _CHUNK):
            rows = known[begin : begin + _CHUNK]
            logits = learner.outputs(self.codes[rows], "logits")
            names = np.asarray(learner.classes)
            predicted[rows] = names[logits.argmax(1).numpy(force=True)]
            best = names[logits.topk(min(5, logits.shape[1]), 1).indices.numpy(force=True)]
            hits += int((best == self.labels[rows, None]).any(1).sum())
        return predicted, 100 * hits / len(known) if len(known) else float("nan")

    def accuracy(self, predicted: Array, session: int) -> float:
        """Percent right among samples of classes that have arrived."""
        known = self.arrived <= session
        return float(100 * (predicted[known] == self.labels[known]).mean()) if known.any() else float("nan")


def arrivals(stream: Stream, samples: Samples[Any], test: Array) -> Array:
    """The session [n] to which each of the test samples `test` [n] belongs: that of its task, where there are tasks, or
    of its class."""
    task_of = getattr(samples, "task_of", None)
    if stream.tasks is not None and task_of is not None:
        session = {task: number for number, task in enumerate(stream.tasks, start=1)}
        return np.array([session[int(task)] for task in task_of[test]], np.int64)
    return np.array([stream.home[int(label)] for label in samples.labels[test]], np.int64)


def stored_distances(learner: Learner, number: int, rng: np.random.Generator) -> Array:
    """How far stored samples are from their prototype now, float32 [stored]; NaN for those not measured.

    Classes, or what else the learner has prototypes of, are measured whole, in random order, as long as `number`
    samples suffice; the first is measured anyway.
    """
    buffer = learner.buffer
    distances = np.full(len(buffer), np.nan, np.float32)
    groups = buffer.labels if learner.groups_by is None else buffer[learner.groups_by]
    names, sizes = np.unique(groups, return_counts=True)
    order = rng.permutation(len(names)) if number else np.empty(0, np.int64)
    fit = max(1, int(np.searchsorted(np.cumsum(sizes[order]), number, side="right")))
    slots = np.flatnonzero(np.isin(groups, names[order[:fit]]))
    if len(slots):
        z = learner.outputs(buffer["codes"][slots], "embedding").double().numpy(force=True)
        if np.isfinite(z).all() and z.any(1).all():  # else there is no distance; whether that matters others say
            distances[slots] = prototype_distances(z, groups[slots])
    return distances


class DriftMeter:
    """Representation drift of held-out old samples: how far their embeddings move with every update (Appendix B)."""

    def __init__(self, tests: TestSet, number: int, session: int, rng: np.random.Generator) -> None:
        old = np.flatnonzero(tests.arrived < session)
        chosen = np.sort(rng.permutation(old)[:number])
        self.codes = tests.codes[chosen]
        self.curve: list[float] = []
        self._before: Array | None = None

    def look(self, learner: Learner) -> None:
        """Take the embeddings as they are now; from the second look on, the drift since the last one is noted."""
        if not len(self.codes):
            return
        now = learner.outputs(self.codes, "embedding").double().numpy(force=True)
        if self._before is not None:
            # Of a network that ran away there is no drift; whether the session is given up is not for a meter to say.
            sound = np.isfinite(now).all() and np.isfinite(self._before).all()
            self.curve.append(drift(self._before, now) if sound else float("nan"))
        self._before = now


_MOST = 2_000  # samples kept apart


class HeldOut:
    """A share of what arrives, stored apart from the buffer and never rehearsed.

    `take` says which of n arriving samples stay for learning. A class's first sample always does.
    """

    def __init__(self, settings: StopConfig, codec: Codec | None, rng: np.random.Generator) -> None:
        self.settings, self.rng = settings, rng
        self.buffer = Buffer(_MOST, codec, rng=np.random.default_rng(rng.integers(2**63)))
        self._met: set[int] = set()

    def take(self, codes: Codes, labels: Array, indices: Array) -> Array:
        """Keep some of a chunk apart; returns the positions [m] of the others."""
        apart = self.rng.random(len(labels)) < self.settings.share
        arrived, first = np.unique(labels, return_index=True)
        apart[first[[int(label) not in self._met for label in arrived]]] = False
        self._met.update(arrived.tolist())
        if apart.any():
            self.buffer.insert_codes(codes[np.flatnonzero(apart)], labels[apart], indices[apart])
        return np.flatnonzero(~apart)

    def accuracy(self, learner: Learner) -> float:
        """Percent of the samples kept apart that the learner gets right; 0 if there are none."""
        if not len(self.buffer):
            return 0.0
        predicted = learner.predict_codes(self.buffer["codes"])
        return float(100 * (predicted == self.buffer.labels).mean())

    def state_dict(self) -> dict[str, Any]:
        """What is kept apart, and the generator that chooses."""
        return {"buffer": self.buffer.state_dict(), "rng": rng_state(self.rng), "met": sorted(self._met)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.buffer.load_state_dict(state["buffer"])
        restore_rng(self.rng, state["rng"])
        self._met = set(state["met"])


class Patience:
    """Counts looks without a better accuracy in one session.

    >>> patience = Patience(2)
    >>> [patience.lost(accuracy) for accuracy in (50.0, 60.0, 59.0, 60.0)]
    [False, False, False, True]
    """

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.best, self.since = -1.0, 0

    def lost(self, accuracy: float) -> bool:
        """Whether, after this look, enough of them have brought nothing."""
        self.since = 0 if accuracy > self.best else self.since + 1
        self.best = max(self.best, accuracy)
        return self.since >= self.looks


_COUNTERS = "/sys/class/powercap"


class Meter:
    """Joules of all processor packages since the meter was made; the whole machine's, not this process's alone."""

    def __init__(self, counters: str = _COUNTERS) -> None:
        self._packages = [path for path in sorted(Path(counters).glob("intel-rapl:*")) if path.name.count(":") == 1]
        self._last = self._read()
        self._joules = 0.0

    def go_on(self, spent: float | None) -> None:
        """Count on from what an earlier process spent."""
        self._joules += spent or 0.0

    def joules(self) -> float | None:
        """So far; None where there are no counters. Ask at least once an hour, for counters begin anew at their end."""
        now = self._read()
        if not now or len(now) != len(self._last):
            return None
        for package, before, after in zip(self._packages, self._last, now, strict=True):
            spent = after - before
            if spent < 0:
                spent += _number(package / "max_energy_range_uj") or 0
            self._joules += spent / 1e6
        self._last = now
        return self._joules

    def _read(self) -> list[int]:
        found = [_number(package / "energy_uj") for package in self._packages]
        return [value for value in found if value is not None]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def session_budget(settings: BudgetConfig, seen: int, fits: int | None) -> Budget:
    """What a session may spend after `seen` samples, where a buffer has room for `fits` of them (None: for all).

    >>> session_budget(BudgetConfig(passes=2.0, batch_size=10), seen=1000, fits=400)
    Budget(updates=80, batch_size=10)
    """
    if settings.updates is not None:
        updates = max(1, round(settings.times * settings.updates)) if settings.updates else 0
        return Budget(updates, settings.batch_size)
    return Budget.passes(
        settings.times * settings.passes, seen if fits is None else min(fits, seen), settings.batch_size
    )


def samples_within(config: Config, learner: Learner, codes: Codes) -> int | None:
    """How many of the samples `codes` the configured capacity has room for, None for all.

    What a learner stores beside them (the logits of DER++) is left out: sessions of all learners are equally long.
    """
    own = learner.columns(1, **config.learner.parameters)
    shapes = [column for name, column in learner.buffer.columns.items() if name not in own]
    columns = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes)
    codec = learner.buffer.codec
    if codec is not None and isinstance(codes, np.ndarray):  # image files, each with a pointer and its length
        size = int(np.ceil(codec.lengths(codes[:1000]).mean())) + 16
    else:
        size = codes[0].nbytes
    return capacity_in_samples(config.buffer.capacity, size + columns, codec.nbytes if codec else 0)
