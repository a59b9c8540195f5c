"""A workspace is entirely before or entirely after a change, wherever that is stopped."""

import itertools
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from crashing import Disk, Driver, make, recorded, seen

from graspcl.workspace.store import Store

if shutil.which("gcc") is None:
    pytest.skip("needs gcc, to build a library that lets calls to the disk fail", allow_module_level=True)

BEFORE = [0, 1, 2, 2]  # the segments of version 2, and its weights
AFTER = {"learn": [0, 1, 2, 3, 3], "undo": [0, 1, 1], "forget": [2, 2]}


slow = pytest.mark.slow
each_change = pytest.mark.parametrize(
    "change", ["learn", pytest.param("undo", marks=slow), pytest.param("forget", marks=slow)]
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    driver = Driver(tmp_path_factory.mktemp("driver"))
    yield driver
    driver.close()


@pytest.fixture
def shop():
    """A workspace in memory where the system has such a folder: syncs of a disk take long."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as place:
        make(Path(place) / "made")
        yield Path(place) / "made"


def copied(shop):
    place = shop.with_name("shop")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(shop, place)
    return place


def state(place):
    """What a workspace holds after it was opened to be written; it must be sound, and go on."""
    with Store.open(place) as store:
        assert store.verify() == [] and store.problems == []
        found = seen(store)
    with Store.open(place, write=True) as store:
        assert seen(store) == found
        named = {name for one in store.versions() for name in [*one.manifest["segments"], one.manifest["weights"]]}
        store.commit("learn", {}, store.head.manifest)
        store.clean()
        assert len(list(place.glob("objects/*/*"))) == len(named)
        assert store.undo() and seen(store) == found
    return found


@each_change
@pytest.mark.parametrize("mode", ["amid", pytest.param("kill", marks=slow)])
def test_a_process_killed_at_any_call_leaves_before_or_after(driver, shop, change, mode):
    found, after = [], AFTER[change]
    for call in itertools.count(1):
        place = copied(shop)
        said = driver.run(change, place, mode, call)
        if said[-1] == "exit 0":
            break
        assert said[-1] == f"exit -{signal.SIGKILL}"
        found.append(state(place))
        assert found[-1] in (BEFORE, after)
        assert "done 0" not in said or found[-1] == after
    assert BEFORE in found and after in found and len(found) > 10


@each_change
@pytest.mark.parametrize("mode", ["fail", pytest.param("full", marks=slow)])
def test_a_call_that_fails_is_told_and_leaves_before_or_after(driver, shop, change, mode):
    after = AFTER[change]
    for call in itertools.count(1):
        place = copied(shop)
        said = driver.run(change, place, mode, call)
        assert said[-1] == "exit 0", said
        found = state(place)
        assert found in (BEFORE, after), said
        assert found == after if "done 0" in said or "is done" in said[0] else "cannot be written" in said[0], said
        if f"calls {call - 1}" in said:
            break
    assert call > 10


@each_change
def test_power_failures_leave_before_or_after(driver, shop, change):
    place, record, left = (shop.with_name(name) for name in ("shop", "record", "left"))
    disk, found, after, rng = Disk(copied(shop)), [], AFTER[change], np.random.default_rng(0)
    assert "done 0" in driver.run(change, place, log=str(record))
    for call in recorded(record):
        disk.apply(*call)
        for some in (None, rng):
            disk.write(left, some)
            found.append(state(left))
            assert found[-1] in (BEFORE, after), call
    assert found[0] == BEFORE and found[-2:] == [after] * 2


def killed_at_random(driver, place, kills, seed):
    """Kill a process that learns again and again, at random moments; what it said it did is never lost."""
    rng, known = np.random.default_rng(seed), 3
    for _ in range(kills):
        pid = driver.start("learn", place, times=100)
        for _ in range(rng.integers(1, 4)):
            assert driver.line().startswith("done")
            known += 1
        until = time.perf_counter() + rng.uniform(0, 0.02)  # about as long as a commit takes
        while time.perf_counter() < until:
            pass
        os.kill(pid, signal.SIGKILL)
        *said, end = driver.lines()
        known += len(said)
        assert end == f"exit -{signal.SIGKILL}"
        with Store.open(place) as store:
            assert store.verify() == []
            rows = seen(store)[:-1]
            assert rows == [*range(len(rows))] and len(rows) in (known, known + 1)
            known = len(rows)


def test_ten_random_kills(driver, shop):
    killed_at_random(driver, shop, 10, seed=0)


@slow
def test_a_hundred_random_kills(driver, shop):
    killed_at_random(driver, shop, 100, seed=1)
