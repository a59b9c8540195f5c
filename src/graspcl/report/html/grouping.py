"""What is compared: methods under budgets and buffers; seeds are what is averaged over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from graspcl.metric import mcnemar, paired_interval, saved_updates
from graspcl.report.html.reading import Run, dig


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

    @property
    def updates(self) -> str:
        """The budget, as one says it.

        >>> Condition("0.5x", "all").updates, Condition("5 updates", "all").updates
        ('0.5x updates', '5 updates')
        """
        return f"{self.budget} updates" if self.budget.endswith("x") else self.budget


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
class Against:
    """A group beside the baseline: the mean of α minus the baseline's over so many `seeds`, its 95 % interval (NaN for
    one seed), and the median p of McNemar's test on the final predictions of each of the seeds that could be `tested`.
    """

    mean: float
    low: float
    high: float
    seeds: int
    p: float
    tested: int


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
        said = {"budget": condition.updates, "buffer": f"buffer {condition.buffer}"}
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

    def against(self, group: Group) -> Against | None:
        """What a group has over the baseline at the seeds that both have; None without any."""
        other = self.reference(group)
        if other is None:
            return None
        own, theirs = group.by_seed(), other.by_seed()
        pairs = [(own[seed], theirs[seed]) for seed in sorted(own.keys() & theirs.keys())]
        alpha = np.array([[run.value("alpha") for run in pair] for pair in pairs])
        if not pairs or np.isnan(alpha).any():
            return None
        found = paired_interval(alpha[:, 0], alpha[:, 1])
        # Seeds have test samples in common, so that samples of several seeds together would not be independent.
        p = [mcnemar(a.right, b.right).p for a, b in pairs if _same_test(a, b)]  # type: ignore[arg-type]
        return Against(found.mean, found.low, found.high, len(pairs), float(np.median(p)) if p else np.nan, len(p))

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


def _same_test(a: Run, b: Run) -> bool:
    """Whether two runs predicted the same samples at their end."""
    if a.right is None or b.right is None or a.labels is None or b.labels is None:
        return False
    return np.array_equal(a.labels, b.labels)
