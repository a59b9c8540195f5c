"""The samples that GRASP picked first and last in a class, as far as the data of a run are at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from graspcl.checks import Array
from graspcl.report.html.drawing import by_runs, why
from graspcl.report.html.grouping import Experiment
from graspcl.report.html.labels import cut
from graspcl.report.html.reading import Run

CLASSES = 4
IMAGES, TEXTS = 6, 3  # of a class, at either end
PIXELS = 72  # of a thumbnail


class Shown(Protocol):
    """The samples of a run, as someone opens them who knows how: their classes, and whether they are images."""

    @property
    def classes(self) -> list[str]:
        """Names."""

    @property
    def images(self) -> bool:
        """Or texts."""

    def show(self, rows: Array) -> tuple[dict[int, str], list[str]]:
        """By row an image as a data: address, or a text; and what is wrong with those that cannot be read."""


Open = Callable[[Path], Shown]


@dataclass(frozen=True)
class Pick:
    """A sample: its place among those of its class, from 1 on, and an image as a data: address, or a text."""

    place: int
    content: str


@dataclass(frozen=True)
class Picks:
    """Those of a class that came first and last, and how many of it were `stored` and `shown` at all."""

    name: str
    stored: int
    shown: int
    first: tuple[Pick, ...]
    last: tuple[Pick, ...]


@dataclass(frozen=True)
class Picked:
    """What an experiment has to show; without any class `missing` says why."""

    classes: tuple[Picks, ...] = ()
    images: bool = True
    about: str = ""
    missing: str = ""


def picked(experiment: Experiment, open_shown: Open) -> Picked:
    """First and last picks of one finished run with GRASP, whose samples are opened for it; never fails."""
    found = _run(experiment)
    if found is None:
        return Picked(missing=why(experiment, "plans", "No finished run with GRASP has plans of its sessions."))
    run, where = found
    try:
        return _picked(run, where, open_shown(run.record.path))
    except Exception as error:  # data that were moved or damaged make their readers raise errors of many kinds
        return Picked(missing=f"Its samples are not at hand: {cut(error, 300).rstrip('.') or type(error).__name__}.")


def by_first_showing(labels: Array, picks: Array, classes: int = CLASSES) -> dict[int, Array]:
    """For the `classes` classes with most of the stored `labels` [stored]: its slots among `picks` [updates, batch],
    each once, in the order in which they were first shown. A class of which nothing was shown is passed over.

    >>> found = by_first_showing(np.array([0, 1, 1, 1, 0, 2]), np.array([[2, 0], [1, 2], [4, 1]]), classes=2)
    >>> {label: slots.tolist() for label, slots in found.items()}
    {1: [2, 1], 0: [0, 4]}
    """
    slots, first = np.unique(picks, return_index=True)
    slots = slots[np.argsort(first)]
    stored = np.bincount(labels)
    shown = np.bincount(labels[slots], minlength=len(stored))
    largest = np.argsort(np.where(shown > 0, -stored, 1), kind="stable")[:classes]
    return {int(label): slots[labels[slots] == label] for label in largest if shown[label]}


def ends(number: int, each: int) -> tuple[Array, Array]:
    """The first and the last `each` of so many places, none of them twice.

    >>> [places.tolist() for places in ends(9, 2)], [places.tolist() for places in ends(3, 2)]
    ([[0, 1], [7, 8]], [[0, 1], [2]])
    """
    places = np.arange(number)
    return places[: min(each, (number + 1) // 2)], places[number - min(each, number // 2) :]


def _run(experiment: Experiment) -> tuple[Run, str] | None:
    """The run to show, and what it was allowed to spend: that of the lowest seed where figures begin."""
    for condition in by_runs(experiment):
        for group in experiment.at(condition):
            done = [run for run in group.runs if run.finished and run.rehearsed is not None]
            if done and group.method.policy.partition("(")[0] == "grasp":
                named = experiment.named(condition)
                return min(done, key=lambda run: run.seed), "" if named == "all" else f", {named}"
    return None


def _picked(run: Run, where: str, samples: Shown) -> Picked:
    assert run.rehearsed is not None
    session, total = run.rehearsed.session, run.sessions[1]
    with open(run.record.path / "plans" / f"session-{session}.npz", "rb") as file, np.load(file) as plan:
        labels, ids, picks = plan["labels"], plan["ids"], plan["picks"]
    orders = by_first_showing(labels, picks)
    chosen = {label: ends(len(slots), IMAGES if samples.images else TEXTS) for label, slots in orders.items()}
    rows = np.concatenate([ids[orders[label][places]] for label in chosen for places in chosen[label]])
    contents, problems = samples.show(rows)
    classes = []
    for label, slots in orders.items():
        first, last = (_those(places, ids[slots], contents) for places in chosen[label])
        classes.append(Picks(samples.classes[label], int((labels == label).sum()), len(slots), first, last))
    about = (
        f"In session {session}{f' of {total}' if total else ''} of the run with seed {run.seed}{where}: the samples "
        "that GRASP showed first, and those whose turn came last; each stands where it was shown for the first time. "
        "The classes are those with most stored samples; "
        + ("images are cut as the network sees them." if samples.images else "texts are cut short.")
    )
    if problems:
        about += f" {len(problems)} of {len(rows)} cannot be read and are left out."
    return Picked(tuple(classes), samples.images, about)


def _those(places: Array, rows: Array, contents: Mapping[int, str]) -> tuple[Pick, ...]:
    """What could be read of the samples at some places of a class."""
    found = ((int(place) + 1, contents.get(int(rows[place]))) for place in places)
    return tuple(Pick(place, content) for place, content in found if content is not None)
