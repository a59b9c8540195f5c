"""What a run tells while it is at work: progress.json and its bar."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from types import SimpleNamespace

import pytest

from graspcl.errors import GraspError
from graspcl.experiment import live, run
from graspcl.integrity import read_object
from graspcl.learner import Rehearsal
from graspcl.machine import process_start
from graspcl.progress import Silent
from graspcl.settings import change


class Counts(Silent):
    """Remembers what it is told."""

    def __init__(self):
        self.total, self.parts, self.said = 0, [], []

    @contextlib.contextmanager
    def task(self, title, total):
        if not title.startswith("small"):
            yield lambda parts: None
            return
        self.total = total
        yield self.parts.append

    def note(self, text):
        self.said.append(text)


class Stop(BaseException):
    """The run is stopped."""


@pytest.fixture
def watched(small, tmp_path, monkeypatch):
    """A run of 4 sessions of 5 updates, 10 s each; and what its progress.json said before each of them."""
    clock, seen, step = SimpleNamespace(now=0.0), [], Rehearsal.step

    def look(rehearsal):
        clock.now += 10.0
        seen.append(read_object((tmp_path / "run" / "progress.json").read_bytes()))
        if len(seen) == run_.stop_at:
            raise Stop
        step(rehearsal)

    def go(progress=None, stop_at=None):
        seen.clear()
        run_.stop_at = stop_at
        return run(run_.config, run_.folder, progress)

    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now))
    monkeypatch.setattr(Rehearsal, "step", look)
    config = change(small, {"budget.updates": 5, "base.passes": 0, "checkpoint.seconds": 0})
    run_ = SimpleNamespace(config=config, folder=tmp_path / "run", seen=seen, go=go, stop_at=None)
    return run_


def test_a_run_says_how_far_it_is_and_in_the_end_nothing(watched):
    summary = watched.go()
    assert len(watched.seen) == 20 and summary["updates"] == 20
    first, second, *_, last = watched.seen
    own = {"pid": os.getpid(), "started": process_start(os.getpid()), "host": socket.gethostname()}
    assert first == {**own, "time": 0.0}
    assert second["session"] == 1 and (second["update"], second["updates"], second["done"]) == (1, 5, 1)
    assert second["total"] == 20 and second["seconds_left"] is None and second["loss"] > 0
    assert (last["session"], last["update"], last["done"]) == (4, 4, 19)
    assert last["seconds_left"] == 10.0 and last["time"] == 190.0  # an update of 10 s
    assert not (watched.folder / "progress.json").exists()


def test_a_run_that_is_stopped_is_not_at_work_any_more(watched):
    with pytest.raises(Stop):
        watched.go(stop_at=8)
    assert not (watched.folder / "progress.json").exists()
    (watched.folder / "progress.json").write_text('{"pid": 1}')  # of one that was killed
    progress = Counts()
    watched.go(progress)
    assert watched.seen[0]["pid"] == os.getpid() and len(watched.seen) == 13
    assert watched.seen[1]["session"] == 2 and watched.seen[1]["update"] == 3
    assert progress.parts == [8] + [1] * 12 and progress.total == 20  # what was done before comes at once
    assert watched.seen[-1]["seconds_left"] == 10.0
    assert not (watched.folder / "progress.json").exists()


def test_the_bar_counts_updates_and_a_line_tells_what_a_session_brought(watched):
    progress = Counts()
    watched.go(progress)
    assert progress.parts == [1] * 20 and progress.total == 20
    told = [line for line in progress.said if line.startswith("session ")]
    record = json.loads((watched.folder / "metrics.jsonl").read_text().splitlines()[1])
    assert len(told) == 4
    assert told[1].startswith(f"session 2 of 4: accuracy {record['accuracy']:.2f} %, loss {record['loss']:.3f}, 5 upd")


@pytest.mark.parametrize(("options", "total"), [
    ({"learner": "offline", "learner.passes": 3, "buffer.capacity": None}, 20),  # more updates than planned
    ({"budget.updates": 0}, 4),
    ({"budget.passes": 1.0, "budget.updates": None}, None),
])  # fmt: skip
def test_sessions_of_any_length_fill_the_bar_step_by_step(small, tmp_path, options, total):
    progress = Counts()
    summary = run(change(small, {"budget.updates": 5, **options}), tmp_path / "run", progress)
    assert progress.parts == [1] * progress.total and progress.total == (total or summary["updates"])


def test_a_session_that_ends_early_fills_the_rest_of_its_part_at_once(small, tmp_path):
    progress = Counts()
    options = {"budget.updates": 5, "stop": "patience=1,every=1,share=0.3"}
    run(change(small, options), tmp_path / "run", progress)
    done = [json.loads(line)["updates"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert 0 < sum(done) < progress.total == 20
    assert progress.parts == [part for updates in done for part in (*[1] * updates, 5 - updates) if part]


def test_a_run_goes_on_where_it_cannot_be_told(watched, monkeypatch):
    tried = []

    def full(path, write):
        tried.append(path)
        raise OSError("the disk is full")

    (watched.folder).mkdir()
    for name in ("progress.json", ".lock"):  # as a run leaves them that was stopped at once
        (watched.folder / name).write_text("{}")
    monkeypatch.setattr(live, "write_whole", full)
    assert watched.go()["updates"] == 20 and watched.seen == [{}] * 20
    assert tried == [watched.folder / "progress.json"] * 21  # at the start and after each update


def test_what_a_run_left_that_was_killed_at_once_is_its_own(watched):
    watched.folder.mkdir()
    for name in ("progress.json", "progress.json.12.part", "config.toml.12.part", ".lock"):
        (watched.folder / name).write_text("{}")
    assert watched.go()["alpha"] is not None
    other = watched.folder.with_name("other")
    other.mkdir()
    (other / "my progress.json").write_text("{}")
    with pytest.raises(GraspError, match="files that do not belong to a run"):
        run(watched.config, other)
