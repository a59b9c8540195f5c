"""The tables of a report: what they hold, apart from how a page or a file shows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graspcl.report.html.grouping import Condition, Experiment, Group, differing, flat
from graspcl.report.html.labels import counted
from graspcl.report.html.reading import Run, number

NONE = "–"


@dataclass(frozen=True)
class Cell:
    """What is read, what it is sorted by, and the deviation over seeds or the interval that stands behind it."""

    text: str
    value: float | str
    spread: float = math.nan
    bold: bool = False
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Column:
    """A heading, what it means, whether numbers stand below it, and the heading that it stands `under` with others."""

    heading: str
    meaning: str = ""
    numeric: bool = True
    under: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells below columns; `about` says how to read them."""

    name: str
    title: str
    columns: list[Column]
    rows: list[list[Cell]]
    about: str = ""


# What the summary shows: key in summary.json, heading, meaning, digits, whether higher is better.
Measure = tuple[str, str, str, int, bool]
_MEASURES: tuple[Measure, ...] = (
    ("mu_new", "μ_N", "accuracy on new classes, mean over sessions (%)", 2, True),
    ("mu_old", "μ_O", "accuracy on old classes, mean over sessions (%)", 2, True),
    ("mu_all", "μ_A", "accuracy on all classes, mean over sessions (%)", 2, True),
    ("alpha", "α", "accuracy on all classes after the last session (%)", 2, True),
    ("alpha_tasks", "α tasks", "accuracy after the last session, mean over tasks (%)", 2, True),
    ("alpha_head", "α_H", "α on classes with many samples (%)", 2, True),
    ("alpha_tail", "α_T", "α on classes with few samples (%)", 2, True),
    ("top5", "top-5", "label among the five most likely, after the last session (%)", 2, True),
    (
        "forgetting",
        "forgetting",
        "how far the classes of a session fell from their best, mean over sessions (%)",
        2,
        False,
    ),
    ("drift_auc", "β", "representation drift, area under the curve, mean over sessions", 4, False),
    ("drift_mean", "φ", "representation drift, mean over updates and sessions", 4, False),
)
_COSTS: tuple[tuple[str, str, str, int, float], ...] = (
    ("updates", "updates", "mini-batches of all sessions", 0, 1),
    ("coverage", "seen %", "share of the buffer that they showed at least once, mean over sessions", 1, 1),
    ("selection_forward", "selection forward", "samples passed forward to select", 0, 1),
    ("selection_backward", "selection backward", "samples passed backward to select", 0, 1),
    ("training_forward", "training forward", "samples passed forward to train", 0, 1),
    ("training_backward", "training backward", "samples passed backward to train", 0, 1),
    ("selection_seconds", "selection s", "seconds of selection", 2, 1),
    ("training_seconds", "training s", "seconds of updates", 2, 1),
    ("seconds", "run s", "seconds of the whole run", 1, 1),
    ("buffer_bytes", "buffer MB", "the largest that the buffer was", 2, 1e-6),
    ("joules", "joules", "of the whole machine meanwhile", 0, 1),
)


def figure(value: float, digits: int = 2, spread: float = math.nan, bold: bool = False) -> Cell:
    """A number with its deviation over seeds.

    >>> figure(61.234, 2, 0.1).text
    '61.23 ± 0.10'
    """
    if math.isnan(value):
        return Cell(NONE, math.nan)
    counted = not digits and not spread  # whole numbers that do not vary are not means
    after = "" if math.isnan(spread) or counted else f" ± {spread:,.{digits}f}"
    return Cell(f"{value:,.{digits}f}{after}", value, spread, bold)


def enough(value: float, digits: int) -> int:
    """So many digits after the point, or more where a small value would lose its first two.

    >>> enough(12.3, 2), enough(0.00123, 2)
    (2, 4)
    """
    return digits if not value or math.isnan(value) else max(digits, 1 - math.floor(math.log10(abs(value))))


def words(value: object) -> Cell:
    """Text."""
    return Cell(str(value), str(value))


