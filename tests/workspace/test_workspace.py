"""A workspace end to end, on small tables of texts: what was learned is known by name, and nothing else happens."""

import os
import re
import shutil
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("wordllama", reason="needs graspcl[demo]")

from made_up_texts import rows, table, texts

from graspcl import GraspError, Workspace
from graspcl.objects import Objects
from graspcl.policy import Budget
from graspcl.progress import Silent
from graspcl.workspace import memory, overview
from graspcl.workspace.calibration import auroc, score
from graspcl.workspace.history import History
from graspcl.workspace.learning import Refused
from graspcl.workspace.overview import RECENT
from graspcl.workspace.store import Store
from graspcl.workspace.training import Trained
from graspcl.workspace.version import Version

KINDS = ("fruit", "tool", "animal", "car")
ASKED = [text for kind in KINDS for text in texts(kind, 900, 905)]


class Notes(Silent):
    """Progress that remembers what is noted."""

    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A workspace of three classes that was made once."""
    folder = tmp_path_factory.mktemp("made")
    data = table(folder / "first.csv", rows("fruit", "tool", "animal"))
    Workspace.new(folder / "shop", data, backbone="vector")
    return folder / "shop"


def stored(shop):
    with Store.open(shop.folder) as store:
        return Version.load(store)


def number(shop):
    with Store.open(shop.folder) as store:
        return store.head.number


def test_what_was_learned_is_predicted_by_name(shop):
    assert shop.classes == ["fruit", "tool", "animal"]
    assert shop.predict(texts("tool", 900, 905)).names == ["tool"] * 5


def test_new_classes_are_added_to_old_ones(shop, tmp_path):
    result = shop.learn(table(tmp_path / "week.csv", rows("car", "fruit", begin=40, end=80)))
    assert result.added == {"car": 40, "fruit": 40} and result.held == 8
    assert set(result.changed) == {"animal", "fruit", "tool"} and set(result.new) == {"car"}
    assert shop.classes == ["fruit", "tool", "animal", "car"]
    assert shop.predict(ASKED).names == ["fruit"] * 5 + ["tool"] * 5 + ["animal"] * 5 + ["car"] * 5
    assert [entry["verb"] for entry in shop.history] == ["new", "learn"]


def test_samples_come_from_python_too(shop):
    assert shop.learn(texts("car", 0, 20), ["car"] * 20).added == {"car": 20}
    assert shop.predict(texts("car", 900, 903)).names == ["car"] * 3


def test_columns_of_a_table_are_named(shop, tmp_path):
    file = tmp_path / "odd.csv"
    file.write_text("a,b,c\n" + "".join(f"{text},car,{number}\n" for number, text in enumerate(texts("car", 0, 8))))
    with pytest.raises(GraspError, match="set --text NAME and --label NAME"):
        shop.learn(file)
    assert shop.learn(file, text="a", label="b", updates=1).added == {"car": 8}


def test_labels_are_names(shop):
    with pytest.raises(GraspError, match="the names of classes are text, got 3"):
        shop.learn(["a text"], [3])
    with pytest.raises(GraspError, match=r"give one class for each sample: \['car', …\]"):
        shop.learn(texts("car", 0, 3), "car")
    with pytest.raises(GraspError, match="a class needs a name"):
        shop.learn(["a text"], [""])


def test_probabilities_are_bitwise_equal_from_another_folder_and_process(shop, tmp_path):
    shop.learn(texts("car", 0, 20), ["car"] * 20)
    found = shop.predict(ASKED).probabilities
    shutil.copytree(shop.folder, tmp_path / "elsewhere" / "copy")
    program = (
        "import sys, numpy as np; from graspcl import Workspace\n"
        "found = Workspace.open(sys.argv[1]).predict(sys.argv[3:])\n"
        "np.save(sys.argv[2], found.probabilities)"
    )
    file = tmp_path / "found.npy"
    subprocess.run([sys.executable, "-c", program, tmp_path / "elsewhere" / "copy", file, *ASKED], check=True)
    assert np.array_equal(np.load(file), found)


def test_undo_brings_back_the_predictions_of_before(shop):
    found = [shop.predict(ASKED).probabilities]
    for kind in ("car", "music"):
        shop.learn(texts(kind, 0, 20), [kind] * 20)
        found.append(shop.predict(ASKED).probabilities)
    for before in (found[1], found[0]):
        assert shop.undo()["verb"] == "learn"
        assert np.array_equal(shop.predict(ASKED).probabilities, before)
    assert shop.classes == ["fruit", "tool", "animal"]
    with pytest.raises(GraspError, match="nothing to undo"):
        shop.undo()


def test_only_the_last_changes_are_kept(shop, monkeypatch):
    monkeypatch.setattr("graspcl.workspace.version.UNDOABLE", 1)
    for kind in ("car", "music"):
        shop.learn(texts(kind, 0, 6), [kind] * 6, updates=1)
    assert shop.status().undoable == 1 and len(shop.history) == 3
    with Store.open(shop.folder) as store:
        named = {name for version in store.versions() for name in re.findall("object:([0-9a-f]+)", str(version))}
    assert {file.stem for file in (shop.folder / "objects").rglob("*.safetensors")} == named
    shop.undo()
    with pytest.raises(GraspError, match="only the last 3 changes can be undone"):
        shop.undo()
    assert shop.classes == ["fruit", "tool", "animal", "car"]


def test_a_learn_writes_no_copy_of_what_was_stored(shop):
    def segments():
        with Store.open(shop.folder) as store:
            return store.head.manifest["segments"]

    before = segments()
    shop.learn(texts("car", 0, 20), ["car"] * 20)
    after = segments()
    assert after[: len(before)] == before and [one["samples"] for one in after[len(before) :]] == [20]


def test_a_full_memory_stays_within_its_size(tmp_path, monkeypatch):
    """Codes are made smaller, samples of the largest class make room, and segments do not keep what is gone."""
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    notes = Notes()
    data = table(tmp_path / "first.csv", rows("fruit", "tool", "animal", end=60))
    shop = Workspace.new(tmp_path / "shop", data, backbone="vector", memory="40KB", progress=notes)
    assert any(line.startswith("codec = auto: 180 samples take 0.1 MB") for line in notes.lines)
    for kind in ("car", "music"):
        shop.learn(texts(kind, 0, 60), [kind] * 60, updates=2)
        version = stored(shop)
        live = len(version.buffer) + len(version.held)
        assert version.buffer.nbytes <= 40_000 and np.ptp(version.buffer.sizes) <= 2
        assert live <= sum(one["samples"] for one in version.segments) <= live / (1 - 0.3)
    asked = [*ASKED, *texts("music", 900, 905)]
    assert shop.evaluate(asked, [kind for kind in (*KINDS, "music") for _ in range(5)]).overall.points >= 90
    assert {one.name: one.seen for one in shop.status().classes} == dict.fromkeys((*KINDS, "music"), 60)
    again = shop.learn(texts("fruit", 0, 60), ["fruit"] * 59 + ["tool"])  # most of them were evicted
    assert (again.samples, again.duplicates, len(again.contradictions)) == (0, 59, 1)


def test_a_codec_that_costs_hardly_any_accuracy_is_used_where_it_fits(tmp_path, monkeypatch):
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    data, notes = table(tmp_path / "first.csv", rows("fruit", "tool", "animal", end=60)), Notes()
    shop = Workspace.new(tmp_path / "shop", data, backbone="vector", memory="120KB", updates=2, progress=notes)
    assert shop.config.codec.name == "int8"
    said = "codec = int8: 180 samples take 0.1 MB in half and 0.1 MB in int8, for a memory of 120KB"
    assert said in notes.lines


def test_held_out_samples_pass_through_the_network_once(shop, monkeypatch):
    version = stored(shop)
    codes, outputs, asked = torch.from_numpy(version.held.codes), type(version.learner).outputs, []
    expected = version.learner.outputs(codes, "logits")
    monkeypatch.setattr(
        type(version.learner), "outputs", lambda self, *given: asked.append(len(given[0])) or outputs(self, *given)
    )
    assert torch.equal(version.logits(), expected)
    assert version.accuracy() == version.right().mean() and version.calibration().samples == len(codes)
    assert asked == [len(codes)]
    version.retrained()
    assert torch.equal(version.logits(), expected) and asked == [len(codes)] * 2


def test_no_session_begins_with_a_pass_over_the_memory(shop):
    shop.learn(texts("car", 0, 20), ["car"] * 20)
    assert stored(shop).learner.rehearse(Budget(2, 10)).costs.selection_forward == 0


def test_duplicates_are_counted_and_contradictions_are_left_out(shop):
    known, new = texts("fruit", 0, 3), texts("car", 0, 8)
    result = shop.learn([*known, *new, new[0]], ["fruit", "fruit", "tool", *["car"] * 9])
    assert result.added == {"car": 8} and result.duplicates == 3
    told = f"{known[2]!r} is given as 'tool', but was learned as 'fruit' (id {shop.ids(known)[2]:016x}): left out"
    assert result.contradictions == [told]


def test_samples_that_contradict_each_other_are_all_left_out(shop):
    new, music = texts("car", 0, 9), texts("music", 0, 1)
    given = [*new[:8], *music, new[3], new[3]]
    result = shop.learn(given, [*["car"] * 8, "music", "music", "car"], updates=1)
    assert result.added == {"car": 7, "music": 1} and result.duplicates == 0
    told = f"{new[3]!r} is given as 'car', and {new[3]!r} with the same content as 'music'"
    assert result.contradictions == [f"{told}: these and 1 more with it are left out"]
    version = stored(shop)
    assert shop.ids([new[3]])[0] not in {*version.buffer.ids.tolist(), *version.held.ids.tolist()}
    assert shop.status().history[-1]["contradictions"] == 1


def test_a_class_without_a_sample_that_is_certain_does_not_exist(tmp_path):
    """The first data have every text of one class also in another one."""
    same = [("music", text) for _, text in rows("tool", end=3)]
    data = table(tmp_path / "first.csv", [*rows("fruit", "tool", "animal", end=12), *same])
    shop = Workspace.new(tmp_path / "shop", data, backbone="vector", updates=1)
    assert shop.classes == ["fruit", "tool", "animal"] and len(shop.made.contradictions) == 3
    assert shop.made.added == {"fruit": 12, "tool": 9, "animal": 12}
    again = shop.learn(texts("tool", 0, 1), ["tool"], updates=1)
    assert again.added == {"tool": 1}


def test_nothing_new_changes_nothing(shop):
    before = number(shop)
    result = shop.learn(texts("fruit", 0, 5), ["fruit"] * 5)
    assert (result.samples, result.duplicates, result.trained.updates) == (0, 5, 0)
    assert number(shop) == before


def test_held_out_samples_are_never_trained_and_stay_held_out(shop):
    first = stored(shop)
    assert len(first.held) == 12 and not set(first.held.ids) & set(first.buffer.ids.tolist())
    shop.learn(texts("fruit", 40, 90), ["fruit"] * 50)
    later = stored(shop)
    assert set(first.held.ids) <= set(later.held.ids) and not set(later.held.ids) & set(later.buffer.ids.tolist())
    assert len(later.held) == 12 + 5


def test_a_learn_that_makes_a_class_fall_is_refused(shop):
    """A new class is the same as an old one and more frequent, so most of the old one is taken for it."""
    more = texts("fruit", 100, 1000)
    shop.learn(more[:300], ["fruit"] * 300, updates=1)
    before, found, same = number(shop), shop.predict(ASKED).probabilities, more[300:]
    with pytest.raises(Refused, match=r"nothing was changed: 'fruit' would fall from .* use --accept") as refused:
        shop.learn(same, ["berry"] * len(same))
    assert refused.value.result.fallen == ["fruit"]
    assert number(shop) == before and np.array_equal(shop.predict(ASKED).probabilities, found)
    shop.learn(same, ["berry"] * len(same), accept=True)
    assert number(shop) == before + 1
    warnings = shop.status().warnings
    assert any("'fruit' fell beyond chance" in line for line in warnings)
    assert any("'fruit' is confused with the new class 'berry'" in line for line in warnings)
    shop.rename("fruit", "food")
    shop.rename("berry", "dessert")
    assert shop.status().warnings == [
        line.replace("'fruit'", "'food'").replace("'berry'", "'dessert'") for line in warnings
    ]
    shop.merge("dessert", "food")
    assert not any("confused" in line for line in shop.status().warnings)
    shop.undo()
    shop.learn(texts("car", 0, 20), ["car"] * 20, updates=1)
    assert not any("confused" in line or "accepted" in line for line in shop.status().warnings)


def test_classes_with_few_held_out_samples_are_tested_together(shop, monkeypatch):
    """Training ruins the head. Each class has four held-out samples, too few for a test of its own."""

    def ruin(version, *others, **options):
        learner = version.learner
        learner.predict_codes(learner.buffer["codes"][:1])  # solves the head
        learner.network.head.weight.zero_()
        learner.network.head.bias.zero_()[0] = 1
        return Trained(0, 0.0, "ruined")

    monkeypatch.setattr("graspcl.workspace.learning.train", ruin)
    before = number(shop)
    with pytest.raises(Refused, match=r"the earlier classes would fall from 100 % \(12 of 12\) to 33 % \(4 of 12\)"):
        shop.learn(texts("fruit", 40, 44), ["fruit"] * 4)
    assert number(shop) == before
    result = shop.learn(texts("fruit", 40, 44), ["fruit"] * 4, accept=True)
    assert result.all_fell and not result.fallen
    assert any("the earlier classes together fell beyond chance" in line for line in shop.status().warnings)


def test_a_number_of_updates_is_kept(shop):
    result = shop.learn(texts("car", 0, 20), ["car"] * 20, updates=2)
    assert (result.trained.updates, result.trained.reason) == (2, "the given number of updates")


def test_without_held_out_samples_no_accuracy_is_spoken_of(tmp_path):
    data = table(tmp_path / "first.csv", rows("fruit", "tool", end=4))
    made = Workspace.new(tmp_path / "shop", data, backbone="vector").made
    assert made.held == 0 and made.trained.reason == "no sample is held out, so nothing tells whether more would help"


def test_a_budget_that_is_over_still_learns_the_class(shop):
    result = shop.learn(texts("car", 0, 20), ["car"] * 20, budget="0.001s")
    assert (result.trained.updates, result.trained.reason) == (0, "there was no time left to train")
    assert shop.predict(texts("car", 900, 903)).names == ["car"] * 3


def test_a_budget_may_be_a_number_of_seconds(shop):
    assert shop.learn(texts("car", 0, 20), ["car"] * 20, budget=0.001).trained.updates == 0
    for wrong in (0, -1, float("nan"), True, [5], "5 weeks"):
        with pytest.raises(GraspError, match="a budget is a time such as 90s, 2min or 1h, got"):
            shop.learn(["a text"], ["car"], budget=wrong)


@pytest.mark.parametrize("inputs", [None, 5, np.array("a text")])
def test_what_is_no_list_is_not_predicted(shop, inputs):
    for use in (shop.predict, shop.ids):
        with pytest.raises(GraspError, match="takes a list of texts, got"):
            use(inputs)


def test_a_workspace_that_may_not_be_read_is_not_called_damaged(shop, monkeypatch):
    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("graspcl.objects.open_regular", forbidden)
    for use in (lambda: shop.predict(["a text"]), shop.status, shop.verify):
        with pytest.raises(GraspError, match=r"may not be read \(Permission denied\): change its permissions$"):
            use()


def learn_and_damage(shop, part):
    """Learn a class, then cut the file of a part of the new version; return its name."""
    shop.learn(texts("car", 0, 20), ["car"] * 20, updates=1)
    with Store.open(shop.folder) as store:
        name = np.ravel(store.head.manifest[part])[-1].removeprefix("object:")
    (file,) = shop.folder.rglob(f"{name}*")
    file.write_bytes(file.read_bytes()[:-1])
    return name


def test_a_damaged_version_is_not_used(shop):
    """The version before it predicts, and nothing is written."""
    before = shop.predict(ASKED).probabilities
    name = learn_and_damage(shop, "network")
    notes = Notes()
    again = Workspace.open(shop.folder, progress=notes)
    assert np.array_equal(again.predict(ASKED).probabilities, before)
    assert name in notes.lines[0] and "predicting as before the change of" in notes.lines[0]
    with pytest.warns(UserWarning, match=f"{name}.*predicting as before the change of"):
        Workspace.open(shop.folder).predict(ASKED)
    with pytest.raises(GraspError, match=f"{name}.*take the last change back with `graspcl undo`"):
        again.learn(texts("music", 0, 20), ["music"] * 20)
    assert [name in line for line in again.verify()] == [True]
    assert again.undo()["verb"] == "learn"
    assert again.verify() == []  # nothing that can be reached is damaged
    again.learn(texts("music", 0, 20), ["music"] * 20, updates=1)
    assert again.verify() == []


def test_a_change_whose_history_is_damaged_is_taken_back(shop):
    before = shop.predict(ASKED).probabilities
    name = learn_and_damage(shop, "history")
    with pytest.raises(GraspError, match=f"{name}.*take the last change back with `graspcl undo`"):
        shop.status()
    told = shop.undo()
    assert (told["verb"], told["samples"]) == ("learn", 20)
    assert np.array_equal(shop.predict(ASKED).probabilities, before) and len(shop.history) == 1


@pytest.mark.parametrize(
    ("read", "place", "function"),
    [
        (lambda shop: shop.predict(texts("fruit", 900, 903)).names, memory, "new_network"),
        (lambda shop: shop.status().classes[0].seen, overview, "history_of"),
        (lambda shop: shop.history[0]["verb"], History, "_read"),
        (Workspace.verify, Objects, "faults"),
    ],
)
def test_a_change_while_a_reader_reads_is_no_damage(shop, monkeypatch, read, place, function):
    """The reader has the journal of before, and what that names is removed before it is read."""
    shop.learn(texts("car", 0, 12), ["car"] * 12, updates=1, accept=True)
    expected = read(Workspace.open(shop.folder))
    original, waiting = getattr(place, function), [lambda: Workspace.open(shop.folder).forget("car")]

    def late(*given):
        while waiting:
            waiting.pop()()
        return original(*given)

    monkeypatch.setattr(place, function, late)
    with warnings.catch_warnings(action="error"):
        assert read(Workspace.open(shop.folder)) == expected and not waiting


@pytest.mark.slow
def test_readers_find_no_damage_while_another_process_forgets_and_learns(shop):
    program = [sys.executable, Path(__file__).with_name("endless_learning.py"), shop.folder, "0", "forget"]
    found, until = 0, time.monotonic() + 20
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as child, warnings.catch_warnings(action="error"):
        try:
            assert child.stdout.readline() == "open\n"
            while time.monotonic() < until:
                reader = Workspace.open(shop.folder)
                assert reader.predict(texts("fruit", 900, 903)).names == ["fruit"] * 3
                assert reader.verify() == [] and reader.status().bytes and reader.history[0]["verb"] == "new"
                found += 1
            assert child.poll() is None
        finally:
            child.kill()
    assert found > 10 and len(shop.history) > 10


def test_a_workspace_that_was_made_again_is_predicted_with(shop, tmp_path):
    """Its versions have the same numbers as those of the workspace before it."""
    assert shop.classes == ["fruit", "tool", "animal"]
    data = table(tmp_path / "first.csv", rows("car", "music", end=12))
    shutil.rmtree(shop.folder)
    Workspace.new(shop.folder, data, backbone="vector", updates=1)
    assert shop.classes == ["car", "music"] and set(shop.predict(texts("music", 0, 2)).names) == {"music"}


def test_two_writers(shop):
    with (
        Store.open(shop.folder, write=True),
        pytest.raises(GraspError, match="is being written by process"),
    ):
        shop.learn(texts("car", 0, 20), ["car"] * 20)
    assert shop.classes == ["fruit", "tool", "animal"]


def test_a_read_only_workspace_predicts(shop):
    found = shop.predict(ASKED).probabilities
    (shop.folder / RECENT).unlink()
    places = [shop.folder, *shop.folder.rglob("*")]
    for place in places:
        place.chmod(stat.S_IRUSR | (stat.S_IXUSR if place.is_dir() else 0))
    try:
        assert np.array_equal(Workspace.open(shop.folder).predict(ASKED).probabilities, found)
        if os.geteuid():
            assert not (shop.folder / RECENT).exists()
    finally:
        for place in places:
            place.chmod(stat.S_IRWXU)


def test_inputs_unlike_what_was_learned_are_noticed(shop):
    kinds = ("fruit", "tool", "animal")
    shop.learn([text for kind in kinds for text in texts(kind, 100, 300)], [kind for kind in kinds for _ in range(200)])
    shop.predict([text for kind in kinds for text in texts(kind, 900, 920)])
    assert not shop.status().drift.found
    (shop.folder / RECENT).unlink()
    shop.predict(texts("music", 0, 60))
    status = shop.status()
    assert status.drift.found and status.drift.number == 60
    assert any("looks unlike what was learned" in line for line in status.warnings)
    known, new = stored(shop).logits(), shop.predict(texts("car", 0, 40)).scores
    result = shop.learn(texts("car", 0, 40), ["car"] * 40, updates=1)
    assert result.novelty == pytest.approx(auroc(score(known), new), abs=0.02)  # four are held out
    assert shop.history[-1]["novelty"] == result.novelty and shop.history[-2]["novelty"] is None
    assert shop.status().drift is None  # another version predicted


def test_evaluate(shop):
    shop.learn(texts("car", 0, 40), ["car"] * 40)
    asked = [*texts("car", 500, 510), *texts("fruit", 500, 510), *texts("music", 500, 510)]
    found = shop.evaluate(asked, ["car"] * 10 + ["tool"] * 10 + ["music"] * 10)
    assert tuple(found.overall) == (10, 20) and tuple(found.classes["tool"]) == (0, 10)
    assert found.confused == [("tool", "fruit", 10)]
    assert found.foreign.number == 10 and found.calibration_error > 0.3
    assert 0 <= found.auroc <= 1
    with pytest.raises(GraspError, match="there are no samples to evaluate"):
        shop.evaluate([], [])


def test_a_data_set_of_one_class_is_no_classifier(tmp_path):
    with pytest.raises(GraspError, match="at least two classes, and one has 1"):
        Workspace.new(tmp_path / "shop", table(tmp_path / "one.csv", rows("fruit")), backbone="vector")
    assert not (tmp_path / "shop").exists()


def test_mistakes_are_told_before_anything_is_encoded(tmp_path, shop, monkeypatch):
    data = table(tmp_path / "first.csv", rows("fruit", "tool"))
    monkeypatch.setattr("graspcl.workspace.workspace.new_version", None)
    with pytest.raises(GraspError, match="is not empty"):
        Workspace.new(tmp_path, tmp_path / "nosuch.csv")
    with pytest.raises(GraspError, match="memory is a size such as '500MB', got 1000"):
        Workspace.new(tmp_path / "new", data, memory=1000)
    with pytest.raises(GraspError, match="a budget is a time"):
        Workspace.new(tmp_path / "new", tmp_path / "nosuch.csv", budget="soon")
    with pytest.raises(GraspError, match="at least two classes"):
        Workspace.new(tmp_path / "new", table(tmp_path / "one.csv", rows("fruit")), backbone="vector")
    monkeypatch.setattr(Workspace, "_current", None)
    with pytest.raises(GraspError, match=r"export writes .onnx or .safetensors"):
        shop.export("model.txt")
    assert data.exists() and not (tmp_path / "new").exists()


def test_a_new_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise GraspError("no more")

    data = table(tmp_path / "first.csv", rows("fruit", "tool"))
    monkeypatch.setattr("graspcl.workspace.workspace.learn", fail)
    with pytest.raises(GraspError, match="no more"):
        Workspace.new(tmp_path / "shop", data, backbone="vector")
    assert not (tmp_path / "shop").exists()


def test_data_that_do_not_fit_are_named_as_they_were_given(shop, tmp_path):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    with pytest.raises(GraspError, match=r"^nosuch: there is no such folder or file"):
        shop.learn("nosuch")
    with pytest.raises(GraspError, match=r"the workspace learns texts, and .*photos has none; give a table"):
        shop.learn(tmp_path / "photos")


def test_mistakes_name_the_options_of_a_workspace(shop, tmp_path):
    first = table(tmp_path / "first.csv", rows("fruit", "tool", end=5))
    with pytest.raises(GraspError, match=r"no column 'txt'.* Choose a column with --text NAME"):
        shop.learn(first, text="txt")
    with pytest.raises(GraspError, match=r"^--pixels would do nothing: the network reads texts"):
        Workspace.new(tmp_path / "new", first, pixels=64)
    with pytest.raises(GraspError, match=r"no folder nosuch, .* give --backbone FOLDER, or leave --backbone out"):
        Workspace.new(tmp_path / "new", first, backbone="nosuch")


def test_samples_that_can_all_not_be_read_are_an_error(shop):
    with pytest.raises(GraspError, match="no sample can be used: empty text"):
        shop.learn(["", " "], ["fruit", "tool"])
    assert shop.learn(["", *texts("fruit", 0, 1)], ["fruit", "fruit"]).problems == ["empty text"]


def test_weights_that_are_not_finite_are_refused(shop):
    before = number(shop)
    with Store.open(shop.folder, write=True) as store:
        version = Version.load(store)
        version.learner.network.head.weight[0, 0] = float("nan")
        with pytest.raises(GraspError, match=r"nothing was changed: training ended with NaN .* in head.weight"):
            version.save(store, "learn", {})
        weights = store.get(store.head.manifest["network"])
        weights["head.weight"][0, 0] = float("nan")
        store.commit("learn", {}, {**store.head.manifest, "network": store.put(weights)})
    with pytest.raises(GraspError, match=r"cannot predict: NaN or infinite weights in head.weight; use `graspcl undo`"):
        Workspace.open(shop.folder).predict(ASKED)
    shop.undo()
    assert number(shop) == before and shop.predict(ASKED).names[0] == "fruit"


def test_texts_of_a_transformer_are_learned_and_kept(tmp_path):
    pytest.importorskip("transformers", reason="needs graspcl[text]")
    shop = Workspace.new(tmp_path / "shop", table(tmp_path / "first.csv", rows("fruit", "tool", end=12)), updates=1)
    shop.learn(texts("car", 0, 12), ["car"] * 12, updates=1, accept=True)
    again = Workspace.open(tmp_path / "shop")
    assert again.verify() == [] and again.classes == ["fruit", "tool", "car"]
    assert np.array_equal(shop.predict(ASKED).probabilities, again.predict(ASKED).probabilities)
    assert len(stored(again).buffer) + len(stored(again).held) == 36
