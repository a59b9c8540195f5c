"""A process that learns is killed at random moments: the workspace is entirely before or after, and nothing is lost."""

import os
import random
import shutil
import signal
import time

import pytest

pytest.importorskip("wordllama", reason="needs graspcl[demo]")

from crashing import Driver
from made_up_texts import rows, table, texts

from graspcl import Workspace
from graspcl.workspace.store import Store
from graspcl.workspace.version import Version

KILLS = int(os.environ.get("GRASPCL_KILLS", "100"))
_EACH = 10  # kills of one workspace: a large one takes longer


@pytest.mark.slow
def test_a_killed_learn_loses_nothing_that_was_acknowledged(tmp_path):
    data = table(tmp_path / "first.csv", rows("fruit", "tool", end=6))
    made = Workspace.new(tmp_path / "made", data, backbone="vector", updates=1)
    shutil.copytree(tmp_path / "made", tmp_path / "warm")
    ids = made.ids(texts("car", 0, 6000)).tolist()
    driver, rng = Driver(warm=tmp_path / "warm"), random.Random(0)
    try:
        for kill in range(KILLS):
            if kill % _EACH == 0:
                shop, number = tmp_path / f"shop {kill}", 0
                shutil.copytree(tmp_path / "made", shop)
            number = killed(driver, shop, number, rng)
            assert Workspace.open(shop).verify() == []
            with Store.open(shop) as store:
                version = Version.load(store)
            known = {*version.buffer.ids.tolist(), *version.held.ids.tolist()}
            stored = [one in known for one in ids[: 6 * number + 6]]
            assert all(stored[: 6 * number])  # what was acknowledged
            assert len(set(stored[6 * number :])) == 1  # the last one entirely or not at all
            number += stored[-1]
            assert len(Workspace.open(shop).history) == 1 + number
    finally:
        driver.close()


def killed(driver, shop, number, rng):
    """Kill a process that learns, at a random moment of one of its changes; return how many were acknowledged."""
    start = time.monotonic()
    pid = driver.start("learn texts", shop, begin=number, times=1000)
    assert driver.line() == f"done {number}"
    time.sleep(rng.uniform(0, 1.5) * (time.monotonic() - start))
    os.kill(pid, signal.SIGKILL)
    *said, end = driver.lines()
    assert end == f"exit -{signal.SIGKILL}"
    return number + 1 + len(said)
