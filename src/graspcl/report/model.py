"""The model of a report: runs → experiments → methods and conditions → groups of seeds → statistics.

Everything that terminal, page and files show is computed here, once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath

import numpy as np

from graspcl.errors import GraspError, nearest
from graspcl.metric import mcnemar, paired_interval, saved_updates
from graspcl.report.measures import Mean, distinct_labels
from graspcl.report.read import Run, differing, dig, flatten, read_runs

BASELINE = "uniform_balanced"
# Settings that do not make another method: axes of a report, and what changes nothing that is learned.
_NOT_OF_A_METHOD = {
    "name", "seed", "rehearsal", "log", "execution.device", "budget.times", "budget.updates", "budget.passes",
    "buffer.capacity", "measure.drift", "measure.distances", "measure.head",
}  # fmt: skip
_GROUPS_NOT_OF_A_METHOD = ("policy.", "learner.", "data.", "stream.", "checkpoint.")


@dataclass(frozen=True)
class Method:
    """What is compared: a learner with a policy, and other settings in which runs of an experiment differ."""

    learner: str
    policy: str
    others: str = ""
    label: str = ""  # distinguishes it from the other methods of its experiment


@dataclass(frozen=True)
class Condition:
    """What a method may spend: its budget and its buffer, by name."""

    budget: str
    buffer: str

    @property
    def updates(self) -> str:
        """The budget in words, such as "0.5x updates" or "5 updates"."""
        return f"{self.budget} updates" if self.budget.endswith("x") else self.budget


@dataclass(frozen=True)
class Group:
    """The runs of one method under one condition: one per seed, all finished or none."""

    method: Method
    condition: Condition
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        return self.method.label

    @property
    def finished(self) -> bool:
        return self.runs[0].finished

    @property
    def bounded(self) -> bool:
        """Whether its buffer has a capacity."""
        return dig(self.runs[0].config, "buffer", "capacity") is not None

    @cached_property
    def values(self) -> dict[str, list[float]]:
        """Numbers of the summaries by key, one per seed that has it."""
        found: dict[str, list[float]] = {}
        for run in self.runs:
            for key in run.summary:
                if not np.isnan(value := run.value(key)):
                    found.setdefault(key, []).append(value)
        return found

    def over_seeds(self, key: str) -> Mean:
        """Return the mean of a number of the summaries, with its interval."""
        return Mean.of(self.values.get(key, []))

    def mean(self, key: str) -> float:
        """Return the mean alone; NaN without values."""
        return float(np.mean(self.values[key])) if key in self.values else float("nan")

    def updates(self) -> float:
        """Return the updates of a run, mean over seeds."""
        return self.mean("updates")

    @property
    def spent(self) -> tuple[float, float]:
        """What updates and selection took, both in updates; NaN where it is unknown.

        The ratio of both is taken within each run, where other load on the machine cancels.
        """
        pairs = [(run.value("selection_seconds"), run.value("training_seconds")) for run in self.runs]
        shares = [select / train for select, train in pairs if train > 0 and not np.isnan(select)]
        updates = self.updates()
        return updates, updates * float(np.mean(shares)) if shares else float("nan")

    @property
    def class_accuracy(self) -> dict[str, float]:
        """Final accuracy of each class, mean over seeds."""
        return mean_by_name(run.class_accuracy for run in self.runs)


def mean_by_name(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each name over the seeds that have it."""
    values: dict[str, list[float]] = {}
    for one in found:
        for name, value in one.items():
            values.setdefault(name, []).append(value)
    return {name: float(np.mean(own)) for name, own in values.items()}


@dataclass(frozen=True)
class Difference(Mean):
    """α of a group minus α of the baseline, over the seeds that both have."""

    seeds: int = 0
    p: float = float("nan")  # paired t-test over seeds
    mcnemar_p: float = float("nan")  # McNemar's exact test on the final predictions, median over seeds
    tested: int = 0  # seeds whose predictions could be tested


