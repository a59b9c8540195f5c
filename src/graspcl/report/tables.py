"""The tables of a report. Terminal, page and files only render them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from graspcl.report.grouping import Condition
from graspcl.report.measures import MIN_SEEDS, NONE, Mean, Measure, measures, p_text, plural, significant
from graspcl.report.model import Difference, Experiment, Group
from graspcl.report.read import Run, differing, flatten, number

INTERVAL = "mean ± half of its 95 % t-interval over seeds"


@dataclass(frozen=True)
class Cell:
    """A value of a table."""

    text: str
    value: float | str  # what the column is sorted by, and what a CSV file holds
    half: float = math.nan  # half of the 95 % interval of a mean
    std: float = math.nan  # standard deviation over seeds
    bold: bool = False

    @property
    def number(self) -> str:
        """Its value without rounding to the digits that are shown; empty if unknown."""
        return self.value if isinstance(self.value, str) else plain_number(self.value)


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

    @property
    def spans(self) -> list[tuple[str, int]]:
        """The headings above several columns, with how many; empty if there are none."""
        groups = [column.group for column in self.columns]
        return [(group, len(list(columns))) for group, columns in groupby(groups)] if any(groups) else []


def plain_number(value: float) -> str:
    """Return a number for programs, empty for NaN."""
    return "" if math.isnan(value) else f"{value:.10g}"


Field = tuple[Column, Callable[[Any], Cell]]  # a column, and its cell for the item of a row


def make_table(name: str, title: str, fields: Sequence[Field], items: Iterable[Any], caption: str = "") -> Table:
    """Return a table with a row per item."""
    rows = [[cell(item) for _, cell in fields] for item in items]
    return Table(name, title, [column for column, _ in fields], rows, caption)


def mean_cell(mean: Mean, digits: int = 2, bold: bool = False, sign: str = "", note: str = "") -> Cell:
    return Cell(mean.text(digits, sign) + note, mean.mean, mean.half, mean.std, bold)


def number_cell(value: float, digits: int = 2) -> Cell:
    return mean_cell(Mean(value), digits)


def text_cell(value: object) -> Cell:
    return Cell(str(value), str(value))


def text_field(heading: str, text: Callable[[Any], object]) -> Field:
    return Column(heading, numeric=False), lambda item: text_cell(text(item))


def number_field(heading: str, value: Callable[[Any], float], digits: int = 2, meaning: str = "") -> Field:
    return Column(heading, meaning), lambda item: number_cell(value(item), digits)


# -- comparisons -------------------------------------------------------------------------------------------------------


def _group_fields(experiment: Experiment, seeds: bool = True) -> list[Field]:
    """Return the columns that identify a group; budget and buffer only where they differ."""
    one_learner = len({method.learner for method in experiment.methods if not method.reference}) < 2
    order = {condition: float(place) for place, condition in enumerate(experiment.conditions)}

    def condition_field(axis: str) -> Field:
        heading = Column(axis, numeric=False)
        return heading, lambda group: Cell(getattr(group.condition, axis), order[group.condition])

    fields = [text_field("policy" if one_learner else "method", lambda group: group.label)]
    fields += [condition_field(axis) for axis in ("budget", "buffer") if experiment.differs(axis)]
    return fields + ([number_field("seeds", lambda group: len(group.runs), 0)] if seeds else [])


def _measure_field(measure: Measure, groups: Sequence[Group]) -> Field:
    """Return the column of a measure. The best mean under the same condition is bold, if there are others.

    References are not among them.
    """
    rivals: dict[Condition, list[float]] = {}
    for group in (group for group in groups if not group.method.reference):
        if measure.better and measure.key in group.values:
            rivals.setdefault(group.condition, []).append(round(group.mean(measure.key), measure.digits))
    best = {at: (max if measure.better == "higher" else min)(found) for at, found in rivals.items() if len(found) > 1}

    def cell(group: Group | None) -> Cell:
        if group is None:
            return number_cell(math.nan)
        mean = group.over_seeds(measure.key).scaled(measure.factor)
        bold = not group.method.reference and best.get(group.condition) == round(
            group.mean(measure.key), measure.digits
        )
        return mean_cell(mean, significant(mean.mean, measure.digits) if measure.digits else 0, bold)

    return Column(measure.heading, measure.meaning), cell


def _difference_fields(experiment: Experiment, tested: bool) -> list[Field]:
    """Return Δα and its tests. A cell names the number of seeds if it is smaller than expected."""

    def field(heading: str, meaning: str, cell: Callable[[Difference, Group], Cell]) -> Field:
        return Column(heading, meaning), lambda group: cell(experiment.difference(group) or Difference(), group)

    def note(seeds: int, expected: int) -> str:
        return "" if seeds in (0, expected) else f" ({plural(seeds, 'seed')})"

    fields = [
        field(
            "Δα", f"α minus α of {experiment.baseline}, mean over the seeds that both have",
            lambda found, group: mean_cell(found, sign="+", note=note(found.seeds, len(group.runs))),
        ),
        field("p", "paired t-test of α over seeds", lambda found, _: Cell(p_text(found.p), found.p)),
        field(
            "McNemar p", "exact test of the final predictions of both policies, median over seeds",
            lambda found, _: Cell(p_text(found.mcnemar_p) + note(found.tested, found.seeds), found.mcnemar_p),
        ),
    ]  # fmt: skip
    return fields if tested else fields[:2]


def comparison_table(experiment: Experiment, name: Literal["summary", "sweep", "demo"] = "summary") -> Table:
    """Return the means over seeds of every measure that the table shows, the best in bold.

    Next to α, "summary" and "sweep" show the difference from the baseline.
    """
    groups = experiment.finished_groups
    seeds = {len(group.runs) for group in groups}
    keys = {key for group in groups for key in group.values}
    if "alpha_head" not in keys:  # then the tail is all there is
        keys.discard("alpha_tail")
    compared = [] if name == "demo" else groups
    differences = [found for group in compared if (found := experiment.difference(group)) is not None]
    tested = any(difference.tested for difference in differences)
    fields = _group_fields(experiment, seeds=name == "summary" or len(seeds) > 1)
    for measure in (measure for measure in measures(name) if measure.key in keys):
        fields.append(_measure_field(measure, groups))
        if measure.key == "alpha" and differences:
            fields += _difference_fields(experiment, tested)
    most = max(seeds, default=0)
    over = f"{'Up to ' if len(seeds) > 1 else ''}{plural(most, 'seed')}{f': {INTERVAL}' if most > 1 else ''}"
    where = "at the same budget and buffer"
    few = f"ahead {where}; fewer than {MIN_SEEDS} seeds do not show which is best"
    captions = [f"{over}; bold: {f'the best {where}' if most >= MIN_SEEDS else few}."]
    if differences:
        counts = {difference.seeds for difference in differences} | {d.tested for d in differences if d.tested}
        common = f" over {plural(counts.pop(), 'seed')}" if len(counts) == 1 else ""
        tests = "Δα, p and McNemar p" if tested else "Δα and p"
        captions.append(f"{tests} compare with {experiment.baseline}{common}.")
    elif name == "summary":
        captions.append(f"No policy can be compared with {experiment.baseline}; --baseline chooses another one.")
    if any(group.method.reference for group in groups):
        captions.append("References are other learners on the same data; they are not among the compared policies.")
    if experiment.repeats:
        captions.append(f"{plural(experiment.repeats, 'run')} with the settings and seed of another left out.")
    seen = {str(run.summary["seen"]) for group in groups for run in group.runs if "seen" in run.summary}
    captions += [f"Note: {sentence}." for sentence in sorted(seen)]
    runs = [run for group in groups for run in group.runs]
    captions += [f"{text[0].upper()}{text[1:]}." for text in (*_how_tested(runs), *_codec_costs(runs))]
    return make_table(name, "Summary", fields, groups, " ".join(captions))


def cost_table(experiment: Experiment) -> Table:
    """Return what a run spends."""
    groups = experiment.finished_groups
    keys = {key for group in groups for key in group.values}
    shown = [_measure_field(measure, groups) for measure in measures("costs") if measure.key in keys]
    caption = f"Per run, {INTERVAL}. Passes are counted in samples."
    if groups and "joules" not in keys:
        caption += " Energy was not measured: the machine has no readable counters."
    return make_table("costs", "Costs", [*_group_fields(experiment), *shown], groups, caption)


def paper_form_tables(experiment: Experiment) -> Iterator[Table]:
    """Yield tables in the form of the paper's: a row per method, unbounded and bounded memory side by side.

    There is one table per budget. If there are several bounded buffers, each has its own columns.
    """
    shown = measures("paper")
    meanings = "; ".join(f"{measure.symbol}: {measure.meaning}" for measure in shown)
    budgets = {condition.budget: condition.updates for condition in experiment.conditions}
    for budget, updates in budgets.items():
        groups = [group for group in experiment.finished_groups if group.condition.budget == budget]
        if not groups:
            continue
        buffers = sorted({(group.bounded, group.condition.buffer) for group in groups})
        several = sum(bounded for bounded, _ in buffers) > 1
        fields = [text_field("Method", lambda own: next(iter(own.values())).label)]
        for bounded, buffer in buffers:
            above = "Unbounded Memory" if not bounded else f"Buffer {buffer}" if several else "Bounded Memory"
            fields += [_at_buffer(buffer, above, _measure_field(measure, groups)) for measure in shown]
        rows = [{g.condition.buffer: g for g in groups if g.method == method} for method in experiment.methods]
        suffix = f"-{budget}" if len(budgets) > 1 else ""
        runs = plural(max(len(group.runs) for group in groups), "run")
        title = f"{experiment.title}{f', {updates}' if suffix else ''} ({runs})"
        caption = f"{meanings}. {INTERVAL.capitalize()}."
        yield make_table(f"paper-form{suffix}", title, fields, filter(None, rows), caption)


def _at_buffer(buffer: str, above: str, field: Field) -> Field:
    """Return the column of a measure for rows that hold one group per buffer."""
    column, cell = field
    return replace(column, group=above), lambda groups: cell(groups.get(buffer))


# -- settings, runs, sessions and classes ------------------------------------------------------------------------------


def settings_tables(runs: Sequence[Run]) -> tuple[Table, Table]:
    """Return the settings that differ between runs, and those that do not."""
    return _value_tables("settings", "setting", [flatten(run.config) for run in runs])


def environment_tables(runs: Sequence[Run]) -> tuple[Table, Table]:
    """Return in what the environments of runs differ, and what they have in common."""
    return _value_tables("environment", "entry", [flatten(run.environment) for run in runs if run.environment])


def _value_tables(name: str, heading: str, found: list[dict[str, str]]) -> tuple[Table, Table]:
    different = differing(found)
    common = {key: value for values in found for key, value in values.items() if key not in set(different)}

    def counts(key: str) -> str:
        values = [values.get(key, "none") for values in found]
        texts = [f"{value} ({count})" for value, count in Counter(values).most_common()]
        return ", ".join(texts[:20]) + (f" and {len(texts) - 20} more" if len(texts) > 20 else "")

    first, second, title = text_field(heading, str), text_field("values (runs)", counts), name.capitalize()
    return (
        make_table(f"{name}-differing", f"{title}: differences", [first, second], different),
        make_table(f"{name}-common", f"{title}: in common", [first, text_field("value", common.get)], common),
    )


def run_list(runs: Sequence[Run]) -> Table:
    """Return every run folder, whatever its state."""
    fields = [
        text_field("run", lambda run: run.path),
        text_field("state", lambda run: run.state),
        text_field("policy", lambda run: run.policy or NONE),
        text_field("learner", lambda run: run.learner if run.config else NONE),
        number_field("seed", lambda run: run.seed if run.seed >= 0 else math.nan, 0),
        (Column("sessions"), lambda run: Cell(run.progress, float(len(run.sessions)))),
        number_field("α", lambda run: run.value("alpha")),
        number_field("seconds", lambda run: run.value("seconds"), 1),
        text_field("remarks", lambda run: "; ".join([*run.problems, *_remarks(run)])),
    ]
    return make_table("runs", "Runs", fields, runs)


def brief_run_list(runs: Sequence[Run], folder: Path) -> Table:
    """Return every run folder below `folder`, with the few columns that a terminal has room for."""

    def path(run: Run) -> str:
        *above, policy, seed = ("", "", *run.path.relative_to(folder).parts)
        above_text = "/".join(filter(None, above))
        return (f"{above_text}/\n" if above_text else "") + "/".join(filter(None, (policy, seed))) or "."

    fields = [
        text_field("run", path),
        text_field("state", lambda run: f"{run.state}\n{run.progress}" if run.state == "unfinished" else run.state),
        number_field("updates", lambda run: run.value("updates"), 0),
        (Column("buffer"), lambda run: text_cell(run.buffer.removesuffix(" samples").replace("unbounded", "all"))),
        number_field("α", lambda run: run.value("alpha")),
    ]
    return make_table("runs", "", fields, runs)


def session_table(run: Run) -> Table:
    """Return one run session by session."""

    def field(key: str, heading: str, digits: int, meaning: str = "") -> Field:
        return number_field(heading, lambda line: number(line.get(key)), digits, meaning)

    fields = [field("session", "session", 0)]
    fields += [field(m.key, f"{m.symbol} {m.unit}".strip(), m.digits, m.meaning) for m in measures("session")]
    captions: list[str] = []
    if run.summary:
        captions = [f"{m.symbol} {number_cell(run.value(m.key), m.digits).text}" for m in measures("paper")]
        captions += [*_remarks(run), *_how_tested([run]), *_codec_costs([run])]
        for name, unit in (("drift", "norm"), ("drift_mse", "MSE")):
            if not math.isnan(run.value(f"{name}_auc")):
                captions.append(f"drift ({unit}) β {run.value(f'{name}_auc'):.4g}, φ {run.value(f'{name}_mean'):.4g}")
        if run.value("updates_saved") > 0:
            captions.append(f"{run.value('updates_saved'):.0f} updates saved by stopping early")
    title = f"{run.config.get('name', run.path.name)}: {run.method}"
    return make_table("session", title, fields, run.sessions, " · ".join(captions))


def _remarks(run: Run) -> list[str]:
    """Return what a reader of a run's numbers must know: what was left out, and weights that saw its classes."""
    counts = (("failed_sessions", "sessions abandoned"), ("unreadable_samples", "samples unreadable"))
    seen = run.summary.get("seen")
    left_out = [f"{run.value(key):.0f} {text}" for key, text in counts if run.value(key) > 0]
    return [*left_out, seen] if isinstance(seen, str) else left_out


