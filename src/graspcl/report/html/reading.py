"""Runs as a report needs them: read as far as they can be, whatever state their folders are in."""

from __future__ import annotations

import json
import math
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.metric import accuracies
from graspcl.report.runs import RunRecord, read_record

Numbers = dict[str, list[float]]
Parts = dict[str, Any]  # fields of a run

# What damaged files raise: JSON, TOML and UTF-8 ValueError, archives and arrays the others.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, IndexError, EOFError, RecursionError, OverflowError, GraspError,
              zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError)  # fmt: skip
_OF_A_RUN = ("config.toml", "summary.json", "metrics.jsonl")  # any of these makes a folder a run's
_TIMES = 8  # samples that were shown at least so often are counted together


@dataclass(frozen=True)
class Rehearsed:
    """What the last session showed, in percent.

    `times[k]` of the stored samples were shown k times (the last entry: as often or more), `seen` of each class at
    least once, and `coverage[u]` of all after u + 1 updates. `distance[u]` is how far the picks of update u are from
    their prototypes, in mean distances of a class's stored samples; NaN where none of them was measured.
    """

    session: int
    times: Array
    seen: dict[str, float]
    coverage: Array
    distance: Array


@dataclass(frozen=True)
class Run:
    """A run folder: its record, and what its arrays come to. What could not be read is empty, and a problem says why.

    `curves` are accuracies on all, old and new classes by session, from 0 (before the first session) on. `right` [n]
    says which test samples the last predictions have right, and `labels` [n] whose they are.
    """

    record: RunRecord
    problems: tuple[str, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    curves: Numbers = field(default_factory=dict)
    matrix: Array | None = None
    labels: Array | None = None
    right: Array | None = None
    by_class: dict[str, float] = field(default_factory=dict)
    rehearsed: Rehearsed | None = None
    drift: tuple[Array, ...] = ()
    total: int | None = None  # sessions of the stream

    @property
    def state(self) -> str:
        """finished, unfinished, damaged or empty."""
        return "empty" if self.problems[:1] == ("no run in it",) else self.record.state

    @property
    def finished(self) -> bool:
        """Whether it counts in comparisons: it came to its end, with an accuracy."""
        return self.record.state == "finished"

    @property
    def seed(self) -> int:
        """-1 where it is not known."""
        seed = number(self.record.config.get("seed"))
        return -1 if math.isnan(seed) else int(seed)

    @property
    def sessions(self) -> tuple[int, int | None]:
        """How many are done, and of how many if that is known."""
        total = number(dig(self.record.config, "stream", "sessions")) if self.total is None else self.total
        return len(self.record.sessions), None if math.isnan(total) else int(total)

    def value(self, name: str) -> float:
        """A number of the summary, NaN where there is none; coverage in percent."""
        return (100 if name == "coverage" else 1) * number(self.record.summary.get(name))


def number(value: Any) -> float:
    """A finite number as it is, anything else as NaN.

    >>> number(3), number("3"), number(float("inf"))
    (3.0, nan, nan)
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:
        return math.nan


def dig(values: Any, *names: str) -> Any:
    """A value deep in nested dictionaries, None where there is none.

    >>> dig({"a": {"b": 3}}, "a", "b"), dig({"a": 1}, "a", "b")
    (3, None)
    """
    for name in names:
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def read_runs(paths: Iterable[Path]) -> list[Run]:
    """All runs in and below folders, each once; a folder without any is listed as empty."""
    found: dict[Path, Run] = {}
    for path in paths:
        if not path.is_dir():
            raise GraspError(f"there is no folder {path}; give run folders, or folders with runs below them")
        folders = sorted({file.parent for name in _OF_A_RUN for file in path.rglob(name)})
        for folder in folders:
            if folder.resolve() not in found:
                found[folder.resolve()] = read_run(folder)
        if not folders:
            found.setdefault(path.resolve(), Run(RunRecord(path, "damaged", {}, [], {}), ("no run in it",)))
    return list(found.values())


def read_run(path: Path) -> Run:
    """One run folder; never fails."""
    try:
        record = read_record(path)
    except UNREADABLE:
        record = RunRecord(path, "damaged", {}, [], {})
    problems = list(_wrong(record))
    if problems and record.state == "finished":
        record = RunRecord(path, "damaged", record.config, record.sessions, {})
    parts: dict[str, Any] = {}
    if record.state != "damaged":
        for file, read in _PARTS.items():
            try:
                if (path / file).exists():
                    parts |= read(path)
            except UNREADABLE as error:
                problems.append(f"{file} cannot be read ({str(error)[:200] or type(error).__name__})")
    parts = {"curves": _fallback(record), "matrix": _matrix(record)} | parts
    problems += _failure(path)
    return Run(record, tuple(problems), **parts)


def _wrong(record: RunRecord) -> Iterable[str]:
    """Why a run that says it is finished, or could not be read, cannot be used."""
    found = False
    if record.state == "damaged":
        for name, parse in (("config.toml", tomllib.loads), ("summary.json", json.loads), ("metrics.jsonl", str)):
            try:
                parse((record.path / name).read_text(encoding="utf-8"))
            except FileNotFoundError:
                if name == "config.toml":
                    found = True
                    yield "config.toml is missing"
            except UNREADABLE as error:
                found = True
                yield f"{name} cannot be read ({str(error)[:200] or type(error).__name__})"
    if not found and record.state != "unfinished" and math.isnan(number(record.summary.get("alpha"))):
        yield "summary.json has no final accuracy"


def _failure(path: Path) -> list[str]:
    """The last line of what stopped a run of a sweep."""
    try:
        lines = (path / "failure.txt").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return []
    return [f"failed: {line.strip()[:200]}" for line in [line for line in lines if line.strip()][-1:]]


def _environment(path: Path) -> Parts:
    found = json.loads((path / "environment.json").read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError("it is not an object")
    return {"environment": found}


def _names(path: Path) -> list[str]:
    try:
        return [str(name) for name in json.loads((path / "classes.json").read_text(encoding="utf-8"))]
    except UNREADABLE:
        return []


def _named(names: Sequence[str], label: int) -> str:
    return names[label] if 0 <= label < len(names) else f"class {label}"


def _arrays(path: Path, *names: str) -> dict[str, Array]:
    """Arrays of a file, by default all."""
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:  # a damaged one is closed by the first
        return {name: found[name] for name in names or found.files}


def _total(path: Path) -> Parts:
    return {"total": len(_arrays(path / "stream.npz", "lengths")["lengths"])}


def _predictions(path: Path) -> Parts:
    """Curves, matrix and final hits; earlier versions did not keep in which session the class of a sample arrived."""
    arrays = _arrays(path / "predictions.npz")
    labels, predictions = arrays["labels"], arrays["predictions"]
    arrived = arrays["arrived"] if "arrived" in arrays else _arrived(predictions)
    if predictions.ndim != 2 or not labels.shape == arrived.shape == predictions.shape[1:]:
        raise ValueError(f"{predictions.shape} predictions of {labels.shape} samples")
    last = len(predictions) - 1
    found = accuracies(list(predictions), labels, arrived)
    curves = {"all": [found.at(0, slice(0, 1)), *found.all], "old": [math.nan, *found.old]}
    right = predictions[-1] == labels
    known, names = arrived <= last, _names(path)
    counts, hits = np.bincount(labels[known]), np.bincount(labels[known], weights=right[known])
    by_class = {_named(names, int(k)): float(100 * hits[k] / counts[k]) for k in np.flatnonzero(counts)}
    return {
        "curves": curves | {"new": [math.nan, *found.new]}, "matrix": found.matrix, "labels": labels, "right": right,
        "by_class": by_class,
    }  # fmt: skip


def _arrived(predictions: Array) -> Array:
    """The session in which the class of each sample [n] arrived: the first with a prediction [sessions, n] of it.

    >>> _arrived(np.array([[3, -1, -1], [3, 5, -1]])).tolist()
    [0, 1, 2]
    """
    there = predictions != -1
    return np.where(there.any(0), there.argmax(0), len(there))


def _matrix(record: RunRecord) -> Array | None:
    """The accuracy matrix as the summary has it."""
    rows = record.summary.get("matrix")
    if not isinstance(rows, list) or not rows or any(not isinstance(r, list) or len(r) != len(rows) for r in rows):
        return None
    return np.array([[number(value) for value in row] for row in rows])


def _fallback(record: RunRecord) -> Numbers:
    """Accuracy on all classes as the lines of the sessions have it, where predictions are not at hand."""
    return {"all": [math.nan, *(number(row.get("accuracy")) for row in record.sessions)]}


def _rehearsed(path: Path) -> Parts:
    numbers = [file.stem.removeprefix("session-") for file in (path / "plans").glob("session-*.npz")]
    if not (sessions := sorted(int(text) for text in numbers if text.isdecimal())):
        return {}
    arrays = _arrays(path / "plans" / f"session-{sessions[-1]}.npz")
    labels, picks = arrays["labels"], arrays["picks"]
    stored = len(labels)
    distances = arrays.get("distances", np.full(stored, np.nan))  # earlier versions did not measure any
    if not picks.size or not stored:
        return {}
    shown = np.bincount(picks.ravel(), minlength=stored)
    if len(shown) > stored:
        raise ValueError(f"it shows slot {len(shown) - 1} of {stored}")
    times = np.bincount(np.minimum(shown, _TIMES), minlength=_TIMES + 1)
    counts, seen, names = np.bincount(labels), np.bincount(labels, weights=shown > 0), _names(path)
    first = np.unique(picks, return_index=True)[1] // picks.shape[1]
    by_class = {_named(names, int(k)): float(100 * seen[k] / counts[k]) for k in np.flatnonzero(counts)}
    coverage = 100 * np.cumsum(np.bincount(first, minlength=len(picks))) / stored
    apart = _apart(distances, labels)[picks]
    there = ~np.isnan(apart)
    with np.errstate(invalid="ignore"):
        distance = np.where(there, apart, 0).sum(1) / there.sum(1)
    return {"rehearsed": Rehearsed(sessions[-1], 100 * times / stored, by_class, coverage, distance)}


def _apart(distances: Array, labels: Array) -> Array:
    """Distances [stored] in means of their class, so that classes can be averaged; NaN where there is none.

    >>> _apart(np.array([0.25, 0.75, np.nan, 0.0]), np.array([0, 0, 1, 2])).tolist()
    [0.5, 1.5, nan, nan]
    """
    if distances.shape != labels.shape:
        raise ValueError(f"{distances.shape} distances of {labels.shape} samples")
    means = np.bincount(labels, weights=distances) / np.maximum(np.bincount(labels), 1)
    with np.errstate(invalid="ignore"):
        return np.where(means[labels] > 0, distances / means[labels], np.nan)


def _drift(path: Path) -> Parts:
    """One curve per session in which it was measured."""
    found = _arrays(path / "drift.npz")
    names = sorted(found, key=lambda name: int(name.removeprefix("session_")))
    return {"drift": tuple(np.asarray(found[name], np.float64).ravel() for name in names)}


# What of a run comes from which file.
_PARTS: dict[str, Callable[[Path], Parts]] = {
    "environment.json": _environment,
    "stream.npz": _total,
    "predictions.npz": _predictions,
    "plans": _rehearsed,
    "drift.npz": _drift,
}
