"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from graspcl.report.summary import COLUMNS, Row


def comparison(title: str, rows: Sequence[Row], width: int = 120) -> Table:
    """Policies side by side, mean ± standard deviation over seeds; the best accuracy of a column in bold.

    In a terminal of fewer than 110 columns the deviation stands below the mean.
    """
    seeds = max((len(row.values["alpha"]) for row in rows), default=0)
    table = _table(title, seeds)
    table.add_column("policy", no_wrap=True)
    for _, heading, *_ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    best = {name: max((row.mean(name) for row in rows), default=0.0) for name, *_, higher in COLUMNS if higher}
    for row in rows:
        cells = []
        for name, _, digits, higher in COLUMNS:
            text = f"{row.mean(name):,.{digits}f}"
            if higher is not None:
                text += _spread(row, name, digits, width)
            cells.append(f"[bold]{text}[/bold]" if higher and row.mean(name) == best[name] else text)
        table.add_row(escape(row.policy.replace("(", "\n(")), *cells)
    return table


def policy_table(
    title: str, memories: Mapping[str, Sequence[Row]], baseline: str = "uniform", width: int = 120
) -> Table:
    """A row per policy as in the paper's Tables 2 and 3: μ_A and α for each memory, and time relative to the baseline.

    Without the baseline among the rows its time is left out.
    """
    seeds = max((len(row.values["alpha"]) for rows in memories.values() for row in rows), default=0)
    table = _table(title, seeds)
    table.add_column("policy", no_wrap=True)
    for memory in memories:
        for heading in ("μ_A", "α"):
            table.add_column(f"{memory}\n{heading}", justify="right", no_wrap=True)
    times = relative_times(memories, baseline)
    table.add_column(f"time\n/ {baseline}", justify="right", no_wrap=True)
    found = {memory: {row.policy: row for row in rows} for memory, rows in memories.items()}
    best = {
        (memory, name): max((row.mean(name) for row in rows), default=0.0)
        for memory, rows in memories.items()
        for name in ("mu_all", "alpha")
    }
    for policy in dict.fromkeys(row.policy for rows in memories.values() for row in rows):
        cells = []
        for memory, by_policy in found.items():
            for name in ("mu_all", "alpha"):
                if (row := by_policy.get(policy)) is None:
                    cells.append("–")
                    continue
                text = f"{row.mean(name):.2f}{_spread(row, name, 2, width)}"
                cells.append(f"[bold]{text}[/bold]" if row.mean(name) == best[memory, name] else text)
        table.add_row(escape(policy), *cells, f"{times[policy]:.2f}" if policy in times else "–")
    return table


def _table(title: str, seeds: int) -> Table:
    over = f"{seeds} seeds, mean ± std" if seeds > 1 else "one seed"
    return Table(
        title=f"{title}\n{over}",
        caption="μ_N μ_O μ_A: accuracy (%) on new, old and all classes, mean over sessions · α: final accuracy (%) · "
        "seen: share of the buffer rehearsed at least once",
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 0),
    )


def _spread(row: Row, name: str, digits: int, width: int) -> str:
    """The deviation over seeds, which a single one does not have."""
    if len(row.values[name]) < 2:
        return ""
    return f"{' ± ' if width >= 110 else chr(10) + '±'}{row.std(name):.{digits}f}"


def relative_times(memories: Mapping[str, Sequence[Row]], baseline: str) -> dict[str, float]:
    """Session time of each policy over that of the baseline, with the same learner; left out without one.

    All make the same updates, so a policy's session takes 1 + selection / training of the time of training alone. The
    ratio is taken within each run, where whatever else the machine did meanwhile cancels out.
    """
    shares: dict[str, list[float]] = {}
    for row in (row for rows in memories.values() for row in rows):
        times = zip(row.values["selection_seconds"], row.values["training_seconds"], strict=True)
        shares.setdefault(row.policy, []).extend(1 + select / train if train else 1.0 for select, train in times)
    mean = {policy: sum(values) / len(values) for policy, values in shares.items()}
    of = {policy: f"{policy.rpartition(' + ')[0]} + {baseline}" if " + " in policy else baseline for policy in mean}
    return {policy: value / mean[of[policy]] for policy, value in mean.items() if of[policy] in mean}


def bar_chart(title: str, values: Mapping[str, float], width: int = 50) -> Table:
    """Horizontal bars, largest first, from a little below the smallest value to the largest."""
    low, high = min(values.values()), max(values.values())
    floor = low - 0.1 * (high - low)
    title = f"{title} (bars begin at {floor:.1f})"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), show_header=False)
    for name, value in sorted(values.items(), key=lambda item: -item[1]):
        share = (value - floor) / (high - floor) if high > floor else 1.0
        table.add_row(escape(name), "█" * max(1, round(share * width)), f"{value:.2f}")
    return table
