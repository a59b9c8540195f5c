"""Which runs of a report belong together: what they learn from, their method, and what the method may spend."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from graspcl.report.measures import distinct_labels
from graspcl.report.read import Run, differing, dig, flatten

# Settings that do not make another method: axes of a report, and what changes nothing that is learned.
_NOT_OF_A_METHOD = {
    "name", "seed", "rehearsal", "log", "execution.device", "budget.times", "budget.updates", "budget.passes",
    "buffer.capacity", "measure.drift", "measure.distances", "measure.head",
}  # fmt: skip
_NOT_OF_A_STATIC_LEARNER = ("optimiser.", "budget.", "stop.", "base.passes", "base.optimiser.", "buffer.")
_GROUPS_NOT_OF_A_METHOD = ("policy.", "learner.", "data.", "stream.", "checkpoint.")


@dataclass(frozen=True)
class Method:
    """What is compared: a learner with a policy, and other settings in which runs of an experiment differ."""

    learner: str
    policy: str
    others: str = ""
    label: str = ""  # distinguishes it from the other methods of its experiment
    reference: bool = False  # a baseline next to the methods that are compared


@dataclass(frozen=True)
class Condition:
    """What a method may spend: its budget and its buffer, by name."""

    budget: str
    buffer: str

    @property
    def updates(self) -> str:
        """The budget in words, such as "0.5x updates" or "5 updates"."""
        return f"{self.budget} updates" if self.budget.endswith("x") else self.budget


def data_and_stream(run: Run) -> str:
    """Return what a run learns from; the folder of the data may differ between machines."""
    data = run.config.get("data")
    if isinstance(data, dict):
        data = {**data, "path": PurePath(str(data.get("path", ""))).name}
    return json.dumps([data, run.config.get("stream"), run.config.get("rehearsal")], sort_keys=True, default=str)


def split_by_data(runs: list[Run]) -> list[tuple[str, list[Run]]]:
    """Split runs whose data have the same name but differ: by path, then by fingerprint. Return labels and parts."""
    if not _mixed(runs):
        return [("", runs)]
    parts: list[tuple[str, list[Run]]] = []
    for path, own in group_by(runs, lambda run: str(dig(run.config, "data", "path"))).items():
        inner = group_by(own, lambda run: str(run.environment.get("fingerprint"))) if _mixed(own) else {"": own}
        parts += [(f"{path} {fingerprint}".strip(), some) for fingerprint, some in inner.items()]
    return parts


def _mixed(runs: Iterable[Run]) -> bool:
    """Return whether one seed met different data. Other seeds or tokenizers may change a fingerprint rightly."""
    known: dict[str, object] = {}
    for run in runs:
        if fingerprint := run.environment.get("fingerprint"):
            key = json.dumps([run.seed, run.config.get("network")], sort_keys=True, default=str)
            if known.setdefault(key, fingerprint) != fingerprint:
                return True
    return False


def group_by(runs: Iterable[Run], key: Callable[[Run], str]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def methods_of(runs: Sequence[Run]) -> list[Method]:
    """Return the method of each run. Labels stay distinct when figures shorten them."""
    settings = [flatten(run.config) for run in runs]
    for own, run in zip(settings, runs, strict=True):  # earlier versions always predicted through the codec
        own.setdefault("measure.coded", str(run.config.get("rehearsal") != "veridical").lower())
    compared = [place for place, run in enumerate(runs) if not run.reference] or range(len(runs))
    others = [
        name for name in differing([settings[place] for place in compared])
        if name not in _NOT_OF_A_METHOD and not name.startswith(_GROUPS_NOT_OF_A_METHOD)
    ]  # fmt: skip
    several = len({runs[place].learner for place in compared}) > 1
    mixed = len(compared) < len(runs)  # references next to others

    def text(names: Sequence[str], own: Mapping[str, str]) -> str:
        idle = () if any(key.startswith("policy.") for key in own) else _NOT_OF_A_STATIC_LEARNER
        pairs = [pair for pair in zip(names, others, strict=True) if not pair[1].startswith(idle)]
        return ", ".join(f"{name}={own.get(key, 'none')}" for name, key in pairs)

    found = [
        Method(run.learner, run.policy, text(others, own), reference=mixed and run.reference)
        for run, own in zip(runs, settings, strict=True)
    ]
    for names in (others, _without_groups(others)):
        labels = {}
        for method, own in zip(found, settings, strict=True):
            whole = " + ".join(filter(None, (method.learner, method.policy)))
            policy = f"{method.learner} (reference)" if method.reference else whole if several else method.policy
            labels[method] = " · ".join(filter(None, (policy, text(names, own))))
        distinct = dict(zip(labels, distinct_labels(list(labels.values())), strict=True))
        if distinct == labels:
            break
    return [replace(method, label=distinct[method]) for method in found]


def _without_groups(names: Sequence[str]) -> list[str]:
    """Return names of settings without their groups, where these are not needed: "optimiser.name" as "optimiser"."""
    whole = [name.removesuffix(".name") for name in names]
    last = [name.rpartition(".")[2] for name in whole]
    return [own if last.count(own) == 1 else name for name, own in zip(whole, last, strict=True)]


def conditions_of(runs: Sequence[Run]) -> list[list[Condition]]:
    """Return the conditions that each run belongs to: a run without a policy has no budget, so it belongs to several.

    If its buffer holds samples, these are the conditions with the same buffer.
    """
    with_policy = [run for run in runs if run.policy] or runs
    own = {
        id(run): Condition(budget, run.buffer) for run, budget in zip(with_policy, _budgets(with_policy), strict=True)
    }
    everywhere = list(dict.fromkeys(own.values()))

    def shared(run: Run) -> list[Condition]:
        return [at for at in everywhere if run.stores and at.buffer == run.buffer] or everywhere

    return [[own[id(run)]] if id(run) in own else shared(run) for run in runs]


def _budgets(runs: Sequence[Run]) -> list[str]:
    """Return the budget of each run: "0.5x" if only the factor differs, "5 updates" if these were set."""

    def base(run: Run) -> str:
        updates, passes = (dig(run.config, "budget", name) for name in ("updates", "passes"))
        if updates is None:
            return f"{1.0 if passes is None else passes} passes"
        return f"{updates:,} updates" if isinstance(updates, int) else f"{updates} updates"

    found = [(run.budget_factor, base(run)) for run in runs]
    same_base = len({own for _, own in found}) < 2
    plain = not same_base or all(times == 1.0 for times, _ in found)
    return [
        own if plain and times == 1.0 and own.endswith(" updates") else f"{times:g}x{'' if same_base else f' of {own}'}"
        for times, own in found
    ]
