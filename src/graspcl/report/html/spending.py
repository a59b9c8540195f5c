"""Figures of what accuracy costs: updates, memory and time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graspcl.metric import updates_to_reach
from graspcl.report.html.drawing import Figure, Trace, View, by_condition, rounded, style, tall
from graspcl.report.html.grouping import Condition, Experiment, Group, Method
from graspcl.report.html.labels import LABEL, cut, text, wrapped

_SAID = 5  # savings that are put into words


def updates(experiment: Experiment) -> Figure:
    """Final accuracy against updates, and what a method saves."""
    views = []
    for buffer in dict.fromkeys(condition.buffer for condition in reversed(experiment.conditions)):
        found = [(method, experiment.curve(method, buffer)) for method in experiment.methods]
        data = [
            _points(experiment, method, "updates", [g for g in experiment.groups if g.condition.buffer == buffer])
            for method, curve in found
            if len(curve) > 1
        ]
        if data:
            layout, note = _saving(experiment, buffer)
            views.append(View(f"buffer {buffer}", data, layout, note))
    return Figure(
        "updates", "Accuracy against updates", "α by the updates of a run. Mean and standard deviation over seeds.",
        views,
        {"xaxis": {"title": {"text": "updates"}}, "yaxis": {"title": {"text": "α (%)"}}},
        "It takes finished runs of a policy with at least two budgets, as of: graspcl sweep … --updates 0.5x,1x",
        choice="buffer",
    )  # fmt: skip


def _saving(experiment: Experiment, buffer: str) -> tuple[dict[str, Any], str]:
    """The saving of the method that saves most, drawn in, and those of all in words."""
    saved = {m: share for m in experiment.methods if (share := experiment.saved(m, buffer)) is not None}
    said: list[str] = []
    for method, share in sorted(saved.items(), key=lambda item: -np.nan_to_num(item[1], nan=-np.inf)):
        if len(said) == _SAID:
            said.append(f"{len(saved) - _SAID} more save less")
            break
        if math.isnan(share):
            said.append(f"{cut(method.label, LABEL)} does not reach the best of {experiment.baseline}")
        else:
            least = _least(experiment, method, buffer)
            said.append(f"{cut(method.label, LABEL)}: same accuracy with {least}{_percent(share)}")
    reached = {method: share for method, share in saved.items() if share > 0}
    if not reached:
        return {}, "; ".join(said)
    best = max(reached, key=lambda method: reached[method])
    own, theirs = (experiment.curve(m, buffer) for m in (best, experiment.rival(best)) if m is not None)
    goal = max(theirs.values())
    ends = [updates_to_reach([*curve], [*curve.values()], goal) for curve in (own, theirs)]
    arrow = {
        "x": ends[0], "y": goal, "ax": ends[1], "ay": goal, "axref": "x", "ayref": "y", "text": "", "showarrow": True,
        "arrowhead": 2, "arrowwidth": 1.5,
    }  # fmt: skip
    words = {
        "x": sum(ends) / 2, "y": goal, "yshift": 24, "showarrow": False,
        "text": f"same accuracy with<br>{_least(experiment, best, buffer)}{_percent(reached[best])}",
    }  # fmt: skip
    return {"annotations": [arrow, words]}, "; ".join(said)


def _percent(share: float) -> str:
    if not round(100 * share):
        return "as many updates"
    return f"{abs(100 * share):.0f} % {'fewer' if share > 0 else 'more'} updates"


def _least(experiment: Experiment, method: Method, buffer: str) -> str:
    """Where a method is there with its smallest budget, it may have been there before."""
    own, theirs = (experiment.curve(m, buffer) for m in (method, experiment.rival(method)) if m is not None)
    return "at least " if own[min(own)] >= max(theirs.values()) else ""


def memory(experiment: Experiment) -> Figure:
    """Final accuracy against what the buffer takes."""
    views = []
    for budget in dict.fromkeys(condition.updates for condition in reversed(experiment.conditions)):
        groups = [g for g in experiment.groups if g.condition.updates == budget and g.finished]
        data = [_points(experiment, method, "buffer_bytes", groups, 1e-6) for method in experiment.methods]
        if data := [trace for trace in data if len(set(trace["x"])) > 1]:
            views.append(View(budget, data))
    missing = (
        "It takes finished runs of a policy with at least two buffers, as of: graspcl sweep … --buffer 1MB,2MB,none"
    )
    done = [group for group in experiment.groups if group.finished]
    if len({(group.method, group.condition.budget) for group in done}) < len(done):
        missing = "The buffers of these runs took equally many bytes: even the smallest had room for all."
    return Figure(
        "memory", "Accuracy against memory", "α by the bytes of the buffer. Mean and standard deviation over seeds.",
        views,
        {"xaxis": {"title": {"text": "buffer (MB)"}, "rangemode": "tozero"}, "yaxis": {"title": {"text": "α (%)"}}},
        missing,
        choice="budget",
    )  # fmt: skip


def _points(experiment: Experiment, method: Method, name: str, groups: list[Group], unit: float = 1.0) -> Trace:
    own = [g for g in groups if g.method == method and g.finished and not math.isnan(g.mean(name))]
    own = sorted(own, key=lambda group: group.mean(name))
    spread = [group.std("alpha") for group in own]
    trace = {
        "type": "scatter", "mode": "lines+markers", "x": rounded([g.mean(name) * unit for g in own], 3),
        "y": rounded([g.mean("alpha") for g in own]), "text": [text(experiment.named(g.condition)) for g in own],
        "hovertemplate": "%{y:.2f} % (%{text})", **style(experiment, method),
    }  # fmt: skip
    if not np.isnan(spread).any():
        trace["error_y"] = {"type": "data", "array": rounded(spread), "thickness": 1}
    return trace


def times(experiment: Experiment) -> Figure:
    """Time of a session over that of uniform rehearsal, or of the baseline where there is none.

    An update lasts equally long whoever chose its samples, so a session takes updates · (1 + selection / training).
    The latter ratio is taken within each run, where whatever else the machine did meanwhile cancels out.
    """

    def draw(condition: Condition, groups: list[Group]) -> View | None:
        done = {group.method: group for group in groups if group.finished}
        ground = "uniform" if any(method.policy == "uniform" for method in done) else experiment.baseline
        parts = {method: _parts(group) for method, group in done.items()}
        whole = {m.learner + m.others: sum(own) for m, own in parts.items() if m.policy == ground}
        known = [m for m in reversed(done) if not math.isnan(sum(parts[m]) / whole.get(m.learner + m.others, math.nan))]
        data: list[Trace] = []
        for place, (name, colour) in enumerate((("updates", "#56B4E9"), ("selection", "#808080"))):
            shares = [parts[m][place] / whole[m.learner + m.others] for m in known]
            data.append(
                {"type": "bar", "orientation": "h", "name": name, "y": [wrapped(m.label) for m in known],
                 "x": rounded(shares, 3), "marker": {"color": colour}, "hovertemplate": "%{x:.2f}"}
            )  # fmt: skip
        note = f"1 is the time of {cut(ground, LABEL)}."
        return View(experiment.named(condition), data, tall(wrapped(m.label) for m in known), note) if known else None

    return Figure(
        "times", "Training time",
        "Time of a session relative to uniform rehearsal, or else to the baseline: its updates, which are taken to last"
        " equally long, and what selection took beside them.",
        by_condition(experiment, draw),
        {"barmode": "stack", "xaxis": {"title": {"text": "relative time"}}, "yaxis": {"type": "category"}},
        f"It takes finished runs with the policy uniform or {experiment.baseline}, to which times are relative.",
    )  # fmt: skip


def _parts(group: Group) -> tuple[float, float]:
    """What updates and selection take, in updates; NaN where it is not known."""
    pairs = [(run.value("selection_seconds"), run.value("training_seconds")) for run in group.runs]
    shares = [select / train for select, train in pairs if train > 0 and not math.isnan(select)]
    updates = group.mean("updates")
    return updates, updates * float(np.mean(shares)) if shares else math.nan
