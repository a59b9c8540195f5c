"""What goes wrong in real life: full disks, damaged images, odd data, losses that run away."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killing import CLASSES, differences, make_photos, only_run
from made_up import Notes

from graspcl import cache
from graspcl.errors import GraspError
from graspcl.experiment import RunFolder, encoding, run
from graspcl.experiment.prepare import prepare
from graspcl.policy import policies
from graspcl.progress import Silent
from graspcl.settings import Config, change, from_plain
from graspcl.state import load_state

pytest.importorskip("PIL", reason="needs graspcl[images]")
pytest.importorskip("faiss", reason="needs graspcl[opq]")


@pytest.fixture
def photos(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    return make_photos(tmp_path / "photos")


def settings(photos: Path, **options: Any) -> Config:
    """A run on the images that takes a second; 'a__b' is the setting a.b."""
    plain = {
        "data": {"path": str(photos), "pixels": 32}, "network": {"name": "small", "dropout": 0.2}, "codec": "half",
        "stream": {"base_classes": 2, "sessions": 2, "chunk": 8}, "budget": {"updates": 4, "batch_size": 8},
        "optimiser": {"lr": 0.1}, "execution": {"device": "cpu"}, "checkpoint": {"seconds": 0},
    }  # fmt: skip
    return change(from_plain(plain), {name.replace("__", "."): value for name, value in options.items()})


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def end_state(folder: Path) -> dict[str, Any]:
    (path,) = (folder / "checkpoints").glob("*.safetensors")
    return load_state(path)


# -- the disk ---------------------------------------------------------------------------------------------------------

SMALL = ("--network small --codec half --data.pixels 32 --stream.base_classes 2 --stream.sessions 2 --stream.order "
         "random --data.classes 6 --base.stages supervised(epochs=2,batch_size=16,lr=0.05)")  # fmt: skip


@pytest.mark.parametrize(("room", "lacking"), [
    (2_000_000, "/checkpoints/000001.safetensors"),  # a checkpoint in a session has the network more than once
    (500_000, "/base/"),  # nor is there room for the trained network
])  # fmt: skip
def test_a_full_disk(driver, tmp_path, room, lacking):
    """One clear sentence; and once there is room, the same command goes on to the same end."""
    photos = make_photos(tmp_path / "photos")
    command = f"run imagenet-300 --scale smoke --data {photos} --checkpoint.seconds 0 {SMALL}"
    code, output = driver.run(command, tmp_path / "full", file_bytes=room)
    assert code == 2 and "Traceback" not in output, output
    (sentence,) = [line for line in output.splitlines() if line.startswith("graspcl: ")]
    assert lacking in sentence and sentence.endswith("cannot be written: File too large")
    assert not list((tmp_path / "full").rglob("*.part"))
    straight = driver.finish(command, tmp_path / "straight")
    assert differences(driver.finish(command, tmp_path / "full"), straight) == []


def test_a_disk_that_is_full_when_a_session_is_recorded(tmp_path, monkeypatch):
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    RunFolder(tmp_path).write_metrics([{"session": 1}])
    monkeypatch.setattr("os.replace", full)
    with pytest.raises(GraspError, match=f"the run folder {tmp_path} cannot be written: No space left on device"):
        RunFolder(tmp_path).write_metrics([{"session": 1}, {"session": 2}])
    assert metrics(tmp_path) == [{"session": 1}] and not [*tmp_path.glob("*.part")]


# -- images -----------------------------------------------------------------------------------------------------------

KINDS = {
    "latents": {},
    "latents beyond the cache": {"codec": "opq", "codec.codebooks": 4, "codec.size": 16, "codec.iterations": 1},
    "base training": {"base.stages": "supervised(epochs=1,batch_size=8)"},
    "veridical": {"rehearsal": "veridical"},
}


@pytest.mark.parametrize(("kind", "options"), KINDS.items(), ids=KINDS)
def test_unreadable_images_are_left_out_counted_and_listed(photos, tmp_path, monkeypatch, kind, options):
    if kind == "latents beyond the cache":
        monkeypatch.setattr(encoding, "_LATENTS", 0)
    damaged = {"train/ant/0.png": b"", "train/cod/5.png": b"no image", "val/dab/2.png": b"\x89PNG\r\n\x1a\n cut short"}
    for name, content in damaged.items():
        (photos / name).write_bytes(content)
    summary = run(change(settings(photos), options), tmp_path / "run")
    assert summary["unreadable_samples"] == 3 and summary["failed_sessions"] == 0
    problems = json.loads((tmp_path / "run" / "problems.json").read_text())
    assert len(problems) == 3
    assert all(any(name in problem and "cannot be read" in problem for problem in problems) for name in damaged)
    with np.load(tmp_path / "run" / "predictions.npz") as file:
        assert len(file["labels"]) == 23 and (file["predictions"][-1] >= 0).all()
    with np.load(tmp_path / "run" / "stream.npz") as file:
        assert len(file["base"]) + file["lengths"].sum() == 46


def test_unreadable_images_one_after_the_other(photos, tmp_path, monkeypatch):
    """All that a file of the cache would hold, and more than one class of them."""
    monkeypatch.setattr(cache, "_SHARD", 4)
    for name in ("bee", "emu"):
        for path in (photos / "train" / name).iterdir():
            path.write_bytes(b"")
    for beyond in (encoding._LATENTS, 0):
        monkeypatch.setattr(encoding, "_LATENTS", beyond)
        summary = run(settings(photos), tmp_path / f"run {beyond}")
        assert summary["unreadable_samples"] == 16
        with np.load(tmp_path / f"run {beyond}" / "predictions.npz") as file:
            assert len(np.unique(file["labels"])) == 4  # classes that never came are not tested


def test_nothing_that_can_be_read(photos, tmp_path):
    for path in photos.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(GraspError, match=r"none of the 72 samples of photos can be read: .*ant/0.png"):
        run(settings(photos), tmp_path / "run")


def test_a_class_with_one_sample(photos, tmp_path):
    for name in ("bee", "fox"):
        for path in sorted((photos / "train" / name).iterdir())[1:]:
            path.unlink()
    for options in ({}, {"stop__patience": 1, "stop__share": 0.9, "stop__every": 1}, {"rehearsal": "veridical"}):
        folder = tmp_path / f"run {len(options)} {options.get('rehearsal')}"
        assert run(settings(photos, **options), folder)["failed_sessions"] == 0
        plans = [np.load(folder / f"plans/session-{n}.npz") for n in (1, 2)]
        labels = np.concatenate([plan["labels"] for plan in plans])
        assert {1, 5} <= set(labels.tolist())  # the only sample is for learning, not held out


def test_a_class_with_one_sample_in_a_folder_without_a_split_is_never_tested(photos, tmp_path):
    for path in sorted((photos / "train" / "bee").iterdir())[1:]:
        path.unlink()
    assert run(settings(photos / "train"), tmp_path / "run")["unreadable_samples"] == 0
    with np.load(tmp_path / "run" / "predictions.npz") as file:
        assert sorted(set(file["labels"].tolist())) == [0, 2, 3, 4, 5]


def test_an_empty_class_folder_is_left_out_and_told_of(photos, tmp_path):
    (photos / "train" / "gnu").mkdir()
    notes = Notes()
    run(settings(photos), tmp_path / "run", notes)
    assert "class folders without images, left out: gnu" in notes
    (problem,) = json.loads((tmp_path / "run" / "problems.json").read_text())
    assert "left out: gnu" in problem
    assert json.loads((tmp_path / "run" / "classes.json").read_text()) == list(CLASSES)


@pytest.mark.parametrize("label", ["6", "-1", "gnu"])
def test_a_label_beyond_those_of_the_training_images(driver, tmp_path, label):
    photos = make_photos(tmp_path / "photos")
    lines = []
    for number, name in enumerate(CLASSES):
        for path in sorted((photos / "val" / name).iterdir()):
            path.rename(photos / "val" / f"{name}-{path.name}")
            lines.append(f"{name}-{path.name} {name if label == 'gnu' else number}")
        (photos / "val" / name).rmdir()
    lines[7] = f"{lines[7].split()[0]} {label}"
    (tmp_path / "val.txt").write_text("\n".join(lines))
    command = f"run imagenet-300 --scale smoke --data {photos} --data.val_mapping {tmp_path}/val.txt {SMALL}"
    code, output = driver.run(command, tmp_path / "run")
    assert code == 2 and "Traceback" not in output
    assert (": gnu" if label == "gnu" else f"the class {label}, but train has 6") in output
    lines[7] = f"{lines[7].split()[0]} {'bee' if label == 'gnu' else 1}"
    (tmp_path / "val.txt").write_text("\n".join(lines))
    driver.finish(command, tmp_path / "run")


def test_a_run_does_not_go_on_with_other_data(photos, tmp_path, monkeypatch):
    class Stop(Exception):
        pass

    def stop(*args: Any) -> None:
        raise Stop

    with monkeypatch.context() as patched, pytest.raises(Stop):
        patched.setattr("graspcl.experiment.folder.RunFolder.write_metrics", stop)
        run(settings(photos), tmp_path / "run")
    shutil.copy(photos / "train/ant/0.png", photos / "train/ant/one more.png")
    with pytest.raises(GraspError, match="cannot resume: its data, network or codec have changed"):
        run(settings(photos), tmp_path / "run")
    (photos / "train/ant/one more.png").unlink()
    assert run(settings(photos), tmp_path / "run")["failed_sessions"] == 0


# -- the cache --------------------------------------------------------------------------------------------------------

TRAINED = {"base__stages": "supervised(epochs=2,batch_size=8)"}


def test_what_another_run_left_in_the_cache_changes_nothing(photos, tmp_path, monkeypatch):
    """The network from the cache begins as the one that was trained just now: also its generators."""
    run(settings(photos, **TRAINED), tmp_path / "first")
    notes = Notes()
    run(settings(photos, policy="uniform", **TRAINED), tmp_path / "second", notes)
    assert "pretraining: read from the cache" in notes
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "other cache"))
    run(settings(photos, policy="uniform", **TRAINED), tmp_path / "alone")
    assert differences(tmp_path / "second", tmp_path / "alone") == []


def test_a_damaged_cache_is_made_anew(photos, tmp_path):
    config = settings(photos, codec="opq", codec__codebooks=4, codec__size=16, codec__iterations=1, **TRAINED)
    run(config, tmp_path / "first")
    damaged = [path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".npz", ".safetensors")]
    damaged += (tmp_path / "first" / "base").glob("*.safetensors")
    assert {path.parts[len(tmp_path.parts) + 1] for path in damaged} >= {"base", "codecs", "codes", "readable"}
    for path in damaged:
        path.write_bytes(path.read_bytes()[:50])
    notes = Notes()
    shutil.rmtree(tmp_path / "first" / "checkpoints")
    shutil.move(tmp_path / "first", tmp_path / "second")
    (tmp_path / "second" / "summary.json").unlink()
    run(config, tmp_path / "second", notes)
    assert sum(" again" in said or "is repeated" in said for said in notes.said) == 6
    run(config, tmp_path / "first")
    assert differences(tmp_path / "first", tmp_path / "second") == []


def test_a_codec_is_trained_once(photos, tmp_path, monkeypatch):
    """Training it with another number of threads gives other codes, and a run must go on with its own."""
    config = settings(photos, codec="opq", codec__codebooks=4, codec__size=16, codec__iterations=1)
    key = prepare(config, Silent()).key
    monkeypatch.setattr("graspcl.codec.opq.OPQ.fit", None)
    assert prepare(config, Silent()).key == key
    with pytest.raises(TypeError):
        prepare(change(config, {"seed": 1}), Silent())  # other base classes, so another codec


# -- losses that run away ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", ["siesta", "derpp", "gdumb", "finetune"])
@pytest.mark.parametrize("updates", [1, 4])
def test_a_session_that_diverges_is_given_up(photos, tmp_path, learner, updates):
    """Also where the last update of a session does it, of which no loss tells."""
    notes = Notes()
    options = {"learner": learner, "optimiser__lr": 1e20, "budget__updates": updates, "measure__drift": 4}
    summary = run(settings(photos, **options), tmp_path / "run", notes)
    assert summary["failed_sessions"] == 2 and summary["updates"] == 0 and summary["alpha"] is not None
    assert "session 1 is abandoned: the " in notes and "lower the learning rate (1e+20)" in notes
    for record in metrics(tmp_path / "run"):
        assert "lower the learning rate" in record["failed"] and record["accuracy"] is not None
    (base,) = (tmp_path / "run" / "base").glob("*.safetensors")
    before, after = load_state(base), end_state(tmp_path / "run")["learner"]
    for name in (name for name in before["network"] if name.startswith(("frozen.", "plastic."))):
        assert np.array_equal(before["network"][name], after["network"][name]), name
    assert before["rng"] == after["rng"]


@pytest.mark.parametrize("policy", policies.names())
def test_no_policy_stumbles_over_a_network_that_ran_away(small, tmp_path, policy):
    options = {"policy": policy, "optimiser.lr": 1e30, "base.passes": 0, "stream.sessions": 2}
    config = change(small, {**options, "stop.patience": 1000, "stop.every": 1})
    assert run(config, tmp_path / "run")["failed_sessions"] == 2
    accuracy = [record["accuracy"] for record in metrics(tmp_path / "run")]
    assert accuracy == [record["accuracy_before_rehearsal"] for record in metrics(tmp_path / "run")]


@pytest.mark.parametrize(("options", "message"), [
    ({"base__stages": "supervised(batch_size=8,lr=1e20)"}, "became nan in epoch 1; lower the learning rate (1e+20)"),
    ({"base__passes": 3, "optimiser__lr": 1e20}, "the loss became nan at update 1 of 6; lower the learning rate"),
])  # fmt: skip
def test_base_training_that_diverges_is_explained(photos, tmp_path, options, message):
    with pytest.raises(GraspError) as raised:
        run(settings(photos, **options), tmp_path / "run")
    assert message in str(raised.value)


def test_a_session_without_updates(photos, tmp_path):
    run(settings(photos, budget__updates=0), tmp_path / "run")
    assert [record["loss"] for record in metrics(tmp_path / "run")] == [None, None]
    text = (tmp_path / "run" / "metrics.jsonl").read_text() + (tmp_path / "run" / "summary.json").read_text()
    assert "NaN" not in text  # which is not JSON


# -- stopping early, measuring ----------------------------------------------------------------------------------------


def test_a_session_may_end_early_by_samples_that_are_never_rehearsed(photos, tmp_path):
    options = {"stop": "patience=1,every=1,share=0.3", "budget__updates": 30}
    summary = run(settings(photos, **options), tmp_path / "run")
    records = metrics(tmp_path / "run")
    assert summary["updates_saved"] > 0 and summary["updates"] + summary["updates_saved"] == 60
    assert [record["updates"] + record["updates_saved"] for record in records] == [30, 30]
    held = end_state(tmp_path / "run")["held"]["buffer"]["columns"]["ids"].tolist()
    with np.load(tmp_path / "run" / "stream.npz") as file:
        arrived, base = set(file["sessions"].tolist()), set(file["base"].tolist())
    assert 0 < len(held) < len(arrived) and set(held) <= arrived
    for number in (1, 2):
        with np.load(tmp_path / "run" / f"plans/session-{number}.npz") as plan:
            assert len(plan["picks"]) == records[number - 1]["updates"]
            assert not set(plan["ids"].tolist()) & set(held)
    assert set(plan_ids(tmp_path / "run", 2)) == (arrived | base) - set(held)  # the others are all there


def plan_ids(folder: Path, session: int) -> list[int]:
    with np.load(folder / f"plans/session-{session}.npz") as plan:
        return [int(number) for number in plan["ids"]]


def test_measuring_drift_does_not_change_the_training(photos, tmp_path):
    """Not even where the network has dropout."""
    for drift in (0, 6):
        run(settings(photos, measure__drift=drift), tmp_path / f"run {drift}")
    plain, measured = (end_state(tmp_path / f"run {drift}")["learner"] for drift in (0, 6))
    assert all(np.array_equal(plain["network"][name], measured["network"][name]) for name in plain["network"])
    first, second = ((tmp_path / f"run {drift}" / "predictions.npz").read_bytes() for drift in (0, 6))
    assert first == second
    with np.load(tmp_path / "run 6" / "drift.npz") as file:
        assert {name: len(curve) for name, curve in file.items()} == {
            "session_1": 4, "mse_1": 4, "session_2": 4, "mse_2": 4
        }  # fmt: skip


def test_drift_is_filed_under_its_session(photos, tmp_path):
    """Without base classes there is nothing old in the first one."""
    run(settings(photos, stream__base_classes=0, measure__drift=6), tmp_path / "run")
    with np.load(tmp_path / "run" / "drift.npz") as file:
        assert file.files == ["session_2", "mse_2"]
    assert ["drift_auc" in record for record in metrics(tmp_path / "run")] == [False, True]
    assert only_run(tmp_path) == tmp_path / "run"