def _mean(group: Group, name: str, digits: int, unit: float = 1.0, bold: bool = False) -> Cell:
    mean = unit * group.mean(name)
    return figure(mean, enough(mean, digits) if digits else 0, unit * group.std(name), bold)


def _rows(experiment: Experiment) -> tuple[list[Group], list[Column], Callable[[Group], list[Cell]]]:
    """The finished groups, and the columns that say which one it is."""
    groups = [g for condition in experiment.conditions for g in experiment.at(condition) if g.finished]
    columns = [Column("policy" if len({m.learner for m in experiment.methods}) < 2 else "method", numeric=False)]
    axes = [axis for axis in ("budget", "buffer") if experiment.several(axis)]
    columns += [Column(axis, numeric=False) for axis in axes]
    columns.append(Column("seeds"))

    def which(group: Group) -> list[Cell]:
        order = {condition: place for place, condition in enumerate(experiment.conditions)}[group.condition]
        said = [Cell(getattr(group.condition, axis), float(order)) for axis in axes]
        return [words(group.method.label), *said, figure(len(group.runs), 0)]

    return groups, columns, which


def summary(experiment: Experiment) -> Table:
    """Mean and deviation over seeds of every measure, the best in bold, and beside α what differs from the baseline."""
    groups, columns, which = _rows(experiment)
    shown = [measure for measure in _MEASURES if any(group.values(measure[0]) for group in groups)]
    if not any(group.values("alpha_head") for group in groups):  # then the tail is all there is
        shown = [measure for measure in shown if measure[0] != "alpha_tail"]
    compared = any(experiment.reference(group) for group in groups)
    best = _best(experiment, shown)
    rows = [which(group) for group in groups]
    for name, heading, meaning, digits, _ in shown:
        columns.append(Column(heading, meaning))
        for group, cells in zip(groups, rows, strict=True):
            bold = best.get((group.condition, name)) == round(group.mean(name), digits)
            cells.append(_mean(group, name, digits, bold=bold))
        if name == "alpha" and compared:
            columns += [
                Column("Δα", f"α minus that of {experiment.baseline} at the same seeds, with its 95 % interval (t)"),
                Column(
                    "p", "McNemar's exact test of the final predictions against theirs: the median over those seeds"
                ),
            ]
            for group, cells in zip(groups, rows, strict=True):
                cells += _against(experiment, group)
    about = "Mean ± standard deviation over seeds; bold: the best at equal budget and buffer."
    if compared:
        about += f" Δα and p: against {experiment.baseline}{_seeds(experiment, groups)}."
    else:
        about += f" No policy here has {experiment.baseline} beside it; --baseline chooses what to compare with."
    if experiment.repeats:
        about += f" {experiment.repeats} runs repeat others, settings and seed alike, and count once."
    return Table("summary", "Summary", columns, rows, about)


def _best(experiment: Experiment, shown: Sequence[Measure]) -> dict[tuple[Condition, str], float]:
    """What is to be bold, where there is something to compare."""
    best = {}
    for condition in experiment.conditions:
        for name, _, _, digits, higher in shown:
            means = [round(group.mean(name), digits) for group in experiment.at(condition) if group.finished]
            means = [mean for mean in means if not math.isnan(mean)]
            if len(means) > 1:
                best[condition, name] = max(means) if higher else min(means)
    return best


def _seeds(experiment: Experiment, groups: Sequence[Group]) -> str:
    """Over how many seeds policies are compared, where that is one number; else their cells say it."""
    found = [against for group in groups if (against := experiment.against(group)) is not None]
    over = {against.seeds for against in found} | {against.tested for against in found if against.tested}
    return f" over {counted(over.pop(), 'seed', 'seeds')}" if len(over) == 1 else ""