def _how_tested(runs: Iterable[Run]) -> list[str]:
    """Return whether test samples pass through the codec, if all runs agree; else the labels of methods say so."""
    found = {run.summary.get("coded") for run in runs}
    how = {True: "test samples pass through the codec", False: "test samples are predicted uncoded"}
    return [how[coded] for coded in found if len(found) == 1 and isinstance(coded, bool)]


def _codec_costs(runs: Iterable[Run]) -> list[str]:
    """Return what each codec costs, as means over the runs that measured it."""
    found: dict[str, list[Any]] = {}
    for run in runs:
        cost = run.summary.get("codec_cost")
        if isinstance(cost, Mapping) and "codec" in cost:
            found.setdefault(str(cost["codec"]), []).append(cost)
    texts = []
    for codec, costs in found.items():
        measured = [cost for cost in costs if "not_measured" not in cost]
        if not measured:
            texts.append(f"what the codec {codec} costs was not measured: {costs[0]['not_measured']}")
            continue
        names = ("nearest_mean", "ridge", "relative_error")
        nearest, ridge, error = (fmean(number(cost.get(name)) for cost in measured) for name in names)
        lost = f"costs {nearest:.1f} points of nearest-mean and {ridge:.1f} of ridge accuracy on base samples"
        texts.append(f"the codec {codec} {lost}, with a relative error of {error:.3f}")
        if within := [str(cost["within"]) for cost in costs if cost.get("within")]:
            texts[-1] += f" (warning: codec {within[0]} costs less than 1 point)"
    return texts


