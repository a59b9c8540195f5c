"""Bars, and the lines in their place where there is no terminal."""

import io
import re

import pytest
from rich.console import Console

from graspcl.cli import progress
from graspcl.cli.progress import Bars


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when a test says so."""
    now = [1000.0]
    monkeypatch.setattr("graspcl.cli.progress.time.monotonic", lambda: now[0])
    return now


def shown(terminal, clock, width=80):
    """What is printed of a step that was taken up again at 600 of 1000, and does one part in 2 s."""
    out = io.StringIO()
    bars = Bars(Console(file=out, force_terminal=terminal, width=width, color_system=None))
    bars._progress.get_time = lambda: clock[0]
    with bars, bars.task("imagenet-300: siesta + grasp, seed 0", 1000) as advance:
        for parts in (600, 1, 1, 1):
            advance(parts)
            clock[0] += 2.0
        clock[0] += progress._SECONDS
        advance(10)
        bars._progress.refresh()
    return out.getvalue()


def test_a_bar_tells_the_time_left_and_fits_a_small_terminal(clock):
    lines = re.split(r"[\r\n]", shown(True, clock))
    bar = next(line for line in lines if "613/1000" in line)
    assert re.search(r"613/1000 0:00:\d\d left 0:1\d:\d\d", bar), bar  # nothing of it is cut
    assert all(len(re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", line)) <= 80 for line in lines)


def test_without_a_terminal_a_line_now_and_then_tells_it_too(clock):
    assert re.search(r"seed 0: 613 of 1000, about 0:1\d:\d\d left", shown(False, clock))
