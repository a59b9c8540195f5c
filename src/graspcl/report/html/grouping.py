"""Runs put together: by what was learned from, by method, by budget and buffer; seeds are what is averaged over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np

from graspcl.metric import mcnemar, paired_interval, saved_updates
from graspcl.report.html.reading import Run, dig, number

# Settings that are the axes of a report, or do not tell methods apart.
_BESIDE = {"name", "seed", "rehearsal", "budget.times", "budget.updates", "budget.passes", "buffer.capacity"}
_GROUPS_BESIDE = ("policy.", "learner.", "data.", "stream.", "checkpoint.", "measure.")


@dataclass(frozen=True)
class Method:
    """What is compared: a learner with a policy, and whatever other settings tell runs of an experiment apart."""

    learner: str
    policy: str
    others: str = ""
    label: str = ""  # what of it tells it from the others


@dataclass(frozen=True)
class Condition:
    """What a method may spend: the budget and the buffer, as they are named."""

    budget: str
    buffer: str


@dataclass(frozen=True)
class Group:
    """One method under one condition, over its seeds."""

    method: Method
    condition: Condition
    runs: tuple[Run, ...]

    @property
    def finished(self) -> bool:
        """Whether its runs came to their end; a group has either such ones alone or none."""
        return self.runs[0].finished

    @property
    def bounded(self) -> bool:
        """Whether its buffer is."""
        return dig(self.runs[0].record.config, "buffer", "capacity") is not None

    def values(self, name: str) -> list[float]:
        """What the summaries of its runs have under a name, where they have it."""
        found = np.array([run.value(name) for run in self.runs])
        return [float(value) for value in found[~np.isnan(found)]]

    def mean(self, name: str) -> float:
        """Over seeds; NaN where there is nothing."""
        values = self.values(name)
        return float(np.mean(values)) if values else float("nan")

    def std(self, name: str) -> float:
        """Over seeds; NaN for fewer than two."""
        values = self.values(name)
        return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")

    def by_seed(self) -> dict[int, Run]:
        """Its runs."""
        return {run.seed: run for run in self.runs}


@dataclass(frozen=True)
class Experiment:
    """Runs on the same data in the same kind of stream."""

    title: str
    runs: tuple[Run, ...]
    groups: tuple[Group, ...]
    repeats: int
    baseline: str

    @cached_property
    def methods(self) -> list[Method]:
        """GRASP first, then the baseline, then the others as they come."""
        found = dict.fromkeys(group.method for group in self.groups)
        first = {"grasp": 0, self.baseline: 1}
        return sorted(found, key=lambda method: first.get(method.policy, 2))

    @cached_property
    def conditions(self) -> list[Condition]:
        """By rising updates, then bytes."""
        found: dict[Condition, list[Group]] = {}
        for group in self.groups:
            found.setdefault(group.condition, []).append(group)

        def size(condition: Condition) -> tuple[float, bool, float]:
            groups = found[condition]
            updates, memory = ([g.mean(name) for g in groups] for name in ("updates", "buffer_bytes"))
            unbounded = not groups[0].bounded
            return float(np.nan_to_num(np.mean(updates))), unbounded, float(np.nan_to_num(np.mean(memory)))

        return sorted(found, key=size)

    @cached_property
    def _by_place(self) -> dict[tuple[Method, Condition], Group]:
        return {(group.method, group.condition): group for group in self.groups}

    def at(self, condition: Condition) -> list[Group]:
        """The groups under a condition, in the order of methods."""
        return [self._by_place[method, condition] for method in self.methods if (method, condition) in self._by_place]

    def several(self, axis: str) -> bool:
        """Whether runs differ in their `budget` or `buffer`."""
        return len({getattr(condition, axis) for condition in self.conditions}) > 1

    def named(self, condition: Condition) -> str:
        """A condition by what of it differs."""
        said = {"budget": f"{condition.budget} updates", "buffer": f"buffer {condition.buffer}"}
        return ", ".join(text for axis, text in said.items() if self.several(axis)) or "all"

    def reference(self, group: Group) -> Group | None:
        """The baseline that a group is compared with: the same but for the policy."""
        rival = self.rival(group.method)
        return None if rival is None else self._by_place.get((rival, group.condition))

    def rival(self, method: Method) -> Method | None:
        """The method that one is compared with, None for the baseline itself."""
        wanted = (method.learner, self.baseline, method.others)
        found = (m for m in self.methods if (m.learner, m.policy, m.others) == wanted)
        return next((m for m in found if m != method), None)

    def p(self, group: Group) -> float:
        """McNemar's p of the final predictions against the baseline's, pooled over the seeds that both have."""
        other = self.reference(group)
        if other is None:
            return float("nan")
        own, theirs = group.by_seed(), other.by_seed()
        a, b = [], []
        for seed in sorted(own.keys() & theirs.keys()):
            one, two = own[seed], theirs[seed]
            if one.right is None or two.right is None or not np.array_equal(one.labels, two.labels):  # type: ignore[arg-type]
                continue
            a.append(one.right)
            b.append(two.right)
        return mcnemar(np.concatenate(a), np.concatenate(b)).p if a else float("nan")

    def difference(self, group: Group) -> tuple[float, float, float] | None:
        """α minus the baseline's over the seeds that both have, and its 95 % interval (NaN for one seed)."""
        other = self.reference(group)
        if other is None:
            return None
        own, theirs = group.by_seed(), other.by_seed()
        both = sorted(own.keys() & theirs.keys())
        pairs = [(own[seed].value("alpha"), theirs[seed].value("alpha")) for seed in both]
        if not pairs or np.isnan(pairs).any():
            return None
        found = paired_interval([a for a, _ in pairs], [b for _, b in pairs])
        return found.mean, found.low, found.high

    def curve(self, method: Method, buffer: str) -> dict[float, float]:
        """Final accuracy by updates, with one buffer."""
        found = [g for g in self.groups if g.method == method and g.condition.buffer == buffer and g.finished]
        points = {group.mean("updates"): group.mean("alpha") for group in found}
        return {u: a for u, a in sorted(points.items()) if not np.isnan([u, a]).any()}

    def saved(self, method: Method, buffer: str) -> float | None:
        """The share of the baseline's updates that a method saves at equal accuracy; None without two budgets each.

        NaN where the method does not reach the baseline's best.
        """
        if (rival := self.rival(method)) is None:
            return None
        own, theirs = self.curve(method, buffer), self.curve(rival, buffer)
        if len(own) < 2 or len(theirs) < 2:
            return None
        return saved_updates([*own], [*own.values()], [*theirs], [*theirs.values()])


