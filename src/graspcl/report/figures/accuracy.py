"""Figures of accuracy: over sessions, at the end, by session and by class."""

from __future__ import annotations

import math

import numpy as np

from graspcl.report.figures import style
from graspcl.report.figures.style import Trace, View
from graspcl.report.measures import LABEL, distinct_labels, shorten, tick_label
from graspcl.report.model import Experiment, Group

# Light enough at both ends for dark numbers in the cells, on any ground.
SCALE = [[0, "#F4F8FB"], [1, "#3B9BD6"]]
_HARDEST = 40  # classes in the figure by class
_FEW = 12  # sessions: each has a tick, and its numbers fit into the matrix


@style.by_condition
def learning_curve(experiment: Experiment, label: str, groups: list[Group], which: str) -> View:
    """Accuracy on "all", "old" or "new" classes after each session."""
    data: list[Trace] = []
    for group in groups:
        mean, half = style.over_seeds(run.curves.get(which, []) for run in group.runs)
        if len(mean) and not np.isnan(mean).all():
            name = style.plain_text(group.label) + ("" if group.finished else " (unfinished)")
            data += style.line_with_band(experiment, group.method, range(len(mean)), mean, half, name=name)
    few = all(len(run.sessions) <= _FEW for run in experiment.runs)
    return View(label, data, {"xaxis": {"dtick": 1}} if few else {})


@style.by_condition
def final_accuracy(experiment: Experiment, label: str, groups: list[Group]) -> View:
    """Final accuracy, best first."""
    data: list[Trace] = []
    for group in sorted((g for g in groups if g.finished), key=lambda group: group.mean("alpha")):
        alpha, half = group.over_seeds("alpha"), style.drawn_half(group, "alpha")
        bar = {
            **style.bar_style(experiment, group.method), "orientation": "h", "x": style.rounded([alpha.mean]),
            "y": [f"{tick_label(group.label)}<br><b>{alpha.text(2)}</b>"], "showlegend": False,
            "hovertemplate": "%{x:.2f} %<extra></extra>",
        }  # fmt: skip
        data.append(bar if math.isnan(half) else {**bar, "error_x": style.error_bars([half])})
    return View(label, data, style.bar_height(bar["y"][0] for bar in data))


def accuracy_matrix(experiment: Experiment) -> list[View]:
    """The accuracy matrix of every run."""
    views = []
    places = [(condition, group) for condition in experiment.ranked_conditions for group in experiment.at(condition)]
    for condition, group, run in ((*place, run) for place in places for run in place[1].runs):
        if run.matrix is None:
            continue
        names = ["base", *map(str, range(1, len(run.matrix)))]
        trace: Trace = {
            "type": "heatmap", "z": [style.rounded(row[: at + 1], 1) for at, row in enumerate(run.matrix)],
            "x": names, "y": ["start", *names[1:]], "zmin": 0, "zmax": 100, "colorscale": SCALE,
            "colorbar": {"ticksuffix": " %", "thickness": 12, "outlinewidth": 0},
            "hovertemplate": "after %{y}, on classes of %{x}: %{z} %<extra></extra>",
            "textfont": {"color": "#101418"},
        }  # fmt: skip
        if len(names) <= _FEW:
            trace["texttemplate"] = "%{z:.0f}"
        label, where = f"{shorten(group.label, LABEL)}, seed {run.seed}", experiment.condition_label(condition)
        views.append(View(label if where == "all" else f"{label} ({where})", [trace]))
    return views


@style.by_condition
def by_class(experiment: Experiment, label: str, groups: list[Group]) -> View:
    """Final accuracy of each class, the hardest first."""
    found = {group.method: own for group in groups if (own := group.class_accuracy)}
    names = {name for means in found.values() for name in means}
    hardness = {name: np.mean([means[name] for means in found.values() if name in means]) for name in names}
    hardest = sorted(names, key=lambda name: (hardness[name], name))[:_HARDEST]
    ticks = dict(zip(hardest, distinct_labels([style.plain_text(name, 26) for name in hardest]), strict=True))
    data = [
        {
            **style.line_style(experiment, method), "mode": "markers",
            "y": [ticks[name] for name in hardest if name in own],
            "x": style.rounded([own[name] for name in hardest if name in own], 1), "hovertemplate": "%{x:.1f} %",
        }
        for method, own in found.items()
    ]  # fmt: skip
    note = f"The {len(hardest)} hardest of {len(names)} classes." if len(names) > len(hardest) else ""
    order = {"categoryorder": "array", "categoryarray": [*reversed(ticks.values())]}
    return View(label, data, {"yaxis": order, "meta": {"height": 60 + 20 * len(hardest)}}, note)


@style.by_condition
def class_sessions(experiment: Experiment, label: str, groups: list[Group]) -> View | None:
    """Accuracy of each class after each session, side by side for all methods with the same first seed."""
    known = [group for group in groups if group.runs[0].class_sessions]
    runs = {group.label: group.runs[0] for group in known if group.runs[0].seed == known[0].runs[0].seed}
    names = list(dict.fromkeys(name for run in runs.values() for name in run.class_sessions))
    if not names or len(names) > _HARDEST:
        return None
    columns = [(method, session) for method, run in runs.items() for session in range(len(run.curves["all"]))]

    def accuracy(name: str, method: str, session: int) -> float:
        known = runs[method].class_sessions.get(name, [])
        return known[session] if session < len(known) else math.nan

    cells = [[accuracy(name, *column) for column in columns] for name in names]
    trace: Trace = {
        "type": "heatmap", "z": [style.rounded(row, 1) for row in cells], "zmin": 0, "zmax": 100, "colorscale": SCALE,
        "x": [
            [style.plain_text(method).replace(" (", "<br>(") for method, _ in columns],
            [str(session) for _, session in columns],
        ],
        "y": distinct_labels([style.plain_text(name, 26) for name in names]), "xgap": 1, "ygap": 1,
        "colorbar": {"ticksuffix": " %", "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "%{y}, after session %{x}: %{z} %<extra></extra>",
    }  # fmt: skip
    return View(label, [trace], {"meta": {"height": 110 + 20 * len(names)}})
