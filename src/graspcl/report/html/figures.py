"""The figures of a report as plotly takes them: traces and axes; how they look is the page's business."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from graspcl.report.html.drawing import (
    Figure,
    Trace,
    View,
    band,
    banded,
    bar_style,
    by_condition,
    by_runs,
    over_seeds,
    rounded,
    style,
    tall,
    why,
)
from graspcl.report.html.grouping import Condition, Experiment, Group
from graspcl.report.html.labels import LABEL, cut, text, wrapped
from graspcl.report.html.rehearsed import coverage, distance, drift, seen, shown
from graspcl.report.html.spending import memory, times, updates
from graspcl.report.html.tables import figure

# Light enough at both ends for dark numbers in the cells, on any ground.
SCALE = [[0, "#F4F8FB"], [1, "#3B9BD6"]]
_HARDEST = 40  # classes that are drawn


def figures(experiment: Experiment) -> list[Figure]:
    """All figures, in the order of the page; those without data say why."""
    curves = [learning(experiment, which) for which in ("all", "old", "new")]
    return [
        *curves, bars(experiment), updates(experiment), memory(experiment), times(experiment), distance(experiment),
        shown(experiment), coverage(experiment), seen(experiment), drift(experiment), matrix(experiment),
        classes(experiment),
    ]  # fmt: skip


def learning(experiment: Experiment, which: Literal["all", "old", "new"]) -> Figure:
    """Accuracy after each session."""

    def draw(condition: Condition, groups: list[Group]) -> View:
        data: list[Trace] = []
        for group in groups:
            mean, spread = over_seeds(run.curves.get(which, []) for run in group.runs)
            if len(mean) and not np.isnan(mean).all():
                look = style(experiment, group.method)
                if not group.finished:
                    look["name"] += " (unfinished)"
                data += band(look, list(range(len(mean))), mean, spread, banded(experiment, group.method))
        return View(experiment.named(condition), data)

    what = {
        "all": "On all classes so far.",
        "old": "On classes from before the session: what was kept.",
        "new": "On the classes that the session brought: what was learned.",
    }[which]
    about = f"{what} Mean over the seeds that came so far; the band is one standard deviation."
    return Figure(
        f"learning-{which}", f"Accuracy on {which} classes", about, by_condition(experiment, draw),
        {
            "xaxis": {"title": {"text": "after session"}, "dtick": None if _long(experiment) else 1},
            "yaxis": {"title": {"text": "accuracy (%)"}}, "hovermode": "x unified",
        },
        why(experiment, "predictions.npz", f"No run has predictions on {which} classes yet."),
    )  # fmt: skip


def bars(experiment: Experiment) -> Figure:
    """Final accuracy, best first."""

    def draw(condition: Condition, groups: list[Group]) -> View:
        done = sorted((g for g in groups if g.finished), key=lambda group: group.mean("alpha"))
        data: list[Trace] = []
        labels = []
        for group in done:
            spread = group.std("alpha")
            said = figure(group.mean("alpha"), 2, spread).text
            labels.append(f"{wrapped(group.method.label)}<br><b>{said}</b>")
            bar = {**bar_style(experiment, group.method), "orientation": "h", "x": rounded([group.mean("alpha")]),
                   "y": labels[-1:], "showlegend": False,
                   "hovertemplate": "%{x:.2f} %<extra></extra>"}  # fmt: skip
            if not math.isnan(spread):
                bar["error_x"] = {"type": "data", "array": rounded([spread])}
            data.append(bar)
        return View(experiment.named(condition), data, tall(labels))

    return Figure(
        "bars", "Final accuracy", "α, on all classes after the last session. Mean and standard deviation over seeds.",
        by_condition(experiment, draw),
        {"xaxis": {"title": {"text": "α (%)"}, "rangemode": "tozero"}, "yaxis": {"type": "category"}},
        "No run is finished.",
    )  # fmt: skip


def matrix(experiment: Experiment) -> Figure:
    """The accuracy matrix of every run."""
    views = []
    for condition in by_runs(experiment):
        for group in experiment.at(condition):
            for run in group.runs:
                if run.matrix is None:
                    continue
                size = len(run.matrix)
                names = ["base", *map(str, range(1, size))]
                rows = [rounded(row[: at + 1], 1) for at, row in enumerate(run.matrix)]
                label = f"{cut(group.method.label, LABEL)}, seed {run.seed}"
                where = experiment.named(condition)
                trace: Trace = {
                    "type": "heatmap", "z": rows, "x": names, "y": ["start", *names[1:]], "zmin": 0, "zmax": 100,
                    "colorscale": SCALE, "colorbar": {"ticksuffix": " %", "thickness": 12, "outlinewidth": 0},
                    "hovertemplate": "after %{y}, on classes of %{x}: %{z} %<extra></extra>",
                    "textfont": {"color": "#101418"},
                }  # fmt: skip
                if size <= 12:
                    trace["texttemplate"] = "%{z:.0f}"
                views.append(View(label if where == "all" else f"{label} ({where})", [trace]))
    axis = {"type": "category", "showgrid": False}
    return Figure(
        "matrix", "Accuracy matrix",
        "Row: after which session. Column: on the classes that came with which session. In percent.",
        views,
        {
            "xaxis": {**axis, "title": {"text": "classes of session"}},
            "yaxis": {**axis, "title": {"text": "after session"}, "autorange": "reversed"}, "meta": {"height": 400},
        },
        why(experiment, "predictions.npz", "No run has predictions."),
        choice="run",
    )  # fmt: skip


def classes(experiment: Experiment) -> Figure:
    """Final accuracy class by class, the hardest first."""

    def draw(condition: Condition, groups: list[Group]) -> View | None:
        found = {group.method: class_means(group) for group in groups}
        names = {name for means in found.values() for name in means}
        if not names:
            return None
        hardness = {name: np.mean([means[name] for means in found.values() if name in means]) for name in names}
        hardest = sorted(names, key=lambda name: (hardness[name], name))[:_HARDEST]
        axis = dict(zip(hardest, _distinct([text(name, 26) for name in hardest]), strict=True))
        data = [
            {
                "type": "scatter", **style(experiment, method), "mode": "markers",
                "y": [axis[name] for name in hardest if name in own],
                "x": rounded([own[name] for name in hardest if name in own], 1), "hovertemplate": "%{x:.1f} %",
            }
            for method, own in found.items()
            if own
        ]  # fmt: skip
        note = f"The {len(hardest)} hardest of {len(names)} classes." if len(names) > len(hardest) else ""
        order = {"categoryorder": "array", "categoryarray": [*reversed(axis.values())]}
        return View(
            experiment.named(condition), data, {"yaxis": order, "meta": {"height": 60 + 20 * len(hardest)}}, note
        )

    return Figure(
        "classes", "Accuracy by class", "After the last session, mean over seeds; the hardest classes first.",
        by_condition(experiment, draw),
        {
            "xaxis": {"title": {"text": "accuracy (%)"}, "range": [-3, 103]},
            "yaxis": {"type": "category", "tickmode": "linear", "dtick": 1}, "hovermode": "y unified",
        },
        why(experiment, "predictions.npz", "No run has predictions."),
    )  # fmt: skip


def class_means(group: Group) -> dict[str, float]:
    """Accuracy of each class, mean over seeds."""
    found: dict[str, list[float]] = {}
    for run in group.runs:
        for name, value in run.by_class.items():
            found.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in found.items()}


def _distinct(labels: list[str]) -> list[str]:
    """Labels that were cut to the same text stay apart."""
    met: dict[str, int] = {}
    for label in labels:
        met[label] = met.get(label, 0) + 1
    found: dict[str, int] = {}
    result = []
    for label in labels:
        found[label] = found.get(label, 0) + 1
        result.append(label if met[label] == 1 else f"{label} [{found[label]}]")
    return result


def _long(experiment: Experiment) -> bool:
    return max((len(run.record.sessions) for run in experiment.runs), default=0) > 12
