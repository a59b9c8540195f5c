"""Figures of what was rehearsed, where policies differ most, and of representation drift."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graspcl.checks import Array
from graspcl.report.figures import style
from graspcl.report.figures.style import Trace, View
from graspcl.report.model import Experiment, Group, mean_by_name
from graspcl.report.read import RehearsedSession, Run

Curves = tuple[Array, ...]


def _by_group(
    draw: Callable[[Experiment, Group, list[RehearsedSession]], list[Trace]],
) -> Callable[[Experiment], list[View]]:
    """Draw one view per condition from the traces of its groups; decorates what draws the sessions of a group."""

    @style.by_condition
    def view(experiment: Experiment, label: str, groups: list[Group]) -> View:
        data: list[Trace] = []
        for group in groups:
            if sessions := [run.rehearsed for run in group.runs if run.rehearsed is not None]:
                data += draw(experiment, group, sessions)
        return View(label, data)

    return view


@_by_group
def repetitions(experiment: Experiment, group: Group, sessions: list[RehearsedSession]) -> list[Trace]:
    """How often stored samples were rehearsed."""
    mean, half = style.over_seeds(session.repeats for session in sessions)
    most = max(session.repeats.nonzero()[0].max() for session in sessions)
    names = [str(k) if k + 1 < len(mean) else f"{k} or more" for k in range(most + 1)]
    values = {"x": names, "y": style.rounded(mean[: most + 1]), "hovertemplate": "%{y:.1f} %"}
    bar = {**style.bar_style(experiment, group.method), **values}
    if not np.isnan(half).any():
        bar["error_y"] = style.error_bars(half[: most + 1])
    return [bar]


@_by_group
def distance(experiment: Experiment, group: Group, sessions: list[RehearsedSession]) -> list[Trace]:
    """How far from their prototypes the rehearsed samples are, from the first update to the last."""
    curves = [session.distance for session in sessions if not np.isnan(session.distance).all()]
    if not curves:
        return []
    fewest = min(map(len, curves))
    parts = min(fewest, max(5, min(40, fewest // 4)))
    known = [[part[~np.isnan(part)] for part in np.array_split(curve, parts)] for curve in curves]
    mean, half = style.over_seeds([part.mean() if len(part) else np.nan for part in own] for own in known)
    x = style.rounded(100 * (np.arange(len(mean)) + 0.5) / len(mean), 1)
    return style.line_with_band(experiment, group.method, x, mean, half, mode="lines")


@_by_group
def buffer_coverage(experiment: Experiment, group: Group, sessions: list[RehearsedSession]) -> list[Trace]:
    """How much of the buffer was rehearsed after how many updates."""
    mean, half = style.over_seeds(session.coverage for session in sessions)
    places, values = style.thinned(mean, 60)
    x = [place + 1 for place in places]
    return style.line_with_band(experiment, group.method, x, values, half[places], mode="lines")


@_by_group
def class_coverage(experiment: Experiment, group: Group, sessions: list[RehearsedSession]) -> list[Trace]:
    """Which share of each class was rehearsed at least once."""
    means = sorted((share, name) for name, share in mean_by_name(s.class_coverage for s in sessions).items())
    places, _ = style.thinned(np.arange(len(means)), 100)
    shares, names = zip(*(means[place] for place in places), strict=True)
    return [
        {
            **style.line_style(experiment, group.method), "mode": "lines+markers",
            "x": [place + 1 for place in places], "y": style.rounded(shares, 1),
            "text": [style.plain_text(name, 40) for name in names], "hovertemplate": "%{text}: %{y:.1f} %",
        }
    ]  # fmt: skip


def _drift(experiment: Experiment, label: str, groups: list[Group], curves_of: Callable[[Run], Curves]) -> View:
    """How far each update moves the embeddings of old samples."""
    curves = {g.method: own for g in groups if (own := [curves_of(run) for run in g.runs if curves_of(run)])}
    # Sessions are as long as the longest one in all curves, so that the next one starts at the same place.
    runs = [run for own in curves.values() for run in own]
    lengths = [max(len(run[at]) for run in runs if at < len(run)) for at in range(max(map(len, runs), default=0))]
    data: list[Trace] = []
    for method, own in curves.items():
        padded = [[style.padded(curve, size) for curve, size in zip(run, lengths, strict=False)] for run in own]
        mean, _ = style.over_seeds(map(np.concatenate, padded))
        places, values = style.thinned(mean, 300)
        line = {"mode": "lines", "x": [place + 1 for place in places], "y": style.rounded(values, 9)}
        data.append({**style.line_style(experiment, method), **line, "hovertemplate": "%{y:.4g}"})
    ends = np.cumsum(lengths)[:-1].tolist()
    lines = [{"type": "line", "x0": end + 0.5, "x1": end + 0.5, "yref": "paper", "y0": 0, "y1": 1} for end in ends]
    return View(label, data, {"shapes": lines})


@style.by_condition
def drift_norm(experiment: Experiment, label: str, groups: list[Group]) -> View:
    """Drift as a norm, as the paper's text defines it."""
    return _drift(experiment, label, groups, lambda run: run.drift)


@style.by_condition
def drift_mse(experiment: Experiment, label: str, groups: list[Group]) -> View:
    """Drift as a mean squared difference, as the paper's Figure 4 shows it."""
    return _drift(experiment, label, groups, lambda run: run.drift_mse)
