"""Runs under torchrun: the folder of one process, restarts after a death, and another number of ranks."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_shard_files import flip_last_byte
from worlds import free_port

from graspcl.experiment import RunFolder
from graspcl.integrity import read_arrays

PLUGIN = Path(__file__).with_name("clusters_plugin.py")
SETTINGS = (
    "--name small --data few_clusters --learner siesta --stream.kind class_incremental --stream.base_classes 2 "
    "--stream.sessions 2 --network vector(dim=16,hidden=32,embedding=24,dropout=0.2) --codec half --base.passes 2 "
    "--buffer 50 --budget.updates 12 --budget.batch_size 10 --checkpoint.seconds 0 --measure.drift 5"
)


SHARDED = ("--buffer.shards", "ranks")


def launch(place: Path, world: int, *options: str, kill: str = "", restarts: int = 0) -> tuple[int, str]:
    """The exit code and output of a run below `place`, by torchrun with `world` ranks; without it for `world` 0.

    Options replace those in `SETTINGS`; an empty value leaves one out.
    """
    settings = [*SETTINGS.split(), *options]
    given = dict(zip(settings[::2], settings[1::2], strict=True))
    command = ["-m", "graspcl", "run", "listings", *itertools.chain(*(pair for pair in given.items() if pair[1]))]
    command += ["--plugin", str(PLUGIN), "--out", str(place / "runs")]
    if world:
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(world), "--max-restarts", str(restarts)]
        command = [*torchrun, "--master-port", str(free_port()), "--monitor-interval", "0.1", *command]
    environment = {**os.environ, "GRASPCL_CACHE": str(place / "cache"), "KILL": kill, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, timeout=600)
    return done.returncode, done.stdout + done.stderr


def finish(place: Path, world: int, *options: str, **how) -> Path:
    code, output = launch(place, world, *options, **how)
    assert code == 0, output
    (config,) = (place / "runs").rglob("config.toml")
    return config.parent


def compare(one: Path, other: Path, tolerance: float) -> None:
    """The same plans by id, and the same weights and accuracies."""
    plans = sorted(file.name for file in (one / "plans").iterdir())
    assert plans == sorted(file.name for file in (other / "plans").iterdir()) and len(plans) == 2
    for plan in plans:
        a, b = (read_arrays(run / "plans" / plan) for run in (one, other))
        assert np.array_equal(a["ids"][a["picks"]], b["ids"][b["picks"]]), plan
    first, second = (RunFolder(run).load_checkpoint(pytest.fail) for run in (one, other))
    for name, value in first["learner"]["network"].items():
        assert np.allclose(value, second["learner"]["network"][name], rtol=tolerance, atol=tolerance), name
    mine, others = (state["learner"]["buffer"]["columns"] for state in (first, second))
    assert np.array_equal(mine["ids"], others["ids"])
    assert np.allclose(mine["codes"], others["codes"], rtol=tolerance, atol=tolerance)
    results = [json.loads((run / "summary.json").read_text())["alpha"] for run in (one, other)]
    assert results[0] == results[1]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    return finish(tmp_path_factory.mktemp("alone"), 0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    return finish(tmp_path_factory.mktemp("pair"), 2)


@pytest.mark.slow
def test_a_run_on_two_ranks_equals_a_run_of_one_process(alone, tmp_path):
    code, output = launch(tmp_path, 2)
    assert code == 0, output
    assert output.count("session 2 of 2: accuracy") == 1  # rank 0 alone prints
    (config,) = (tmp_path / "runs").rglob("config.toml")
    compare(alone, config.parent, 1e-5)
    assert {file.name for file in config.parent.iterdir()} == {file.name for file in alone.iterdir()}


@pytest.mark.slow
def test_heads_that_are_solved_from_sums_equal_those_of_one_process(tmp_path):
    """Each rank has sums of its own until a head is solved; rank 0 alone writes the state."""
    idle = ("--base.passes", "--buffer", "--budget.updates", "--budget.batch_size", "--measure.drift")
    options = ["--learner", "slda", *itertools.chain(*((name, "") for name in idle))]
    runs = [finish(tmp_path / str(world), world, *options) for world in (0, 2)]
    first, second = (RunFolder(run).load_checkpoint(pytest.fail)["learner"] for run in runs)
    assert np.allclose(first["head"]["weight"], second["head"]["weight"], rtol=1e-5, atol=1e-5)
    for part, moments in first["moments"].items():
        for name, value in moments.items():
            assert np.allclose(value, second["moments"][part][name]), name


@pytest.mark.slow
def test_draws_that_depend_on_rounding_are_refused_before_anything_is_prepared(tmp_path):
    code, output = launch(tmp_path, 2, "--policy", "max_loss")
    assert code == 1 and "set weighting=softmax (--policy.weighting softmax)" in output, output
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "options"), [(0, ()), (1, ()), (0, SHARDED), (1, SHARDED)])
def test_a_killed_rank_is_restarted_and_the_run_ends_the_same(pair, tmp_path, rank, options):
    code, output = launch(tmp_path, 2, *options, kill=f"{rank} step 25", restarts=1)
    assert code == 0, output
    assert "resuming from a checkpoint (session 2, update" in output
    (config,) = (tmp_path / "runs").rglob("config.toml")
    compare(pair, config.parent, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kill", "options", "there"),
    [
        ("1 shares 2", SHARDED, True),  # with codes of the first session
        ("0 shares 1", SHARDED, False),
        ("0 state 15", SHARDED, True),
        ("0 state 15", (), True),
    ],
)
def test_a_rank_killed_while_it_writes_a_checkpoint(pair, tmp_path, kill, options, there):
    code, output = launch(tmp_path, 2, *options, kill=kill, restarts=1)
    assert code == 0 and "exitcode: -9" in output, output
    assert ("resuming from a checkpoint (session" in output) == there, output
    (config,) = (tmp_path / "runs").rglob("config.toml")
    compare(pair, config.parent, 0)
    assert not [*config.parent.rglob("*.part")]


@pytest.mark.slow
def test_a_killed_rank_of_the_default_learner(tmp_path):
    for place in ("whole", "killed"):
        (tmp_path / place).mkdir()
    learner = ("--learner", "aligned", *SHARDED)
    whole = finish(tmp_path / "whole", 2, *learner)
    code, output = launch(tmp_path / "killed", 2, *learner, kill="1 step 30", restarts=1)
    assert code == 0 and "resuming from a checkpoint (session 2, update" in output, output
    (config,) = (tmp_path / "killed" / "runs").rglob("config.toml")
    compare(whole, config.parent, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "options"), [(0, ()), (1, ()), (0, SHARDED)])
def test_sigterm_on_one_rank_stops_all_with_a_checkpoint(pair, tmp_path, rank, options):
    never = ("--checkpoint.seconds", "100000")
    code, output = launch(tmp_path, 2, *options, *never, kill=f"{rank} term 24")
    assert code != 0 and "has lost the others" not in output, output
    (config,) = (tmp_path / "runs").rglob("config.toml")
    assert len([*config.parent.glob("checkpoints/*.safetensors")]) == 1, output
    code, output = launch(tmp_path, 2, *options, *never)
    assert code == 0 and "resuming from a checkpoint (session 2, update 4" in output, output
    compare(pair, config.parent, 0)


@pytest.mark.slow
def test_a_run_resumes_on_another_number_of_ranks(alone, tmp_path):
    """Killed on two ranks that share the buffer, resumed on three, killed again, and finished by one process."""
    code, output = launch(tmp_path, 2, *SHARDED, kill="1 step 16")
    assert code != 0 and "has lost the others" in output, output
    code, output = launch(tmp_path, 3, *SHARDED, kill="2 step 4")
    assert code != 0 and "resuming from a checkpoint (session 1, update" in output, output
    compare(alone, finish(tmp_path, 0), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("damaged", ["state", "codes"])
def test_ranks_resume_together_if_a_file_is_damaged(pair, tmp_path, damaged):
    """From the checkpoint before; or, if it is a file of codes, with these codes from the prepared data."""
    code, output = launch(tmp_path, 2, *SHARDED, kill="1 step 16")
    assert code != 0, output
    files = (tmp_path / "runs").rglob("0*.safetensors" if damaged == "state" else "codes/*/*.safetensors")
    file = max(files, key=lambda path: (path.stat().st_mtime_ns, path.name))
    flip_last_byte(file)
    code, output = launch(tmp_path, 2, *SHARDED)
    assert code == 0, output
    said = "trying the previous one" if damaged == "state" else "its codes are taken from the prepared data"
    assert output.count(said) == 1 and file.stem in output
    (config,) = (tmp_path / "runs").rglob("config.toml")
    compare(pair, config.parent, 0)


LEAVE = """
import os
import torch
from graspcl.distributed import joined

before = len(os.listdir("/proc/self/task"))
with joined() as ranks:
    ranks.any(True)
    weight = torch.ones(1, requires_grad=True)
    torch.optim.SGD([weight], 0.1).step()
    assert len(os.listdir("/proc/self/task")) > before
assert len(os.listdir("/proc/self/task")) == before
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts the threads of a process in /proc")
def test_a_process_that_leaves_the_ranks_has_none_of_their_threads():
    """A thread that was busy while Python shut down would abort it, although its work is done."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment = {**os.environ, **alone, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", LEAVE], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_rank_that_hangs_is_noticed(tmp_path):
    code, output = launch(tmp_path, 2, "--timeout", "5", kill="1 hang 5")
    assert code != 0
    assert "rank 0 of 2 has lost the others: one has died, or has not answered within the time-out" in output


@pytest.mark.slow
def test_a_rank_that_hangs_while_preparing_is_noticed(tmp_path):
    code, output = launch(tmp_path, 2, "--timeout", "10", kill="any prepare 1")
    said = "has made no progress for 10 seconds: end it if it hangs, or raise --timeout"
    assert code != 0 and said in output, output
