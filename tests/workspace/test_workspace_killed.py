"""A process that learns is killed at random moments: the workspace is entirely before or after, and nothing is lost."""

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("wordllama", reason="needs graspcl[demo]")

from made_up_texts import rows, table, texts

from graspcl import Workspace
from graspcl.workspace.store import Store
from graspcl.workspace.version import Version

KILLS = int(os.environ.get("GRASPCL_KILLS", "20"))


@pytest.mark.slow
def test_a_killed_learn_loses_nothing_that_was_acknowledged(tmp_path):
    shop = tmp_path / "shop"
    Workspace.new(shop, table(tmp_path / "first.csv", rows("fruit", "tool", end=20)), backbone="vector", updates=1)
    rng, number = random.Random(0), 0
    for _ in range(KILLS):
        program = [sys.executable, Path(__file__).with_name("endless_learning.py"), shop, str(number)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout.readline() == "open\n"
            start = time.monotonic()
            assert child.stdout.readline() == f"{number}\n"
            threading.Timer(rng.uniform(0, 1.5) * (time.monotonic() - start), child.kill).start()
            number = max(map(int, child.stdout), default=number) + 1
        assert Workspace.open(shop).verify() == []
        with Store.open(shop, write=True) as store:
            known = set(Version.load(store).known().ids.tolist())
        stored = [one in known for one in Workspace.open(shop).ids(texts("car", 0, 6 * number + 6)).tolist()]
        assert all(stored[: 6 * number])  # what was acknowledged
        assert len(set(stored[6 * number :])) == 1  # the last one entirely or not at all
        number += stored[-1]
