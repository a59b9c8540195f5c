"""What is said about a workspace: its classes, its history, warnings, and whether recent inputs look unfamiliar."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.files import read_regular
from graspcl.integrity import Damaged, read_object, seal_object
from graspcl.settings.read import from_plain
from graspcl.state import write_whole
from graspcl.workspace.calibration import Calibration
from graspcl.workspace.judging import Tally
from graspcl.workspace.store import Store
from graspcl.workspace.version import class_names, head_of, history_of

RECENT = "recent.json"  # scores of the last predictions; it is no part of any version
_KEPT = 1000  # recent scores
_FEWEST = 30  # recent scores from which on drift is looked for
_DRIFT, _LEVEL = 0.2, 1e-3  # distance of both distributions, and its p-value, from which on there is drift


@dataclass(frozen=True)
class ClassStatus:
    """One class: samples seen so far and stored, and how many held-out ones were predicted correctly.

    `past` has a tally for each change of the history, the last one included.
    """

    name: str
    seen: int
    stored: int
    past: list[Tally]

    @property
    def held(self) -> Tally:
        """How many held-out samples are predicted correctly now."""
        return self.past[-1]


@dataclass(frozen=True)
class Drift:
    """How the scores of recent predictions compare with those of held-out samples."""

    number: int  # recent predictions
    distance: float  # largest difference of both cumulative distributions (Kolmogorov-Smirnov)
    p: float
    unknown: float  # share of recent predictions that are below the threshold

    @property
    def found(self) -> bool:
        """Whether recent inputs look unlike what was learned."""
        return self.distance > _DRIFT and self.p < _LEVEL


@dataclass(frozen=True)
class Status:
    """Everything that `graspcl status` shows."""

    folder: str
    network: str
    codec: str
    memory: str
    bytes: int
    classes: list[ClassStatus]
    overall: Tally
    calibration: Calibration
    history: list[dict[str, Any]]
    undoable: int  # changes that can be taken back
    drift: Drift | None  # None if there are too few recent predictions
    warnings: list[str] = field(default_factory=list)


def status(store: Store) -> Status:
    """Describe the current version of a workspace. No stored sample is read."""
    manifest, entries = head_of(store), history_of(store)
    config, calibration = from_plain(manifest["settings"]), Calibration.from_plain(manifest["calibration"])
    names = class_names(manifest)
    classes = [
        ClassStatus(name, manifest["seen"].get(str(label), 0), manifest["stored"].get(str(label), 0),
                    [Tally(*entry["classes"].get(name, (0, 0))) for entry in entries])
        for label, name in names.items()
    ]  # fmt: skip
    drift = drift_of(recent_scores(store.folder, -1 if store.head is None else store.head.number), calibration)
    return Status(
        str(store.folder), str(config.network), str(config.codec), str(config.buffer.capacity), store.size(), classes,
        Tally(*entries[-1]["accuracy"]), calibration, entries, len(store.versions()) - 1, drift,
        [
            *(f"{problem}; its backup was read, which may lack the last change" for problem in store.problems[:1]),
            *_warnings(entries, classes),
            *([_said(drift)] if drift is not None and drift.found else []),
        ],
    )  # fmt: skip


def _warnings(entries: list[dict[str, Any]], classes: list[ClassStatus]) -> list[str]:
    """Return what should be looked at: classes that fell since they were best, or when samples were last learned."""
    found = []
    for one_class in classes:
        past = [one for one in one_class.past if one.number]
        if len(past) < 2:
            continue
        best, now = max(past, key=lambda one: one.points), past[-1]
        if now.points < best.points - 10 and best.right / best.number * now.number - now.right >= 2:
            found.append(f"{one_class.name!r} has fallen from {best} to {now} of its held-out samples")
    for entry in [one for one in entries if one["verb"] in ("new", "learn")][-1:]:
        fell = "fell beyond chance in the last learn, which was accepted"
        found += [f"{name!r} {fell}" for name in entry.get("fallen", [])]
        found += [f"the earlier classes together {fell}"] if entry.get("all_fell") else []
        found += entry.get("confused", [])
    return found


def _said(drift: Drift) -> str:
    share = f"{drift.unknown:.0%} of the last {drift.number} inputs look unknown"
    return f"what was predicted lately looks unlike what was learned: {share} (distance {drift.distance:.2f})"


# -- recent predictions ------------------------------------------------------------------------------------------------


def remember_scores(folder: Path, scores: Array, version: int) -> None:
    """Note the scores [n] of predictions with a version, its last 1,000. A folder that cannot be written gets none."""
    new = [round(float(one), 4) for one in scores[np.isfinite(scores)]]
    content = seal_object({"version": version, "scores": [*recent_scores(folder, version), *new][-_KEPT:]})
    with contextlib.suppress(OSError):
        write_whole(folder / RECENT, lambda file: file.write(content))


def recent_scores(folder: Path, version: int) -> list[float]:
    """Return the scores of the last predictions, oldest first; none if another version predicted, or if unreadable."""
    try:
        content = read_object(read_regular(folder / RECENT))
    except (OSError, Damaged):
        return []
    found = content.get("scores")
    scores = found if isinstance(found, list) and content.get("version") == version else []
    return [one for one in scores if isinstance(one, float) and math.isfinite(one)]


def drift_of(recent: list[float], calibration: Calibration) -> Drift | None:
    """Compare recent scores with those of held-out samples; None if there are too few of either."""
    if len(recent) < _FEWEST or len(calibration.scores) < _FEWEST:
        return None
    now, then = np.sort(recent), np.sort(calibration.scores)
    steps = np.concatenate([now, then])
    below = [np.searchsorted(part, steps, side="right") / len(part) for part in (now, then)]
    distance = float(np.abs(below[0] - below[1]).max())
    p = 2 * math.exp(-2 * distance**2 * len(now) * len(then) / (len(now) + len(then)))  # for large samples
    return Drift(len(now), distance, min(1.0, p), float((now < calibration.threshold).mean()))