@dataclass(frozen=True)
class Saving:
    """Shares of the baseline's updates and time that a method saves when it reaches the baseline's best accuracy.

    They are NaN if the method does not reach it, and lower bounds (`at_least`) if the smallest budget suffices. The
    time is that of updates and selection; NaN if it is unknown.
    """

    share: float
    at_least: bool
    time: float = float("nan")

    @property
    def updates_text(self) -> str:
        """Such as "40 % fewer updates"."""
        return self._text(self.share, "fewer updates", "more updates", "as many updates")

    @property
    def time_text(self) -> str:
        """Such as "36 % less time"; empty if the time is unknown."""
        return "" if np.isnan(self.time) else self._text(self.time, "less time", "more time", "as much time")

    def _text(self, share: float, less: str, more: str, same: str) -> str:
        if not round(100 * share):
            return same
        bound = "at least " if self.at_least else ""
        return f"{bound}{abs(100 * share):.0f} % {less if share > 0 else more}"

    def __str__(self) -> str:
        return " and ".join(filter(None, (self.updates_text, self.time_text)))


@dataclass(frozen=True)
class Experiment:
    """Runs on the same data in the same kind of stream; `repeats` of them repeat others and are left out."""

    title: str
    runs: tuple[Run, ...]
    groups: tuple[Group, ...]
    repeats: int
    baseline: str

    @cached_property
    def methods(self) -> list[Method]:
        """GRASP first, then the baseline, then the others in the order of their runs."""
        found = dict.fromkeys(group.method for group in self.groups)
        first = {"grasp": 0, self.baseline: 1}
        return sorted(found, key=lambda method: first.get(method.policy, 2))

    @cached_property
    def conditions(self) -> list[Condition]:
        """Sorted by updates, then by bytes."""

        def size(condition: Condition) -> tuple[float, bool, float]:
            groups = [group for group in self.groups if group.condition == condition]
            means = np.mean([[group.mean("updates"), group.mean("buffer_bytes")] for group in groups], axis=0)
            updates, memory = np.nan_to_num(means).tolist()
            return updates, not groups[0].bounded, memory

        return sorted(dict.fromkeys(group.condition for group in self.groups), key=size)

    @cached_property
    def ranked_conditions(self) -> list[Condition]:
        """The most informative first: most methods, the 1x budget, most runs, the largest."""
        places = {condition: place for place, condition in enumerate(self.conditions)}

        def order(condition: Condition) -> tuple[int, bool, int, int]:
            runs = [len(group.runs) for group in self.at(condition) if group.finished]
            return -len(runs), not condition.budget.startswith("1x"), -sum(runs), -places[condition]

        return sorted(places, key=order)

    @cached_property
    def _by_place(self) -> dict[tuple[Method, Condition], Group]:
        return {(group.method, group.condition): group for group in self.groups}

    def at(self, condition: Condition) -> list[Group]:
        """Return the groups under a condition, in the order of methods."""
        return [self._by_place[method, condition] for method in self.methods if (method, condition) in self._by_place]

    @cached_property
    def finished_groups(self) -> list[Group]:
        """Finished groups in the order of conditions, then methods."""
        return [group for condition in self.conditions for group in self.at(condition) if group.finished]

    def differs(self, axis: str) -> bool:
        """Return whether runs differ in their "budget" or "buffer"."""
        return len({getattr(condition, axis) for condition in self.conditions}) > 1

    def condition_label(self, condition: Condition) -> str:
        """Return what distinguishes a condition from the others; "all" if there is only one."""
        texts = {"budget": condition.updates, "buffer": f"buffer {condition.buffer}"}
        return ", ".join(text for axis, text in texts.items() if self.differs(axis)) or "all"

    def rival(self, method: Method) -> Method | None:
        """Return the method that differs in the policy alone, which is the baseline; None for the baseline itself."""
        wanted = (method.learner, self.baseline, method.others)
        found = (m for m in self.methods if (m.learner, m.policy, m.others) == wanted)
        return next((m for m in found if m != method), None)

    def difference(self, group: Group) -> Difference | None:
        """Compare a group with the baseline under the same condition; None without a common seed."""
        return self._differences[group.method, group.condition]

    @cached_property
    def _differences(self) -> dict[tuple[Method, Condition], Difference | None]:
        return {(group.method, group.condition): self._compare(group) for group in self.groups}

    def _compare(self, group: Group) -> Difference | None:
        rival = self.rival(group.method)
        other = None if rival is None else self._by_place.get((rival, group.condition))
        if other is None or not (group.finished and other.finished):
            return None
        own, theirs = ({run.seed: run for run in one.runs} for one in (group, other))
        if not (pairs := [(own[seed], theirs[seed]) for seed in sorted(own.keys() & theirs.keys())]):
            return None
        found = paired_interval([a.value("alpha") for a, _ in pairs], [b.value("alpha") for _, b in pairs])
        # Seeds share test samples, so samples pooled over seeds would not be independent: the test is by seed.
        tests = [
            mcnemar(a.correct, b.correct).p  # type: ignore[arg-type]  # known, as labels are
            for a, b in pairs
            if a.labels is not None and b.labels is not None and np.array_equal(a.labels, b.labels)
        ]
        median = float(np.median(tests)) if tests else float("nan")
        return Difference(found.mean, found.high - found.mean, found.std, len(pairs), found.p, median, len(tests))

    def seconds(self, group: Group) -> float:
        """Return the time of a run's updates and selection; NaN if it is unknown.

        An update takes equally long whichever policy selected its samples. Its time is the mean over all runs of the
        learner, so that other load on the machine falls on all policies alike.
        """
        return sum(group.spent) * self._update_seconds.get((group.method.learner, group.method.others), float("nan"))

    @cached_property
    def _update_seconds(self) -> dict[tuple[str, str], float]:
        """The mean time of an update, by learner and other settings."""
        spent: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for group in self.finished_groups:
            pairs = [(run.value("training_seconds"), run.value("updates")) for run in group.runs]
            own = spent.setdefault((group.method.learner, group.method.others), [])
            own += [pair for pair in pairs if not np.isnan(pair).any()]
        totals = {place: np.sum(pairs, axis=0) for place, pairs in spent.items() if pairs}
        return {place: float(seconds / updates) for place, (seconds, updates) in totals.items() if updates}

    def curve(self, method: Method, buffer: str, cost: Callable[[Group], float] | None = None) -> dict[float, float]:
        """Return the final accuracy by updates, or by another cost, with one buffer."""
        found = [g for g in self.groups if g.method == method and g.condition.buffer == buffer and g.finished]
        points = {(cost or Group.updates)(group): group.mean("alpha") for group in found}
        return {spent: alpha for spent, alpha in sorted(points.items()) if not np.isnan([spent, alpha]).any()}

    def savings(self, buffer: str) -> dict[Method, Saving]:
        """Return what methods save over the baseline with one buffer; both need at least two budgets."""
        found = {}
        for method in self.methods:
            own, rival = self.curve(method, buffer), self.rival(method)
            theirs = {} if rival is None else self.curve(rival, buffer)
            if rival is not None and len(own) > 1 and len(theirs) > 1:
                times = (self.curve(one, buffer, self.seconds) for one in (method, rival))
                found[method] = Saving(_saved(own, theirs), own[min(own)] >= max(theirs.values()), _saved(*times))
        return found

    def saving_text(self, method: Method, saving: Saving) -> str:
        if np.isnan(saving.share):
            return f"{method.label} does not reach the best α of {self.baseline}"
        return f"{method.label} reaches the best α of {self.baseline} with {saving}"


