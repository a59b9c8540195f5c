"""Measurements of a run beside its costs: predictions, drift, distances, held-out accuracy, energy and budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from graspcl.buffer import Buffer, Codes
from graspcl.buffer.capacity import capacity_in_samples
from graspcl.checks import Array
from graspcl.data import Samples
from graspcl.learner import Learner
from graspcl.metric import drift
from graspcl.policy import Budget, prototype_distances
from graspcl.random import restore_rng, rng_state
from graspcl.rows import Rows
from graspcl.settings.config import BudgetConfig, Config, StopConfig
from graspcl.stream import Stream

_CHUNK = 512  # samples that are read and predicted at a time, as many as in a forward pass
_HELD_OUT = 2_000  # samples at most


class TestSet:
    """Test samples: `inputs` [n, …], which are codes or latents, and their labels [n].

    `arrived` [n] is the session in which the class of each arrives.
    """

    __test__ = False  # not a pytest class

    def __init__(self, inputs: Codes | Rows, labels: Array, arrived: Array, coded: bool = True) -> None:
        self.inputs, self.labels, self.arrived, self.coded = inputs, labels, arrived, coded

    def predict(self, learner: Learner, session: int) -> tuple[Array, float, float]:
        """Return predictions [n] after a session, with accuracy and top-5 accuracy on what has arrived.

        Samples of later sessions are predicted only if their class is known, as where tasks share classes; else -1.
        """
        here = self.arrived <= session
        known, asked = np.flatnonzero(here), np.flatnonzero(here | np.isin(self.labels, learner.classes))
        predicted = np.full(len(self.labels), -1)
        hits = 0
        for begin in range(0, len(asked) if learner.classes else 0, _CHUNK):
            rows = asked[begin : begin + _CHUNK]
            logits = learner.outputs(self.inputs[rows], "logits", self.coded)
            names = np.asarray(learner.classes)
            predicted[rows] = names[logits.argmax(1).numpy(force=True)]
            best = names[logits.topk(min(5, logits.shape[1]), 1).indices.numpy(force=True)]
            hits += int((best == self.labels[rows, None]).any(1)[here[rows]].sum())
        if not len(known):
            return predicted, float("nan"), float("nan")
        accuracy = 100 * (predicted[known] == self.labels[known]).mean()
        return predicted, float(accuracy), 100 * hits / len(known)


def arrivals(stream: Stream, samples: Samples[Any], test: Array) -> Array:
    """Return the session [n] of each test sample in `test` [n]: that of its task, if there are tasks, or its class."""
    task_of = getattr(samples, "task_of", None)
    if stream.tasks is not None and task_of is not None:
        session = {task: number for number, task in enumerate(stream.tasks, start=1)}
        return np.array([session[int(task)] for task in task_of[test]], np.int64)
    return np.array([stream.home[int(label)] for label in samples.labels[test]], np.int64)


def stored_distances(learner: Learner, number: int, rng: np.random.Generator) -> Array:
    """Return the distance of stored samples to their prototype, float32 [stored]; NaN for those not measured.

    Whole classes, or the learner's other groups, are measured in random order until `number` samples are used up;
    the first one is always measured.
    """
    buffer = learner.buffer
    distances = np.full(len(buffer), np.nan, np.float32)
    groups = buffer.labels if learner.groups_by is None else buffer[learner.groups_by]
    names, sizes = np.unique(groups, return_counts=True)
    order = rng.permutation(len(names)) if number else np.empty(0, np.int64)
    fit = max(1, int(np.searchsorted(np.cumsum(sizes[order]), number, side="right")))
    slots = np.flatnonzero(np.isin(groups, names[order[:fit]]))
    if len(slots) and learner.rehearses:  # others store no latents
        z = learner.outputs(buffer.copied(slots)[0], "embedding").double().numpy(force=True)
        if np.isfinite(z).all() and z.any(1).all():  # a diverged network has no distances
            distances[slots] = prototype_distances(z, groups[slots])
    return distances


class DriftMeter:
    """Measures representation drift: how far embeddings of held-out old samples move per update (Appendix B).

    `curves` has a number per update, as a "norm" and as "mse" (`graspcl.metric.drift`).
    """

    def __init__(self, tests: TestSet, number: int, session: int, rng: np.random.Generator) -> None:
        old = np.flatnonzero(tests.arrived < session)
        chosen = np.sort(rng.permutation(old)[:number])
        self.inputs, self.coded = tests.inputs[chosen], tests.coded
        self.curves: dict[str, list[float]] = {"norm": [], "mse": []}
        self._before: Array | None = None

    def measure(self, learner: Learner) -> None:
        """Take the current embeddings; from the second call on, append the drift since the last one to `curves`."""
        if not len(self.inputs):
            return
        now = learner.outputs(self.inputs, "embedding", self.coded).double().numpy(force=True)
        if self._before is not None:
            # A diverged network has no drift. The session decides what to do about it.
            sound = np.isfinite(now).all() and np.isfinite(self._before).all()
            self.curves["norm"].append(drift(self._before, now, "norm") if sound else float("nan"))
            self.curves["mse"].append(drift(self._before, now, "mse") if sound else float("nan"))
        self._before = now


def stored_drift(state: dict[str, list[float]] | list[float]) -> dict[str, list[float]]:
    """Return the curves of a checkpoint; earlier versions measured the norm alone."""
    found = state if isinstance(state, dict) else {"norm": state, "mse": len(state) * [float("nan")]}
    return {kind: list(curve) for kind, curve in found.items()}


class HeldOut:
    """Holds out a share of the arriving samples, which are never rehearsed. The first of a class is never held out.

    `progress` is the best accuracy of the session on them, and the number of evaluations since then. `best` are the
    network's weights at that evaluation, if the settings want to keep them.
    """

    def __init__(
        self, settings: StopConfig, codec: Any, rng: np.random.Generator, padding: torch.Tensor | None = None
    ) -> None:
        self.settings, self.rng = settings, rng
        self.progress: list[Any] = [-1.0, 0]
        self.best: dict[str, torch.Tensor] = {}
        own = np.random.default_rng(rng.integers(2**63))
        self.buffer = Buffer(_HELD_OUT, codec, rng=own, padding=padding)
        self._met: set[int] = set()

    def take(self, codes: Codes, labels: Array, indices: Array) -> Array:
        """Hold out some samples of a chunk; return the positions [m] of the others."""
        apart = self.rng.random(len(labels)) < self.settings.share
        arrived, first = np.unique(labels, return_index=True)
        apart[first[[int(label) not in self._met for label in arrived]]] = False
        self._met.update(arrived.tolist())
        if apart.any():
            self.buffer.insert_codes(codes[np.flatnonzero(apart)], labels[apart], indices[apart])
        return np.flatnonzero(~apart)

    def exhausted(self, learner: Learner) -> bool:
        """Evaluate; return whether `patience` evaluations in a row have brought no better accuracy."""
        accuracy = 0.0
        if len(self.buffer):
            accuracy = float(100 * (learner.predict_codes(self.buffer["codes"]) == self.buffer.labels).mean())
        best, since = self.progress
        self.progress = [accuracy, 0] if accuracy > best else [best, since + 1]
        if self.settings.keep == "best" and accuracy > best and len(self.buffer):
            self.best = {name: value.clone() for name, value in learner.network.state_dict().items()}
        return self.settings.patience is not None and self.progress[1] >= self.settings.patience

    def end_session(self, learner: Learner) -> None:
        """Give the network its weights of the best evaluation, the last one included, if they are to be kept."""
        if self.settings.keep == "best":
            self.exhausted(learner)
            if self.best:
                learner.network.load_state_dict(self.best)

    def state_dict(self) -> dict[str, Any]:
        """Return the held-out samples and the generator that chooses them."""
        return {"buffer": self.buffer.state_dict(), "rng": rng_state(self.rng), "met": sorted(self._met)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.buffer.load_state_dict(state["buffer"])
        restore_rng(self.rng, state["rng"])
        self._met = set(state["met"])


class EnergyMeter:
    """Measures the energy of all processor packages in joules: of the whole machine, not of this process alone."""

    def __init__(self) -> None:
        found = sorted(Path("/sys/class/powercap").glob("intel-rapl:*"))
        self._packages = [path for path in found if path.name.count(":") == 1]
        self._last = self._read("energy_uj")
        self.spent = 0.0  # so far

    def joules(self) -> float | None:
        """Return the energy so far; None without counters. Call it at least hourly: counters wrap around."""
        now, most = self._read("energy_uj"), self._read("max_energy_range_uj")
        if not (now and most and self._last):
            return None
        for before, after, wrap in zip(self._last, now, most, strict=True):
            self.spent += (after - before + (wrap if after < before else 0)) / 1e6
        self._last = now
        return self.spent

    def _read(self, name: str) -> list[int]:
        try:
            return [int((package / name).read_text()) for package in self._packages]
        except (OSError, ValueError):
            return []


def session_budget(settings: BudgetConfig, seen: int, fits: int | None, session: int = 1) -> Budget:
    """Return the budget of a session after `seen` samples, if the buffer has room for `fits` of them (None: all).

    >>> session_budget(BudgetConfig(passes=2.0, batch_size=10), seen=1000, fits=400)
    Budget(updates=80, batch_size=10)
    """
    times = settings.times * (1 + (settings.growth or 0) * (session - 1))
    if settings.updates is not None:
        updates = max(1, round(times * settings.updates)) if settings.updates else 0
        return Budget(updates, settings.batch_size)
    stored = seen if fits is None else min(fits, seen)
    return Budget.passes(times * settings.passes, stored, settings.batch_size)


def samples_within(config: Config, learner: Learner, codes: Codes | Rows) -> int | None:
    """Return how many samples like `codes` the configured capacity holds; None for all.

    What a learner stores beside them, as DER++ does logits, does not count: sessions of all learners are equally long.
    """
    own = learner.columns(1, **config.learner.parameters)
    shapes = [column for name, column in learner.buffer.columns.items() if name not in own]
    columns = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes)
    codec = learner.buffer.codec
    size = learner.buffer.mean_bytes(codes)
    return capacity_in_samples(config.buffer.capacity, size + columns, codec.nbytes if codec else 0)
