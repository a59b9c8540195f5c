"""Progress bars."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from rich import progress as rich
from rich.console import Console
from rich.markup import escape
from rich.table import Column

_RECENT = 600.0  # seconds from which the time left is estimated; a run of a sweep takes minutes
_SECONDS = 20.0  # between two lines about a step, without a terminal


class Bars:
    """Shows steps as bars; a finished step leaves one line with its time. Files and pipes get lines instead of bars."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (
            rich.SpinnerColumn(),
            rich.TextColumn("{task.description}", table_column=Column()),  # the only one that may wrap
            rich.BarColumn(bar_width=20, table_column=Column(no_wrap=True)),
            rich.MofNCompleteColumn(table_column=Column(no_wrap=True)),
            rich.TimeElapsedColumn(table_column=Column(no_wrap=True)),
            rich.TextColumn("left"),
            rich.TimeRemainingColumn(table_column=Column(no_wrap=True)),
        )
        self._progress = rich.Progress(*columns, console=console, transient=True, speed_estimate_period=_RECENT)

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    @contextlib.contextmanager
    def task(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a bar for a step of `total` parts."""
        bar = self._progress.add_task(escape(title), total=total)
        task, shown = self._progress.tasks[-1], time.monotonic()

        def advance(done: int) -> None:
            nonlocal shown
            self._progress.advance(bar, done)
            if not self.console.is_terminal and time.monotonic() - shown > _SECONDS:
                shown = time.monotonic()
                left = task.time_remaining
                about = "" if left is None else f", about {timedelta(seconds=int(left))} left"
                self.note(f"{title}: {task.completed:.0f} of {total}{about}")

        try:
            yield advance
            self.console.print(f"[green]✓[/green] {escape(title)} [dim]{task.elapsed or 0:.1f} s[/dim]")
        finally:
            self._progress.remove_task(bar)

    def note(self, text: str) -> None:
        """Show one line above the bars."""
        self.console.print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)
