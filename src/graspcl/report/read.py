"""Read run folders, whatever state they are in. A file that cannot be read is a problem of its run, never an error."""

from __future__ import annotations

import fnmatch
import functools
import json
import math
import os
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.former import MARK, with_former
from graspcl.integrity import read_arrays, read_text
from graspcl.metric import accuracies

State = Literal["finished", "unfinished", "damaged", "empty"]

# What damaged files raise: JSON, TOML and UTF-8 ValueError, archives and arrays the others (zipfile raises
# NotImplementedError for a compression that it does not know).
_UNREADABLE = (
    OSError, ValueError, KeyError, TypeError, IndexError, EOFError, RecursionError, OverflowError, GraspError,
    zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError,
)  # fmt: skip
_RUN_FILES = ("config.toml", "summary.json", "metrics.jsonl")  # a folder with any of these is a run folder
_MOST_REPEATS = 8  # samples rehearsed this often or more are counted together


@dataclass(frozen=True)
class RehearsedSession:
    """What one session rehearsed, in percent of the stored samples."""

    session: int
    repeats: Array  # repeats[k] were rehearsed k times; the last entry counts all higher k too
    class_coverage: dict[str, float]  # share of each class that was rehearsed
    coverage: Array  # share that was rehearsed by the end of each update
    distance: Array  # of each update's samples to their prototypes, over the mean of their class; NaN if unknown


@dataclass(frozen=True)
class Run:
    """A run folder. Fields whose file is missing or cannot be read are empty; `problems` says why."""

    path: Path
    state: State  # "damaged": without settings or a valid summary; "empty": a folder without a run
    config: dict[str, Any] = field(default_factory=dict)
    sessions: list[dict[str, Any]] = field(default_factory=list)  # lines of metrics.jsonl
    summary: dict[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, list[float]] = field(default_factory=dict)  # on "all", "old" and "new" classes; [0]: at the start
    matrix: Array | None = None  # accuracy after session t (row) on the classes of session s (column)
    labels: Array | None = None  # of the test samples [n]
    correct: Array | None = None  # whether their last predictions are right [n]
    class_accuracy: dict[str, float] = field(default_factory=dict)  # after the last session
    class_sessions: dict[str, list[float]] = field(default_factory=dict)  # after each, NaN before the class arrived
    rehearsed: RehearsedSession | None = None  # the last session
    drift: tuple[Array, ...] = ()  # after each update, by session, as a norm
    drift_mse: tuple[Array, ...] = ()  # the same as a mean squared difference
    stream_sessions: int | None = None

    @property
    def finished(self) -> bool:
        """Whether it has a final accuracy."""
        return self.state == "finished"

    @property
    def usable(self) -> bool:
        """Whether there is anything to report."""
        return self.state in ("finished", "unfinished")

    @property
    def policy(self) -> str:
        """The policy; empty if the learner does not rehearse."""
        return _part_label(self.config["policy"]) if "policy" in self.config else ""

    @property
    def learner(self) -> str:
        return _part_label(self.config.get("learner"))

    @property
    def method(self) -> str:
        """Learner and policy."""
        return " + ".join(filter(None, (self.learner, self.policy)))

    @property
    def reference(self) -> bool:
        """Whether it is a baseline: a learner without a policy, ER-ACE, or training without rehearsal."""
        return not self.policy or self.method in ("er_ace + uniform", "finetune + uniform")

    @property
    def stores(self) -> bool:
        """Whether its buffer held samples."""
        return any(number(line.get("stored"), 0.0) > 0 for line in self.sessions)

    @property
    def buffer(self) -> str:
        """The capacity of the buffer."""
        capacity = dig(self.config, "buffer", "capacity")
        if capacity is None:
            return "unbounded"
        return f"{capacity:,} samples" if isinstance(capacity, int) else str(capacity)

    @property
    def budget_factor(self) -> float:
        """By how much its budget of updates is multiplied."""
        return number(dig(self.config, "budget", "times"), 1.0)

    @property
    def seed(self) -> int:
        """Its seed, -1 if unknown."""
        return int(number(self.config.get("seed"), -1))

    @property
    def planned_sessions(self) -> int | None:
        """How many sessions it has when finished, None if unknown."""
        sessions = number(self.stream_sessions, number(dig(self.config, "stream", "sessions")))
        return None if math.isnan(sessions) else int(sessions)

    @property
    def progress(self) -> str:
        """Finished and planned sessions, such as "2 of 5"."""
        return f"{len(self.sessions)} of {'?' if self.planned_sessions is None else self.planned_sessions}"

    def value(self, key: str) -> float:
        """Return a number of the summary, NaN if there is none."""
        return number(self.summary.get(key))


