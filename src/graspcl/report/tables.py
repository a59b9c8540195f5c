"""The tables of a report. Terminal, page and files only render them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from graspcl.report.measures import NONE, Measure, mean_text, measures, p_text, plural, significant
from graspcl.report.model import Condition, Difference, Experiment, Group
from graspcl.report.read import Run, differing, flatten, number

INTERVAL = "mean ± half of its 95 % t-interval over seeds"


@dataclass(frozen=True)
class Cell:
    """A value of a table.

    Args:
        text: What is shown.
        value: What the column is sorted by, and what a CSV file holds.
        half: Half of the 95 % interval of a mean.
        std: Standard deviation over seeds.
        bold: Whether it is the best of its column.
    """

    text: str
    value: float | str
    half: float = math.nan
    std: float = math.nan
    bold: bool = False


@dataclass(frozen=True)
class Column:
    """A heading with its meaning; `group` is a heading above several columns."""

    heading: str
    meaning: str = ""
    numeric: bool = True
    group: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells below columns; the caption says how to read them."""

    name: str
    title: str
    columns: list[Column]
    rows: list[list[Cell]]
    caption: str = ""


def number_cell(
    value: float, digits: int = 2, half: float = math.nan, std: float = math.nan, bold: bool = False
) -> Cell:
    """Return a cell with a number.

    >>> number_cell(61.234, 2, 0.1).text
    '61.23 ± 0.10'
    """
    if math.isnan(value):
        return Cell(NONE, math.nan)
    return Cell(mean_text(value, digits, half), value, half, std, bold)


def text_cell(value: object) -> Cell:
    """Return a cell with text."""
    return Cell(str(value), str(value))


def mean_cell(group: Group, measure: Measure, bold: bool = False) -> Cell:
    """Return the mean of a measure over seeds."""
    mean, half, std = (measure.factor * of(measure.key) for of in (group.mean, group.half, group.std))
    digits = significant(mean, measure.digits) if measure.digits else 0
    return number_cell(mean, digits, half, std, bold)


# -- comparisons -------------------------------------------------------------------------------------------------------


def _group_columns(experiment: Experiment, seeds: bool = True) -> tuple[list[Column], Callable[[Group], list[Cell]]]:
    """Return the columns that identify a group, and its cells in them."""
    columns = [Column("policy" if len({m.learner for m in experiment.methods}) < 2 else "method", numeric=False)]
    axes = [axis for axis in ("budget", "buffer") if experiment.differs(axis)]
    columns += [Column(axis, numeric=False) for axis in axes]
    columns += [Column("seeds")] if seeds else []
    order = {condition: place for place, condition in enumerate(experiment.conditions)}

    def cells(group: Group) -> list[Cell]:
        named = [Cell(getattr(group.condition, axis), float(order[group.condition])) for axis in axes]
        return [text_cell(group.label), *named, *([number_cell(len(group.runs), 0)] if seeds else [])]

    return columns, cells


def comparison_table(experiment: Experiment, name: Literal["summary", "sweep", "demo"] = "summary") -> Table:
    """Return the means over seeds of every measure that the table shows, the best in bold.

    Next to α, "summary" and "sweep" show the difference from the baseline.
    """
    groups = experiment.finished_groups
    seeds = {len(group.runs) for group in groups}
    columns, identify = _group_columns(experiment, seeds=name == "summary" or len(seeds) > 1)
    shown = [measure for measure in measures(name) if any(measure.key in group.values for group in groups)]
    if not any("alpha_head" in group.values for group in groups):  # then the tail is all there is
        shown = [measure for measure in shown if measure.key != "alpha_tail"]
    differences = {} if name == "demo" else _differences(experiment, groups)
    tested = any(found.tested for found in differences.values())
    best = _best(experiment, shown)
    rows = [identify(group) for group in groups]
    for measure in shown:
        columns.append(Column(measure.heading, measure.meaning))
        for group, cells in zip(groups, rows, strict=True):
            rounded = round(group.mean(measure.key), measure.digits)
            cells.append(mean_cell(group, measure, best.get((group.condition, measure.key)) == rounded))
        if measure.key == "alpha" and differences:
            columns += _difference_columns(experiment.baseline, tested)
            for place, cells in enumerate(rows):
                cells += _difference_cells(differences.get(place), len(groups[place].runs), tested)
    over = f"{'Up to ' if len(seeds) > 1 else ''}{plural(max(seeds, default=0), 'seed')}"
    over += f": {INTERVAL}" if max(seeds, default=0) > 1 else ""
    captions = [f"{over}; bold: the best at the same budget and buffer."]
    if differences:
        tests = "Δα, p and McNemar p" if tested else "Δα and p"
        captions.append(f"{tests} compare with {experiment.baseline}{_common_seeds(differences)}.")
    elif name == "summary":
        captions.append(f"No policy can be compared with {experiment.baseline}; --baseline chooses another one.")
    if experiment.repeats:
        captions.append(f"{plural(experiment.repeats, 'run')} with the settings and seed of another left out.")
    return Table(name, "Summary", columns, rows, " ".join(captions))


