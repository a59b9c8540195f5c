"""The paper's tables: our runs in their form, and their published numbers beside ours."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from graspcl.errors import GraspError, nearest
from graspcl.report.html.grouping import Condition, Experiment, Group
from graspcl.report.html.reading import dig, number
from graspcl.report.html.tables import Cell, Column, Table, enough, figure, words

_MEASURES = {"mu_new": "μ_N", "mu_old": "μ_O", "mu_all": "μ_A", "alpha": "α"}
_ABOUT = "μ_N, μ_O and μ_A: accuracy (%) on new, old and all classes, mean over sessions; α: final accuracy (%)."
_NEAR = 0.1  # a buffer within a tenth of the published size is taken to be that


@cache
def published() -> dict[str, dict[str, Any]]:
    """The paper's tables 2 to 11 by name: title, preset, columns, rows.

    >>> published()["table-3"]["rows"][-1]["values"]
    [77.75, 73.96, 77.88, 73.71, 0.13]
    """
    return tomllib.loads((resources.files(__package__) / "paper.toml").read_text(encoding="utf-8"))


def beside(experiments: Sequence[Experiment], which: str) -> Table:
    """A table of the paper with our mean over seeds beside each published number, – where no run fits."""
    which = f"table-{which}" if which.isdecimal() else which
    if which not in published():
        raise GraspError(f"there is no {which!r} of the paper; {nearest(which, published())}")
    table = published()[which]
    columns, used = [Column("method", numeric=False)], set()
    rows = [[words(row["method"])] for row in table["rows"]]
    for place, column in enumerate(table["columns"]):
        digits = _digits(column)
        said = f"{column['under']}, {column['name']}"
        columns.append(Column(column["name"], f"{said}: published", under=column["under"]))
        columns.append(Column("ours", f"{said}: our runs, mean ± standard deviation over seeds", under=column["under"]))
        for row, cells in zip(table["rows"], rows, strict=True):
            if "average" in column:
                ours = [float(cell.value) for cell in cells[-1 : -2 * column["average"] : -2]]
                cells += [figure(row["values"][place], digits), figure(float(np.mean(ours)), digits)]
                continue
            experiment, condition = _place(experiments, table, row, column) or (None, None)
            spread = row["std"][place] if "std" in row else math.nan
            cells.append(figure(row["values"][place], digits, spread))
            own = {"preset": table["preset"], **column}
            groups = [g for g in experiment.at(condition) if _fits(g, row, own)] if experiment and condition else []
            best = max(groups, key=lambda g: len(g.runs), default=None)
            cells.append(figure(math.nan) if best is None else _ours(best, column, digits))
            if best is not None and condition:
                used.add(f"{_name(best)} ({condition.updates}, buffer {condition.buffer})")
    about = (
        f"{table['title']}. Ours: {'; '.join(sorted(used)) or 'no run of its preset, ' + table['preset'] + ', fits'}."
    )
    return Table(which, f"Beside the paper's Table {which.removeprefix('table-')}", columns, rows, about)


def _place(
    experiments: Sequence[Experiment], table: Mapping[str, Any], row: Mapping[str, Any], column: Mapping[str, Any]
) -> tuple[Experiment, Condition] | None:
    """Where the runs of a column come from: one budget and buffer of one experiment, for all rows of a learner.

    They are of the table's preset, at any scale; those that fill most rows come first, then those with most seeds.
    """
    rows = [other for other in table["rows"] if other.get("learner") == row.get("learner")]
    found = []
    for experiment in experiments:
        for condition in experiment.conditions:
            fitting = {
                other["policy"]: group
                for group in experiment.at(condition)
                for other in rows
                if group.finished and _fits(group, other, {"preset": table["preset"], **column})
            }
            if fitting:
                seeds = sum(len(group.runs) for group in fitting.values())
                found.append((len(fitting), seeds, experiment, condition))
    if not found:
        return None
    *_, experiment, condition = max(found, key=lambda place: place[:2])
    return experiment, condition


def _fits(group: Group, row: Mapping[str, Any], column: Mapping[str, Any]) -> bool:
    """Whether a group is what a row and a column speak of; where no budget is named it is the preset's."""
    method, config = group.method, group.runs[0].record.config
    if (method.policy, method.learner.partition("(")[0]) != (row["policy"], row.get("learner", "siesta")):
        return False
    times = number(dig(config, "budget", "times"))
    checks: dict[str, Callable[[Any], bool]] = {
        "preset": lambda wanted: _is(group, wanted),
        "memory": lambda wanted: wanted == ("bounded" if group.bounded else "unbounded"),
        "rehearsal": lambda wanted: wanted == config.get("rehearsal", "latent"),
        "times": lambda wanted: math.isclose(1.0 if math.isnan(times) else times, wanted),
        "gigabytes": lambda wanted: abs(group.mean("buffer_bytes") / 1e9 - wanted) <= _NEAR * wanted,
    }
    wanted = {"times": 1.0, **column}
    return all(check(wanted[name]) for name, check in checks.items() if name in wanted)


