"""The page of a workspace: held-out accuracy over its changes, its classes and its history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graspcl.report.figures.accuracy import SCALE
from graspcl.report.figures.style import COLOURS, Figure, View, plain_text, rounded
from graspcl.report.measures import distinct_labels
from graspcl.report.render.html import render_page
from graspcl.report.render.text import write_text

_MOST = 60  # classes in the figure by class: those with the lowest accuracy now
_FEW = 12  # changes whose accuracies are written into the cells

Row = Sequence[str]


def write_workspace(
    path: Path, name: str, facts: Sequence[str], warnings: Sequence[str], history: Sequence[dict[str, Any]],
    tables: Sequence[tuple[str, Row, Sequence[Row]]],
) -> None:  # fmt: skip
    """Write the page of a workspace.

    Args:
        path: the file.
        name: of the workspace.
        facts: sentences about it.
        warnings: what should be looked at.
        history: its changes, oldest first, each with the held-out samples that are predicted correctly and their
            number: `accuracy` (right, number), and `classes` by name.
        tables: title, heads of the columns and rows of each, as text.
    """
    figures = {"e0-overall": overall(history), "e0-classes": by_class(history)}
    drawn = {place: figure for place, figure in figures.items() if figure.views}
    text = render_page(
        "workspace.html", f"{name} – graspcl", drawn, name=name, facts=facts, warnings=warnings, cards=figures,
        tables=tables,
    )  # fmt: skip
    write_text(path, text)


def overall(history: Sequence[dict[str, Any]]) -> Figure:
    """Draw the accuracy on all held-out samples after each change."""
    known = [(place, entry) for place, entry in enumerate(history) if entry["accuracy"][1]]
    line = {
        "type": "scatter", "mode": "lines+markers", "name": "all classes", "x": [place for place, _ in known],
        "y": rounded([100 * entry["accuracy"][0] / entry["accuracy"][1] for _, entry in known], 1),
        "text": [plain_text(entry["verb"]) for _, entry in known],
        "hovertemplate": "%{text}: %{y:.1f} %<extra></extra>",
        "line": {"color": COLOURS[0], "width": 2},
    }  # fmt: skip
    axes = {"xaxis": {"title": {"text": "change"}, "dtick": 1 if len(history) <= _FEW else None},
            "yaxis": {"title": {"text": "held-out accuracy (%)"}, "range": [0, 101]}}  # fmt: skip
    caption = "Share of held-out samples of all classes so far that are predicted correctly."
    return Figure("overall", "Accuracy over changes", caption, [View("all", [line])] if known else [], axes, _MISSING)


def by_class(history: Sequence[dict[str, Any]]) -> Figure:
    """Draw the accuracy of each class after each change."""
    now = {name: right / number for name, (right, number) in history[-1]["classes"].items() if number}
    names = sorted(now, key=lambda name: (now[name], name))[:_MOST]
    ticks = distinct_labels([plain_text(name, 26) for name in names])
    found = [[entry["classes"].get(name, (0, 0)) for entry in history] for name in names]
    cells = [[None if not number else round(100 * right / number, 1) for right, number in row] for row in found]
    trace = {
        "type": "heatmap", "z": cells, "x": [*range(len(history))], "y": ticks, "zmin": 0, "zmax": 100,
        "colorscale": SCALE, "colorbar": {"ticksuffix": " %", "thickness": 12, "outlinewidth": 0},
        "hovertemplate": "%{y} after change %{x}: %{z} %<extra></extra>", "textfont": {"color": "#101418"},
        **({"texttemplate": "%{z:.0f}"} if len(history) <= _FEW else {}),
    }  # fmt: skip
    more = f" The {_MOST} lowest of {len(now)} classes." if len(now) > _MOST else ""
    layout = {"xaxis": {"title": {"text": "change"}, "dtick": 1 if len(history) <= _FEW else None},
              "meta": {"height": 90 + 24 * len(names)}}  # fmt: skip
    caption = f"Held-out accuracy of each class after each change, lowest at the bottom.{more}"
    return Figure("classes", "Accuracy by class", caption, [View("all", [trace])] if names else [], layout, _MISSING)


_MISSING = "There are no held-out samples yet."
