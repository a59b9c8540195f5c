"""Figures of what accuracy costs: updates, memory and time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from graspcl.metric import updates_to_reach
from graspcl.report.figures import style
from graspcl.report.figures.style import Trace, View
from graspcl.report.measures import LABEL, shorten, tick_label
from graspcl.report.model import Experiment, Group, Method

_MOST_SAVINGS = 5  # described in the note


def by_updates(experiment: Experiment) -> list[View]:
    """Final accuracy by updates, and what the best method saves."""
    views = []
    for buffer in dict.fromkeys(condition.buffer for condition in reversed(experiment.conditions)):
        groups = [group for group in experiment.groups if group.condition.buffer == buffer]
        methods = [method for method in experiment.methods if len(experiment.curve(method, buffer)) > 1]
        if data := [_points(experiment, method, "updates", groups) for method in methods]:
            views.append(View(f"buffer {buffer}", data, *_savings(experiment, buffer)))
    return views


def _savings(experiment: Experiment, buffer: str) -> tuple[dict[str, Any], str]:
    """Return annotations that show the largest saving, and a note that describes the largest ones."""
    savings = experiment.savings(buffer)
    largest = sorted(savings.items(), key=lambda item: -np.nan_to_num(item[1].share, nan=-np.inf))
    texts = [shorten(experiment.saving_text(method, saving), 200) for method, saving in largest[:_MOST_SAVINGS]]
    if len(largest) > _MOST_SAVINGS:
        texts.append(f"{len(largest) - _MOST_SAVINGS} more save less")
    note = "; ".join(texts)
    if not largest or not largest[0][1].share > 0:
        return {}, note
    best, saving = largest[0]
    own, theirs = (experiment.curve(m, buffer) for m in (best, experiment.rival(best)) if m is not None)
    goal = max(theirs.values())
    end, start = (updates_to_reach([*curve], [*curve.values()], goal) for curve in (own, theirs))
    arrow = {"x": end, "y": goal, "ax": start, "ay": goal, "axref": "x", "ayref": "y", "text": "", "showarrow": True}
    head = {"arrowhead": 2, "arrowwidth": 1.5}
    words = {"x": (start + end) / 2, "y": goal, "yshift": 24, "text": f"same accuracy with<br>{saving}"}
    return {"annotations": [{**arrow, **head}, {**words, "showarrow": False}]}, note


def by_memory(experiment: Experiment) -> list[View] | str:
    """Final accuracy by the size of the buffer."""
    finished = experiment.finished_groups
    views = []
    for budget in dict.fromkeys(condition.updates for condition in reversed(experiment.conditions)):
        groups = [group for group in finished if group.condition.updates == budget]
        data = [_points(experiment, method, "buffer_bytes", groups, 1e-6) for method in experiment.methods]
        if data := [trace for trace in data if len(set(trace["x"])) > 1]:
            views.append(View(budget, data))
    if not views and len({(group.method, group.condition.budget) for group in finished}) < len(finished):
        return "All buffers of these runs took the same number of bytes: even the smallest had room for all samples."
    return views


def _points(experiment: Experiment, method: Method, key: str, groups: list[Group], factor: float = 1.0) -> Trace:
    """Return α of one method by another measure."""
    own = [g for g in groups if g.method == method and g.finished and not math.isnan(g.mean(key))]
    own = sorted(own, key=lambda group: group.mean(key))
    halves = [style.drawn_half(group, "alpha") for group in own]
    trace = {
        **style.line_style(experiment, method), "mode": "lines+markers",
        "x": style.rounded([g.mean(key) * factor for g in own], 3), "y": style.rounded([g.mean("alpha") for g in own]),
        "text": [style.plain_text(experiment.condition_label(g.condition)) for g in own],
        "hovertemplate": "%{y:.2f} % (%{text})",
    }  # fmt: skip
    if not np.isnan(halves).any():
        trace["error_y"] = style.error_bars(halves)
    return trace


@style.by_condition
def training_time(experiment: Experiment, label: str, groups: list[Group]) -> View | None:
    """Time of a session relative to uniform rehearsal, or to the baseline if there is none.

    An update takes equally long whichever policy selected its samples, so a session takes
    updates · (1 + selection / training). That ratio is taken within each run, where other load on the machine cancels.
    """
    times = {group.method: _update_and_selection_time(group) for group in groups if group.finished}
    unit = "uniform" if any(method.policy == "uniform" for method in times) else experiment.baseline
    whole = {m.learner + m.others: sum(own) for m, own in times.items() if m.policy == unit}
    shares = {m: np.divide(own, whole.get(m.learner + m.others, math.nan)) for m, own in reversed(times.items())}
    known = {tick_label(m.label): own for m, own in shares.items() if not np.isnan(own).any()}
    data = [
        {"type": "bar", "orientation": "h", "name": name, "y": [*known], "marker": {"color": colour},
         "x": style.rounded([own[place] for own in known.values()], 3), "hovertemplate": "%{x:.2f}"}
        for place, (name, colour) in enumerate((("updates", "#56B4E9"), ("selection", "#808080")))
    ]  # fmt: skip
    note = f"1 is the time of {shorten(unit, LABEL)}."
    return View(label, data, style.bar_height(known), note) if known else None


def _update_and_selection_time(group: Group) -> tuple[float, float]:
    """Return what updates and selection take, in updates; NaN where it is unknown."""
    pairs = [(run.value("selection_seconds"), run.value("training_seconds")) for run in group.runs]
    shares = [select / train for select, train in pairs if train > 0 and not math.isnan(select)]
    updates = group.mean("updates")
    return updates, updates * float(np.mean(shares)) if shares else math.nan