def _against(experiment: Experiment, group: Group) -> list[Cell]:
    found = experiment.against(group)
    if found is None:
        return [Cell(NONE, math.nan), Cell(NONE, math.nan)]
    several = "" if math.isnan(found.low) else f" [{found.low:+.2f}, {found.high:+.2f}]"
    of = "" if found.seeds == len(group.runs) else f" ({counted(found.seeds, 'seed', 'seeds')})"
    difference = Cell(f"{found.mean:+.2f}{several}{of}", found.mean, interval=(found.low, found.high))
    of = "" if found.tested == found.seeds else f" ({counted(found.tested, 'seed', 'seeds')})"
    return [difference, Cell(NONE, math.nan) if math.isnan(found.p) else Cell(f"{said(found.p)}{of}", found.p)]


def said(p: float) -> str:
    """A p.

    >>> said(0.0421), said(0.00001)
    ('0.042', '< 0.001')
    """
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def costs(experiment: Experiment) -> Table:
    """What a run spent."""
    groups, columns, which = _rows(experiment)
    shown = [cost for cost in _COSTS if any(group.values(cost[0]) for group in groups)]
    columns += [Column(heading, meaning) for _, heading, meaning, *_ in shown]
    rows = [which(g) + [_mean(g, name, digits, unit) for name, _, _, digits, unit in shown] for g in groups]
    about = "Per run, mean ± standard deviation over seeds. Passes are counted in samples."
    if groups and not any(group.values("joules") for group in groups):
        about += " Joules were not measured: the machine has no counters, or does not let them be read."
    return Table("costs", "Costs", columns, rows, about)


def settings(runs: Sequence[Run]) -> tuple[Table, Table]:
    """Settings that differ between runs, and those that are the same in all."""
    return _flat_tables("settings", "Settings", [flat(run.record.config) for run in runs])


def environment(runs: Sequence[Run]) -> tuple[Table, Table]:
    """The same for what runs ran on."""
    return _flat_tables("environment", "Environment", [flat(run.environment) for run in runs if run.environment])


def _flat_tables(name: str, title: str, found: list[dict[str, str]]) -> tuple[Table, Table]:
    different = differing(found)
    rows = []
    for key in different:
        counts: dict[str, int] = {}
        for values in found:
            value = values.get(key, "none")
            counts[value] = counts.get(value, 0) + 1
        said = [f"{value} ({count})" for value, count in sorted(counts.items(), key=lambda item: -item[1])]
        more = f" and {len(said) - 20} more" if len(said) > 20 else ""
        rows.append([words(key), words(", ".join(said[:20]) + more)])
    same = {key: value for values in found for key, value in values.items() if key not in set(different)}
    columns = [Column("setting" if name == "settings" else "what", numeric=False)]
    return (
        Table(f"{name}-differing", f"{title} that differ" if name == "settings" else f"{title}: what differs",
              [*columns, Column("values (runs)", numeric=False)], rows),
        Table(f"{name}-common", f"{title} in common" if name == "settings" else f"{title}: in common",
              [*columns, Column("value", numeric=False)], [[words(key), words(value)] for key, value in same.items()]),
    )  # fmt: skip


def runs_table(runs: Sequence[Run]) -> Table:
    """Every run folder, whatever state it is in."""
    headings = ("run", "state", "policy", "learner", "seed", "sessions", "α", "seconds", "remarks")
    numeric = {"seed", "sessions", "α", "seconds"}
    rows = []
    for run in runs:
        record = run.record
        done, total = run.sessions
        known = bool(record.config)
        remarks = list(run.problems)
        for name, said in (("failed_sessions", "sessions given up"), ("unreadable_samples", "samples unreadable")):
            if (count := number(record.summary.get(name))) > 0:
                remarks.append(f"{count:.0f} {said}")
        rows.append(
            [words(record.path), words(run.state), words(record.policy if known else NONE),
             words(record.learner if known else NONE), figure(run.seed if run.seed >= 0 else math.nan, 0),
             Cell(f"{done} of {'?' if total is None else total}", float(done)), figure(run.value("alpha")),
             figure(run.value("seconds"), 1), words("; ".join(remarks))]
        )  # fmt: skip
    return Table("runs", "Runs", [Column(heading, "", heading in numeric) for heading in headings], rows)
