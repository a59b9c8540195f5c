"""One measured figure with the bar it is held to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Figure:
    """A ratio (or rate) measured within one run; `bar` is what it must reach or stay under."""

    bench: str
    what: str
    value: float
    bar: float | None = None
    at_least: bool = True
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the bar is met; a figure without one is for information."""
        if self.bar is None:
            return True
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def line(self) -> str:
        """One line for people.

        >>> Figure("decode", "speed-up over faiss", 9.0, bar=5.0).line()
        'decode: speed-up over faiss = 9.00 (at least 5: met)'
        """
        text = f"{self.bench}: {self.what} = {self.value:,.2f}"
        if self.bar is not None:
            text += f" ({'at least' if self.at_least else 'at most'} {self.bar:,g}: {'met' if self.ok else 'MISSED'})"
        return f"{text} · {self.detail}" if self.detail else text


def median_seconds(call: Callable[[], object], runs: int) -> float:
    """Median time of `runs` calls, after one that is not counted."""
    call()
    times = []
    for _ in range(runs):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return median(times)
