"""Tables, figures and pages, made from run folders alone.

`read` runs → `model` (experiments, groups, statistics) → `tables` and `figures` → `render`. Columns are in `measures`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from graspcl.report.model import BASELINE, Group, Report, gather, make_experiment
from graspcl.report.read import Run, find_runs, read_run
from graspcl.report.render.text import terminal
from graspcl.report.tables import brief_run_list, comparison_table, session_table

if TYPE_CHECKING:
    from rich.table import Table

    from graspcl.report.samples import OpenSamples

__all__ = [
    "Group", "Report", "Run", "comparison", "find_runs", "gather", "read_run", "rows", "run_table", "runs_table",
    "sweep_table", "write_page",
]  # fmt: skip


def run_table(path: Path) -> Table:
    """Return one run session by session, for the terminal."""
    return terminal(session_table(read_run(path, arrays=False)))


def runs_table(runs: Sequence[Run], folder: Path) -> Table:
    """Return a list of the runs below a folder, for the terminal."""
    return terminal(brief_run_list(runs, folder))


def sweep_table(title: str, paths: Iterable[Path], baseline: str = BASELINE, width: int = 120) -> Table:
    """Return a row per method, budget and buffer, for a terminal of `width` columns.

    Rows have means over seeds and the difference in α from the baseline. The caption describes what methods save.
    """
    return _compare("sweep", title, _finished(paths), baseline, width)


def rows(paths: Iterable[Path]) -> list[Group]:
    """Return the finished runs by method, budget and buffer, in the order of their paths."""
    return list(make_experiment(_finished(paths)).groups)


def comparison(title: str, groups: Sequence[Group], width: int = 120) -> Table:
    """Return groups from `rows` with accuracy and costs, for a terminal of `width` columns."""
    return _compare("demo", title, [run for group in groups for run in group.runs], BASELINE, width)


def write_page(report: Report, path: Path, open_samples: OpenSamples | None = None) -> None:
    """Write the page of a report; see `graspcl.report.render.html.write_page`."""
    from graspcl.report.render import html

    html.write_page(report, path, open_samples)


def _finished(paths: Iterable[Path]) -> list[Run]:
    return [run for run in (read_run(path, arrays=False) for path in paths) if run.finished]


def _compare(name: Literal["sweep", "demo"], title: str, runs: Sequence[Run], baseline: str, width: int) -> Table:
    """Return a comparison of runs for the terminal, with a caption that explains its columns and savings."""
    experiment = make_experiment(runs, baseline)
    table = comparison_table(experiment, name)
    meanings = "; ".join(f"{column.heading}: {column.meaning}" for column in table.columns if column.meaning)
    lines = [table.caption, f"{meanings}." if meanings else ""]
    for buffer in dict.fromkeys(condition.buffer for condition in experiment.conditions):
        where = f" (buffer {buffer})" if experiment.differs("buffer") else ""
        for method, saving in experiment.savings(buffer).items():
            lines.append(f"{experiment.saving_text(method, saving)}{where}.")
    return terminal(replace(table, title=title, caption="\n".join(filter(None, lines))), width)