def _best(experiment: Experiment, shown: Sequence[Measure]) -> dict[tuple[Condition, str], float]:
    """Return the best rounded mean of each measure under each condition with at least two values."""
    best = {}
    for condition in experiment.conditions:
        for measure in (measure for measure in shown if measure.better):
            means = [round(g.mean(measure.key), measure.digits) for g in experiment.at(condition) if g.finished]
            means = [mean for mean in means if not math.isnan(mean)]
            if len(means) > 1:
                best[condition, measure.key] = max(means) if measure.better == "higher" else min(means)
    return best


def _differences(experiment: Experiment, groups: Sequence[Group]) -> dict[int, Difference]:
    """Return differences from the baseline by the place of a group."""
    found = ((place, experiment.difference(group)) for place, group in enumerate(groups))
    return {place: difference for place, difference in found if difference is not None}


def _difference_columns(baseline: str, tested: bool) -> list[Column]:
    mcnemar = "exact test of the final predictions of both policies, median over seeds"
    columns = [
        Column("Δα", f"α minus α of {baseline}, mean over the seeds that both have"),
        Column("p", "paired t-test of α over seeds"),
        Column("McNemar p", mcnemar),
    ]
    return columns if tested else columns[:2]


def _difference_cells(found: Difference | None, seeds: int, tested: bool) -> list[Cell]:
    """Return Δα and its tests; where fewer seeds than usual are compared, the cell says so."""
    if found is None:
        return [Cell(NONE, math.nan)] * (3 if tested else 2)
    fewer = "" if found.seeds == seeds else f" ({plural(found.seeds, 'seed')})"
    cells = [
        Cell(mean_text(found.mean, 2, found.half, "+") + fewer, found.mean, found.half, found.std),
        Cell(p_text(found.p), found.p),
    ]
    if tested:
        fewer = "" if found.tested in (0, found.seeds) else f" ({plural(found.tested, 'seed')})"
        cells.append(Cell(p_text(found.mcnemar_p) + fewer, found.mcnemar_p))
    return cells


def _common_seeds(differences: dict[int, Difference]) -> str:
    """Return the number of compared seeds if it is the same for all; otherwise the cells say it."""
    counts = {found.seeds for found in differences.values()}
    counts |= {found.tested for found in differences.values() if found.tested}
    return f" over {plural(counts.pop(), 'seed')}" if len(counts) == 1 else ""


def cost_table(experiment: Experiment) -> Table:
    """Return what a run spends."""
    columns, identify = _group_columns(experiment)
    groups = experiment.finished_groups
    shown = [measure for measure in measures("costs") if any(measure.key in group.values for group in groups)]
    columns += [Column(measure.heading, measure.meaning) for measure in shown]
    rows = [identify(group) + [mean_cell(group, measure) for measure in shown] for group in groups]
    caption = f"Per run, {INTERVAL}. Passes are counted in samples."
    if groups and not any("joules" in group.values for group in groups):
        caption += " Energy was not measured: the machine has no readable counters."
    return Table("costs", "Costs", columns, rows, caption)


