"""Learners without a policy in runs and sweeps: one run per seed, whatever the policies, that stores no samples."""

import io
import json
import tomllib

import pytest
from rich.console import Console

from graspcl.errors import GraspError
from graspcl.experiment import load_learner, make_workers, run, sweep
from graspcl.experiment.overview import class_picture
from graspcl.progress import Silent
from graspcl.report import sweep_table
from graspcl.settings import Config, change, preset
from graspcl.settings.grid import REFERENCES, grid

STATIC = ["ncm", "slda", "ranpac", "probe"]


def test_references_come_once_whatever_the_policies():
    found = grid(preset("listings"), "grasp,uniform,mof", seeds="2", updates="0.5x,1x", references="all")
    labels = [one.label for one in found if one.learner.name != "aligned"]
    assert labels == 2 * [*STATIC, "er_ace + uniform", "er_ace + uniform"]
    assert len(found) == 2 * (3 * 2 + 6) and len({one.path for one in found}) == len(found)
    other = grid(change(preset("listings"), {"optimiser.lr": 0.5}), "rainbow", seeds="2", references="all")
    paths = [{one.path for one in some if one.learner.name in STATIC} for some in (found, other)]
    assert paths[0] == paths[1]  # neither policy nor optimiser matter to them
    assert [one.buffer.capacity for one in found[6:10]] == [None, None, None, "20MB"]
    assert all(one.path.count("/") == 2 for one in found[6:10])
    assert [one.learner.name for one in grid(Config(), "grasp", "slda,siesta", references="none")] == ["slda", "siesta"]
    assert len(grid(Config(), "grasp,uniform", "slda", "1", "0.5x,1x", "5,6")) == 1
    assert REFERENCES.split(",") == [*STATIC, "er_ace"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learner": "ncm", "policy": "uniform"}, "--policy.name would do nothing: learner ncm does not rehearse"),
        ({"learner": "probe", "budget.updates": 5}, "learner probe does not rehearse"),
        ({"learner": "slda", "buffer": 50}, "--buffer.capacity would do nothing: learner slda stores no samples"),
        ({"learner": "ranpac", "base.passes": 1.0}, "learner ranpac does not rehearse"),
    ],
)
def test_settings_of_rehearsal_are_refused(options, message):
    with pytest.raises(GraspError, match=message):
        change(preset("listings"), options)
    assert change(preset("listings"), {"learner": "probe", "buffer": 50}).buffer.capacity == 50


def test_a_sweep_with_references(small, tmp_path):
    chosen = "ncm,slda,ranpac(dimensions=20),probe(strength=1.0),er_ace"
    configs = grid(small, "grasp,uniform_balanced", updates="0.2x", references=chosen)
    with make_workers(1) as here:
        outcome = sweep(configs, tmp_path, Silent(), here)
    assert not outcome.failed and len(outcome.finished) == 7
    found = {path.parts[-2 - config.rehearses]: path for path, config in zip(outcome.finished, configs, strict=True)}
    assert len([*(tmp_path / "small" / "base").glob("*.safetensors")]) == 2  # of the default learner and er_ace
    for name in ("ncm", "slda", "ranpac(dimensions=20)", "probe(strength=1.0)"):
        config = tomllib.loads((found[name] / "config.toml").read_text())
        summary = json.loads((found[name] / "summary.json").read_text())
        sessions = [json.loads(line) for line in (found[name] / "metrics.jsonl").read_text().splitlines()]
        assert "policy" not in config and summary["policy"] is None and summary["updates"] == 0
        assert summary["alpha"] > 200 / 12 and summary["training_seconds"] > 0
        assert {line["stored"] > 0 for line in sessions} == {name.startswith("probe")}
    assert json.loads((found["ncm"] / "summary.json").read_text())["buffer_bytes"] == 8 * (12 + 12 * 256)
    console = Console(width=120, file=io.StringIO())
    console.print(sweep_table("small", outcome.finished))
    said = " ".join(console.file.getvalue().split())
    assert all(f"{name} (reference)" in said for name in ("ncm", "slda", "er_ace"))
    assert "siesta" not in said and "References are other learners" in said


def test_a_run_without_a_policy_can_be_loaded(small, tmp_path):
    config = change(small, {"learner": "probe", "learner.strength": 1.0, "buffer": 60})
    summary = run(config, tmp_path / "run")
    learned = load_learner(tmp_path / "run")
    assert summary["alpha"] > 200 / 12 and learned.learner.name == "probe" and len(learned.learner.buffer) == 60
    assert run(change(config, {"name": "small"}), tmp_path / "run") == summary  # finished: not repeated
    with pytest.raises(GraspError, match="learner 'probe' does not rehearse, so there are no draws to show"):
        class_picture(learned.learner, learned.learner.classes[0], None)
