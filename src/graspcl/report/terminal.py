"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from graspcl.report.summary import COLUMNS, Row


def comparison(title: str, rows: Sequence[Row], width: int = 120) -> Table:
    """Policies side by side, mean ± standard deviation over seeds; the best accuracy of a column in bold.

    In a terminal of fewer than 110 columns the deviation stands below the mean.
    """
    seeds = max((len(row.values["alpha"]) for row in rows), default=0)
    plus_minus = " ± " if width >= 110 else "\n±"
    table = Table(title=f"{title}\n{seeds} seeds, mean ± std", title_justify="left", box=SIMPLE_HEAD, padding=(0, 0))
    table.add_column("policy", no_wrap=True)
    for _, heading, *_ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    best = {name: max((row.mean(name) for row in rows), default=0.0) for name, *_, higher in COLUMNS if higher}
    for row in rows:
        cells = []
        for name, _, digits, higher in COLUMNS:
            text = f"{row.mean(name):,.{digits}f}"
            if higher is not None:
                text += f"{plus_minus}{row.std(name):.{digits}f}"
            cells.append(f"[bold]{text}[/bold]" if higher and row.mean(name) == best[name] else text)
        table.add_row(escape(row.policy.replace("(", "\n(")), *cells)
    return table