def paper_form_tables(experiment: Experiment) -> list[Table]:
    """Return tables in the form of the paper's: a row per method, unbounded and bounded memory side by side.

    There is one table per budget. If there are several bounded buffers, each has its own columns.
    """
    tables = []
    shown = measures("paper")
    budgets = {condition.budget: condition.updates for condition in experiment.conditions}
    for budget, updates in budgets.items():
        groups = [g for g in experiment.groups if g.condition.budget == budget and g.finished]
        if not groups:
            continue
        buffers = sorted({(g.bounded, g.condition.buffer) for g in groups})
        one_bounded = sum(bounded for bounded, _ in buffers) < 2
        columns = [Column("Method", numeric=False)]
        for bounded, buffer in buffers:
            above = "Unbounded Memory" if not bounded else "Bounded Memory" if one_bounded else f"Buffer {buffer}"
            columns += [Column(measure.symbol, measure.meaning, group=above) for measure in shown]
        places = {(g.method, g.condition.buffer): g for g in groups}
        best = {
            (buffer, m.key): max(round(g.mean(m.key), m.digits) for g in groups if g.condition.buffer == buffer)
            for _, buffer in buffers
            for m in shown
        }
        rows = []
        for method in (m for m in experiment.methods if any(g.method == m for g in groups)):
            cells = [text_cell(method.label)]
            for _, buffer in buffers:
                group = places.get((method, buffer))
                for m in shown:
                    bold = group is not None and round(group.mean(m.key), m.digits) == best[buffer, m.key]
                    cells.append(number_cell(math.nan) if group is None else mean_cell(group, m, bold))
            rows.append(cells)
        seeds = max(len(group.runs) for group in groups)
        suffix = f"-{budget}" if len(budgets) > 1 else ""
        title = f"{experiment.title}{f', {updates}' if suffix else ''} ({plural(seeds, 'run')})"
        meanings = "; ".join(f"{measure.symbol}: {measure.meaning}" for measure in shown)
        tables.append(Table(f"paper-form{suffix}", title, columns, rows, f"{meanings}. {INTERVAL.capitalize()}."))
    return tables


# -- settings, runs, sessions and classes ------------------------------------------------------------------------------


def settings_tables(runs: Sequence[Run]) -> tuple[Table, Table]:
    """Return the settings that differ between runs, and those that do not."""
    return _value_tables("settings", "setting", [flatten(run.config) for run in runs])


def environment_tables(runs: Sequence[Run]) -> tuple[Table, Table]:
    """Return in what the environments of runs differ, and what they have in common."""
    return _value_tables("environment", "entry", [flatten(run.environment) for run in runs if run.environment])


def _value_tables(name: str, heading: str, found: list[dict[str, str]]) -> tuple[Table, Table]:
    different = differing(found)
    rows = []
    for key in different:
        counts: dict[str, int] = {}
        for values in found:
            value = values.get(key, "none")
            counts[value] = counts.get(value, 0) + 1
        texts = [f"{value} ({count})" for value, count in sorted(counts.items(), key=lambda item: -item[1])]
        more = f" and {len(texts) - 20} more" if len(texts) > 20 else ""
        rows.append([text_cell(key), text_cell(", ".join(texts[:20]) + more)])
    common = {key: value for values in found for key, value in values.items() if key not in set(different)}
    first, title = Column(heading, numeric=False), name.capitalize()
    return (
        Table(f"{name}-differing", f"{title}: differences", [first, Column("values (runs)", numeric=False)], rows),
        Table(f"{name}-common", f"{title}: in common", [first, Column("value", numeric=False)],
              [[text_cell(key), text_cell(value)] for key, value in common.items()]),
    )  # fmt: skip


def run_list(runs: Sequence[Run]) -> Table:
    """Return every run folder, whatever its state."""
    headings = ("run", "state", "policy", "learner", "seed", "sessions", "α", "seconds", "remarks")
    numeric = {"seed", "sessions", "α", "seconds"}
    rows = []
    for run in runs:
        remarks = "; ".join([*run.problems, *_losses(run)])
        rows.append(
            [text_cell(run.path), text_cell(run.state), text_cell(run.policy if run.config else NONE),
             text_cell(run.learner if run.config else NONE), number_cell(run.seed if run.seed >= 0 else math.nan, 0),
             Cell(run.progress, float(len(run.sessions))), number_cell(run.value("alpha")),
             number_cell(run.value("seconds"), 1), text_cell(remarks)]
        )  # fmt: skip
    return Table("runs", "Runs", [Column(heading, "", heading in numeric) for heading in headings], rows)


