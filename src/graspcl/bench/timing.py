"""How speed is measured: subject and baseline in turn, in CPU seconds of this process, as one ratio per round.

Load changes from second to second, and both sides of a round see the same load. CPU seconds do not count the time in
which other programs run; those of all threads add up. torch uses one thread, because threads that wait for each other
spend CPU seconds, too. Where threads share the work, what counts is how long a user waits: seconds of the clock, which
need an idle machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from graspcl.checks import Array

ROUNDS = 20
HEADER = f"| {'bench':9} | {'figure':66} | median | 90 % of rounds | bar   | verdict |\n|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Bar:
    """A figure measured in several rounds: its median and spread, and the `bar` it must not exceed (or reach).

    The spread holds 90 % of the rounds. Memory lies elsewhere in another process, so that medians of two runs differ by
    more than half of the rounds do.

    >>> print(Bar.of("decode", "faiss / decode", [8.0, 9.0, 9.2], bar=5, at_least=True).line()[-45:])
    |   9.00 |    8.10 – 9.18 |   ≥ 5 | met     |
    """

    bench: str
    what: str
    value: float  # the median of the rounds
    low: float  # 5 % of them are below this
    high: float  # 5 % of them are above this
    bar: float | None = None  # without one, the figure is for information
    at_least: bool = False  # whether the bar must be reached

    @classmethod
    def of(cls, bench: str, what: str, rounds: Any, bar: float | None = None, at_least: bool = False) -> Bar:
        """Summarise the values of all `rounds`."""
        low, value, high = np.quantile(np.asarray(rounds, float), [0.05, 0.5, 0.95]).tolist()
        return cls(bench, what, value, low, high, bar, at_least)

    @property
    def ok(self) -> bool:
        """Whether the median reaches the bar."""
        return self.bar is None or (self.value >= self.bar if self.at_least else self.value <= self.bar)

    def line(self) -> str:
        """Return one row of a Markdown table, see `HEADER`."""
        bar = "" if self.bar is None else f"{'≥' if self.at_least else '≤'} {self.bar:g}"
        verdict = "" if self.bar is None else "met" if self.ok else "MISSED"
        spread = f"{_number(self.low)} – {_number(self.high)}"
        return f"| {self.bench:9} | {self.what:66} | {_number(self.value):>6} | {spread:>14} | {bar:>5} | {verdict:7} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def interleave(*calls: Callable[[], object], rounds: int = ROUNDS, repeat: int = 1) -> Array:
    """Return the CPU seconds [calls, rounds] of calls made in turn, A B A B …, after one round that is not counted.

    Short calls are repeated: each turn makes `repeat` calls.
    """
    spent: Array = interleave_both(*calls, rounds=rounds, repeat=repeat)[0]
    return spent


def interleave_both(
    *calls: Callable[[], object], rounds: int = ROUNDS, repeat: int = 1, before: Callable[[], object] = lambda: None
) -> Array:
    """Return the CPU seconds of `interleave` and the seconds that passed meanwhile, [2, calls, rounds].

    What is done `before` each turn is not measured.
    """
    for call in calls:
        call()
    spent = []
    for _ in range(rounds):
        for call in calls:
            before()
            spent.append(_seconds(call, repeat))
    return np.array(spent).reshape(rounds, len(calls), 2).T


def cpu_seconds(call: Callable[[], object], repeat: int = 1) -> float:
    """Return the CPU seconds that this process spends on `repeat` calls."""
    return _seconds(call, repeat)[0]


def _seconds(call: Callable[[], object], repeat: int) -> tuple[float, float]:
    begin, passed = time.process_time(), time.perf_counter()
    for _ in range(repeat):
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.process_time() - begin, time.perf_counter() - passed


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
