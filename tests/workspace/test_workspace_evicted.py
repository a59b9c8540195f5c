"""Samples that made room for others are known by id: none is learned twice, and all can be corrected and forgotten."""

import numpy as np
import pytest

pytest.importorskip("wordllama", reason="needs graspcl[demo]")

from made_up_texts import rows, table, texts

from graspcl import GraspError, Workspace
from graspcl.workspace.known import Known
from graspcl.workspace.store import Store
from graspcl.workspace.version import Version

FRUIT = texts("fruit", 0, 60)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A workspace that has evicted about half of what it learned: 60 texts of each of five classes."""
    folder = tmp_path_factory.mktemp("made")
    first = table(folder / "first.csv", rows("fruit", "tool", "animal", end=20))
    shop = Workspace.new(folder / "shop", first, backbone="vector", memory="70KB", updates=2)
    later = [*rows("fruit", "tool", "animal", begin=20, end=60), *rows("car", end=60)]
    for part in (later, rows("music", end=60)):
        shop.learn([text for _, text in part], [kind for kind, _ in part], updates=2)
    return folder / "shop"


def version(shop):
    with Store.open(shop.folder) as store:
        return Version.load(store)


def evicted(shop, given=FRUIT):
    """Those of the texts that are evicted, and their ids."""
    ids, known = shop.ids(given), version(shop)
    places = np.flatnonzero(known.evicted.labels_of(ids) >= 0)
    assert len(places) > 20
    return [given[place] for place in places], ids[places]


def seen(shop):
    return {one.name: one.seen for one in shop.status().classes}


def on_disk(shop, ids):
    """Which of these ids are anywhere in the files of a workspace."""
    content = b"".join(file.read_bytes() for file in shop.folder.rglob("*") if file.is_file())
    return [one.tobytes() in content for one in ids]


def test_evicted_samples_are_forgotten_by_id(shop):
    gone, ids = evicted(shop)
    stored = next(one for one in shop.ids(FRUIT) if one not in ids)
    assert all(on_disk(shop, ids))
    assert shop.forget(ids=ids[:3]) == {"forgot": [], "samples": 3, "missing": []}
    assert shop.forget(ids=[ids[3], ids[3], stored, 5])["samples"] == 2
    assert seen(shop)["fruit"] == 55 and not any(on_disk(shop, [*ids[:4], stored])) and all(on_disk(shop, ids[4:]))
    with pytest.raises(GraspError, match="none of these samples was learned; nothing was changed"):
        shop.forget(ids=ids[:4])
    assert shop.learn(gone[:3], ["fruit"] * 3, updates=1).samples == 3 and seen(shop)["fruit"] == 58


def test_the_class_of_an_evicted_sample_is_corrected(shop):
    gone, ids = evicted(shop)
    assert len(shop.learn(gone[:1], ["tool"], updates=1).contradictions) == 1
    shop.forget(ids=ids[:1])
    assert shop.learn(gone[:1], ["tool"], updates=1).added == {"tool": 1}
    assert seen(shop)["fruit"] == 59 and seen(shop)["tool"] == 61


def test_a_forgotten_class_takes_its_evicted_samples_along(shop):
    gone, ids = evicted(shop)
    assert shop.forget("fruit") == {"forgot": ["fruit"], "samples": 60, "missing": []}
    assert not any(on_disk(shop, ids))
    assert shop.learn(gone, ["fruit"] * len(gone), updates=1, accept=True).held == round(0.1 * len(gone))


@pytest.mark.parametrize("change", ["forget", "merge"])
def test_what_was_trained_is_trained_again_and_not_held_out_where_the_sums_lost_it(shop, change):
    gone, ids = evicted(shop)
    shop.forget("music") if change == "forget" else shop.merge("music", "tool")
    before = {**seen(shop)}
    result = shop.learn([*FRUIT, gone[1], gone[0]], [*["fruit"] * 61, "tool"], updates=1)
    assert result.samples == len(gone) and result.duplicates == 61 - len(gone) and len(result.contradictions) == 1
    assert result.held == 0 and not set(ids) & set(version(shop).held.ids) and seen(shop) == before
    again = shop.learn(FRUIT, ["fruit"] * 60, updates=1)
    assert (again.samples, again.duplicates) == (0, 60) and seen(shop) == before
    assert shop.forget(ids=ids)["samples"] == len(ids) and seen(shop)["fruit"] == 60 - len(ids)
    assert not any(on_disk(shop, ids))


def test_evicted_samples_of_merged_and_renamed_classes_are_known_by_their_new_name(shop):
    gone, _ = evicted(shop)
    shop.rename("fruit", "berry")
    assert shop.learn(gone, ["berry"] * len(gone)).duplicates == len(gone)
    assert len(shop.learn(gone, ["fruit"] * len(gone)).contradictions) == len(gone)
    shop.merge("berry", "tool")
    assert len(shop.learn(gone, ["fruit"] * len(gone)).contradictions) == len(gone)
    assert shop.learn(gone, ["tool"] * len(gone), updates=1).added == {"tool": len(gone)}
    assert seen(shop)["tool"] == 120


def test_undo_brings_back_what_was_evicted(shop):
    gone, ids = evicted(shop)
    shop.merge("fruit", "tool")
    assert shop.learn(gone[:5], ["tool"] * 5, updates=1).samples == 5
    for _ in range(2):
        shop.undo()
    assert shop.learn(gone, ["fruit"] * len(gone)).duplicates == len(gone)
    assert version(shop).evicted.labels_of(ids).tolist() == [0] * len(ids) and not len(version(shop).lost)
    shop.undo()  # of the last class
    held = version(shop)
    assert len(held.known()) == 240 == sum(held.seen.values())


def test_a_learn_writes_no_copy_of_ids_that_were_evicted_before(shop):
    with Store.open(shop.folder, write=True) as store:
        known = Version.load(store)
        known.evicted.add(np.arange(1, 100_001), np.zeros(100_000, np.int64))
        known.save(store, "learn", {"samples": 0, "added": {}})
        (before,) = store.head.manifest["evicted"]
    shop.learn(texts("car", 60, 80), ["car"] * 20, updates=1)
    with Store.open(shop.folder) as store:
        same, new = store.head.manifest["evicted"]
        assert same == before and 0 < len(store.get(new)["ids"]) < 100


def test_known_samples_are_those_of_a_dictionary():
    rng, known, expected = np.random.default_rng(0), Known(), {}
    for number in rng.integers(0, 60, 100):
        ids, labels = rng.choice(5_000, number, replace=False) << 40, rng.integers(0, 9, number)
        known.add(ids, labels)
        expected = {**dict(zip(ids.tolist(), labels.tolist(), strict=True)), **expected}
    asked = np.arange(-3, 5_003) << 40
    assert known.labels_of(asked).tolist() == [expected.get(one, -1) for one in asked.tolist()]
    assert dict(zip(known.ids.tolist(), known.labels.tolist(), strict=True)) == expected and len(known) == len(expected)
    assert len(known.runs) <= 12 and all((np.diff(ids) > 0).all() for ids, _ in known.runs)
    some = known.without(asked[::2])
    assert some.labels_of(asked[::2]).tolist() == [-1] * len(asked[::2])
    assert (some.labels_of(asked[1::2]) == known.labels_of(asked[1::2])).all()
    assert set(known.relabelled(3, 4).labels.tolist()) == {*range(9)} - {3}
