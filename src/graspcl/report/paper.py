"""The paper's tables: published numbers next to those of our runs."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from graspcl.errors import GraspError, nearest
from graspcl.report.measures import Mean, significant
from graspcl.report.model import Condition, Experiment, Group
from graspcl.report.read import number
from graspcl.report.tables import INTERVAL, Cell, Column, Table, mean_cell, number_cell, text_cell

_VARIANTS = r"(-(small|smoke|latent|veridical|unbounded))*"  # of a preset; imagenet-1k-iid is another preset
_SAME_SIZE = 0.1  # a buffer within a tenth of the published size counts as equal


@cache
def published() -> dict[str, dict[str, Any]]:
    """Return the paper's tables 2 to 11 by name, each with its title, preset, columns and rows."""
    return tomllib.loads((resources.files("graspcl.report") / "paper.toml").read_text(encoding="utf-8"))


def paper_table(experiments: Sequence[Experiment], which: str) -> Table:
    """Return a table of the paper, "table-2" or "2", with our mean over seeds next to each published number."""
    which = f"table-{which}" if which.isdecimal() else which
    if which not in published():
        raise GraspError(f"--paper must be a table of the paper, got {which!r}; {nearest(which, published())}")
    table = published()[which]
    columns, used = [Column("method", numeric=False)], set()
    rows = [[text_cell(row["method"])] for row in table["rows"]]
    for place, column in enumerate(table["columns"]):
        digits = 4 if column["measure"].startswith("drift") else 2
        meaning = f"{column['under']}, {column['name']}"
        columns.append(Column(column["name"], f"{meaning}: published", group=column["under"]))
        columns.append(Column("ours", f"{meaning}: our runs, {INTERVAL}", group=column["under"]))
        for row, cells in zip(table["rows"], rows, strict=True):
            std = row["std"][place] if "std" in row else math.nan
            value = row["values"][place]
            published_cell = Cell(Mean(value, std).text(digits), value, std=std)
            if "average" in column:  # of the columns before this one
                ours = [float(cell.value) for cell in cells[-1 : -2 * column["average"] : -2]]
                our_cell = number_cell(float(np.mean(ours)), digits)
            elif group := _matching_group(experiments, table, row, column):
                our_cell = _our_cell(group, column, digits)
                used.add(f"{_name(group)} ({group.condition.updates}, buffer {group.condition.buffer})")
            else:
                our_cell = number_cell(math.nan)
            cells += [published_cell, our_cell]
    ours_text = "; ".join(sorted(used)) or f"no run of its preset, {table['preset']}, matches"
    caption = f"{table['title']}. Published: mean ± standard deviation, as printed. Ours: {INTERVAL}; {ours_text}."
    return Table(which, f"Table {which.removeprefix('table-')} of the paper and our runs", columns, rows, caption)


def _matching_group(
    experiments: Sequence[Experiment], table: Mapping[str, Any], row: Mapping[str, Any], column: Mapping[str, Any]
) -> Group | None:
    """Return the runs of one cell.

    All rows of a learner take their runs from one condition of one experiment: the one that fills most rows, then the
    one with most seeds.
    """
    wanted = {"preset": table["preset"], "times": 1.0, **column}  # without a named budget, the preset's
    rows = [other for other in table["rows"] if other.get("learner") == row.get("learner")]
    found: list[tuple[int, int, Experiment, Condition]] = []
    for experiment in experiments:
        for condition in experiment.conditions:
            finished = [group for group in experiment.at(condition) if group.finished]
            seeds = {o["policy"]: len(group.runs) for group in finished for o in rows if _matches(group, o, wanted)}
            if seeds:
                found.append((len(seeds), sum(seeds.values()), experiment, condition))
    if not found:
        return None
    *_, experiment, condition = max(found, key=lambda place: place[:2])
    groups = [group for group in experiment.at(condition) if _matches(group, row, wanted)]
    return max(groups, key=lambda group: len(group.runs), default=None)


def _matches(group: Group, row: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a group is what a row and a column describe."""
    method, config = group.method, group.runs[0].config
    if (method.policy, method.learner.partition("(")[0]) != (row["policy"], row.get("learner", "siesta")):
        return False
    memory, rehearsal = "bounded" if group.bounded else "unbounded", config.get("rehearsal", "latent")
    gigabytes = wanted.get("gigabytes")
    return (
        re.fullmatch(rf"((derpp|gdumb)-)?{re.escape(wanted['preset'])}{_VARIANTS}", _name(group)) is not None
        and wanted.get("memory", memory) == memory
        and wanted.get("rehearsal", rehearsal) == rehearsal
        and math.isclose(group.runs[0].budget_factor, wanted["times"])
        and (gigabytes is None or abs(group.mean("buffer_bytes") / 1e9 - gigabytes) <= _SAME_SIZE * gigabytes)
    )


def _name(group: Group) -> str:
    return str(group.runs[0].config.get("name", ""))


def _our_cell(group: Group, column: Mapping[str, Any], digits: int) -> Cell:
    """Return our mean for a cell; of one session if the column names it."""
    key = column["measure"]
    if key == "hours":
        seconds = [run.value("training_seconds") + run.value("selection_seconds") for run in group.runs]
        hours = float(np.mean(seconds)) / 3600
        return number_cell(hours, significant(hours, digits))
    values = group.values.get(key, [])
    if "session" in column:
        lines = [line for run in group.runs for line in run.sessions if line.get("session") == column["session"]]
        values = [value for line in lines if not math.isnan(value := number(line.get(key)))]
    return mean_cell(Mean.of(values), digits)
