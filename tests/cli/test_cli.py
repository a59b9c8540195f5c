"""The command-line program, run as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def graspcl(*arguments, **changes):
    command = [str(Path(sys.executable).with_name("graspcl")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **changes)


def test_help_shows_the_commands_without_loading_torch():
    code = """
import sys
sys.argv = ["graspcl", "--help"]
from graspcl.cli import main
try:
    main()
except SystemExit:
    pass
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("demo", "policies", "bench"):
        assert command in done.stdout


def test_policies_lists_all_and_a_plugin():
    done = graspcl("policies", "--plugin", "examples/middle_first.py", cwd=ROOT, env=wide())
    assert done.returncode == 0, done.stderr
    for name in ("grasp", "uniform", "uniform_balanced", "mof", "hard_biased", "middle_first"):
        assert name in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("demo", "--policies", "graps"), "did you mean 'grasp'?"),
        (("demo", "--seedz", "3"), "Did you mean --seeds"),
        (("demo", "--seeds", "0"), "--seeds"),
        (("demmo",), "Did you mean"),
        (("bench", "speed"), "selection"),
        (("policies", "--plugin", "nowhere.py"), "no plugin file at nowhere.py"),
    ],
)
def test_a_mistake_is_answered_without_a_traceback(arguments, message, tmp_path):
    done = graspcl(*arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


def test_bench_gives_figures_to_a_program():
    done = graspcl("bench", "decode", "--json")
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert {figure["bench"] for figure in figures} == {"decode"}
    assert all({"what", "value", "bar", "ok"} <= figure.keys() for figure in figures)
    assert done.returncode == (0 if all(figure["ok"] for figure in figures) else 1)


def wide():
    return {**os.environ, "COLUMNS": "160"}