def _name(group: Group) -> str:
    return str(group.runs[0].record.config.get("name", ""))


def _is(group: Group, preset: str) -> bool:
    """Whether a group's runs are of a preset, at any scale, rehearsal and memory; imagenet-1k-iid is another."""
    variants = r"(-(small|smoke|latent|veridical|unbounded))*"
    return re.fullmatch(rf"((derpp|gdumb)-)?{re.escape(preset)}{variants}", _name(group)) is not None


def _ours(group: Group, column: Mapping[str, Any], digits: int) -> Cell:
    if column["measure"] == "hours":
        seconds = [run.value("training_seconds") + run.value("selection_seconds") for run in group.runs]
        hours = float(np.mean(seconds)) / 3600
        return figure(hours, enough(hours, digits))
    if "session" not in column:
        return figure(group.mean(column["measure"]), digits, group.std(column["measure"]))
    lines = [line for run in group.runs for line in run.record.sessions if line.get("session") == column["session"]]
    values = [value for line in lines if not math.isnan(value := number(line.get(column["measure"])))]
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    return figure(float(np.mean(values)) if values else math.nan, digits, spread)


def _digits(column: Mapping[str, Any]) -> int:
    return 4 if column["measure"].startswith("drift") else 2


def in_form(experiment: Experiment) -> list[Table]:
    """μ_N, μ_O, μ_A and α as the paper's tables have them: a row per method, unbounded and bounded memory side by side.

    One table per budget; where there are several bounded buffers each has columns of its own.
    """
    tables = []
    budgets = {condition.budget: condition.updates for condition in experiment.conditions}
    for budget, updates in budgets.items():
        groups = [g for g in experiment.groups if g.condition.budget == budget and g.finished]
        buffers = sorted({(g.bounded, g.condition.buffer) for g in groups})
        if not groups:
            continue
        alone = sum(bounded for bounded, _ in buffers) < 2
        columns = [Column("Method", numeric=False)]
        for bounded, buffer in buffers:
            under = "Unbounded Memory" if not bounded else "Bounded Memory" if alone else f"Buffer {buffer}"
            columns += [Column(heading, "higher is better", under=under) for heading in _MEASURES.values()]
        places = {(g.method, g.condition.buffer): g for g in groups}
        best = {
            (buffer, name): max((round(g.mean(name), 2) for g in groups if g.condition.buffer == buffer), default=0.0)
            for _, buffer in buffers
            for name in _MEASURES
        }
        rows = []
        for method in (m for m in experiment.methods if any(g.method == m for g in groups)):
            cells = [words(method.label)]
            for _, buffer in buffers:
                for name in _MEASURES:
                    group = places.get((method, buffer))
                    if group is None:
                        cells.append(figure(math.nan))
                        continue
                    mean = group.mean(name)
                    bold = round(mean, 2) == best[buffer, name]
                    cells.append(figure(mean, 2, group.std(name), bold))
            rows.append(cells)
        seeds = max(len(group.runs) for group in groups)
        over = f"{seeds} runs" if seeds > 1 else "one run"
        spent = f", {updates}" if len(budgets) > 1 else ""
        name = "paper-form" if len(budgets) < 2 else f"paper-form-{budget}"
        tables.append(Table(name, f"{experiment.title}{spent} ({over})", columns, rows, _ABOUT))
    return tables
