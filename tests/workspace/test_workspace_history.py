"""The history of a workspace: each change writes its own entry alone, and all entries can be read."""

import copy
import random
import statistics
import time

import numpy as np
import pytest

pytest.importorskip("wordllama", reason="needs graspcl[demo]")

from made_up_texts import WORDS, rows, table, texts

from graspcl import GraspError, Workspace
from graspcl.integrity import pack_tensors
from graspcl.state import load_state, save_state
from graspcl.workspace.history import History, rename_in
from graspcl.workspace.store import Store


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    data = table(folder / "first.csv", rows("fruit", "tool", "animal", end=12))
    Workspace.new(folder / "shop", data, backbone="vector", updates=1)
    Workspace.open(folder / "shop").learn(texts("car", 0, 12), ["car"] * 12, updates=1, accept=True)
    return folder / "shop"


def objects(shop):
    return {path.name for path in shop.folder.glob("objects/*/*")}


def names_of(shop):
    with Store.open(shop.folder) as store:
        return store.head.manifest["history"]


def as_of_format_1(shop):
    """Write the history of a workspace as earlier programs did: all entries in one object."""
    with Store.open(shop.folder, write=True) as store:
        manifest = {**store.head.manifest, "format": 1, "history": store.put({"entries": shop.history})}
        del manifest["renamed"]
        store.commit("learn", store.head.summary, manifest, keep=1)


def test_a_change_writes_its_own_entry_alone(shop):
    entries, before = shop.history, names_of(shop)
    for number in range(4):
        there = objects(shop)
        shop.rename(["car", "a", "b", "c"][number], "abcd"[number])
        assert len(objects(shop) - there) == 1 and names_of(shop)[:-1] == before
        before = names_of(shop)
    shop.learn(texts("car", 12, 18), ["d"] * 6, updates=1, accept=True)
    assert names_of(shop)[:-1] == before
    assert [entry["verb"] for entry in shop.history] == ["new", "learn", *["rename"] * 4, "learn"]
    assert shop.history[1] == {
        **entries[1], "added": {"d": 12},
        "classes": {name.replace("car", "d"): value for name, value in entries[1]["classes"].items()},
    }  # fmt: skip


def test_names_that_are_swapped_are_so_in_the_history(shop):
    """As if each rename had changed all entries before it at once."""
    expected = copy.deepcopy(shop.history)
    for old, new in (("car", "x"), ("tool", "car"), ("x", "tool")):
        rename_in(expected, old, new)
        shop.rename(old, new)
        assert shop.history[:2] == expected
    shop.learn(texts("music", 0, 6), ["x"] * 6, updates=1, accept=True)
    assert shop.history[:2] == expected and shop.history[-1]["added"] == {"x": 6}
    shop.forget("x")  # entries are written again, with their names of now
    assert shop.history[:2] == expected and shop.history[-2]["added"] == {}
    shop.rename("tool", "x")
    rename_in(expected, "tool", "x")
    assert shop.history[:2] == expected


def test_a_history_of_an_earlier_version_is_read_and_continued(shop):
    as_of_format_1(shop)
    before = shop.history
    assert [entry["verb"] for entry in before] == ["new", "learn"] and len(shop.status().history) == 2
    packed = names_of(shop)
    shop.learn(texts("car", 12, 18), ["car"] * 6, updates=1, accept=True)
    assert shop.history[:2] == before and names_of(shop)[0] == packed and len(names_of(shop)) == 2
    assert shop.undo()["verb"] == "learn" and shop.history == before
    shop.rename("car", "vehicle")
    assert shop.history[1]["added"] == {"vehicle": 12}
    shop.forget("vehicle")
    assert len(names_of(shop)) == 4 and shop.history[1]["added"] == {} and shop.verify() == []


def test_undo_of_a_workspace_of_an_earlier_version_tells_what_was_undone(shop):
    shop.learn(texts("car", 12, 18), ["car"] * 6, updates=1, accept=True)
    with Store.open(shop.folder, write=True) as store:
        manifest = {**store.head.manifest, "format": 1, "history": store.put({"entries": shop.history})}
        del manifest["renamed"]
        store.commit("learn", {}, manifest)
    assert shop.undo() == shop.history[-1]


def test_a_lost_entry_is_found_before_anything_is_learned(shop, monkeypatch):
    first = shop.folder / "objects" / names_of(shop)[0][7:9] / f"{names_of(shop)[0][7:]}.safetensors"
    first.unlink()
    monkeypatch.setattr("graspcl.workspace.workspace.learn", lambda load, *given: load())
    with pytest.raises(GraspError, match=rf"{first.name} is missing; restore files from a copy"):
        shop.learn(texts("car", 12, 18), ["car"] * 6)
    assert shop.predict(texts("car", 0, 2)).names == ["car"] * 2  # as before


