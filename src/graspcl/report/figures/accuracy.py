"""Figures of accuracy: over sessions, at the end, by session and by class."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from graspcl.report.figures import style
from graspcl.report.figures.style import Figure, Trace, View, axis
from graspcl.report.measures import LABEL, distinct_labels, shorten, tick_label
from graspcl.report.model import Condition, Experiment, Group

# Light enough at both ends for dark numbers in the cells, on any ground.
SCALE = [[0, "#F4F8FB"], [1, "#3B9BD6"]]
_HARDEST = 40  # classes in the figure by class


def learning_curve(experiment: Experiment, which: Literal["all", "old", "new"]) -> Figure:
    """Accuracy after each session."""

    def draw(condition: Condition, groups: list[Group]) -> View:
        data: list[Trace] = []
        for group in groups:
            mean, half = style.over_seeds(run.curves.get(which, []) for run in group.runs)
            if len(mean) and not np.isnan(mean).all():
                name = style.plain_text(group.label) + ("" if group.finished else " (unfinished)")
                data += style.line_with_band(experiment, group.method, range(len(mean)), mean, half, name=name)
        return View(experiment.condition_label(condition), data)

    caption = {
        "all": "On all classes so far.",
        "old": "On classes of earlier sessions: what is retained.",
        "new": "On the classes of the session itself: what is learned.",
    }[which]
    many = max((len(run.sessions) for run in experiment.runs), default=0) > 12
    return Figure(
        f"learning-{which}", f"Accuracy on {which} classes",
        f"{caption} Mean over the seeds that reached the session. {style.BAND}",
        style.by_condition(experiment, draw),
        {
            "xaxis": axis("after session", dtick=None if many else 1),
            "yaxis": axis("accuracy (%)"), "hovermode": "x unified",
        },
        style.why_missing(experiment, "predictions.npz", f"No run has predictions on {which} classes yet."),
    )  # fmt: skip


def final_accuracy(experiment: Experiment) -> Figure:
    """Final accuracy, best first."""

    def draw(condition: Condition, groups: list[Group]) -> View:
        data: list[Trace] = []
        labels = []
        for group in sorted((g for g in groups if g.finished), key=lambda group: group.mean("alpha")):
            alpha = group.over_seeds("alpha")
            labels.append(f"{tick_label(group.label)}<br><b>{alpha.text(2)}</b>")
            bar = {**style.bar_style(experiment, group.method), "orientation": "h", "x": style.rounded([alpha.mean]),
                   "y": labels[-1:], "showlegend": False, "hovertemplate": "%{x:.2f} %<extra></extra>"}  # fmt: skip
            if not math.isnan(half := style.drawn_half(group, "alpha")):
                bar["error_x"] = style.error_bars([half])
            data.append(bar)
        return View(experiment.condition_label(condition), data, style.bar_height(labels))

    return Figure(
        "bars", "Final accuracy", f"α, on all classes after the last session. Mean over seeds. {style.BAND}",
        style.by_condition(experiment, draw),
        {"xaxis": axis("α (%)", rangemode="tozero"), "yaxis": {"type": "category"}},
        "No run is finished.",
    )  # fmt: skip


def accuracy_matrix(experiment: Experiment) -> Figure:
    """The accuracy matrix of every run."""
    views = []
    for condition in experiment.ranked_conditions:
        for group in experiment.at(condition):
            for run in group.runs:
                if run.matrix is None:
                    continue
                size = len(run.matrix)
                names = ["base", *map(str, range(1, size))]
                trace: Trace = {
                    "type": "heatmap", "z": [style.rounded(row[: at + 1], 1) for at, row in enumerate(run.matrix)],
                    "x": names, "y": ["start", *names[1:]], "zmin": 0, "zmax": 100, "colorscale": SCALE,
                    "colorbar": {"ticksuffix": " %", "thickness": 12, "outlinewidth": 0},
                    "hovertemplate": "after %{y}, on classes of %{x}: %{z} %<extra></extra>",
                    "textfont": {"color": "#101418"},
                }  # fmt: skip
                if size <= 12:
                    trace["texttemplate"] = "%{z:.0f}"
                label, where = f"{shorten(group.label, LABEL)}, seed {run.seed}", experiment.condition_label(condition)
                views.append(View(label if where == "all" else f"{label} ({where})", [trace]))
    category = {"type": "category", "showgrid": False}
    return Figure(
        "matrix", "Accuracy matrix", "Row: after which session. Column: on the classes of which session. In percent.",
        views,
        {
            "xaxis": axis("classes of session", **category),
            "yaxis": axis("after session", **category, autorange="reversed"), "meta": {"height": 400},
        },
        style.why_missing(experiment, "predictions.npz", "No run has predictions."),
        choice="run",
    )  # fmt: skip


def by_class(experiment: Experiment) -> Figure:
    """Final accuracy of each class, the hardest first."""

    def draw(condition: Condition, groups: list[Group]) -> View | None:
        found = {group.method: group.class_accuracy for group in groups}
        names = {name for means in found.values() for name in means}
        if not names:
            return None
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
            if own
        ]  # fmt: skip
        note = f"The {len(hardest)} hardest of {len(names)} classes." if len(names) > len(hardest) else ""
        order = {"categoryorder": "array", "categoryarray": [*reversed(ticks.values())]}
        layout = {"yaxis": order, "meta": {"height": 60 + 20 * len(hardest)}}
        return View(experiment.condition_label(condition), data, layout, note)

    return Figure(
        "classes", "Accuracy by class", "After the last session, mean over seeds; the hardest classes first.",
        style.by_condition(experiment, draw),
        {
            "xaxis": axis("accuracy (%)", range=[-3, 103]),
            "yaxis": {"type": "category", "tickmode": "linear", "dtick": 1}, "hovermode": "y unified",
        },
        style.why_missing(experiment, "predictions.npz", "No run has predictions."),
    )  # fmt: skip
