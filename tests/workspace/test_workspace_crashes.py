"""A real `learn` is stopped at every call to the disk: the workspace is entirely before or entirely after it."""

import itertools
import os
import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("wordllama", reason="needs graspcl[demo]")
if shutil.which("gcc") is None:
    pytest.skip("needs gcc, to build a library that lets calls to the disk fail", allow_module_level=True)

from crashing import Disk, Driver, recorded
from made_up_texts import rows, table, texts

from graspcl import Workspace
from graspcl.workspace.store import Store

ASKED = [text for kind in ("fruit", "tool", "car") for text in texts(kind, 900, 902)]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home():
    """A folder in memory where the system has one: syncs of a disk take long."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as place:
        data = table(Path(place) / "first.csv", rows("fruit", "tool", end=6))
        Workspace.new(Path(place) / "made", data, backbone="vector", updates=1)
        yield Path(place)


@pytest.fixture(scope="module")
def driver(home, tmp_path_factory):
    shutil.copytree(home / "made", home / "warm")
    driver = Driver(tmp_path_factory.mktemp("driver"), home / "warm")
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def states(home, driver):
    """What the workspace is before and after `learn`."""
    shutil.copytree(home / "made", home / "after")
    assert "done 0" in driver.run("learn texts", home / "after")
    return {"before": known(Workspace.open(home / "made")), "after": known(Workspace.open(home / "after"))}


def known(shop):
    """All that a workspace can tell."""
    history = [{**entry, "seconds": 0} for entry in shop.history]
    return shop.classes, shop.predict(ASKED).probabilities.tolist(), history, shop.ids(ASKED).tolist()


def copied(home):
    shutil.rmtree(home / "shop", ignore_errors=True)
    shutil.copytree(home / "made", home / "shop")
    return home / "shop"


def state(place, states):
    """Whether a workspace is before or after `learn`; it must be sound, keep no other files, and go on."""
    shop = Workspace.open(place)
    assert shop.verify() == []
    found = known(shop)
    (name,) = (name for name, one in states.items() if one == found)
    shop.rename("tool", "thing")
    assert shop.undo()["verb"] == "rename" and known(shop) == found
    with Store.open(place, write=True) as store:
        store.clean()
        assert store.verify() == [] and store.problems == []
    files = {path.relative_to(place).parts[0] for path in place.rglob("*") if path.is_file()}
    assert files <= {"workspace.db", "workspace.backup", "objects", "lock", "recent.json"}
    return name


@pytest.mark.parametrize("mode", ["kill", "amid", "fail", "full"])
def test_a_learn_stopped_at_any_call_leaves_before_or_after(driver, home, states, mode):
    found = []
    for call in itertools.count(1):
        place = copied(home)
        said = driver.run("learn texts", place, mode, call)
        found.append(state(place, states))
        if mode in ("fail", "full"):
            assert said[-1] == "exit 0", said
            done = "done 0" in said
            assert found[-1] == "after" if done else any("cannot be written" in line for line in said), said
            if f"calls {call - 1}" in said:
                break
        elif said[-1] == "exit 0":
            break
        else:
            assert said[-1] == f"exit -{signal.SIGKILL}" and ("done 0" not in said or found[-1] == "after")
    assert "before" in found and found[-1] == "after" and len(found) > 50


def test_power_failures_during_a_learn_leave_before_or_after(driver, home, states):
    place, record, left = (home / name for name in ("shop", "record", "left"))
    disk, found, rng = Disk(copied(home)), [], np.random.default_rng(0)
    assert "done 0" in driver.run("learn texts", place, log=str(record))
    for call in recorded(record):
        disk.apply(*call)
        for some in (None, rng):
            disk.write(left, some)
            found.append(state(left, states))
    assert found[0] == "before" and found[-2:] == ["after"] * 2
