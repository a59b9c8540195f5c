"""The overview of GRASP as a page: what it draws from a class next to uniform rehearsal, step by step.

The page has the styles and the script of the report; a slider and a button choose the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.report.figures.style import COLOURS, Figure, Trace, View, rounded
from graspcl.report.render.html import render_page
from graspcl.report.render.text import write_text

MOST_POINTS = 1500  # drawn of a large class; numbers count all
_STEPS = 20
_PAUSE = 500  # milliseconds


def write_overview(path: Path, *arguments: Any, **options: Any) -> None:
    """Write the page of `render_overview`."""
    write_text(path, render_overview(*arguments, **options))


def render_overview(
    name: str, points: Array, prototype: Array, distances: Array, draws: Mapping[str, Array], share: float = 1.0
) -> str:
    """Return the page of one class.

    Args:
        name: Name of the class.
        points: Its stored samples on a plane [n, 2].
        prototype: The class mean on the plane [2].
        distances: Distances of the samples to the prototype [n].
        draws: By policy, the samples that a session draws, in order, as indices [draws].
        share: Share of the variance of the samples that the plane holds.
    """
    figures = {
        f"e0-p{number}": _figure(number, policy, order, points, prototype, distances)
        for number, (policy, order) in enumerate(draws.items())
    }
    return render_page(
        "overview.html", f"{name} – overview of GRASP – graspcl", figures, name=name, stored=len(points), share=share,
        pause=_PAUSE, steps=[view.label for view in figures["e0-p0"].views], cards=figures,
    )  # fmt: skip


def _figure(number: int, policy: str, order: Array, points: Array, prototype: Array, distances: Array) -> Figure:
    """Return the figure of one policy, with a view per step."""
    steps = max(1, min(_STEPS, len(order)))
    ends = np.linspace(0, len(order), steps + 1).round().astype(int)
    visible = np.zeros(len(points), bool)
    visible[np.linspace(0, len(points) - 1, min(MOST_POINTS, len(points))).astype(int)] = True
    colour = COLOURS[number % 2]
    stored = {
        **_dots(points[visible], "stored", "all", color="#808080", size=6, opacity=0.45),
        "customdata": rounded(distances[visible], 3), "hovertemplate": "distance %{customdata:.3f}<extra></extra>",
    }  # fmt: skip
    border = {"color": "#ffffff", "width": 1}
    star = _dots(prototype[None], "class mean", "name", color="#009E73", size=17, symbol="star", line=border)
    views = []
    for step, end in enumerate(ends):
        start = ends[max(0, step - 1)]
        before, now = order[:start], order[start:end]
        fresh = np.unique(now[visible[now]])
        earlier = np.setdiff1d(before[visible[before]], fresh)
        data = [
            stored,
            _dots(points[earlier], "drawn before", color=colour, size=7, opacity=0.45),
            _dots(points[fresh], "drawn in this step", color=colour, size=7, opacity=1.0),
            star,
        ]
        views.append(View(f"{100 * step / steps:.0f} %", data, note=_note(order[:end], len(order), distances)))
    return Figure(f"p{number}", policy, "", views, _layout(np.vstack([points, prototype])))


def _note(drawn: Array, total: int, distances: Array) -> str:
    """Return what was drawn so far, in numbers."""
    if not len(drawn):
        return f"0 of {total:,} draws. The mean distance of all samples is {distances.mean():.3f}."
    seen = 100 * len(np.unique(drawn)) / len(distances)
    return (
        f"{len(drawn):,} of {total:,} draws: {seen:.0f} % of the samples seen, mean distance of the draws "
        f"{distances[drawn].mean():.3f} (of all samples {distances.mean():.3f})."
    )


def _dots(points: Array, name: str, hoverinfo: str = "skip", **marker: Any) -> Trace:
    x, y = rounded(points[:, 0], 4), rounded(points[:, 1], 4)
    trace = {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y}
    return {**trace, "marker": marker, "hoverinfo": hoverinfo}


def _layout(points: Array) -> dict[str, Any]:
    """Return axes with equal units that stay the same over all steps."""
    low, high = points.min(0), points.max(0)
    margin = 0.06 * max(float((high - low).max()), 1e-6)
    ends = np.stack([low - margin, high + margin], 1)
    x, y = (
        {"title": {"text": f"{which} component"}, "range": rounded(own, 4), "showticklabels": False, "zeroline": False}
        for which, own in zip(("first", "second"), ends, strict=True)
    )
    return {"xaxis": x, "yaxis": {**y, "scaleanchor": "x"}, "meta": {"height": 340}}
