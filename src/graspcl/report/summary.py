"""Mean and spread over seeds, read from run folders."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

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


def read_run(path: Path) -> dict[str, Any] | None:
    """Config and summary of a finished run; None if the folder holds none."""
    try:
        config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return {"config": config, "summary": summary}


def rows(paths: Iterable[Path]) -> list[Row]:
    """One row per policy, or per learner and policy where learners differ, in the order in which they first come.

    Unfinished runs are left out.
    """
    summaries = [run["summary"] for run in map(read_run, paths) if run is not None]
    alike = len({summary.get("learner") for summary in summaries}) < 2
    found: dict[str, dict[str, list[float]]] = {}
    for summary in summaries:
        label = summary["policy"] if alike else f"{summary['learner']} + {summary['policy']}"
        values = found.setdefault(label, {name: [] for name, *_ in COLUMNS})
        for name, *_ in COLUMNS:
            values[name].append(100 * summary[name] if name == "coverage" else summary[name])
    return [Row(policy, values) for policy, values in found.items()]
