"""Figures of what accuracy costs: updates, memory and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graspcl.metric import updates_to_reach
from graspcl.report.figures import style
from graspcl.report.figures.style import Trace, View
from graspcl.report.grouping import Method
from graspcl.report.measures import LABEL, shorten, tick_label
from graspcl.report.model import Experiment, Group, Saving

_MOST_SAVINGS = 5  # described in the note

Cost = Callable[[Group], float]


def by_updates(experiment: Experiment) -> list[View]:
    """Final accuracy by updates, and what the best method saves."""
    return _by_cost(experiment, Group.updates, lambda saving: saving.share, lambda saving: saving.updates_text)


def by_time(experiment: Experiment) -> list[View]:
    """Final accuracy by the time of updates and selection, and what the best method saves."""
    return _by_cost(experiment, experiment.seconds, lambda saving: saving.time, lambda saving: saving.time_text)


def _by_cost(
    experiment: Experiment, cost: Cost, share: Callable[[Saving], float], text: Callable[[Saving], str]
) -> list[View]:
    views = []
    for buffer in dict.fromkeys(condition.buffer for condition in reversed(experiment.conditions)):
        groups = [group for group in experiment.groups if group.condition.buffer == buffer]
        curves = {method: experiment.curve(method, buffer, cost) for method in experiment.methods}
        if data := [_points(experiment, method, cost, groups) for method, own in curves.items() if len(own) > 1]:
            savings = experiment.savings(buffer)
            largest = sorted(savings.items(), key=lambda item: -np.nan_to_num(share(item[1]), nan=-np.inf))
            arrow = _arrow(experiment, curves, *largest[0], text) if largest and share(largest[0][1]) > 0 else {}
            views.append(View(f"buffer {buffer}", data, arrow, _note(experiment, largest)))
    return views


def _note(experiment: Experiment, largest: Sequence[tuple[Method, Saving]]) -> str:
    """Describe the largest savings."""
    texts = [shorten(experiment.saving_text(method, saving), 200) for method, saving in largest[:_MOST_SAVINGS]]
    if len(largest) > _MOST_SAVINGS:
        texts.append(f"{len(largest) - _MOST_SAVINGS} more save less")
    return "; ".join(texts)


def _arrow(
    experiment: Experiment, curves: Mapping[Method, dict[float, float]], best: Method, saving: Saving,
    text: Callable[[Saving], str],
) -> dict[str, Any]:  # fmt: skip
    """Return annotations that show a saving."""
    own, theirs = (curves[method] for method in (best, experiment.rival(best)) if method is not None)
    goal = max(theirs.values())
    end, start = (updates_to_reach([*curve], [*curve.values()], goal) for curve in (own, theirs))
    arrow = {"x": end, "y": goal, "ax": start, "ay": goal, "axref": "x", "ayref": "y", "text": "", "showarrow": True}
    head = {"arrowhead": 2, "arrowwidth": 1.5}
    words = {"x": (start + end) / 2, "y": goal, "yshift": 24, "text": f"same accuracy with<br>{text(saving)}"}
    return {"annotations": [{**arrow, **head}, {**words, "showarrow": False}]}


def by_memory(experiment: Experiment) -> list[View] | str:
    """Final accuracy by the size of the buffer."""
    finished = experiment.finished_groups
    views = []
    for budget in dict.fromkeys(condition.updates for condition in reversed(experiment.conditions)):
        groups = [group for group in finished if group.condition.updates == budget]
        data = [_points(experiment, method, _megabytes, groups) for method in experiment.methods]
        if data := [trace for trace in data if len(set(trace["x"])) > 1]:
            views.append(View(budget, data))
    if not views and len({(group.method, group.condition.budget) for group in finished}) < len(finished):
        return "All buffers of these runs took the same number of bytes: even the smallest had room for all samples."
    return views


def _megabytes(group: Group) -> float:
    return group.mean("buffer_bytes") * 1e-6


def _points(experiment: Experiment, method: Method, cost: Cost, groups: list[Group]) -> Trace:
    """Return α of one method by what it cost."""
    own = sorted((g for g in groups if g.method == method and g.finished and not math.isnan(cost(g))), key=cost)
    halves = [style.drawn_half(group, "alpha") for group in own]
    trace = {
        **style.line_style(experiment, method), "mode": "lines+markers",
        "x": style.rounded([cost(g) for g in own], 3), "y": style.rounded([g.mean("alpha") for g in own]),
        "text": [style.plain_text(experiment.condition_label(g.condition)) for g in own],
        "hovertemplate": "%{y:.2f} % (%{text})",
    }  # fmt: skip
    if not np.isnan(halves).any():
        trace["error_y"] = style.error_bars(halves)
    return trace


@style.by_condition
def training_time(experiment: Experiment, label: str, groups: list[Group]) -> View | None:
    """Time of a session relative to uniform rehearsal, or to the baseline if there is none, as `Group.spent` has it."""
    times = {group.method: group.spent for group in groups if group.finished and not group.method.reference}
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