def experiments(runs: Iterable[Run], baseline: str = "uniform_balanced") -> list[Experiment]:
    """Runs that can be compared with one another; what has no settings to go by is in none of them."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.record.config and run.record.state != "damaged":
            found.setdefault(_what(run.record.config), []).append(run)
    return [_experiment(own, baseline) for own in found.values()]


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings by dotted names, as text.

    >>> flat({"seed": 3, "policy": {"name": "grasp", "eps": 1e-7}, "compile": True})
    {'seed': '3', 'policy.name': 'grasp', 'policy.eps': '1e-07', 'compile': 'true'}
    """
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(value).lower() if isinstance(value, bool) else str(value)
    return found


def differing(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """Names that do not have one and the same value everywhere."""
    names = dict.fromkeys(name for values in settings for name in values)
    return [name for name in names if len({values.get(name) for values in settings}) > 1]


def _what(config: Mapping[str, Any]) -> str:
    """What a run learns from; the folder that data lie in may be another on another machine."""
    data = config.get("data")
    if isinstance(data, Mapping):
        data = {**data, "path": PurePath(str(data.get("path", ""))).name}
    return json.dumps([data, config.get("stream"), config.get("rehearsal")], sort_keys=True, default=str)


def _experiment(runs: Sequence[Run], baseline: str) -> Experiment:
    settings = [flat(run.record.config) for run in runs]
    others = [
        name for name in differing(settings)
        if name not in _BESIDE and not name.startswith(_GROUPS_BESIDE)
    ]  # fmt: skip
    learners = {run.record.learner for run in runs}
    budget = _budgets(runs)
    places: dict[tuple[Method, Condition], dict[int, Run]] = {}
    repeats = 0
    for run, own in zip(runs, settings, strict=True):
        beside = ", ".join(f"{name}={own.get(name, 'none')}" for name in others)
        method = Method(run.record.learner, run.record.policy, beside)
        shown = [f"{method.learner} + {method.policy}" if len(learners) > 1 else method.policy, beside]
        method = replace(method, label=" · ".join(filter(None, shown)))
        seeds = places.setdefault((method, Condition(budget(run), _buffer(run))), {})
        repeats += run.seed in seeds and seeds[run.seed].finished == run.finished
        if run.seed not in seeds or (run.finished and not seeds[run.seed].finished):
            seeds[run.seed] = run
    groups = []
    for (method, condition), by_seed in places.items():
        done = tuple(run for run in by_seed.values() if run.finished)
        groups.append(Group(method, condition, done or tuple(by_seed.values())))
    names = list(dict.fromkeys(str(run.record.config.get("name", run.record.path.name)) for run in runs))
    title = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return Experiment(title, tuple(runs), tuple(groups), repeats, baseline)


def _budgets(runs: Sequence[Run]) -> Callable[[Run], str]:
    """How budgets are named: 0.5x where only the factor differs."""

    def whole(run: Run) -> str:
        updates, passes = (dig(run.record.config, "budget", name) for name in ("updates", "passes"))
        return f" of {updates}" if updates is not None else f" of {1.0 if passes is None else passes} passes"

    alike = len({whole(run) for run in runs}) < 2

    def named(run: Run) -> str:
        times = number(dig(run.record.config, "budget", "times"))
        return f"{1.0 if np.isnan(times) else times:g}x{'' if alike else whole(run)}"

    return named


def _buffer(run: Run) -> str:
    capacity = dig(run.record.config, "buffer", "capacity")
    if capacity is None:
        return "unbounded"
    return f"{capacity:,} samples" if isinstance(capacity, int) else str(capacity)
