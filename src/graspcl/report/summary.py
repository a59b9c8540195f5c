"""Mean and spread over seeds, read from run folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from graspcl.report.runs import read_record

# What a table shows: key in summary.json, heading, digits, whether higher is better (None: neither).
COLUMNS: tuple[tuple[str, str, int, bool | None], ...] = (
    ("mu_new", "μ_N", 2, True),
    ("mu_old", "μ_O", 2, True),
    ("mu_all", "μ_A", 2, True),
    ("alpha", "α", 2, True),
    ("updates", "updates", 0, None),
    ("training_seconds", "train\ns", 1, None),
    ("selection_seconds", "select\ns", 2, None),
    ("coverage", "seen\n%", 1, None),
)


@dataclass(frozen=True)
class Row:
    """One policy over its seeds: every value of every column."""

    policy: str
    values: dict[str, list[float]]

    def mean(self, column: str) -> float:
        """Mean over seeds."""
        return mean(self.values[column])

    def std(self, column: str) -> float:
        """Sample standard deviation over seeds; 0 for a single one."""
        seeds = self.values[column]
        return stdev(seeds) if len(seeds) > 1 else 0.0


def rows(paths: Iterable[Path]) -> list[Row]:
    """One row per policy, or per learner and policy where learners differ, in the order in which they first come.

    Unfinished runs are left out.
    """
    summaries = [record.summary for record in map(read_record, paths) if record.state == "finished"]
    alike = len({summary.get("learner") for summary in summaries}) < 2
    found: dict[str, dict[str, list[float]]] = {}
    for summary in summaries:
        label = summary["policy"] if alike else f"{summary['learner']} + {summary['policy']}"
        values = found.setdefault(label, {name: [] for name, *_ in COLUMNS})
        for name, *_ in COLUMNS:
            values[name].append((100 if name == "coverage" else 1) * _number(summary[name]))
    return [Row(policy, values) for policy, values in found.items()]


def _number(value: float | None) -> float:
    """What is not defined, as the accuracy on new classes where there are none, is null in a file."""
    return float("nan") if value is None else value
