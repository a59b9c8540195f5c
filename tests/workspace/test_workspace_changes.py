"""Forgetting, renaming and merging classes: what goes is gone everywhere, what stays is as it was."""

import numpy as np
import pytest

pytest.importorskip("wordllama", reason="needs graspcl[demo]")

from made_up_texts import rows, table, texts

from graspcl import GraspError, Workspace
from graspcl.cli.workspace import _said as said
from graspcl.state import load_state
from graspcl.workspace.store import Store
from graspcl.workspace.version import Version

ASKED = [text for kind in ("fruit", "tool", "animal", "car") for text in texts(kind, 900, 903)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    Workspace.new(folder / "shop", table(folder / "first.csv", rows("fruit", "tool", "animal")), backbone="vector")
    Workspace.open(folder / "shop").learn(texts("car", 0, 20), ["car"] * 20)
    return folder / "shop"


def all_ids(shop):
    """The ids in all segments on the disk, of any version or none."""
    states = [load_state(file) for file in (shop.folder / "objects").rglob("*.safetensors")]
    return {number for state in states if "codes" in state for number in state["ids"].tolist()}


def test_a_forgotten_class_is_gone_from_predictions_files_and_history(shop):
    gone = shop.ids(texts("tool", 0, 40))
    assert set(gone.tolist()) <= all_ids(shop)
    told = shop.forget("tool")
    assert told == {"forgot": ["tool"], "samples": 40, "missing": []}
    assert shop.classes == ["fruit", "animal", "car"]
    assert set(shop.predict(ASKED).names) <= {"animal", "fruit", "car"}
    assert not set(gone.tolist()) & all_ids(shop)
    assert "'tool'" not in str(shop.history[:-1]) and shop.history[-1]["forgot"] == ["tool"]
    assert said(shop.history[0]).startswith("new: 120 samples of 3 classes")
    for file in shop.folder.rglob("*.safetensors"):
        assert b'"tool"' not in file.read_bytes() or b"forgot" in file.read_bytes()
    with pytest.raises(GraspError, match="cannot be undone"):
        shop.undo()
    assert shop.verify() == []


def test_the_head_after_forgetting_is_that_of_the_samples_that_stay(shop):
    """Sums, and so the head, are the same as if the class had never been stored."""
    shop.forget("tool")
    with Store.open(shop.folder) as store:
        version = Version.load(store)
    learner = version.learner
    assert len(learner.network.head.weight) == 3
    stored = learner._halves[0] + learner._halves[1]
    assert stored.counts.tolist() == [36, 36, 18]
    features = learner.outputs(learner.buffer["codes"], "features").double()
    assert np.allclose(stored.second.numpy(), (features.T @ features).numpy(), rtol=1e-4, atol=1e-4)
    assert learner._seen.counts.tolist() == [36, 36, 18]


def test_single_samples_are_forgotten_by_id(shop):
    ids = shop.ids(texts("car", 0, 5))
    assert shop.forget(ids=ids) == {"forgot": [], "samples": 5, "missing": []}
    assert not set(ids.tolist()) & all_ids(shop)
    assert {one.name: one.seen for one in shop.status().classes}["car"] == 15
    with pytest.raises(GraspError, match="none of these samples was learned"):
        shop.forget(ids=ids)


def test_a_class_whose_samples_are_all_forgotten_goes(shop):
    assert shop.forget(ids=shop.ids(texts("car", 0, 20)))["forgot"] == ["car"]
    assert "car" not in shop.classes


def test_a_forgotten_class_can_be_learned_again(shop):
    shop.forget("car")
    shop.learn(texts("car", 0, 20), ["car"] * 20)
    assert shop.predict(texts("car", 900, 903)).names == ["car"] * 3


def test_at_least_two_classes_are_left(shop):
    with pytest.raises(GraspError, match="at least two classes must be left"):
        shop.forget("fruit", "tool", "animal")
    assert len(shop.classes) == 4


def test_an_unknown_class_is_an_error_with_a_hint(shop):
    with pytest.raises(GraspError, match="no class 'fruits'; did you mean 'fruit'"):
        shop.forget("fruits")
    with pytest.raises(GraspError, match="no class 'fruits'; did you mean 'fruit'"):
        shop.rename("fruits", "berries")


@pytest.mark.parametrize("name", [5, None, b"car"])
def test_names_are_text(shop, name):
    changes = (lambda: shop.rename("car", name), lambda: shop.merge(name, "car"), lambda: shop.forget("car", name))
    for change in (*changes, lambda: shop.rename(name, "car")):
        with pytest.raises(GraspError, match=f"the names of classes are text, got {name}"):
            change()
    assert len(shop.status().classes) == 4


@pytest.mark.parametrize("ids", [["a"], [None], [float("nan")], [1.5], 5, None, [2**63], [2**70], [[1]]])
def test_ids_are_integers(shop, ids):
    with pytest.raises(GraspError, match=r"ids must be (a vector of integers, got|below 2\^63)"):
        shop.forget("car", ids=ids)
    assert "car" in shop.classes


def test_a_new_name_changes_nothing_else(shop):
    before = shop.predict(ASKED)
    shop.rename("car", "vehicle")
    after = shop.predict(ASKED)
    assert np.array_equal(before.probabilities, after.probabilities)
    assert after.names == [name.replace("car", "vehicle") for name in before.names]
    assert [entry["added"] for entry in shop.history if entry["verb"] == "learn"] == [{"vehicle": 20}]
    result = shop.learn(texts("car", 20, 25), ["vehicle"] * 5)
    assert result.added == {"vehicle": 5} and "car" not in shop.classes
    shop.undo()
    shop.undo()
    assert shop.predict(ASKED).names == before.names


def test_a_name_that_exists_is_refused(shop):
    with pytest.raises(GraspError, match="there is a class 'fruit' already; use merge"):
        shop.rename("car", "fruit")


def test_merged_classes_are_one(shop):
    before = shop.predict(ASKED)
    assert shop.merge("car", "tool") == {"merged": "car", "into": "tool", "samples": 18}
    assert shop.predict(ASKED).names == [name.replace("car", "tool") for name in before.names]
    assert {one.name: (one.seen, one.stored) for one in shop.status().classes}["tool"] == (60, 54)
    shop.undo()
    assert np.array_equal(shop.predict(ASKED).probabilities, before.probabilities)
