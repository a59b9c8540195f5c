"""Progress bars."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


class Bars:
    """Shows an experiment's steps as bars; a finished step leaves one line with its time."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True)

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    @contextlib.contextmanager
    def task(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar for a step of `total` parts."""
        bar = self._progress.add_task(escape(title), total=total)
        try:
            yield lambda done: self._progress.advance(bar, done)
            seconds = self._progress.tasks[self._progress.task_ids.index(bar)].elapsed or 0.0
            self.console.print(f"[green]✓[/green] {escape(title)} [dim]{seconds:.1f} s[/dim]")
        finally:
            self._progress.remove_task(bar)

    def note(self, text: str) -> None:
        """One line above the bars."""
        self.console.print(f"[dim]{escape(text)}[/dim]", soft_wrap=True)