def experiment_tables(experiment: Experiment) -> Iterator[Table]:
    """Yield all tables of an experiment, including those that are too long for the page."""
    yield comparison_table(experiment)
    yield from paper_form_tables(experiment)
    yield cost_table(experiment)
    yield from settings_tables(experiment.runs)
    sessions, classes = [], []
    for group in experiment.groups:
        head = [text_cell(text) for text in (group.label, group.condition.budget, group.condition.buffer)]
        classes += [[*head, text_cell(name), number_cell(value)] for name, value in group.class_accuracy.items()]
        for run in group.runs:
            curves = [run.curves.get(name, []) for name in ("all", "old", "new")]
            for session, values in enumerate(zip_longest(*curves, fillvalue=math.nan)):
                numbers = [number_cell(run.seed, 0), number_cell(session, 0), *(number_cell(v, 4) for v in values)]
                sessions.append([*head, *numbers])
    columns = [Column(name, numeric=False) for name in ("method", "budget", "buffer")]
    others = [Column(name) for name in ("seed", "session", "all", "old", "new")]
    caption = "Accuracy on all, old and new classes, in percent."
    yield Table("sessions", "Accuracy after each session", [*columns, *others], sessions, caption)
    columns += [Column("class", numeric=False), Column("accuracy")]
    caption = "After the last session, in percent, mean over seeds."
    yield Table("classes", "Accuracy by class", columns, classes, caption)
