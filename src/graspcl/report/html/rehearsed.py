"""Figures of what was rehearsed, where policies differ most, and of what that did to representations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.report.html.drawing import (
    Figure,
    Trace,
    View,
    band,
    banded,
    bar_style,
    by_condition,
    over_seeds,
    rounded,
    style,
    thinned,
    why,
)
from graspcl.report.html.grouping import Condition, Experiment, Group
from graspcl.report.html.labels import text
from graspcl.report.html.reading import Rehearsed

_NO_PLAN = "No run has plans of its sessions."
_NO_DISTANCE = "No distances were measured; --measure.distances 500 does, of about so many stored samples."


def shown(experiment: Experiment) -> Figure:
    """How often stored samples were shown."""

    def draw(group: Group, plans: list[Rehearsed]) -> list[Trace]:
        mean, spread = over_seeds(plan.times for plan in plans)
        last = max(plan.times.nonzero()[0].max() for plan in plans)
        names = [str(k) if k + 1 < len(mean) else f"{k} or more" for k in range(last + 1)]
        bar = {**bar_style(experiment, group.method), "x": names, "y": rounded(mean[: last + 1]),
               "hovertemplate": "%{y:.1f} %"}  # fmt: skip
        if not np.isnan(spread).any():
            bar["error_y"] = {"type": "data", "array": rounded(spread[: last + 1]), "thickness": 1}
        return [bar]

    return Figure(
        "shown", "How often a stored sample was shown",
        "Share of the stored samples that were shown never, once, twice and so on, in the last session.",
        _views(experiment, draw),
        {
            "barmode": "group", "xaxis": {"type": "category", "title": {"text": "times shown"}},
            "yaxis": {"title": {"text": "stored samples (%)"}, "rangemode": "tozero"}, "hovermode": "x unified",
        },
        why(experiment, "plans", _NO_PLAN),
    )  # fmt: skip


def distance(experiment: Experiment) -> Figure:
    """How far from their prototypes the picks are, from the first to the last."""

    def draw(group: Group, plans: list[Rehearsed]) -> list[Trace]:
        curves = [plan.distance for plan in plans if not np.isnan(plan.distance).all()]
        if not curves:
            return []
        fewest = min(map(len, curves))
        parts = min(fewest, max(5, min(40, fewest // 4)))
        mean, spread = over_seeds(_smooth(curve, parts) for curve in curves)
        look = {**style(experiment, group.method), "mode": "lines"}
        at = rounded(100 * (np.arange(len(mean)) + 0.5) / len(mean), 1)
        return band(look, at, mean, spread, banded(experiment, group.method))

    level = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
    return Figure(
        "distance", "Distance of the picks to their prototypes",
        "In the last session, from its first update to its last; 1 is the mean over a class's stored samples. Rehearsal"
        " from easy to hard rises.",
        _views(experiment, draw),
        {
            "xaxis": {"title": {"text": "of the session (%)"}, "range": [0, 100]},
            "yaxis": {"title": {"text": "distance / mean"}}, "hovermode": "x unified", "shapes": [level],
        },
        why(experiment, "plans", _NO_DISTANCE),
    )  # fmt: skip


def _smooth(values: Array, parts: int) -> Array:
    """Means over equal parts of a session; NaN where a part has no number."""
    found = [part[~np.isnan(part)] for part in np.array_split(values, parts)]
    return np.array([part.mean() if len(part) else np.nan for part in found])


def coverage(experiment: Experiment) -> Figure:
    """How much of the buffer had been seen after how many updates."""

    def draw(group: Group, plans: list[Rehearsed]) -> list[Trace]:
        mean, spread = over_seeds(plan.coverage for plan in plans)
        places, values = thinned(mean, 60)
        look = {**style(experiment, group.method), "mode": "lines"}
        drawn = banded(experiment, group.method)
        return band(look, [place + 1 for place in places], values, spread[places], drawn)

    return Figure(
        "coverage", "Coverage over a session",
        "Share of the buffer that was shown at least once, in the last session. Mean over the seeds that made so many"
        " updates.",
        _views(experiment, draw),
        {
            "xaxis": {"title": {"text": "updates"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "seen (%)"}, "rangemode": "tozero"}, "hovermode": "x unified",
        },
        why(experiment, "plans", _NO_PLAN),
    )  # fmt: skip


def seen(experiment: Experiment) -> Figure:
    """Which share of each class was shown at least once."""

    def draw(group: Group, plans: list[Rehearsed]) -> list[Trace]:
        found: dict[str, list[float]] = {}
        for plan in plans:
            for name, share in plan.seen.items():
                found.setdefault(name, []).append(share)
        means = sorted((float(np.mean(shares)), name) for name, shares in found.items())
        places, _ = thinned(np.arange(len(means)), 100)
        return [
            {
                "type": "scatter", **style(experiment, group.method), "mode": "lines+markers",
                "x": [place + 1 for place in places], "y": rounded([means[place][0] for place in places], 1),
                "text": [text(means[place][1], 40) for place in places], "hovertemplate": "%{text}: %{y:.1f} %",
            }
        ]  # fmt: skip

    return Figure(
        "seen", "Coverage by class", "Share of each class's stored samples shown at least once, in the last session.",
        _views(experiment, draw),
        {
            "xaxis": {"title": {"text": "classes, least covered first"}},
            "yaxis": {"title": {"text": "seen (%)"}, "rangemode": "tozero"},
        },
        why(experiment, "plans", _NO_PLAN),
    )  # fmt: skip


def drift(experiment: Experiment) -> Figure:
    """How far each update moved the embeddings of old samples."""

    def draw(condition: Condition, groups: list[Group]) -> View:
        curves = {group.method: [run.drift for run in group.runs if run.drift] for group in groups}
        every = [run for own in curves.values() for run in own]
        # A session is as long in all curves as in the longest of them, so that the next one begins at one place.
        longest = [max(len(run[at]) for run in every if at < len(run)) for at in range(max(map(len, every), default=0))]
        data: list[Trace] = []
        for method, own in curves.items():
            if not own:
                continue
            mean, _ = over_seeds(_padded(run, longest) for run in own)
            places, values = thinned(mean, 300)
            data.append(
                {"type": "scatter", **style(experiment, method), "mode": "lines", "x": [p + 1 for p in places],
                 "y": rounded(values, 5), "hovertemplate": "%{y:.4f}"}
            )  # fmt: skip
        ends = np.cumsum(longest)[:-1].tolist()
        lines = [{"type": "line", "x0": end + 0.5, "x1": end + 0.5, "yref": "paper", "y0": 0, "y1": 1} for end in ends]
        return View(experiment.named(condition), data, {"shapes": lines})

    return Figure(
        "drift", "Representation drift",
        "How far each update moves the embeddings of held-out old samples, mean over the seeds that made it; lines part"
        " the sessions.",
        by_condition(experiment, draw),
        {"xaxis": {"title": {"text": "updates"}}, "yaxis": {"title": {"text": "drift"}, "rangemode": "tozero"}},
        why(experiment, "drift.npz", "It was not measured; --measure.drift 200 does, on so many samples."),
    )  # fmt: skip


def _padded(sessions: Sequence[Array], longest: Sequence[int]) -> Array:
    """The curves of sessions as one, each filled up by NaN to the longest.

    >>> _padded([np.array([1.0]), np.array([2.0, 3.0])], [2, 2]).tolist()
    [1.0, nan, 2.0, 3.0]
    """
    parts = [
        np.pad(own, (0, size - len(own)), constant_values=np.nan) for own, size in zip(sessions, longest, strict=False)
    ]
    return np.concatenate(parts)


def _views(experiment: Experiment, draw: Callable[[Group, list[Rehearsed]], list[Trace]]) -> list[View]:
    def view(condition: Condition, groups: list[Group]) -> View:
        data: list[Any] = []
        for group in groups:
            if plans := [run.rehearsed for run in group.runs if run.rehearsed is not None]:
                data += draw(group, plans)
        return View(experiment.named(condition), data)

    return by_condition(experiment, view)
