"""What all figures share: their form, colours that everyone can tell apart, and means over seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from graspcl.report.html.grouping import Condition, Experiment, Group, Method
from graspcl.report.html.labels import counted, text
from graspcl.report.html.labels import cut as cut

Trace = dict[str, Any]

# Okabe and Ito's colours without black and yellow, which vanish on dark or light ground; grey stands in for black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
PATTERNS = ("", "/", "x", "-", ".", "\\", "+", "|")  # of bars, one for each time that colours have been used up
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down", "cross")


@dataclass(frozen=True)
class View:
    """One state of a figure: plotly's traces, what its layout has beside the figure's, and a sentence to read it by."""

    label: str
    data: list[Trace]
    layout: dict[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart with one or more views to choose from by `choice`; without any, `missing` says why."""

    name: str
    title: str
    about: str
    views: list[View]
    layout: dict[str, Any] = field(default_factory=dict)
    missing: str = ""
    choice: str = "condition"


def tall(labels: Iterable[str]) -> dict[str, Any]:
    """The height in pixels, as a layout's `meta`, that a bar with each of these labels needs.

    >>> tall(["one line", "two<br>lines"])
    {'meta': {'height': 68}}
    """
    return {"meta": {"height": sum(max(34, 17 * (1 + label.count("<br>"))) for label in labels)}}


def rounded(values: ArrayLike, digits: int = 2) -> list[Any]:
    """Numbers for JSON: rounded, and null for what is none.

    >>> rounded([1.239, float("nan")])
    [1.24, None]
    """
    return [round(float(value), digits) if np.isfinite(value) else None for value in np.asarray(values, np.float64)]


def style(experiment: Experiment, method: Method) -> Trace:
    """How a method looks in every figure."""
    place = experiment.methods.index(method)
    colour = COLOURS[place % len(COLOURS)]
    return {
        "name": text(method.label), "legendgroup": str(place),
        "line": {"color": colour, "dash": DASHES[place % len(DASHES)], "width": 2},
        "marker": {"color": colour, "symbol": MARKERS[place % len(MARKERS)], "size": 7},
    }  # fmt: skip


def bar_style(experiment: Experiment, method: Method) -> Trace:
    """The same for bars."""
    place = experiment.methods.index(method)
    marker: Trace = {"color": COLOURS[place % len(COLOURS)]}
    if shape := PATTERNS[place // len(COLOURS) % len(PATTERNS)]:
        marker["pattern"] = {"shape": shape, "size": 6, "solidity": 0.5}
    return {"type": "bar", "name": text(method.label), "legendgroup": str(place), "marker": marker}


def banded(experiment: Experiment, method: Method) -> bool:
    """Whether there is room for a method's band: among many, only for GRASP's and the baseline's."""
    return len(experiment.methods) <= 6 or method.policy in ("grasp", experiment.baseline)


def band(look: Trace, x: Sequence[Any], mean: ArrayLike, spread: ArrayLike, drawn: bool = True) -> list[Trace]:
    """A line of means, and around it what lies within the standard deviation over seeds, where there is one."""
    middle, half = np.asarray(mean, np.float64), np.asarray(spread, np.float64)
    there = np.flatnonzero(~np.isnan(middle))
    line = {
        "type": "scatter", "mode": "lines+markers", "x": [x[int(at)] for at in there],
        "y": rounded(middle[there]), "hovertemplate": "%{y:.2f}", **look,
    }  # fmt: skip
    known = there[~np.isnan(half[there])]
    if not len(known):
        return [line]
    said = ["" if np.isnan(value) else f" ± {value:.2f}" for value in half[there]]
    line |= {"customdata": said, "hovertemplate": "%{y:.2f}%{customdata}"}
    if not drawn:
        return [line]
    low, high = (middle - half)[known], (middle + half)[known]
    places = [x[int(at)] for at in known]
    red, green, blue = (int(look["line"]["color"][at : at + 2], 16) for at in (1, 3, 5))
    return [
        {
            "type": "scatter", "mode": "lines", "x": [*places, *reversed(places)],
            "y": rounded([*high, *reversed(low)]), "fill": "toself", "fillcolor": f"rgba({red},{green},{blue},0.16)",
            "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False, "legendgroup": look["legendgroup"],
        },
        line,
    ]  # fmt: skip


def over_seeds(curves: Iterable[Sequence[float] | np.ndarray[Any, Any]]) -> tuple[Any, Any]:
    """Mean and standard deviation of curves, point by point, over those that come so far and have a number there; NaN
    where there is none, and no deviation where there is one.

    >>> mean, std = over_seeds([[1.0, 2.0, 7.0], [3.0, 4.0]])
    >>> mean.tolist(), std.round(2).tolist()
    ([2.0, 3.0, 7.0], [1.41, 1.41, nan])
    """
    rows = [np.asarray(curve, np.float64) for curve in curves]
    table = np.full((len(rows), max((len(row) for row in rows), default=0)), np.nan)
    for own, row in zip(table, rows, strict=True):
        own[: len(row)] = row
    there = ~np.isnan(table)
    count = there.sum(0)
    mean = np.where(there, table, 0).sum(0) / np.where(count, count, np.nan)
    square = np.where(there, (table - mean) ** 2, 0).sum(0)
    return mean, np.sqrt(square / np.where(count > 1, count - 1, np.nan))


def thinned(curve: ArrayLike, most: int = 120) -> tuple[list[int], Any]:
    """At most so many points of a long curve, evenly, and where they lie; the last is kept.

    >>> thinned([5, 6, 7, 8, 9], most=3)
    ([0, 2, 4], array([5, 7, 9]))
    """
    values = np.asarray(curve)
    places = np.unique(np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int))
    return places.tolist(), values[places]


def why(experiment: Experiment, file: str, otherwise: str) -> str:
    """Why a figure has no data: runs whose file of them cannot be read, or else what was to be expected."""
    count = sum(any(problem.startswith(f"{file} cannot") for problem in run.problems) for run in experiment.runs)
    return f"{counted(count, 'run has', 'runs have')} files that cannot be read; see Runs." if count else otherwise


def by_condition(experiment: Experiment, draw: Callable[[Condition, list[Group]], View | None]) -> list[View]:
    """A view per budget and buffer."""
    views = [draw(condition, experiment.at(condition)) for condition in by_runs(experiment)]
    return [view for view in views if view is not None and view.data]


def by_runs(experiment: Experiment) -> list[Condition]:
    """Budgets and buffers, first the one to look at first: with most methods, at 1x, with most runs, the largest."""
    places = {condition: place for place, condition in enumerate(experiment.conditions)}

    def order(condition: Condition) -> tuple[int, bool, int, int]:
        done = [len(group.runs) for group in experiment.at(condition) if group.finished]
        return -len(done), not condition.budget.startswith("1x"), -sum(done), -places[condition]

    return sorted(places, key=order)