def number(value: Any, otherwise: float = math.nan) -> float:
    """Return a finite number as float, and `otherwise` for anything else.

    >>> number(3), number("3"), number(float("inf"))
    (3.0, nan, nan)
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        return otherwise
    try:
        return float(value) if math.isfinite(value) else otherwise
    except OverflowError:
        return otherwise


def dig(values: Any, *keys: str) -> Any:
    """Return a value of nested dictionaries, None if there is none.

    >>> dig({"a": {"b": 3}}, "a", "b"), dig({"a": 1}, "a", "b")
    (3, None)
    """
    for key in keys:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested settings by dotted names, as text.

    >>> flatten({"seed": 3, "policy": {"name": "grasp", "eps": 1e-7}, "compile": True})
    {'seed': '3', 'policy.name': 'grasp', 'policy.eps': '1e-07', 'compile': 'true'}
    """
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the names whose values differ."""
    names = dict.fromkeys(name for values in settings for name in values)
    return [name for name in names if len({values.get(name) for values in settings}) > 1]


# -- finding runs ------------------------------------------------------------------------------------------------------


def read_runs(paths: Iterable[Path]) -> list[Run]:
    """Read all runs in and below folders, each once. A folder without any run counts as an empty one."""
    found: dict[Path, Run] = {}
    for path in paths:
        if not path.is_dir():
            raise GraspError(f"there is no folder {path}; give run folders, or folders with runs below them")
        folders = _run_folders(path)
        for folder, fault in folders.items():
            if folder.resolve() not in found:
                found[folder.resolve()] = _unreadable(folder, fault) if fault else read_run(folder)
        if not folders:
            found.setdefault(path.resolve(), Run(path, "empty", problems=("the folder holds no run",)))
    return list(found.values())


def find_runs(
    folder: Path, name: str = "*", policy: str = "*", learner: str = "*", state: State | None = None
) -> list[Run]:
    """Return the runs in and below a folder that match all patterns, such as "imagenet-*", without their arrays.

    Policies and learners match with or without their parameters.
    """

    def matches(label: str, pattern: str) -> bool:
        return any(fnmatch.fnmatchcase(text, pattern) for text in (label, label.partition("(")[0]))

    return [
        run
        for run in (
            _unreadable(path, fault) if fault else read_run(path, arrays=False)
            for path, fault in _run_folders(folder).items()
        )
        if fnmatch.fnmatchcase(str(run.config.get("name", "")), name)
        and matches(run.policy, policy)
        and matches(run.learner, learner)
        and (state is None or run.state == state)
    ]


def _run_folders(path: Path) -> dict[Path, str]:
    """Return the run folders in and below a folder, and folders that cannot be read with the reason."""
    lost: list[OSError] = []
    walked = os.walk(path, onerror=lost.append)
    found = {Path(folder): "" for folder, *inside in walked if not set(_RUN_FILES).isdisjoint(chain(*inside))}
    faults = {Path(error.filename): error.strerror or str(error) for error in lost}
    # What lies in a run folder is reported with the run.
    return dict(sorted(found.items())) | {at: why for at, why in faults.items() if found.keys().isdisjoint(at.parents)}


def _unreadable(folder: Path, fault: str) -> Run:
    return Run(folder, "damaged", problems=(f"the folder cannot be read ({fault})",))


def _part_label(part: Any) -> str:
    """Return the name and the parameters of a policy or learner."""
    if not isinstance(part, dict):
        return str(part)
    parameters = ", ".join(f"{key}={value}" for key, value in part.items() if key != "name")
    return f"{part.get('name')}({parameters})" if parameters else str(part.get("name"))


# -- reading a run -----------------------------------------------------------------------------------------------------


def read_run(path: Path, arrays: bool = True) -> Run:
    """Read a run folder; never fails. Without `arrays`, predictions, plans, drift and environment are left out."""
    problems: list[str] = []

    def read(name: str, parse: Callable[[Path], Any]) -> Any:
        """Return the content of a file, None if it is missing or cannot be read."""
        try:
            return parse(path / name) if os.path.lexists(path / name) else None  # a link to nothing is damage
        except _UNREADABLE as error:
            problems.append(f"{name} cannot be read ({str(error)[:200] or type(error).__name__})")
            return None

    config = read("config.toml", lambda file: _as_it_was(tomllib.loads(read_text(file))))
    if config is None and not problems:
        problems.append("config.toml is missing")
    summary = read("summary.json", _json)
    sessions = read("metrics.jsonl", _json_lines) or []
    if summary is not None and not problems and math.isnan(number(dig(summary, "alpha"))):
        problems.append("summary.json has no final accuracy")
    state: State = "damaged" if problems else "unfinished" if summary is None else "finished"
    if state != "finished":
        summary = {}
    # Runs without predictions have the accuracy on all classes of metrics.jsonl.
    curve = [math.nan, *(number(line.get("accuracy")) for line in sessions)]
    fields: dict[str, Any] = {"curves": {"all": curve}, "matrix": _stored_matrix(summary)}
    if arrays and state != "damaged":
        names = read("classes.json", _class_names) or []
        for file, parse in _READERS.items():
            fields |= read(file, functools.partial(parse, names)) or {}
    if failure := (read("failure.txt", read_text) or "").strip():  # what stopped a run of a sweep
        problems.append(f"failed: {failure.rpartition(chr(10))[2].strip()[:200]}")
    return Run(path, state, config or {}, sessions, summary, tuple(problems), **fields)


def _as_it_was(config: dict[str, Any]) -> dict[str, Any]:
    """Return settings with the parameters that parts had by default when the run was made."""
    if dig(config, "base", MARK) is None:
        return config
    parts = {kind: config[kind] for kind in ("policy", "network") if isinstance(config.get(kind), dict)}
    return config | {kind: with_former(kind, part) for kind, part in parts.items()}


def _json(file: Path) -> Any:
    return json.loads(read_text(file))


def _class_names(file: Path) -> list[str]:
    return [str(name) for name in _json(file)]


def _json_lines(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics.jsonl; earlier versions may have left the last one half-written."""
    found = []
    for line in read_text(file).splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return [line for line in found if isinstance(line, dict)]