def _saved(own: Mapping[float, float], theirs: Mapping[float, float]) -> float:
    """Return the share that one curve of accuracy by cost saves over another; NaN without points."""
    return saved_updates([*own], [*own.values()], [*theirs], [*theirs.values()]) if own and theirs else float("nan")


@dataclass(frozen=True)
class Report:
    """Runs in any state, the policy to compare with, and the table of the paper to show next to them."""

    runs: list[Run]
    baseline: str = BASELINE
    paper: str | None = None  # such as "table-2"

    @cached_property
    def experiments(self) -> list[Experiment]:
        """Runs that can be compared; runs without settings are in none of them."""
        found = _group_by([run for run in self.runs if run.config and run.usable], _data_and_stream)
        parts = [part for runs in found.values() for part in _split_by_data(runs)]
        return [make_experiment(runs, self.baseline, where) for where, runs in parts]

    @property
    def with_problems(self) -> int:
        """How many usable runs have files that cannot be read, or failed."""
        return sum(run.usable and bool(run.problems) for run in self.runs)


def gather(paths: Iterable[Path], baseline: str | None = None, paper: str | None = None) -> Report:
    """Read all runs in and below folders.

    A given `baseline` must be the policy of a run. `paper` is a name of `graspcl.report.paper.published`.
    """
    runs = read_runs(paths)
    policies = {run.policy for run in runs if run.config}
    if baseline is not None and policies and baseline not in policies:
        raise GraspError(f"--baseline must be the policy of a run, got {baseline!r}; {nearest(baseline, policies)}")
    return Report(runs, baseline or BASELINE, paper)


