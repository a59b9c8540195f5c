"""The samples that GRASP rehearsed first and last, by class, if the data of a run are still available."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from graspcl.checks import Array
from graspcl.integrity import read_arrays
from graspcl.report.figures.style import why_missing
from graspcl.report.measures import shorten
from graspcl.report.model import Experiment
from graspcl.report.read import Run

TITLE = "What GRASP rehearsed first and last"
PIXELS = 72  # side of a thumbnail
IMAGES, TEXTS = 6, 3  # of a class, at either end
_CLASSES = 4


class SampleReader(Protocol):
    """Reads the samples of a run: `images`, or else texts."""

    @property
    def classes(self) -> list[str]: ...

    @property
    def images(self) -> bool: ...

    def show(self, rows: Array) -> tuple[dict[int, str], list[str]]:
        """Return by row an image as a data: address or a text, and the problems of rows that cannot be read."""


OpenSamples = Callable[[Path], SampleReader]  # opens the samples of a run folder


@dataclass(frozen=True)
class ClassSamples:
    """The samples of a class that were rehearsed first and last."""

    name: str
    stored: int
    rehearsed: int
    first: dict[int, str]  # by place in the order of rehearsal, from 1 on: a data: address or a text
    last: dict[int, str]


@dataclass(frozen=True)
class FirstAndLast:
    """Samples of an experiment by class; without any, `missing` says why."""

    classes: tuple[ClassSamples, ...] = ()
    images: bool = True
    caption: str = ""
    missing: str = ""


def first_and_last(experiment: Experiment, open_samples: OpenSamples) -> FirstAndLast:
    """Return the first and last samples of a finished run with GRASP; never fails."""
    if (found := _choose_run(experiment)) is None:
        reason = "No finished run with GRASP stored which samples its sessions rehearsed."
        return FirstAndLast(missing=why_missing(experiment, "plans", reason))
    run, where = found
    try:
        return _read(run, where, open_samples(run.path))
    except Exception as error:  # readers of data that were moved or damaged raise errors of many kinds
        reason = shorten(error, 300).rstrip(".") or type(error).__name__
        return FirstAndLast(missing=f"Its samples are not available: {reason}.")


def order_by_class(labels: Array, picks: Array, classes: int = _CLASSES) -> dict[int, Array]:
    """Return the rehearsed slots of the `classes` largest classes, each once, in the order of their first use.

    `labels` [stored] are those of the stored samples, `picks` [updates, batch] the slots of each mini-batch.
    """
    slots, first = np.unique(picks, return_index=True)
    slots = slots[np.argsort(first)]
    stored = np.bincount(labels)
    rehearsed = np.bincount(labels[slots], minlength=len(stored))
    largest = np.argsort(np.where(rehearsed > 0, -stored, 1), kind="stable")[:classes]
    return {int(label): slots[labels[slots] == label] for label in largest if rehearsed[label]}


def both_ends(count: int, each: int) -> tuple[Array, Array]:
    """Return the first and the last `each` of `count` places, none of them twice."""
    places = np.arange(count)
    return places[: min(each, (count + 1) // 2)], places[count - min(each, count // 2) :]


def _choose_run(experiment: Experiment) -> tuple[Run, str] | None:
    """Return the run with the lowest seed under the first condition that has one, and that condition."""
    for condition in experiment.ranked_conditions:
        for group in experiment.at(condition):
            runs = [run for run in group.runs if run.finished and run.rehearsed is not None]
            if runs and group.method.policy.partition("(")[0] == "grasp":
                label = experiment.condition_label(condition)
                return min(runs, key=lambda run: run.seed), "" if label == "all" else f", {label}"
    return None


def _read(run: Run, where: str, samples: SampleReader) -> FirstAndLast:
    assert run.rehearsed is not None
    session = run.rehearsed.session
    plan = read_arrays(run.path / "plans" / f"session-{session}.npz")
    labels, ids, picks = plan["labels"], plan["ids"], plan["picks"]
    orders = order_by_class(labels, picks)
    places = {label: both_ends(len(slots), IMAGES if samples.images else TEXTS) for label, slots in orders.items()}
    rows = np.concatenate([ids[orders[label][end]] for label, ends in places.items() for end in ends])
    contents, problems = samples.show(rows)
    classes = []
    for label, slots in orders.items():
        own = dict(enumerate(ids[slots].tolist(), start=1))
        first, last = (
            {at: contents[own[at]] for at in (end + 1).tolist() if own[at] in contents} for end in places[label]
        )
        classes.append(ClassSamples(samples.classes[label], int((labels == label).sum()), len(slots), first, last))
    of = "" if run.planned_sessions is None else f" of {run.planned_sessions}"
    caption = (
        f"Session {session}{of} of the run with seed {run.seed}{where}, sorted by first use. Classes with most stored "
        f"samples; {'images are cropped as the network sees them.' if samples.images else 'texts are shortened.'}"
    )
    if problems:
        caption += f" {len(problems)} of {len(rows)} samples cannot be read and are left out."
    return FirstAndLast(tuple(classes), samples.images, caption)
