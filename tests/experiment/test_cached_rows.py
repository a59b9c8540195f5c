"""Rows in the cache that several processes want at once: each makes a part, and those that live make all."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from graspcl.cache import Shard, fill_rows, lock, patience
from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.experiment.encoding import _encode
from graspcl.model import CosineHead, SplitNetwork
from graspcl.progress import Silent

pytest.importorskip("fcntl", reason="file locks of this system are not used")

# The first process stops after a thousand rows until it may go on.
PROGRAM = """
import os, sys, time
import numpy as np
from graspcl.cache import cached_rows
from graspcl.experiment.encoding import _encode
from graspcl.model import CosineHead, SplitNetwork
from graspcl.progress import Silent

class Notes(Silent):
    def note(self, text):
        print(text, flush=True)

def compute(indices):
    with open("computed", "a") as file:
        print(sys.argv[1], indices[0], file=file)
    while sys.argv[1] == "first" and indices[0] and not os.path.exists("go"):
        time.sleep(0.05)
    return indices[:, None].astype(np.float32), np.arange(len(indices)), []

rows = cached_rows("key", 3000, compute, Notes(), "rows")
assert rows.readable.all() and (rows.values[:][:, 0] == np.arange(3000)).all()
"""
Process = subprocess.Popen[str]


@contextlib.contextmanager
def started(program: str, place: Path, *argv: str) -> Iterator[Process]:
    """A process of its own in the folder `place`, until the end of the context."""
    command = [sys.executable, "-c", program, *argv]
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """A process that makes rows, and holds the lock on some of them."""
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    with started(PROGRAM, tmp_path, "first") as process:
        wait_until(lambda: "first 1024" in computed(tmp_path))
        yield process


@pytest.fixture
def two(first: Process, tmp_path: Path) -> Iterator[tuple[Process, Process]]:
    """A process that makes rows, and one that has made the rows left and says that it waits for the first."""
    with started(PROGRAM, tmp_path, "second") as second:
        assert second.stdout is not None and "waiting for another process" in second.stdout.readline()
        yield first, second


def computed(folder: Path) -> list[str]:
    return (folder / "computed").read_text().splitlines() if (folder / "computed").exists() else []


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_two_processes_share_the_work(two: tuple[Process, Process], tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    told = [process.communicate(timeout=60)[0] for process in two]
    assert [process.returncode for process in two] == [0, 0]
    assert computed(tmp_path) == ["first 0", "first 1024", "second 2048"]
    assert told == ["", ""]
    assert not [*tmp_path.rglob("*.lock")]


def test_a_process_that_dies_keeps_nobody_waiting(two: tuple[Process, Process], tmp_path: Path) -> None:
    first, second = two
    first.kill()
    second.communicate(timeout=60)
    assert second.returncode == 0
    assert computed(tmp_path) == ["first 0", "first 1024", "second 2048", "second 1024"]


def test_waiting_for_a_process_that_hangs_ends_with_an_error(first: Process) -> None:
    def compute(indices: Array) -> Shard:
        return np.zeros((len(indices), 1)), np.arange(len(indices)), []

    message = r"the process that holds .*00001024.lock has made no progress for 0.2 seconds: end it .* --timeout"
    with patience(0.2), pytest.raises(GraspError, match=message):
        fill_rows("key", 3000, compute, Silent(), "rows")
    assert first.poll() is None


HOLDER = """
import time
from pathlib import Path
from graspcl.cache import beat, lock

with lock(Path("outer")), lock(Path("inner")):
    print("held", flush=True)
    for _ in range(60):
        time.sleep(0.1)
        beat()
print("done", flush=True)
"""


@pytest.mark.slow
def test_a_process_with_progress_is_waited_for(tmp_path: Path) -> None:
    with started(HOLDER, tmp_path) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with patience(4), lock(tmp_path / "outer"):
            assert holder.stdout.readline() == "done\n"


def test_encoding_shows_its_progress_to_who_waits_for_its_lock(tmp_path: Path) -> None:
    file, touched = tmp_path / "lock", []

    class Looking(torch.nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            touched.append(file.stat().st_mtime)
            os.utime(file, (0, 0))
            return inputs

    network = SplitNetwork(Looking(), torch.nn.Linear(2, 2), CosineHead(2, generator=torch.Generator()))
    with lock(file):
        _encode(network, torch.ones(200, 2))
    assert len(touched) == 4 and all(touched)


def test_a_lock_that_is_a_link_or_a_pipe_is_neither_followed_nor_waited_for(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "link").symlink_to(victim)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with lock(tmp_path / name):
            pass
    assert victim.read_text() == "precious"
