"""The paper's tables, and the figures it prints numbers for: published numbers next to those of our runs.

A run is placed in a table only if it has all settings that the paper's runs have (`paper_settings.toml`).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from graspcl.errors import GraspError, nearest
from graspcl.report.measures import Mean, plural, significant
from graspcl.report.model import Experiment, Group
from graspcl.report.read import Run, dig, flatten, number
from graspcl.report.tables import INTERVAL, Cell, Column, Table, mean_cell, number_cell, text_cell

# Parts whose further parameters are differences too.
_PARTS = ("network.", "codec.", "learner.", "policy.", "buffer.maintenance.")
_SAME_SIZE = 0.1  # a buffer within a tenth of the published size counts as equal
_SHOWN = 4  # differences that a caption names

Settings = dict[str, dict[str, Any]]  # by dotted name: what each `is`, and who says so


@cache
def _toml(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((resources.files("graspcl.report") / name).read_text(encoding="utf-8"))


def published() -> dict[str, dict[str, Any]]:
    """Return what the paper prints, by name: tables 2 to 11, the IID results and figures.

    Each has a title, preset, columns and rows. A figure without numbers has `see` instead, which says where to look.
    """
    return _toml("paper.toml")


@cache
def paper_settings(preset: str, rehearsal: str, memory: str) -> Settings:
    """Return the settings of an experiment of the paper.

    >>> paper_settings("imagenet-300", "latent", "bounded")["buffer.capacity"]["is"]
    '0.2GB'
    """
    own = _toml("paper_settings.toml")[preset]
    found = dict(paper_settings(own["extends"], rehearsal, memory)) if "extends" in own else {}
    if any(name.startswith("base.stages.") for name in own):  # a list replaces a list
        found = {name: item for name, item in found.items() if not name.startswith("base.stages.")}
    for part in (own, *(own.get(name, {}) for name in (rehearsal, memory, f"{rehearsal}-{memory}"))):
        found |= {name: item for name, item in part.items() if "is" in item}
    return found


def differences(run: Run, wanted: Settings) -> dict[str, str]:
    """Return the settings in which a run differs from those of the paper, by name: such as "64, not 224"."""
    base = run.config.get("base")
    stages = {one.get("name"): one for one in dig(run.config, "base", "stages") or [] if isinstance(one, dict)}
    own = flatten({**run.config, "base": {**base, "stages": stages} if isinstance(base, dict) else {}})
    if run.labels is not None:
        own["test.samples"] = str(len(run.labels))
    found = {}
    for name, item in wanted.items():
        group, _, stage = name.rpartition(".")[0].rpartition(".")
        if group == "base.stages" and stage not in stages and not name.endswith(".name"):
            continue  # a stage that is not there is named once
        expected = "".join(flatten({"": item["is"]}).values())
        optional = item.get("default", False) or (name == "test.samples" and run.labels is None)
        if (value := own.get(name, expected if optional else "none")) != expected:
            found[name] = f"{value}, not {expected}"
    further = [name for name in own if name.startswith(_PARTS) and name not in wanted]
    parts = {name.rpartition(".")[0] for name in wanted}
    return found | {name: f"{own[name]}, not given" for name in further if name.rpartition(".")[0] in parts}


def paper_table(experiments: Sequence[Experiment], which: str) -> Table:
    """Return a table of the paper, "table-2" or "2", with our mean over seeds next to each published number."""
    which = f"table-{which}" if which.isdecimal() else which
    if which not in published():
        raise GraspError(f"--paper must be a table of the paper, got {which!r}; {nearest(which, published())}")
    table = published()[which]
    if "see" in table:
        raise GraspError(f"--paper {which}: the paper prints no numbers in this figure; {table['see']}")
    columns, used = [Column("method", numeric=False)], set()
    rows = [[text_cell(row["method"])] for row in table["rows"]]
    for place, column in enumerate(table["columns"]):
        digits = column.get("digits", 2)
        meaning = f"{column['under']}, {column['name']}"
        columns.append(Column(column["name"], f"{meaning}: published", group=column["under"]))
        columns.append(Column("ours", f"{meaning}: our runs, {INTERVAL}", group=column["under"]))
        found = {} if "average" in column else _groups_by_row(experiments, table, column)
        for line, (row, cells) in enumerate(zip(table["rows"], rows, strict=True)):
            std = row["std"][place] if "std" in row else math.nan
            value = row["values"][place]
            published_cell = Cell(Mean(value, std).text(digits), value, std=std)
            if "average" in column:  # of the columns before this one
                ours = [float(cell.value) for cell in cells[-1 : -2 * column["average"] : -2]]
                our_cell = number_cell(float(np.mean(ours)), digits)
            elif line in found:
                our_cell = _our_cell(*found[line], column, digits)
                used.add(_described(found[line][1], _alternatives(table, row, column)))
            else:
                our_cell = number_cell(math.nan)
            cells += [published_cell, our_cell]
    captions = [f"{table['title']}. Published: mean ± standard deviation, as printed. Ours: {INTERVAL}."]
    if named := [_policy(row) for row in table["rows"] if "parameters" in row]:
        captions.append(f"Some rows take only runs with the parameters of the published numbers: {', '.join(named)}.")
    captions.append(f"Our runs: {'; '.join(sorted(used))}." if used else _why_none(experiments, table))
    title = table.get("place", which.replace("-", " ").capitalize())
    caption = " ".join([*captions, table.get("note", "")]).strip()
    return Table(which, f"{title} of the paper and our runs", columns, rows, caption)


# -- which runs belong in a cell ---------------------------------------------------------------------------------------


def _alternatives(table: Mapping[str, Any], row: Mapping[str, Any], column: Mapping[str, Any]) -> list[Settings]:
    """Return the settings that the runs of a cell must have; of both memories, if the paper does not say which."""
    about = {**table, **column, **row}
    found = []
    for memory in [about["memory"]] if "memory" in about else ["bounded", "unbounded"]:
        rehearsal = about["rehearsal"]
        wanted = {**paper_settings(about["preset"], rehearsal, memory), "rehearsal": {"is": rehearsal}}
        wanted["budget.times"] = {"is": about.get("times", 1.0)}
        policy = {"name": row["policy"], **row.get("parameters", {})}
        wanted |= {f"policy.{name}": {"is": value} for name, value in policy.items()}
        left_out = {"gigabytes": "buffer.capacity", "any_times": "budget.times"}
        found.append({name: wanted[name] for name in wanted if name not in {left_out.get(key) for key in about}})
    return found


def _groups_by_row(
    experiments: Sequence[Experiment], table: Mapping[str, Any], column: Mapping[str, Any]
) -> dict[int, tuple[Experiment, Group]]:
    """Return the runs of a column, by the place of their row.

    All rows of a learner take their runs from one condition of one experiment: the one that fills most rows, then the
    one with most seeds.
    """
    rows: list[dict[str, Any]] = table["rows"]
    found: dict[int, tuple[Experiment, Group]] = {}
    for preset in {row.get("preset") for row in rows}:
        offers: list[dict[int, tuple[Experiment, Group]]] = []
        for experiment in experiments:
            for condition in experiment.conditions:
                offers.append({})
                for group in sorted(experiment.at(condition), key=lambda group: len(group.runs)):
                    for place, row in enumerate(rows):
                        if row.get("preset") == preset and group.finished and _matches(group, table, row, column):
                            offers[-1][place] = experiment, group
        best = max(offers, key=_filled, default=None)
        found.update(best or {})
    return found


def _filled(offer: Mapping[int, tuple[Experiment, Group]]) -> tuple[int, int]:
    """Return how many rows are filled, and by how many runs."""
    return len(offer), sum(len(group.runs) for _, group in offer.values())


def _matches(group: Group, table: Mapping[str, Any], row: Mapping[str, Any], column: Mapping[str, Any]) -> bool:
    """Return whether a group is what a row and a column describe. How its network was initialised may differ."""
    if not _has_policy(group, row):
        return False
    gigabytes = column.get("gigabytes")
    if gigabytes is not None and not abs(group.mean("buffer_bytes") / 1e9 - gigabytes) <= _SAME_SIZE * gigabytes:
        return False
    alternatives = _alternatives(table, row, column)
    return any(not [*_decisive(differences(group.runs[0], wanted))] for wanted in alternatives)


def _has_policy(group: Group, row: Mapping[str, Any]) -> bool:
    """Return whether a group has the policy of a row, with any parameters."""
    return not group.method.reference and group.method.policy.partition("(")[0] == str(row["policy"])


def _policy(row: Mapping[str, Any]) -> str:
    """Return the policy of a row with its parameters, as on the command line."""
    given = flatten(row.get("parameters", {}))
    return f"{row['policy']}({', '.join(f'{name}={value}' for name, value in given.items())})"


def _decisive(found: Mapping[str, str]) -> Iterator[str]:
    """Yield the differences that keep a run out of a table; base initialisation is only named."""
    return (f"{name} ({text})" for name, text in found.items() if not name.startswith("base."))


def _described(group: Group, alternatives: Sequence[Settings]) -> str:
    """Return the name of a group's runs, what they spent, and how their base initialisation differs."""
    found = min((differences(group.runs[0], wanted) for wanted in alternatives), key=len)
    base = [f"{name} ({text})" for name, text in found.items() if name.startswith("base.")]
    where = f"{_name(group)} ({group.condition.updates}, buffer {group.condition.buffer})"
    return f"{where}, which differ in {_few(base)}" if base else where


