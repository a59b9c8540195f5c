"""`graspcl encode`: several processes, SIGKILL, ranks, archives, damaged images, and runs that read the codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from killing import make_photos

from graspcl.errors import GraspError
from graspcl.experiment import make_workers
from graspcl.experiment.encode import encode
from graspcl.integrity import read_arrays
from graspcl.progress import Silent
from graspcl.settings import preset

PLUGIN = Path(__file__).with_name("encode_plugin.py")
NETWORK = ["--network", "mobilenet_v3_large", "--network.split", "7", "--data.pixels", "32", "--codec", "half"]
SETTINGS = [*NETWORK, "--stream.base_classes", "2", "--stream.sessions", "2", "--buffer", "40"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """72 images, of which two are damaged."""
    folder = make_photos(tmp_path_factory.mktemp("data") / "photos")
    (folder / "train" / "bee" / "3.png").write_bytes(b"no image")
    whole = (folder / "val" / "fox" / "1.png").read_bytes()
    (folder / "val" / "fox" / "1.png").write_bytes(whole[: len(whole) // 2])
    return folder


def call(place: Path, *command: str, launcher: tuple[str, ...] = (), **environment: str) -> tuple[int, str]:
    """The exit code and output of `graspcl COMMAND`, with its own cache below `place`."""
    own = {"GRASPCL_CACHE": str(place / "cache"), "LOG": str(place / "log"), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, *launcher, "-m", "graspcl", *command, "--plugin", str(PLUGIN)]
    done = subprocess.run(
        program, capture_output=True, text=True, env={**os.environ, **own, **environment}, cwd=place, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


def computed(place: Path) -> list[tuple[str, ...]]:
    """Process, kind, key and name of each file of rows that was written."""
    return [tuple(line.split()) for line in (place / "log").read_text().splitlines()]


def rows(place: Path, kind: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (place / "cache" / kind).rglob("*.npz")}


@pytest.fixture(scope="module")
def alone(photos, tmp_path_factory) -> Path:
    """The cache of one process that was never stopped."""
    place = tmp_path_factory.mktemp("alone")
    code, output = call(place, "encode", str(photos), *SETTINGS, "--workers", "1", DIRECT="1")
    assert code == 0, output
    return place


def test_damaged_images_are_found_and_listed(alone, photos):
    assert len(rows(alone, "codes")) == 5 and not (alone / "cache" / "readable").exists()  # no pass of their own
    (file,) = (alone / "cache" / "problems").iterdir()
    first, second = json.loads(file.read_text())
    assert "train/bee/3.png cannot be read: it is not an image" in first and "val/fox/1.png cannot be read" in second
    kept = sum(len(read_arrays(path)["kept"]) for path in (alone / "cache" / "codes").rglob("*.npz"))
    assert kept == 70


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_an_error(photos, tmp_path):
    (tmp_path / "cache").write_text("no folder")
    code, output = call(tmp_path, "encode", str(photos), *SETTINGS, "--workers", "1")
    assert code == 2 and "could not be written" in output and "Traceback" not in output, output
    assert "are encoded" not in output


def test_processes_share_the_work_and_resume_after_sigkill(alone, photos, tmp_path):
    command = ("encode", str(photos), *SETTINGS, "--workers", "2")
    code, output = call(tmp_path, *command, DIRECT="1", KILL="2")
    assert code == -signal.SIGKILL, output
    before = computed(tmp_path)
    assert before
    code, output = call(tmp_path, *command, DIRECT="1")
    assert code == 0 and "70 samples are encoded" in output and "2 problems, listed in" in output, output
    files = [what[1:] for what in computed(tmp_path)]
    assert len(files) == len({*files})  # nothing was computed twice
    assert rows(tmp_path, "codes") == rows(alone, "codes")
    code, output = call(
        tmp_path, "run", "images", "--data", str(photos), *SETTINGS, "--budget.passes", "0.1", DIRECT="1"
    )
    assert code == 0 and "encoding photos: read from the cache" in output, output
    assert [what[1:] for what in computed(tmp_path)] == files  # the run has computed no rows
    (listed,) = tmp_path.rglob("problems.json")
    assert len(json.loads(listed.read_text())) == 2


@pytest.mark.slow
def test_the_others_do_the_part_of_a_killed_process(alone, photos, tmp_path):
    code, output = call(tmp_path, "encode", str(photos), *SETTINGS, "--workers", "3", DIRECT="1", KILL="helper")
    assert code == 0 and "70 samples are encoded" in output, output
    assert output.count("a process was killed, perhaps for lack of memory; the others have done its part") == 1
    files = Counter(process for process, *_ in computed(tmp_path))
    assert sorted(files.values()) == [1, 4]  # of the first process, and of the other helper
    assert rows(tmp_path, "codes") == rows(alone, "codes")


def test_too_many_workers_are_refused():
    for use in (make_workers, lambda number: encode(preset("groceries"), Silent(), number)):
        with pytest.raises(GraspError, match="--workers must be at most 32, got 33"):
            use(33)


@pytest.mark.slow
def test_ranks_share_the_work(alone, photos, tmp_path):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    code, output = call(tmp_path, "encode", str(photos), *SETTINGS, launcher=launcher, DIRECT="1")
    assert code == 0 and output.count("70 samples are encoded") == 1, output
    files = [what[1:] for what in computed(tmp_path)]
    assert len(files) == len({*files}) and rows(tmp_path, "codes") == rows(alone, "codes")


@pytest.mark.slow
def test_base_training_checks_its_own_samples_alone(photos, tmp_path):
    training = ("--base.stages", "supervised(epochs=1,batch_size=8)", "--stream.order", "sorted")
    code, output = call(tmp_path, "encode", str(photos), *SETTINGS, *training, "--workers", "2")
    assert code == 0 and "2 problems, listed in" in output, output
    (checked,) = (tmp_path / "cache" / "readable").rglob("*.npz")
    kept = read_arrays(checked)["kept"]
    assert len(kept) == 15  # of ant and bee, with 8 images each
    assert len(rows(tmp_path, "codes")) == 5