# -- which runs belong together ----------------------------------------------------------------------------------------


def _data_and_stream(run: Run) -> str:
    """Return what a run learns from; the folder of the data may differ between machines."""
    data = run.config.get("data")
    if isinstance(data, dict):
        data = {**data, "path": PurePath(str(data.get("path", ""))).name}
    return json.dumps([data, run.config.get("stream"), run.config.get("rehearsal")], sort_keys=True, default=str)


def _split_by_data(runs: list[Run]) -> list[tuple[str, list[Run]]]:
    """Split runs whose data have the same name but differ: by path, then by fingerprint. Return labels and parts."""
    if not _mixed(runs):
        return [("", runs)]
    parts: list[tuple[str, list[Run]]] = []
    for path, own in _group_by(runs, lambda run: str(dig(run.config, "data", "path"))).items():
        inner = _group_by(own, lambda run: str(run.environment.get("fingerprint"))) if _mixed(own) else {"": own}
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


def _group_by(runs: Iterable[Run], key: Callable[[Run], str]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return found


def make_experiment(runs: Sequence[Run], baseline: str = BASELINE, where: str = "") -> Experiment:
    """Make one experiment of runs, which are taken to have learned from the same data."""
    places: dict[tuple[Method, Condition], dict[int, Run]] = {}
    repeats = 0
    for run, method, budget in zip(runs, _methods(runs), _budgets(runs), strict=True):
        seeds = places.setdefault((method, Condition(budget, run.buffer)), {})
        repeats += run.seed in seeds and seeds[run.seed].finished == run.finished
        if run.seed not in seeds or (run.finished and not seeds[run.seed].finished):
            seeds[run.seed] = run
    groups = []
    for (method, condition), by_seed in places.items():
        finished = tuple(run for run in by_seed.values() if run.finished)
        groups.append(Group(method, condition, finished or tuple(by_seed.values())))
    names = list(dict.fromkeys(str(run.config.get("name", run.path.name)) for run in runs))
    title = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return Experiment(title + (f" ({where})" if where else ""), tuple(runs), tuple(groups), repeats, baseline)


def _methods(runs: Sequence[Run]) -> list[Method]:
    """Return the method of each run. Labels stay distinct when figures shorten them."""
    settings = [flatten(run.config) for run in runs]
    for own, run in zip(settings, runs, strict=True):  # earlier versions always predicted through the codec
        own.setdefault("measure.coded", str(run.config.get("rehearsal") != "veridical").lower())
    others = [
        name for name in differing(settings)
        if name not in _NOT_OF_A_METHOD and not name.startswith(_GROUPS_NOT_OF_A_METHOD)
    ]  # fmt: skip
    several = len({run.learner for run in runs}) > 1

    def text(names: Sequence[str], own: Mapping[str, str]) -> str:
        return ", ".join(f"{name}={own.get(key, 'none')}" for name, key in zip(names, others, strict=True))

    found = [Method(run.learner, run.policy, text(others, own)) for run, own in zip(runs, settings, strict=True)]
    for names in (others, _without_groups(others)):
        labels = {}
        for method, own in zip(found, settings, strict=True):
            policy = f"{method.learner} + {method.policy}" if several else method.policy
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