def brief_run_list(runs: Sequence[Run], folder: Path) -> Table:
    """Return every run folder below `folder`, with the few columns that a terminal has room for."""
    columns = [Column("run", numeric=False), Column("state", numeric=False)]
    columns += [Column(heading) for heading in ("updates", "buffer", "α")]
    rows = []
    for run in runs:
        above, below = run.path.relative_to(folder).parts[:-2], run.path.relative_to(folder).parts[-2:]
        path = "/".join(above) + ("/\n" if above else "") + "/".join(below) or "."
        state = f"{run.state}\n{run.progress}" if run.state == "unfinished" else run.state
        buffer = "all" if run.buffer == "unbounded" else run.buffer.removesuffix(" samples")
        numbers = [number_cell(run.value("updates"), 0), text_cell(buffer), number_cell(run.value("alpha"))]
        rows.append([text_cell(path), text_cell(state), *numbers])
    return Table("runs", "", columns, rows)


def session_table(run: Run) -> Table:
    """Return one run session by session."""
    shown = measures("session")
    columns = [Column("session"), *(Column(f"{m.symbol} {m.unit}".strip(), m.meaning) for m in shown)]
    rows = []
    for line in run.sessions:
        cells = [number_cell(number(line.get(m.key)) * m.factor, m.digits) for m in shown]
        rows.append([number_cell(number(line.get("session")), 0), *cells])
    title = f"{run.config.get('name', run.path.name)}: {run.learner} + {run.policy}"
    captions: list[str] = []
    if run.summary:
        captions = [f"{m.symbol} {number_cell(run.value(m.key), m.digits).text}" for m in measures("paper")]
        captions += _losses(run)
        if not math.isnan(run.value("drift_auc")):
            captions.append(f"drift β {run.value('drift_auc'):.4g}, φ {run.value('drift_mean'):.4g}")
        if run.value("updates_saved") > 0:
            captions.append(f"{run.value('updates_saved'):.0f} updates saved by stopping early")
    return Table("session", title, columns, rows, " · ".join(captions))


def _losses(run: Run) -> list[str]:
    """Return what a run had to leave out."""
    counts = (("failed_sessions", "sessions abandoned"), ("unreadable_samples", "samples unreadable"))
    return [f"{run.value(key):.0f} {text}" for key, text in counts if run.value(key) > 0]


def experiment_tables(experiment: Experiment) -> Iterator[Table]:
    """Return all tables of an experiment, including those that are too long for the page."""
    yield comparison_table(experiment)
    yield from paper_form_tables(experiment)
    yield cost_table(experiment)
    yield from settings_tables(experiment.runs)
    group_columns = [Column(name, numeric=False) for name in ("method", "budget", "buffer")]
    sessions, classes = [], []
    for group in experiment.groups:
        head = [text_cell(text) for text in (group.label, group.condition.budget, group.condition.buffer)]
        classes += [[*head, text_cell(name), number_cell(value)] for name, value in group.class_accuracy.items()]
        for run in group.runs:
            curves = [run.curves.get(name, []) for name in ("all", "old", "new")]
            for session in range(len(curves[0])):
                cells = [number_cell(curve[session] if session < len(curve) else math.nan, 4) for curve in curves]
                sessions.append([*head, number_cell(run.seed, 0), number_cell(session, 0), *cells])
    columns = [*group_columns, *(Column(name) for name in ("seed", "session", "all", "old", "new"))]
    caption = "Accuracy on all, old and new classes, in percent."
    yield Table("sessions", "Accuracy after each session", columns, sessions, caption)
    columns = [*group_columns, Column("class", numeric=False), Column("accuracy")]
    yield Table(
        "classes", "Accuracy by class", columns, classes, "After the last session, in percent, mean over seeds."
    )