@pytest.mark.parametrize("name", ["object:" + "0" * 32, '"object:' + "1" * 32 + '"'])
def test_a_class_may_be_called_as_an_object_is(shop, tmp_path, name):
    shop.learn(texts("music", 0, 12), [name] * 12, updates=1, accept=True)
    shop.rename("car", "object:" + "2" * 32)
    again = Workspace.open(shop.folder)
    assert again.predict(texts("music", 0, 2)).names == [name] * 2 and again.verify() == []
    data = table(tmp_path / "a.csv", [(name, text) for text in texts("car", 0, 9)] + rows("tool", end=9))
    made = Workspace.new(tmp_path / "new", data, backbone="vector", updates=1)
    assert made.classes == [name, "tool"] and made.verify() == []


def entry(classes, number):
    names = [f"class {label:05d}" for label in range(classes)]
    tallies = {name: [46, 50] for name in names}
    return {
        "verb": "learn", "samples": 5 * classes, "added": dict.fromkeys(names, 5), "source": "week", "fallen": [],
        "changed": {name: [[45, 50], [46, 50]] for name in names}, "accuracy": [number, 50], "classes": tallies,
    }  # fmt: skip


def long_history(tmp_path, changes, classes):
    """Make changes, each of which writes as much as any other, and read them all; return the CPU seconds of each.

    The plain values of one state could not hold it, and each change wrote all of it again.
    """
    seconds, sizes = [], []
    with Store.create(tmp_path / "shop", {}) as store:
        for number in range(changes):
            begin = time.process_time()
            history = History(store, {} if store.head is None else store.head.manifest)
            if number % 5 == 4:
                history.rename("class 00000" if number == 4 else f"name {number - 5}", f"name {number}")
            manifest = history.saved(store, entry(classes, number))
            store.commit("learn", {}, manifest, keep=4)
            seconds.append(time.process_time() - begin)
            sizes.append(sum(path.stat().st_size for path in tmp_path.glob("shop/objects/*/*")))
    assert np.ptp(np.diff(sizes)) < 0.01 * sizes[0]
    with Store.open(tmp_path / "shop") as store:
        found = [*History(store, store.head.manifest)]
        assert len(found) == changes and store.verify() == []
    assert [one["accuracy"][0] for one in found] == [*range(changes)]
    assert f"name {changes - 1}" in found[3]["classes"] and "class 00000" not in found[0]["changed"]
    return seconds


def test_a_long_history_of_many_classes_is_read_and_continued(tmp_path):
    long_history(tmp_path, 20, 1000)


@pytest.mark.slow
def test_a_history_of_two_hundred_changes(tmp_path):
    seconds = long_history(tmp_path, 200, 10_000)
    assert statistics.median(seconds[-50:]) < 2 * statistics.median(seconds[4:54])  # four versions are kept


@pytest.mark.slow
def test_ten_thousand_classes_are_changed_many_times(tmp_path):
    """Real changes, whose history would not have fitted into one state."""
    words, rng = [f"w{number}" for number in range(10_000)], random.Random(0)
    known = " ".join(WORDS.values()).split()
    data = table(tmp_path / "first.csv", [(word, " ".join(rng.choices(known, k=9))) for word in words])
    shop, seconds = Workspace.new(tmp_path / "shop", data, backbone="vector", updates=1), []
    for number in range(30):
        begin = time.process_time()
        shop.rename(f"w{number}", f"v{number}")
        seconds.append(time.process_time() - begin)
    assert statistics.median(seconds[-10:]) < 2 * statistics.median(seconds[:10])
    shop.learn(["apple pear"], ["w0"], updates=1)
    found = shop.status()
    assert len(found.history) == 32 and len(found.classes) == 10_001 and shop.verify() == []
    assert set(found.history[0]["added"]) == {*words[30:], *(f"v{number}" for number in range(30))}


def test_what_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("graspcl.integrity._HEADER_LIMIT", 1000)
    save_state(tmp_path / "a", {"text": "x" * 800})
    for write in (
        lambda: save_state(tmp_path / "b", {"text": "x" * 1000}), lambda: pack_tensors({}, {"text": "x" * 1000})
    ):  # fmt: skip
        with pytest.raises(
            GraspError, match=r"plain values and names of tensors take 1,1\d\d bytes, and at most 1,000"
        ):
            write()
    with Store.create(tmp_path / "shop", {}) as store, pytest.raises(GraspError, match="could be read again"):
        store.put({"text": "x" * 1000})
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_the_limit_is_that_of_safetensors(tmp_path):
    save_state(tmp_path / "a", {"text": "x" * 8000})
    others = int.from_bytes((tmp_path / "a").read_bytes()[:8], "little") - 8000
    text = "x" * (100_000_000 - others)
    save_state(tmp_path / "a", {"text": text})
    assert int.from_bytes((tmp_path / "a").read_bytes()[:8], "little") == 100_000_000
    assert load_state(tmp_path / "a") == {"text": text}
    with pytest.raises(GraspError, match="take 100,000,008 bytes, and at most 100,000,000 could be read again"):
        save_state(tmp_path / "b", {"text": text + "x" * 8})
