"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from graspcl.report.summary import COLUMNS, Row


def comparison(title: str, rows: Sequence[Row]) -> Table:
    """Policies side by side, mean ± standard deviation over seeds; the best accuracy of a column in bold."""
    seeds = max((len(row.values["alpha"]) for row in rows), default=0)
    table = Table(title=f"{title}\n{seeds} seeds, mean ± std", title_justify="left")
    table.add_column("policy", no_wrap=True)
    for _, heading, *_ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    best = {name: max((row.mean(name) for row in rows), default=0.0) for name, *_, higher in COLUMNS if higher}
    for row in rows:
        cells = []
        for name, _, digits, higher in COLUMNS:
            text = f"{row.mean(name):,.{digits}f}"
            if higher is not None:
                text += f" ± {row.std(name):.{digits}f}"
            cells.append(f"[bold]{text}[/bold]" if higher and row.mean(name) == best[name] else text)
        table.add_row(row.policy, *cells)
    return table
