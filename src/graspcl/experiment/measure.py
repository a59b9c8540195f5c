"""What is measured in a run beside its costs: predictions, representation drift, and how prototypical samples are."""

from __future__ import annotations

from typing import Any

import numpy as np

from graspcl.buffer import Codes
from graspcl.data import Samples
from graspcl.learner import Learner
from graspcl.metric import drift
from graspcl.policy import prototype_distances
from graspcl.stream import Stream

Array = np.ndarray[Any, Any]

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
