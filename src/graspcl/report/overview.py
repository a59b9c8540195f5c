"""The overview of GRASP as one HTML page: what it draws of a class beside what uniform rehearsal draws, step by step.

The page is the report's, with its styles, its script and its rules for the browser; a slider and a button choose the
step.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.errors import require
from graspcl.report.html.drawing import Figure, Trace, View, cut, rounded
from graspcl.report.html.page import _asset, _policy, as_bytes, embedded
from graspcl.report.html.parts import card, safe
from graspcl.state import write_whole

STEPS = 20
SHOWN = 1500  # points of a large class that are drawn; numbers are of all
_COLOURS = ("#0072B2", "#D55E00")  # GRASP and uniform rehearsal, as in the report
_PAUSE = 500  # milliseconds


def write_overview(path: Path, *parts: Any, **more: Any) -> None:
    """The page of `render_overview` as a file, whole or not at all."""
    write_whole(path, lambda file: file.write(as_bytes(render_overview(*parts, **more))))


def render_overview(
    name: str, points: Array, prototype: Array, distances: Array, draws: Mapping[str, Array], share: float = 1.0
) -> str:
    """The page of class `name`: its samples' `points` [n, 2] and `distances` [n] to the prototype, which lies at
    `prototype` [2]; for each policy by name what it draws in a session, in order, as indices [draws].

    `share` is how much of the samples' variance the plane holds.
    """
    drawn: dict[str, Any] = {}
    figures = [
        _figure(number, policy, order, points, prototype, distances)
        for number, (policy, order) in enumerate(draws.items())
    ]
    cards = "".join(card(figure, "e0", drawn) for figure in figures)
    labels = [view.label for view in figures[0].views]
    body = (
        f'<div class="head"><div><h1>{safe(cut(name, 120))}</h1><p>{_about(len(points), share)}</p></div></div>'
        "<noscript><p>The pictures need JavaScript.</p></noscript>"
        f'<article id="e0" aria-label="overview"><div class="bar">{_player(labels)}</div>'
        f'<div class="grid">{cards}</div></article>'
    )
    return _page(f"{name} – overview of GRASP – graspcl", body, drawn)


def _page(title: str, body: str, figures: dict[str, Any]) -> str:
    plotly = require("plotly.offline", "report").get_plotlyjs()
    script = f"{_asset('page.js')}\n{_asset('overview.js')}"
    filled = {
        "policy": html.escape(_policy((plotly, script), live=False)), "title": html.escape(cut(title, 120)),
        "style": f"{_asset('page.css')}\n{_asset('overview.css')}", "live": "", "body": body,
        "data": embedded({"figures": figures}), "plotly": plotly, "script": script,
    }  # fmt: skip
    return re.sub(r"{{(\w+)}}", lambda mark: filled[mark[1]], _asset("page.html"))


def _about(stored: int, share: float) -> str:
    return (
        f"{stored:,} stored samples of one class, as the network sees them, in the two directions in which they "
        f"differ most ({100 * share:.0f} % of their variance). GRASP draws samples near the class mean with higher "
        "odds, and a drawn one rarely again, so that distant ones follow; uniform rehearsal draws all with the same "
        "odds throughout."
    )


def _player(labels: list[str]) -> str:
    options = "".join(f"<option>{label}</option>" for label in labels)
    return (
        f'<div class="player" hidden><button type="button" id="play" data-pause="{_PAUSE}">Play</button>'
        f'<input type="range" id="step" min="0" max="{len(labels) - 1}" value="0" step="1" aria-label="session so far">'
        f'<output id="reach" for="step">{labels[0]}</output></div>'
        f'<label>Session so far <select data-choice="condition">{options}</select></label>'
    )


def _figure(number: int, policy: str, order: Array, points: Array, prototype: Array, distances: Array) -> Figure:
    """The picture of one policy, with a view per step."""
    steps = max(1, min(STEPS, len(order)))
    ends = np.linspace(0, len(order), steps + 1).round().astype(int)
    shown = np.zeros(len(points), bool)
    shown[np.linspace(0, len(points) - 1, min(SHOWN, len(points))).astype(int)] = True
    always = [_all(points[shown], distances[shown]), _star(prototype)]
    views = []
    for step, end in enumerate(ends):
        before, now = order[: ends[max(0, step - 1)]], order[ends[max(0, step - 1)] : end]
        fresh = np.unique(now[shown[now]])
        old = np.setdiff1d(before[shown[before]], fresh)
        marks = [_drawn(points[old], "drawn before", _COLOURS[number % 2], 0.45)]
        marks.append(_drawn(points[fresh], "drawn in this step", _COLOURS[number % 2], 1.0))
        note = _note(order[:end], len(order), distances)
        views.append(View(f"{100 * step / steps:.0f} %", [always[0], *marks, always[1]], note=note))
    return Figure(f"p{number}", safe(policy), "", views, _layout(np.vstack([points, prototype])))


def _note(drawn: Array, total: int, distances: Array) -> str:
    """What was drawn so far, in numbers.

    >>> _note(np.array([0, 0]), 4, np.array([0.1, 0.3]))
    '2 of 4 draws: 50 % of the samples seen, mean distance of the draws 0.100 (of all samples 0.200).'
    """
    if not len(drawn):
        return (
            f"0 of {total:,} draws: nothing is drawn yet. The mean distance of all samples is {distances.mean():.3f}."
        )
    seen = 100 * len(np.unique(drawn)) / len(distances)
    return (
        f"{len(drawn):,} of {total:,} draws: {seen:.0f} % of the samples seen, mean distance of the draws "
        f"{distances[drawn].mean():.3f} (of all samples {distances.mean():.3f})."
    )


def _all(points: Array, distances: Array) -> Trace:
    return {
        **_dots(points, "stored"), "marker": {"color": "#808080", "size": 6, "opacity": 0.45},
        "customdata": rounded(distances, 3), "hovertemplate": "distance %{customdata:.3f}<extra></extra>",
    }  # fmt: skip


def _drawn(points: Array, name: str, colour: str, opacity: float) -> Trace:
    marker = {"color": colour, "size": 7, "opacity": opacity}
    return {**_dots(points, name), "marker": marker, "hoverinfo": "skip"}


def _star(prototype: Array) -> Trace:
    marker = {"color": "#009E73", "size": 17, "symbol": "star", "line": {"color": "#ffffff", "width": 1}}
    return {**_dots(prototype[None], "class mean"), "marker": marker, "hoverinfo": "name"}


def _dots(points: Array, name: str) -> Trace:
    x, y = rounded(points[:, 0], 4), rounded(points[:, 1], 4)
    return {"type": "scatter", "mode": "markers", "name": name, "x": x, "y": y}


def _layout(points: Array) -> dict[str, Any]:
    """Axes that stay the same over all steps, with equal units."""
    low, high = points.min(0), points.max(0)
    room = 0.06 * max(float((high - low).max()), 1e-6)
    axes = {
        f"{axis}axis": {"range": rounded([low[place] - room, high[place] + room], 4), "showticklabels": False,
                        "zeroline": False, "title": {"text": f"{which} component"}}
        for place, (axis, which) in enumerate((("x", "first"), ("y", "second")))
    }  # fmt: skip
    axes["yaxis"] |= {"scaleanchor": "x"}
    return {**axes, "meta": {"height": 340}}
