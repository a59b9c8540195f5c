"""What all figures share: their form, colours that everyone can distinguish, and means over seeds."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from graspcl.checks import Array
from graspcl.report.grouping import Method
from graspcl.report.measures import LABEL, MIN_SEEDS, Mean, plural, shorten
from graspcl.report.model import Experiment, Group

Trace = dict[str, Any]

# The colours of Okabe and Ito without black and yellow, which vanish on dark or light ground; grey replaces black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_PATTERNS = ("", "/", "x", "-", ".", "\\", "+", "|")  # of bars, one each time all colours have been used
_MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "star", "triangle-down", "cross")
BAND = "±: half of the 95 % t-interval over seeds, drawn for at least 3."


@dataclass(frozen=True)
class View:
    """One state of a figure: plotly's traces, additions to the layout, and a sentence that explains it."""

    label: str
    data: list[Trace]
    layout: dict[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart with views to choose from; without any, `missing` says why."""

    name: str  # on the page, and of its file
    title: str
    caption: str
    views: list[View]
    layout: dict[str, Any] = field(default_factory=dict)  # the same for all views
    missing: str = ""
    choice: str = "condition"  # what views differ in: the condition chosen for the page, or a choice of their own


def plain_text(value: object, most: int = LABEL) -> str:
    """Return text for plotly, which would interpret HTML."""
    return html.escape(shorten(value, most), quote=False)


def bar_height(labels: Iterable[str]) -> dict[str, Any]:
    """Return the height in pixels that bars with these labels need, as part of a layout."""
    return {"meta": {"height": sum(max(34, 17 * (1 + label.count("<br>"))) for label in labels)}}


def rounded(values: ArrayLike, digits: int = 2) -> list[Any]:
    """Return numbers for JSON: rounded, and None for those that are not finite."""
    return [round(float(value), digits) if np.isfinite(value) else None for value in np.asarray(values, np.float64)]


def line_style(experiment: Experiment, method: Method) -> Trace:
    """Return how the lines and markers of a method look in every figure."""
    place = experiment.methods.index(method)
    colour = COLOURS[place % len(COLOURS)]
    return {
        "type": "scatter", "name": plain_text(method.label), "legendgroup": str(place),
        "line": {"color": colour, "dash": "dot" if method.reference else _DASHES[place % len(_DASHES)], "width": 2},
        "marker": {"color": colour, "symbol": _MARKERS[place % len(_MARKERS)], "size": 7},
    }  # fmt: skip


def bar_style(experiment: Experiment, method: Method) -> Trace:
    """Return how the bars of a method look in every figure."""
    place = experiment.methods.index(method)
    marker: Trace = {"color": COLOURS[place % len(COLOURS)]}
    if shape := _PATTERNS[place // len(COLOURS) % len(_PATTERNS)]:
        marker["pattern"] = {"shape": shape, "size": 6, "solidity": 0.5}
    return {"type": "bar", "name": plain_text(method.label), "legendgroup": str(place), "marker": marker}


def error_bars(halves: ArrayLike) -> Trace:
    return {"type": "data", "array": rounded(halves), "thickness": 1}


def drawn_half(group: Group, key: str) -> float:
    """Return half of the interval of a measure; NaN for fewer than three seeds."""
    return group.over_seeds(key).half if len(group.values.get(key, [])) >= MIN_SEEDS else float("nan")


def line_with_band(
    experiment: Experiment, method: Method, x: Sequence[Any], mean: ArrayLike, half: ArrayLike, **look: Any
) -> list[Trace]:
    """Return a line of means in percent or above zero, and a band of ± `half` around it.

    With more than six methods only GRASP and the baseline have a band; references have none.
    """
    style = {**line_style(experiment, method), "mode": "lines+markers", **look}
    middle, wide = np.asarray(mean, np.float64), np.asarray(half, np.float64)
    there = np.flatnonzero(~np.isnan(middle))
    line = {"x": [x[int(at)] for at in there], "y": rounded(middle[there]), "hovertemplate": "%{y:.2f}", **style}
    known = there[~np.isnan(wide[there])]
    if not len(known):
        return [line]
    texts = ["" if np.isnan(value) else f" ± {value:.2f}" for value in wide[there]]
    line |= {"customdata": texts, "hovertemplate": "%{y:.2f}%{customdata}"}
    compared = sum(not one.reference for one in experiment.methods)
    if method.reference or (compared > 6 and method.policy not in ("grasp", experiment.baseline)):
        return [line]
    low, high = np.clip([middle - wide, middle + wide], 0, 100)[:, known]
    places = [x[int(at)] for at in known]
    red, green, blue = (int(style["line"]["color"][at : at + 2], 16) for at in (1, 3, 5))
    band = {
        "type": "scatter", "mode": "lines", "x": [*places, *reversed(places)], "y": rounded([*high, *reversed(low)]),
        "fill": "toself", "fillcolor": f"rgba({red},{green},{blue},0.16)", "line": {"width": 0}, "hoverinfo": "skip",
        "showlegend": False, "legendgroup": style["legendgroup"],
    }  # fmt: skip
    return [band, line]


def over_seeds(curves: Iterable[Sequence[float] | Array]) -> tuple[Array, Array]:
    """Return the mean of curves, and half of its 95 % t-interval, point by point over those that have a number there.

    Both are NaN where there is no number; the interval requires three.
    """
    rows = [np.asarray(curve, np.float64) for curve in curves]
    longest = max(map(len, rows), default=0)
    table = np.array([padded(row, longest) for row in rows]).reshape(len(rows), longest)
    there = ~np.isnan(table)
    count = there.sum(0)
    mean = np.where(there, table, 0).sum(0) / np.where(count, count, np.nan)
    square = np.where(there, (table - mean) ** 2, 0).sum(0)
    std = np.sqrt(square / np.where(count > 1, count - 1, np.nan))
    return mean, std * np.array([_half_per_std(int(n)) for n in count])


def padded(curve: Array, length: int) -> Array:
    return np.pad(curve, (0, length - len(curve)), constant_values=np.nan)


@cache
def _half_per_std(n: int) -> float:
    """Return half of the 95 % t-interval of n values with standard deviation 1."""
    if n < MIN_SEEDS:
        return float("nan")
    found = Mean.of(range(n))
    return found.half / found.std


def thinned(curve: ArrayLike, most: int) -> tuple[list[int], Array]:
    """Return at most `most` evenly spaced points of a curve, with their places; the last point is among them."""
    values = np.asarray(curve)
    places = np.unique(np.linspace(0, len(values) - 1, min(most, len(values))).round().astype(int))
    return places.tolist(), values[places]


def why_missing(experiment: Experiment, file: str, otherwise: str) -> str:
    """Return why a figure has no data: files that cannot be read, or else the usual reason."""
    count = sum(any(problem.startswith(f"{file} cannot") for problem in run.problems) for run in experiment.runs)
    verb = "has" if count == 1 else "have"
    return f"{plural(count, 'run')} {verb} files that cannot be read; see Runs." if count else otherwise


def by_condition(draw: Callable[..., View | None]) -> Callable[..., list[View]]:
    """Draw one view per budget and buffer that has data; decorates what draws the groups of one."""

    @wraps(draw)
    def views(experiment: Experiment, **options: Any) -> list[View]:
        places = [(experiment.condition_label(found), experiment.at(found)) for found in experiment.ranked_conditions]
        drawn = [draw(experiment, label, groups, **options) for label, groups in places]
        return [view for view in drawn if view is not None and view.data]

    return views
