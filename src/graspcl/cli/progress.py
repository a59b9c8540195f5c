"""Progress bars, and lines in their place where there is no terminal, as in a pipe or the log of a build."""

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
_SECONDS, _LONGEST = 10.0, 60.0  # without a terminal, a line is due after a tenth of a step, within these limits


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
        self._open = False  # whether bars are shown

    def __enter__(self) -> Bars:
        self._open = self.console.is_terminal
        return self

    def __exit__(self, *error: object) -> None:
        if self._open:
            self._progress.stop()

    @contextlib.contextmanager
    def task(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show a bar for a step of `total` parts."""
        if self._open:  # not before there is a step: bars without one leave an empty line
            self._progress.start()
        bar = self._progress.add_task(escape(title), total=total)
        task, shown, told = self._progress.tasks[-1], time.monotonic(), 0.0
        lines = not self.console.is_terminal

        def advance(done: int) -> None:
            nonlocal shown, told
            self._progress.advance(bar, done)
            since, more = time.monotonic() - shown, task.completed - told
            if lines and task.completed < total and (since >= _LONGEST or (since >= _SECONDS and more >= total / 10)):
                shown, told = time.monotonic(), task.completed
                left = task.time_remaining
                about = "" if left is None else f", about {timedelta(seconds=int(left))} left"
                self.note(f"{title}: {task.completed:,.0f} of {total:,} ({task.percentage:.0f} %){about}")

        if lines:
            self.note(f"{title}: {total:,} to do")
        try:
            yield advance
            self.console.print(f"[green]✓[/green] {escape(title)} [dim]{task.elapsed or 0:.1f} s[/dim]")
        finally:
            self._progress.remove_task(bar)

    def note(self, text: str) -> None:
        """Show one line above the bars."""
        self.console.print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)