def _stored_matrix(summary: dict[str, Any]) -> Array | None:
    """Return the accuracy matrix as the summary has it."""
    rows = summary.get("matrix")
    if not isinstance(rows, list) or not rows or any(not isinstance(r, list) or len(r) != len(rows) for r in rows):
        return None
    return np.array([[number(value) for value in row] for row in rows])


def _environment(names: list[str], file: Path) -> dict[str, Any]:
    if not isinstance(found := _json(file), dict):
        raise ValueError("it is not an object")
    return {"environment": found}


def _by_class(names: list[str], values: Array, labels: Array) -> dict[str, float]:
    """Return the mean of `values` over each class, in percent, by the name of the class."""
    counts, sums = np.bincount(labels), np.bincount(labels, weights=values)
    return {
        names[k] if k < len(names) else f"class {k}": float(100 * sums[k] / counts[k])
        for k in np.flatnonzero(counts).tolist()
    }


def _predictions(names: list[str], file: Path) -> dict[str, Any]:
    """Return curves, matrix and final hits. Earlier versions did not store in which session a class arrived."""
    arrays = read_arrays(file)
    labels, predictions = arrays["labels"], arrays["predictions"]
    there = predictions != -1
    arrived = arrays.get("arrived", np.where(there.any(0), there.argmax(0), len(there)))
    if predictions.ndim != 2 or not labels.shape == arrived.shape == predictions.shape[1:]:
        raise ValueError(f"{predictions.shape} predictions of {labels.shape} samples")
    found = accuracies(list(predictions), labels, arrived)
    known, correct = arrived < len(predictions), predictions[-1] == labels
    first = found.at(0, slice(0, 1))
    curves = {"all": [first, *found.all], "old": [math.nan, *found.old], "new": [math.nan, *found.new]}
    by_class = _by_class(names, correct[known], labels[known])
    over_sessions: dict[str, list[float]] = {}  # in the order of arrival
    for session, predicted in enumerate(predictions):
        here = arrived <= session
        for name, accuracy in _by_class(names, predicted[here] == labels[here], labels[here]).items():
            over_sessions.setdefault(name, [math.nan] * session).append(accuracy)
    return {
        "curves": curves, "matrix": found.matrix, "labels": labels, "correct": correct, "class_accuracy": by_class,
        "class_sessions": over_sessions,
    }  # fmt: skip


