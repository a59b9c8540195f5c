"""Which runs belong together: by what they learned from, by method, by budget and buffer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import numpy as np

from graspcl.report.html.grouping import Condition, Experiment, Group, Method, differing, flat
from graspcl.report.html.labels import told_apart
from graspcl.report.html.reading import Run, dig, number

# Settings that are the axes of a report, or do not tell methods apart: how much is saved, told and measured changes
# nothing that is learned.
_BESIDE = {
    "name", "seed", "rehearsal", "log", "execution.device", "budget.times", "budget.updates", "budget.passes",
    "buffer.capacity",
}  # fmt: skip
_GROUPS_BESIDE = ("policy.", "learner.", "data.", "stream.", "checkpoint.", "measure.")


def experiments(runs: Iterable[Run], baseline: str = "uniform_balanced") -> list[Experiment]:
    """Runs that can be compared with one another; what has no settings to go by is in none of them."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.record.config and run.record.state != "damaged":
            found.setdefault(_what(run.record.config), []).append(run)
    return [_experiment(part, baseline, where) for own in found.values() for where, part in _parts(own)]


def _what(config: Mapping[str, Any]) -> str:
    """What a run learns from; the folder that data lie in may be another on another machine."""
    data = config.get("data")
    if isinstance(data, Mapping):
        data = {**data, "path": PurePath(str(data.get("path", ""))).name}
    return json.dumps([data, config.get("stream"), config.get("rehearsal")], sort_keys=True, default=str)


def _parts(runs: list[Run]) -> list[tuple[str, list[Run]]]:
    """Runs on data of one name, apart where these are not the same data: by their path, and by their fingerprint where
    that is not enough. Each part with what tells it from the others.
    """
    if not _mixed(runs):
        return [("", runs)]
    parts: list[tuple[str, list[Run]]] = []
    for path, own in _by(runs, lambda run: str(dig(run.record.config, "data", "path"))).items():
        inner = _by(own, lambda run: str(run.environment.get("fingerprint"))) if _mixed(own) else {"": own}
        parts += [(f"{path} {mark}".strip(), some) for mark, some in inner.items()]
    return parts


def _mixed(runs: Iterable[Run]) -> bool:
    """Whether one seed met different data. Another seed may draw other classes, another network may have another
    tokenizer, and a fingerprint tells of both.
    """
    met: dict[str, object] = {}
    for run in runs:
        if mark := run.environment.get("fingerprint"):
            key = json.dumps([run.seed, run.record.config.get("network")], sort_keys=True, default=str)
            if met.setdefault(key, mark) != mark:
                return True
    return False


def _by(runs: Iterable[Run], key: Callable[[Run], str]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def _experiment(runs: Sequence[Run], baseline: str, where: str = "") -> Experiment:
    budget = _budgets(runs)
    places: dict[tuple[Method, Condition], dict[int, Run]] = {}
    repeats = 0
    for run, method in zip(runs, _methods(runs), strict=True):
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
    return Experiment(title + (f" ({where})" if where else ""), tuple(runs), tuple(groups), repeats, baseline)


def _methods(runs: Sequence[Run]) -> list[Method]:
    """The method of each run, with a label that no other has, not even when it is cut: for that it may be shortened."""
    settings = [flat(run.record.config) for run in runs]
    others = [
        name for name in differing(settings)
        if name not in _BESIDE and not name.startswith(_GROUPS_BESIDE)
    ]  # fmt: skip
    several = len({run.record.learner for run in runs}) > 1
    found: list[tuple[Method, list[str]]] = []
    for run, own in zip(runs, settings, strict=True):
        values = [own.get(name, "none") for name in others]
        named = [f"{name}={value}" for name, value in zip(others, values, strict=True)]
        found.append((Method(run.record.learner, run.record.policy, ", ".join(named)), values))
    for names in (others, _brief(others)):
        labels = {}
        for method, values in found:
            beside = ", ".join(f"{name}={value}" for name, value in zip(names, values, strict=True))
            policy = f"{method.learner} + {method.policy}" if several else method.policy
            labels[method] = " · ".join(filter(None, (policy, beside)))
        apart = told_apart(list(labels.values()))
        if apart == list(labels.values()):
            break
    labels = dict(zip(labels, apart, strict=True))
    return [replace(method, label=labels[method]) for method, _ in found]


def _brief(names: Sequence[str]) -> list[str]:
    """Settings without their groups, where they can do without.

    >>> _brief(["optimiser.name", "optimiser.lr", "base.lr"])
    ['optimiser', 'optimiser.lr', 'base.lr']
    """
    whole = [name.removesuffix(".name") for name in names]
    last = [name.rpartition(".")[2] for name in whole]
    return [own if last.count(own) == 1 else name for name, own in zip(whole, last, strict=True)]


def _budgets(runs: Sequence[Run]) -> Callable[[Run], str]:
    """How budgets are named: 0.5x where the factor alone differs, 5 updates where these are what was set."""

    def times(run: Run) -> float:
        found = number(dig(run.record.config, "budget", "times"))
        return 1.0 if np.isnan(found) else found

    def whole(run: Run) -> str:
        updates, passes = (dig(run.record.config, "budget", name) for name in ("updates", "passes"))
        if updates is None:
            return f"{1.0 if passes is None else passes} passes"
        return f"{updates:,} updates" if isinstance(updates, int) else f"{updates} updates"

    alike = len({whole(run) for run in runs}) < 2
    once = all(times(run) == 1.0 for run in runs)

    def named(run: Run) -> str:
        if whole(run).endswith(" updates") and times(run) == 1.0 and (once or not alike):
            return whole(run)
        return f"{times(run):g}x{'' if alike else f' of {whole(run)}'}"

    return named


def _buffer(run: Run) -> str:
    capacity = dig(run.record.config, "buffer", "capacity")
    if capacity is None:
        return "unbounded"
    return f"{capacity:,} samples" if isinstance(capacity, int) else str(capacity)
