"""Figures of what was rehearsed, where policies differ most, and of representation drift."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from graspcl.checks import Array
from graspcl.report.figures import style
from graspcl.report.figures.style import Figure, Trace, View, axis
from graspcl.report.model import Condition, Experiment, Group
from graspcl.report.read import RehearsedSession

_NO_PLAN = "No run stored which samples its sessions rehearsed."
_NO_DISTANCE = "No distances were measured; set --measure.distances to a number of samples."


def repeats(experiment: Experiment) -> Figure:
    """How often stored samples were rehearsed."""

    def draw(group: Group, sessions: list[RehearsedSession]) -> list[Trace]:
        mean, half = style.over_seeds(session.repeats for session in sessions)
        most = max(session.repeats.nonzero()[0].max() for session in sessions)
        names = [str(k) if k + 1 < len(mean) else f"{k} or more" for k in range(most + 1)]
        bar = {**style.bar_style(experiment, group.method), "x": names, "y": style.rounded(mean[: most + 1]),
               "hovertemplate": "%{y:.1f} %"}  # fmt: skip
        if not np.isnan(half).any():
            bar["error_y"] = style.error_bars(half[: most + 1])
        return [bar]

    return Figure(
        "repeats", "How often samples were rehearsed",
        f"Share of the stored samples that the last session rehearsed never, once, twice and so on. {style.BAND}",
        _by_group(experiment, draw),
        {
            "barmode": "group", "xaxis": axis("times rehearsed", type="category"),
            "yaxis": axis("stored samples (%)", rangemode="tozero"), "hovermode": "x unified",
        },
        style.why_missing(experiment, "plans", _NO_PLAN),
    )  # fmt: skip


def distance(experiment: Experiment) -> Figure:
    """How far from their prototypes the rehearsed samples are, from the first update to the last."""

    def draw(group: Group, sessions: list[RehearsedSession]) -> list[Trace]:
        curves = [session.distance for session in sessions if not np.isnan(session.distance).all()]
        if not curves:
            return []
        fewest = min(map(len, curves))
        parts = min(fewest, max(5, min(40, fewest // 4)))
        mean, half = style.over_seeds(_part_means(curve, parts) for curve in curves)
        x = style.rounded(100 * (np.arange(len(mean)) + 0.5) / len(mean), 1)
        return style.line_with_band(experiment, group.method, x, mean, half, mode="lines")

    level = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
    return Figure(
        "distance", "Distance of rehearsed samples to their prototypes",
        "In the last session, from its first update to its last. 1 is the mean over the stored samples of a class."
        f" Rehearsal from easy to hard rises. {style.BAND}",
        _by_group(experiment, draw),
        {
            "xaxis": axis("progress of the session (%)", range=[0, 100]), "yaxis": axis("distance / mean"),
            "hovermode": "x unified", "shapes": [level],
        },
        style.why_missing(experiment, "plans", _NO_DISTANCE),
    )  # fmt: skip


def _part_means(values: Array, parts: int) -> Array:
    """Return the means over equal parts of a session; NaN for a part without numbers."""
    found = [part[~np.isnan(part)] for part in np.array_split(values, parts)]
    return np.array([part.mean() if len(part) else np.nan for part in found])


def coverage(experiment: Experiment) -> Figure:
    """How much of the buffer was rehearsed after how many updates."""

    def draw(group: Group, sessions: list[RehearsedSession]) -> list[Trace]:
        mean, half = style.over_seeds(session.coverage for session in sessions)
        places, values = style.thinned(mean, 60)
        x = [place + 1 for place in places]
        return style.line_with_band(experiment, group.method, x, values, half[places], mode="lines")

    return Figure(
        "coverage", "Coverage over a session",
        "Share of the buffer that the last session rehearsed at least once. Mean over the seeds with that many"
        f" updates. {style.BAND}",
        _by_group(experiment, draw),
        {
            "xaxis": axis("updates", rangemode="tozero"), "yaxis": axis("rehearsed (%)", rangemode="tozero"),
            "hovermode": "x unified",
        },
        style.why_missing(experiment, "plans", _NO_PLAN),
    )  # fmt: skip


def class_coverage(experiment: Experiment) -> Figure:
    """Which share of each class was rehearsed at least once."""

    def draw(group: Group, sessions: list[RehearsedSession]) -> list[Trace]:
        found: dict[str, list[float]] = {}
        for session in sessions:
            for name, share in session.class_coverage.items():
                found.setdefault(name, []).append(share)
        means = sorted((float(np.mean(shares)), name) for name, shares in found.items())
        places, _ = style.thinned(np.arange(len(means)), 100)
        shares, names = zip(*(means[place] for place in places), strict=True)
        return [
            {
                **style.line_style(experiment, group.method), "mode": "lines+markers",
                "x": [place + 1 for place in places], "y": style.rounded(shares, 1),
                "text": [style.plain_text(name, 40) for name in names], "hovertemplate": "%{text}: %{y:.1f} %",
            }
        ]  # fmt: skip

    return Figure(
        "class-coverage", "Coverage by class",
        "Share of the stored samples of each class that the last session rehearsed at least once. Mean over seeds.",
        _by_group(experiment, draw),
        {"xaxis": axis("classes, least covered first"), "yaxis": axis("rehearsed (%)", rangemode="tozero")},
        style.why_missing(experiment, "plans", _NO_PLAN),
    )  # fmt: skip


def drift(experiment: Experiment) -> Figure:
    """How far each update moves the embeddings of old samples."""

    def draw(condition: Condition, groups: list[Group]) -> View:
        curves = {group.method: [run.drift for run in group.runs if run.drift] for group in groups}
        runs = [run for own in curves.values() for run in own]
        # Sessions are as long as the longest one in all curves, so that the next one starts at the same place.
        lengths = [max(len(run[at]) for run in runs if at < len(run)) for at in range(max(map(len, runs), default=0))]
        data: list[Trace] = []
        for method, own in curves.items():
            if not own:
                continue
            mean, _ = style.over_seeds(_joined(run, lengths) for run in own)
            places, values = style.thinned(mean, 300)
            data.append(
                {**style.line_style(experiment, method), "mode": "lines", "x": [place + 1 for place in places],
                 "y": style.rounded(values, 5), "hovertemplate": "%{y:.4f}"}
            )  # fmt: skip
        ends = np.cumsum(lengths)[:-1].tolist()
        lines = [{"type": "line", "x0": end + 0.5, "x1": end + 0.5, "yref": "paper", "y0": 0, "y1": 1} for end in ends]
        return View(experiment.condition_label(condition), data, {"shapes": lines})

    return Figure(
        "drift", "Representation drift",
        "How far each update moves the embeddings of held-out old samples. Mean over the seeds with that many updates;"
        " lines separate sessions.",
        style.by_condition(experiment, draw),
        {"xaxis": axis("updates"), "yaxis": axis("drift", rangemode="tozero")},
        style.why_missing(experiment, "drift.npz", "It was not measured; set --measure.drift to a number of samples."),
    )  # fmt: skip


def _joined(sessions: Sequence[Array], lengths: Sequence[int]) -> Array:
    """Return the curves of sessions as one, each filled with NaN to its length.

    >>> _joined([np.array([1.0]), np.array([2.0, 3.0])], [2, 2]).tolist()
    [1.0, nan, 2.0, 3.0]
    """
    parts = [
        np.pad(own, (0, size - len(own)), constant_values=np.nan) for own, size in zip(sessions, lengths, strict=False)
    ]
    return np.concatenate(parts)


def _by_group(experiment: Experiment, draw: Callable[[Group, list[RehearsedSession]], list[Trace]]) -> list[View]:
    """Return one view per condition with the traces of its groups."""

    def view(condition: Condition, groups: list[Group]) -> View:
        data: list[Trace] = []
        for group in groups:
            if sessions := [run.rehearsed for run in group.runs if run.rehearsed is not None]:
                data += draw(group, sessions)
        return View(experiment.condition_label(condition), data)

    return style.by_condition(experiment, view)
