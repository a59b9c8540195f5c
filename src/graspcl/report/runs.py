"""Run folders: found, read, and listed, whatever state they are in."""

from __future__ import annotations

import fnmatch
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

State = Literal["finished", "unfinished", "damaged"]


@dataclass(frozen=True)
class RunRecord:
    """What a run folder holds: settings, the lines of its sessions, and its summary if it came to its end."""

    path: Path
    state: State
    config: dict[str, Any]
    sessions: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def policy(self) -> str:
        """The policy with its parameters."""
        return _label(self.config.get("policy"))

    @property
    def learner(self) -> str:
        """The learner with its parameters."""
        return _label(self.config.get("learner"))

    @property
    def buffer(self) -> str:
        """How much is kept."""
        return str(_group(self.config, "buffer").get("capacity", "all"))


def read_record(path: Path) -> RunRecord:
    """A run folder, as far as it can be read."""
    state: State = "finished" if (path / "summary.json").exists() else "unfinished"
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    sessions: list[dict[str, Any]] = []
    try:
        config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
        if state == "finished":
            summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        if (path / "metrics.jsonl").exists():
            sessions = _lines((path / "metrics.jsonl").read_text(encoding="utf-8"))
        if not isinstance(summary, dict) or (state == "finished" and "alpha" not in summary):
            raise ValueError("not a summary")
    except (OSError, ValueError):  # TOML's, JSON's and UTF-8's errors are of these
        state, summary = "damaged", {}
    return RunRecord(path, state, config, sessions, summary)


def _lines(text: str) -> list[dict[str, Any]]:
    """Sessions of a metrics.jsonl; the last line may be half written."""
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return [row for row in found if isinstance(row, dict)]


def find_runs(
    folder: Path, name: str = "*", policy: str = "*", learner: str = "*", state: State | None = None
) -> list[RunRecord]:
    """Runs in and below a folder that fit the patterns."""
    records = [read_record(file.parent) for file in sorted(folder.rglob("config.toml"))]
    return [
        record
        for record in records
        if fnmatch.fnmatchcase(str(record.config.get("name", "")), name)
        and _fits(record.policy, policy)
        and _fits(record.learner, learner)
        and (state is None or record.state == state)
    ]


def _fits(label: str, pattern: str) -> bool:
    """Whether a part fits a pattern, with its parameters or without them."""
    return any(fnmatch.fnmatchcase(text, pattern) for text in (label, label.partition("(")[0]))


def runs_table(records: Sequence[RunRecord], folder: Path) -> Table:
    """One row per run; of an unfinished one, the sessions that are done."""
    table = Table("run", "state", box=SIMPLE_HEAD, padding=(0, 0))
    table.columns[0].overflow = "fold"
    for heading in ("updates", "buffer", "α"):
        table.add_column(heading, justify="right", no_wrap=True)
    for record in records:
        state: str = record.state
        if state == "unfinished":
            state += f"\n{len(record.sessions)} of {_group(record.config, 'stream').get('sessions', '?')}"
        table.add_row(
            escape(_two_lines(record.path.relative_to(folder))), state,
            _cell(record.summary.get("updates"), ",d"), escape(record.buffer),
            _cell(record.summary.get("alpha"), ".2f"),
        )  # fmt: skip
    return table


def _two_lines(path: Path) -> str:
    """A path that a table of 80 columns has room for: policy and seed below the rest."""
    above, below = path.parts[:-2], path.parts[-2:]
    return "/".join(above) + ("/\n" if above else "") + "/".join(below) or "."


def _group(config: dict[str, Any], name: str) -> dict[str, Any]:
    """A group of settings, whatever stands in the file."""
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def run_table(path: Path) -> Table:
    """One run, session by session."""
    record = read_record(path)
    title = f"{record.config.get('name', path.name)}: {record.learner} + {record.policy}"
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    columns = (
        ("session", "session", "d"), ("accuracy_before_rehearsal", "before\n%", ".2f"), ("accuracy", "after\n%", ".2f"),
        ("top5", "top-5\n%", ".2f"), ("updates", "updates", ",d"), ("training_seconds", "train\ns", ".1f"),
        ("selection_seconds", "select\ns", ".2f"), ("stored", "stored", ",d"), ("loss", "loss", ".3f"),
    )  # fmt: skip
    for _, heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in record.sessions:
        table.add_row(*[_cell(row.get(key), form) for key, _, form in columns])
    summary = record.summary
    if summary:
        parts = ["% right before and after rehearsal", f"α {_cell(summary.get('alpha'), '.2f')}"]
        parts += [f"μ_A {_cell(summary.get('mu_all'), '.2f')}"]
        parts += [f"μ_N {_cell(summary.get('mu_new'), '.2f')}", f"μ_O {_cell(summary.get('mu_old'), '.2f')}"]
        for key, text in (("failed_sessions", "sessions given up"), ("unreadable_samples", "samples unreadable")):
            if summary.get(key):
                parts.append(f"{summary[key]} {text}")
        if summary.get("drift_auc") is not None:
            parts.append(f"drift β {summary['drift_auc']:.4g}, φ {summary['drift_mean']:.4g}")
        if summary.get("updates_saved"):
            parts.append(f"{summary['updates_saved']} updates saved")
        table.caption, table.caption_justify = " · ".join(parts), "left"
    return table


def _cell(value: Any, form: str) -> str:
    try:
        return "–" if value is None else format(value, form)
    except (TypeError, ValueError):
        return escape(str(value))


def _label(part: Any) -> str:
    """A part of the settings as tables have it."""
    if not isinstance(part, dict):
        return str(part)
    given = ", ".join(f"{key}={value}" for key, value in part.items() if key != "name")
    return f"{part.get('name')}({given})" if given else str(part.get("name"))