def _why_none(experiments: Sequence[Experiment], table: Mapping[str, Any]) -> str:
    """Say that no run has the settings of a table, and in what the nearest one differs."""
    found = [
        ([*_decisive(differences(group.runs[0], wanted))], group, wanted)
        for experiment in experiments
        for group in experiment.finished_groups
        for row in table["rows"]
        if _has_policy(group, row)
        for column in table["columns"]
        if "average" not in column
        for wanted in _alternatives(table, row, column)
    ]
    if not found:
        return "No run has one of its policies."

    def distance(one: tuple[list[str], Group, Settings]) -> tuple[int, bool]:
        bounded = one[2].get("buffer.capacity", {"is": ""})["is"] != "none"
        return len(one[0]), one[1].bounded != bounded

    different, group, _ = min(found, key=distance)
    return f"No run has its settings. The nearest, {_name(group)}, differs in {_few(different)}."


def _few(texts: Sequence[str]) -> str:
    more = f" and {plural(len(texts) - _SHOWN, 'more setting')}" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def _name(group: Group) -> str:
    return str(group.runs[0].config.get("name", ""))


def _our_cell(experiment: Experiment, group: Group, column: Mapping[str, Any], digits: int) -> Cell:
    """Return our mean for a cell; of one session if the column names it."""
    key = column["measure"]
    if key in ("updates_saved", "time_saved"):
        saving = experiment.savings(group.condition.buffer).get(group.method)
        share = math.nan if saving is None else saving.share if key == "updates_saved" else saving.time
        return number_cell(100 * share, digits)
    if key == "hours":
        seconds = [run.value("training_seconds") + run.value("selection_seconds") for run in group.runs]
        hours = float(np.mean(seconds)) / 3600
        return number_cell(hours, significant(hours, digits))
    values = group.values.get(key, [])
    if "session" in column:
        lines = [line for run in group.runs for line in run.sessions if line.get("session") == column["session"]]
        values = [value for line in lines if not math.isnan(value := number(line.get(key)))]
    return mean_cell(Mean.of(values), digits)