def _plans(names: list[str], folder: Path) -> dict[str, Any]:
    """Return what the last session rehearsed. Earlier versions did not measure distances."""
    numbered = [file.stem.removeprefix("session-") for file in folder.glob("session-*.npz")]
    session = max((int(text) for text in numbered if text.isdecimal()), default=None)
    if session is None:
        return {}
    arrays = read_arrays(folder / f"session-{session}.npz")
    labels, picks = arrays["labels"], arrays["picks"]
    stored = len(labels)
    if not picks.size or not stored:
        return {}
    repeats = np.bincount(picks.ravel(), minlength=stored)
    if len(repeats) > stored:
        raise ValueError(f"it rehearses slot {len(repeats) - 1} of {stored}")
    histogram = np.bincount(np.minimum(repeats, _MOST_REPEATS), minlength=_MOST_REPEATS + 1)
    first = np.unique(picks, return_index=True)[1] // picks.shape[1]
    coverage = 100 * np.cumsum(np.bincount(first, minlength=len(picks))) / stored
    distances = _relative(arrays.get("distances", np.full(stored, np.nan)), labels)[picks]
    measured = ~np.isnan(distances)
    with np.errstate(invalid="ignore"):
        distance = np.where(measured, distances, 0).sum(1) / measured.sum(1)
    by_class = _by_class(names, repeats > 0, labels)
    return {"rehearsed": RehearsedSession(session, 100 * histogram / stored, by_class, coverage, distance)}


def _relative(distances: Array, labels: Array) -> Array:
    """Divide distances [stored] by the mean of their class; NaN where it is unknown or zero."""
    if distances.shape != labels.shape:
        raise ValueError(f"{distances.shape} distances of {labels.shape} samples")
    means = np.bincount(labels, weights=distances) / np.maximum(np.bincount(labels), 1)
    with np.errstate(invalid="ignore"):
        return np.where(means[labels] > 0, distances / means[labels], np.nan)


def _drift(names: list[str], file: Path) -> dict[str, Any]:
    """Return the curves. Earlier versions measured the norm alone."""
    found = read_arrays(file)
    curves = {}
    for field_name, kind in (("drift", "session_"), ("drift_mse", "mse_")):
        order = sorted((n for n in found if n.startswith(kind)), key=lambda name: int(name.rpartition("_")[2]))
        curves[field_name] = tuple(np.asarray(found[name], np.float64).ravel() for name in order)
    return curves


def _stream(names: list[str], file: Path) -> dict[str, Any]:
    return {"stream_sessions": len(read_arrays(file)["lengths"])}


# Which file gives which fields of a run; its readers take the names of the classes.
_READERS: dict[str, Callable[[list[str], Path], dict[str, Any]]] = {
    "environment.json": _environment,
    "stream.npz": _stream,
    "predictions.npz": _predictions,
    "plans": _plans,
    "drift.npz": _drift,
}
