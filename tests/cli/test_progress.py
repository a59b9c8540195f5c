"""Bars, and the lines in their place where there is no terminal."""

import io
import re

import pytest
from rich.console import Console

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
        clock[0] += 20.0
        advance(10)
        bars._progress.refresh()
    return out.getvalue()


def test_a_bar_tells_the_time_left_and_fits_a_small_terminal(clock):
    lines = re.split(r"[\r\n]", shown(True, clock))
    bar = next(line for line in lines if "613/1000" in line)
    assert re.search(r"613/1000 0:00:\d\d left 0:1\d:\d\d", bar), bar  # nothing of it is cut
    assert all(len(re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", line)) <= 80 for line in lines)


def lines(clock, steps, total=1000):
    """The lines about a step in a pipe; it does these parts, each after so many seconds."""
    out = io.StringIO()
    bars = Bars(Console(file=out, force_terminal=False, width=80))
    bars._progress.get_time = lambda: clock[0]
    with bars, bars.task("encoding", total) as advance:
        for parts, seconds in steps:
            clock[0] += seconds
            advance(parts)
    return out.getvalue().strip().splitlines()


def test_without_a_terminal_lines_tell_the_count_and_the_time_left(clock):
    first, *told, last = lines(clock, [(100, 20)] * 10)
    assert first == "encoding: 1,000 to do" and last.startswith("✓ encoding")
    assert told[1] == "encoding: 200 of 1,000 (20 %), about 0:02:40 left" and len(told) == 9  # the end is told by ✓


@pytest.mark.parametrize(
    ("steps", "number"),
    [
        ([(1, 0.1)] * 1000, 9),  # 100 s: a line for each tenth, since ten seconds have passed
        ([(1, 0.01)] * 1000, 0),  # 10 s: none
        ([(1, 1)] * 1000, 16),  # a line a minute
        ([(1, 7.2)] * 1000, 111),  # two hours: a line a minute, at every ninth part of 7.2 s
        ([(1000, 30)], 0),
    ],
)
def test_lines_are_few(clock, steps, number):
    assert len(lines(clock, steps)) == number + 2


@pytest.mark.parametrize("terminal", [True, False])
def test_without_a_step_nothing_is_printed(terminal):
    out = io.StringIO()
    with Bars(Console(file=out, force_terminal=terminal, width=80)):
        pass
    assert out.getvalue() == ""
