"""Files of folders that others made: links and pipes are neither followed nor waited for, and damage is found."""

import io
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from graspcl import Buffer
from graspcl.cache import lock
from graspcl.cli import main
from graspcl.errors import GraspError
from graspcl.experiment import RunFolder, prepare
from graspcl.experiment.loggers import logged
from graspcl.experiment.tuning import draw_trials
from graspcl.objects import Objects
from graspcl.progress import Silent
from graspcl.report.read import read_run
from graspcl.settings import from_plain
from graspcl.settings.config import Config
from graspcl.settings.grid import parse_seeds
from graspcl.workspace.lock import hold
from graspcl.workspace.overview import RECENT, remember_scores
from graspcl.workspace.store import BACKUP, Store


def test_a_lock_that_is_a_link_or_a_pipe_is_refused_and_nothing_is_emptied(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link").symlink_to("precious")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(GraspError, match="cannot be written"):
            hold(tmp_path / name)
        with lock(tmp_path / name):  # work may be repeated, but goes on
            pass
    assert (tmp_path / "precious").read_text() == "precious"
    for _ in range(2):
        hold(tmp_path / "lock").close()
    assert (tmp_path / "lock").read_text().startswith('{"pid": ')


@pytest.mark.parametrize("name", ["buffer.json", "counts.npy", "codes.npy", "labels.npy", "row_checksums.npy"])
def test_a_pipe_in_the_folder_of_a_buffer_is_not_waited_for(tmp_path, name):
    buffer = Buffer(storage=tmp_path)
    buffer.insert(np.ones((4, 3), np.float32), np.zeros(4, np.int64))
    buffer.close()
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(GraspError, match="it is a pipe"):
        Buffer.open(tmp_path)


def test_a_pipe_among_the_notes_of_loggers_is_not_waited_for(tmp_path):
    (tmp_path / "logs").mkdir()
    os.mkfifo(tmp_path / "logs" / "wandb.json")
    assert logged(tmp_path, "wandb") == {}


@pytest.mark.parametrize("name", [RECENT, BACKUP])
def test_a_link_in_a_workspace_leads_nothing_to_be_overwritten(tmp_path, name):
    with Store.create(tmp_path / "shop", {}) as store:
        store.commit("new", {}, {})
        (tmp_path / "precious").write_text("precious")
        (tmp_path / "shop" / name).unlink(missing_ok=True)
        (tmp_path / "shop" / name).symlink_to(tmp_path / "precious")
        store.commit("learn", {}, {})
        remember_scores(tmp_path / "shop", np.ones(3), 1)
    assert (tmp_path / "precious").read_text() == "precious" and not (tmp_path / "shop" / name).is_symlink()


def test_a_link_in_a_run_folder_or_the_cache_leads_nothing_to_be_written(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "stream.npz").symlink_to(tmp_path / "made")
    RunFolder(tmp_path / "run").clear()  # as a run starts
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    start = from_plain({"name": "toys", "base": {"stages": ["weights(file=a)"]}})
    monkeypatch.setattr(prepare, "base_preset", lambda config: start)
    monkeypatch.setattr(prepare, "open_data", lambda config: [SimpleNamespace(fingerprint=lambda: "toys")])
    monkeypatch.setattr(prepare, "write_weights", lambda config, file, progress: file.write_text("weights"))
    file = Path(prepare._with_weights(start, Silent()).base.stages[0].parameters["file"])
    file.unlink()
    file.symlink_to(tmp_path / "made")
    prepare._with_weights(start, Silent())
    assert file.read_text() == "weights" and not file.is_symlink()
    assert not (tmp_path / "made").exists() and not (tmp_path / "run" / "stream.npz").is_symlink()


@pytest.mark.parametrize("target", ["nowhere", "link"])
def test_a_link_to_nothing_is_damage_of_a_run(tmp_path, target):
    (tmp_path / "config.toml").write_text("seed = 0")
    (tmp_path / "summary.json").write_text('{"alpha": 50.0}')
    assert read_run(tmp_path).problems == ()
    for name in ("predictions.npz", "metrics.jsonl"):
        (tmp_path / name).symlink_to(target if target == "nowhere" else name)
        assert any(problem.startswith(f"{name} cannot be read") for problem in read_run(tmp_path).problems)


def test_a_link_to_nothing_among_objects_is_removed(tmp_path):
    objects = Objects(tmp_path)
    kept = objects.put({"n": 1})
    dropped = objects.path(objects.put({"n": 2}))
    dropped.unlink()
    dropped.symlink_to("nowhere")
    objects.keep([kept])
    assert not dropped.is_symlink() and objects.get(kept) == {"n": 1}


def foreign(folder, *names):
    """Make files of other programs; return what finds those that are still there."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("precious")
    return lambda: [name for name in names if (folder / name).is_file()]


# Files and folders that look like objects, but are not called as objects are.
LIKE_OBJECTS = (
    "cat/1.jpg", "ab/1.jpg", "ab/notes.txt", f"ab/cd{'0' * 30}.safetensors", "ab/weights.safetensors",
    "ab/video.mp4.1.part", "ab/weights.safetensors.part", "cat/weights.safetensors.1.part", "notes.txt", "AB/1.jpg",
)  # fmt: skip


def test_objects_delete_nothing_that_is_not_theirs(tmp_path):
    left = foreign(tmp_path, *LIKE_OBJECTS)
    (tmp_path / "ab" / f"ab{'0' * 30}.safetensors.123.part").touch()  # of a killed process
    (tmp_path / "empty").mkdir()
    objects = Objects(tmp_path)
    kept, dropped = objects.put({"n": 1}), objects.put({"n": 2})
    objects.keep([kept])
    assert objects.fault(kept) == "" and objects.fault(dropped) == "is missing" and left() == [*LIKE_OBJECTS]
    assert not [*tmp_path.glob("ab/*.123.part")]
    objects.clear()
    assert objects.fault(kept) == "is missing" and left() == [*LIKE_OBJECTS] and (tmp_path / "empty").is_dir()
    assert not objects.path(kept).parent.exists()


@pytest.mark.parametrize("names", [
    ("objects/cat/1.jpg",), ("objects/1.jpg",), (f"objects/ab/ab{'0' * 30}.safetensors",), ("lock",),
    ("workspace.db-journal",), ("workspace.db",),
])  # fmt: skip
def test_a_folder_of_others_does_not_become_a_workspace(tmp_path, names):
    left = foreign(tmp_path, *names)
    with pytest.raises(GraspError, match="is not empty; choose another one"):
        Store.create(tmp_path, {})
    assert left() == [*names] and len([path for path in tmp_path.rglob("*") if path.is_file()]) == len(names)


@pytest.mark.parametrize("given", ["data/objects", "data/objects/"])
def test_photos_in_a_folder_called_objects_stay(tmp_path, given, monkeypatch, capsys):
    names = [f"{kind}/{number}.png" for kind in ("cat", "dog") for number in range(3)]
    left = foreign(tmp_path / "data" / "objects", *names)
    monkeypatch.chdir(tmp_path)
    for workspace in ("data", "data/."):
        with pytest.raises(SystemExit):
            main(["new", workspace, given])
        assert "is not empty" in capsys.readouterr().err
    assert left() == names and [path.name for path in (tmp_path / "data").iterdir()] == ["objects"]


def test_a_workspace_deletes_nothing_that_is_not_its_own(tmp_path):
    names = [f"objects/{name}" for name in LIKE_OBJECTS] + ["a.txt", "video.mp4.1.part", "workspace.db.old.part"]
    with Store.create(tmp_path / "shop", {}) as store:
        left = foreign(tmp_path / "shop", *names)
        for _ in range(2):
            store.commit("learn", {}, {"weights": store.put({"n": 1})}, keep=1)
        store.clean()
    assert left() == names
    with Store.create(tmp_path / "other", {}) as store:  # its first version fails
        left = foreign(tmp_path / "other", *names)
        store.put({"n": 1})
        store.discard()
    assert left() == names and {path.name for path in (tmp_path / "other").iterdir()} == {
        "objects", "a.txt", "video.mp4.1.part", "workspace.db.old.part"
    }  # fmt: skip


def test_a_half_made_workspace_is_used_again(tmp_path):
    """What processes leave that are killed while they make a folder, one step after the other."""
    shop = tmp_path / "shop"
    (shop / "objects").mkdir(parents=True)
    with Store.create(shop, {}) as store:
        store.discard()
    assert not shop.exists()
    (shop / "objects").mkdir(parents=True)
    (shop / "lock").touch()
    (shop / "workspace.db.123.part").write_bytes(b"half of it")
    Store.create(shop, {}).close()
    (shop / "workspace.backup").unlink()
    with Store.create(shop, {}) as store:
        store.put({"n": 1})
    with Store.create(shop, {}) as store:
        store.commit("new", {}, {})
        store.clean()
    assert {path.name for path in shop.iterdir()} == {"lock", "objects", "workspace.backup", "workspace.db"}
    assert not [path for path in (shop / "objects").rglob("*") if path.is_file()]


def test_a_run_deletes_nothing_that_is_not_its_own(tmp_path):
    names = [f"codes/{name}" for name in LIKE_OBJECTS] + ["video.mp4.1.part", "checkpoints/model.1.part"]
    left, folder = foreign(tmp_path, *names), RunFolder(tmp_path)
    (tmp_path / "metrics.jsonl.123.part").touch()
    assert folder.load_checkpoint(print) is None
    assert not (tmp_path / "metrics.jsonl.123.part").exists()
    folder.clear()
    folder.drop_checkpoints()
    assert left() == names


@pytest.mark.parametrize("name", ["progress.json", "failure.txt", "base/1.jpg"])
def test_a_folder_of_others_does_not_become_a_run(tmp_path, name):
    left = foreign(tmp_path, name)
    with pytest.raises(GraspError, match="files that do not belong to a run"), RunFolder(tmp_path).claim(Config()):
        pass
    assert left() == [name]


def test_what_stands_in_the_way_of_a_file_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(GraspError, match=r"it is a folder, not a regular file \(.*metrics\.jsonl\)$"):
        RunFolder(tmp_path).write_metrics([])


def test_trials_are_drawn_from_any_number_of_combinations():
    space = {f"s{place}": [*range(2000)] for place in range(12)}
    found = draw_trials(space, 50)
    assert len(found) == 50 and found[0].values == {} and found == draw_trials(space, 50)
    assert len({tuple(one.values.items()) for one in found}) == 50


@pytest.mark.parametrize("number", ["10001", "1000000000", "9" * 400])
def test_a_number_of_runs_that_could_not_be_listed_is_refused(number, capsys):
    with pytest.raises(GraspError, match="at most 10,000"):
        parse_seeds(number)
    with pytest.raises(SystemExit) as end:
        main(["tune", "listings", "--seeds", number])
    assert end.value.code == 2 and "Must be <= 10000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (lambda: torch.empty(2**60), "can't allocate memory"),
        (lambda: bytes(2**62), "use less data, a smaller buffer or fewer workers"),
    ],
)
def test_a_lack_of_memory_is_told_in_one_line(monkeypatch, capsys, raised, told):
    monkeypatch.setattr("graspcl.cli.app.app", lambda *given, **options: raised())
    monkeypatch.setattr("sys.stdout", io.StringIO())
    with pytest.raises(SystemExit) as end:
        main(["list"])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2 and line.startswith("graspcl: there is not enough memory: ") and told in line
