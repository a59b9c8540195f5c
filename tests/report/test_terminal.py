"""Run folders in any state are found, read and shown in tables that fit a terminal of 80 columns."""

import itertools
import json
import os
from pathlib import Path

import pytest
import tomli_w
from rich.console import Console

from graspcl.report import find_runs, read_run, run_table, runs_table, sweep_table
from graspcl.report.read import read_runs
from graspcl.report.tables import run_list


def write_run(folder, policy, seed=0, learner="siesta", updates=100, alpha=60.0, sessions=2, finished=True, **given):
    """A run folder with settings, lines and summary, as far as tables read them."""
    config = {
        "name": folder.parts[-4] if len(folder.parts) > 4 else "x", "policy": policy, "learner": learner, "seed": seed,
        "stream": {"sessions": 2}, "buffer": {"capacity": 50}, "budget": {"times": 1.0, "updates": updates}, **given,
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    row = {"accuracy_before_rehearsal": 40.0, "accuracy": alpha, "top5": 90.0, "updates": updates, "stored": 50}
    row |= {"training_seconds": 1.0, "selection_seconds": 0.1, "loss": 0.5}
    lines = [json.dumps({"session": number, **row}) + "\n" for number in range(1, sessions + 1)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    if finished:
        summary = {"policy": str(policy), "seed": seed, "alpha": alpha, "mu_all": alpha + 1, "updates": 2 * updates}
        (folder / "summary.json").write_text(json.dumps({**summary, "mu_new": 1.0, "mu_old": None}))
    return folder


@pytest.fixture
def folder(tmp_path):
    """Runs in every state."""
    places = tmp_path / "listings" / "siesta"
    write_run(places / "grasp" / "seed-0-aaaaaa", {"name": "grasp"})
    write_run(places / "grasp" / "seed-1-bbbbbb", {"name": "grasp"}, seed=1, finished=False, sessions=1)
    unbalanced = {"name": "uniform_balanced", "replace": False}
    write_run(places / "uniform_balanced(replace=False)" / "seed-0-cccccc", unbalanced, buffer={})
    derpp = {"name": "derpp", "teacher": True}
    half = write_run(tmp_path / "drift" / "derpp" / "mir" / "seed-0-dddddd", {"name": "mir"}, learner=derpp)
    (half / "summary.json").write_text('{"alpha": 6')
    return tmp_path


def text_of(table, width=80):
    console = Console(width=width, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(table)
    text = capture.get()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    return text


def cells(text):
    """Lines, with one space between their cells."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_states_are_distinguished(folder):
    states = {record.path.name: record.state for record in find_runs(folder)}
    assert states == {
        "seed-0-aaaaaa": "finished", "seed-1-bbbbbb": "unfinished", "seed-0-cccccc": "finished",
        "seed-0-dddddd": "damaged",
    }  # fmt: skip


@pytest.mark.parametrize("damage", ["", "[]", "{}", "{ half", b"\xff\xfe"])
def test_an_invalid_summary_is_damage(folder, damage):
    path = folder / "listings" / "siesta" / "grasp" / "seed-0-aaaaaa"
    (path / "summary.json").write_bytes(damage if isinstance(damage, bytes) else damage.encode())
    record = read_run(path)
    assert record.state == "damaged" and record.summary == {} and record.policy == "grasp"
    text_of(run_table(path))


def test_a_folder_without_settings_is_damaged(tmp_path):
    assert read_run(tmp_path / "nowhere").state == "damaged"


def test_lines_are_read_up_to_one_that_is_written_by_half(folder):
    path = folder / "listings" / "siesta" / "grasp" / "seed-1-bbbbbb"
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"session": 2, "accur')
    assert [row["session"] for row in read_run(path).sessions] == [1]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ({}, "abcd"),
        ({"name": "list*"}, "abc"),
        ({"policy": "uniform*"}, "c"),
        ({"policy": "uniform_balanced"}, "c"),
        ({"policy": "uniform_balanced(replace=False)"}, "c"),
        ({"policy": "uniform"}, ""),
        ({"learner": "derpp"}, "d"),
        ({"learner": "der?p"}, "d"),
        ({"state": "finished"}, "ac"),
        ({"state": "unfinished", "policy": "grasp"}, "b"),
    ],
)
def test_runs_are_found_by_patterns(folder, patterns, names):
    found = [record.path.name[-1] for record in find_runs(folder, **patterns)]
    assert sorted(found) == [*names]


def test_the_list_of_runs_fits_and_its_rows_are_distinct(folder):
    other = folder / "other"
    other.mkdir()
    (other / "config.toml").write_text('stream = "somebody else\'s"\nbuffer = 3\npolicy = "[bold]"')
    text = text_of(runs_table(find_runs(folder), folder))
    lines = cells(text)
    assert "listings/siesta/ finished 200 50 60.00" in lines
    assert "listings/siesta/ finished 200 all 60.00" in lines
    assert "grasp/seed-1-bbbbbb 1 of 2" in lines
    assert "uniform_balanced(replace=False)/seed-0-cccccc" in lines
    assert "drift/derpp/ damaged – 50 –" in lines
    assert "0 of ?" in text
    inside = find_runs(folder / "listings" / "siesta" / "grasp" / "seed-0-aaaaaa")
    assert "finished" in text_of(runs_table(inside, inside[0].path))


def test_one_run_session_by_session(folder):
    path = folder / "listings" / "siesta" / "uniform_balanced(replace=False)" / "seed-0-cccccc"
    lines = cells(text_of(run_table(path)))
    assert "2 40.00 60.00 90.00 100 1.00 0.10 50 0.500" in lines
    assert "listings: siesta + uniform_balanced(replace=False)" in lines
    assert "μ_N 1.00 · μ_O – · μ_A 61.00 · α 60.00" in " ".join(lines)
    unfinished = folder / "listings" / "siesta" / "grasp" / "seed-1-bbbbbb"
    assert "α" not in text_of(run_table(unfinished))


def test_weights_that_saw_classes_of_the_stream_are_named(tmp_path):
    path = write_run(tmp_path / "grasp" / "seed-0-aaaaaa", {"name": "grasp"})
    seen = "the weights in base.safetensors were trained on 3 classes of the stream"
    summary = {**json.loads((path / "summary.json").read_text()), "seen": seen}
    (path / "summary.json").write_text(json.dumps(summary))
    assert seen in " ".join(text_of(run_table(path)).split())
    assert seen in [cell.text for row in run_list([read_run(path)]).rows for cell in row]
    assert f"Note: {seen}." in " ".join(text_of(sweep_table("grasp", [path])).split())


@pytest.mark.parametrize(
    ("coded", "said"), [(True, "est samples pass through the codec"), (False, "est samples are predicted uncoded")]
)
def test_how_test_samples_are_predicted_is_told(coded, said, tmp_path):
    path = write_run(tmp_path / "grasp" / "seed-0-aaaaaa", {"name": "grasp"})
    assert "est samples" not in text_of(sweep_table("grasp", [path]))  # of an earlier version
    summary = {**json.loads((path / "summary.json").read_text()), "coded": coded}
    (path / "summary.json").write_text(json.dumps(summary))
    assert f"t{said}" in " ".join(text_of(run_table(path)).split())
    assert f"T{said}." in " ".join(text_of(sweep_table("grasp", [path])).split())


def test_what_a_codec_costs_is_told_as_the_mean_over_seeds(tmp_path):
    paths = [write_run(tmp_path / f"{seed}", {"name": "grasp"}, seed=seed) for seed in range(3)]
    costs = [{"nearest_mean": 1.0, "ridge": 3.0, "relative_error": 0.2}, {"not_measured": "too few"}]
    costs += [{"nearest_mean": 2.0, "ridge": 5.0, "relative_error": 0.4, "within": "half"}]
    for path, cost in zip(paths, costs, strict=True):
        summary = json.loads((path / "summary.json").read_text())
        (path / "summary.json").write_text(json.dumps({**summary, "codec_cost": {"codec": "opq", **cost}}))
    expected = (
        "The codec opq costs 1.5 points of nearest-mean and 4.0 of ridge accuracy on base samples, with a relative "
    )
    expected += "error of 0.300 (warning: codec half costs less than 1 point)."
    assert expected in " ".join(text_of(sweep_table("grasp", paths)).split())
    assert "what the codec opq costs was not measured: too few" in " ".join(text_of(run_table(paths[1])).split())


# -- sweeps ------------------------------------------------------------------------------------------------------------


def write_sweep(folder, alphas, buffers=(50,), learners=("siesta",)):
    """`alphas` by policy and updates: one value per seed."""
    paths = []
    for (policy, updates), values in alphas.items():
        for learner, buffer, (seed, alpha) in itertools.product(learners, buffers, enumerate(values)):
            name = f"{learner}-{policy}-{updates}-{buffer}-{seed}"
            given = {"buffer": {} if buffer is None else {"capacity": buffer}}
            part = {"name": policy.partition("(")[0], **({"replace": False} if "(" in policy else {})}
            paths.append(write_run(folder / name, part, seed, {"name": learner}, updates, alpha, **given))
    return paths


def test_means_intervals_and_paired_differences(tmp_path):
    """The numbers of graspcl.metric's own examples."""
    paths = write_sweep(tmp_path, {("grasp", 50): [61, 63, 66], ("uniform_balanced", 50): [60, 61, 63]})
    table = cells(text_of(sweep_table("title", paths, width=130), 130))
    assert "3 seeds: mean ± half of its 95 % t-interval over seeds;" in " ".join(table)
    assert "grasp 64.33 ± 6.25 63.33 ± 6.25 +2.00 ± 2.48 0.074" in table
    assert any(row.startswith("uniform_balanced") and row.endswith("– –") for row in table)
    narrow = cells(text_of(sweep_table("title", paths, width=80)))
    assert "grasp 64.33 63.33 +2.00 0.074" in narrow and "±6.25 ±6.25 ±2.48" in narrow


def test_differences_are_over_the_seeds_that_both_have(tmp_path):
    paths = write_sweep(tmp_path, {("grasp", 50): [61, 63, 66], ("uniform_balanced", 50): [60, 61]})
    assert "grasp 3 64.33 63.33 +1.50 0.205" in cells(text_of(sweep_table("title", paths, width=80)))
    one = write_sweep(tmp_path / "one", {("grasp", 50): [61], ("uniform_balanced", 50): [60]})
    text = text_of(sweep_table("title", one, width=80))
    assert "grasp 62.00 61.00 +1.00 –" in cells(text) and "1 seed;" in text and "±" not in text


def test_budgets_and_buffers_are_columns_where_they_differ(tmp_path):
    both = {("grasp", 50): [60, 61], ("uniform_balanced", 50): [60, 60]}
    more = {("grasp", 1000): [62, 63], ("uniform_balanced", 1000): [61, 61], ("uniform_balanced(", 1000): [1, 2]}
    paths = write_sweep(tmp_path, {**both, **more}, buffers=(50, "0.2GB", None))
    table = cells(text_of(sweep_table("title", paths, width=80)))
    assert "grasp 1,000 updates 0.2GB 63.50 62.50 +1.50 0.205" in table
    assert "uniform_balanced 50 updates unbounded 61.00 60.00 – –" in table
    assert any(row.startswith("(replace=False)") for row in table)
    alone = cells(text_of(sweep_table("title", write_sweep(tmp_path / "x", both), width=80)))
    assert alone[1] == "policy μ_A α Δα p"


def test_each_learner_is_compared_with_its_own_baseline(tmp_path):
    alphas = {("grasp", 50): [61, 62], ("uniform_balanced", 50): [60, 60]}
    paths = write_sweep(tmp_path, alphas, learners=("siesta", "gdumb"))
    wide = cells(text_of(sweep_table("title", paths, width=130), 130))
    assert any(row.startswith("gdumb + grasp ") for row in wide)
    assert sum("+1.50" in row for row in wide) == 2
    text_of(sweep_table("title", paths, width=80))


@pytest.mark.parametrize(
    ("grasp", "said"),
    [
        ([50.0, 62.0, 70.0], "grasp reaches the best α of uniform_balanced with 33 % fewer updates"),
        ([64.0, 66.0, 70.0], "grasp reaches the best α of uniform_balanced with at least 67 % fewer updates"),
        ([10.0, 20.0, 30.0], "grasp does not reach the best α of uniform_balanced"),
    ],
)
def test_the_caption_describes_savings(tmp_path, grasp, said):
    alphas = {("grasp", updates): [alpha] for updates, alpha in zip((100, 200, 300), grasp, strict=True)}
    uniform = {("uniform_balanced", updates): [alpha] for updates, alpha in ((100, 50.0), (200, 60.0), (300, 62.0))}
    text = text_of(sweep_table("title", write_sweep(tmp_path, {**alphas, **uniform}), width=80))
    assert said in " ".join(text.split())


def test_more_updates_are_described_as_more(tmp_path):
    grasp = {("grasp", updates): [alpha] for updates, alpha in ((200, 50.0), (600, 62.0))}
    uniform = {("uniform_balanced", updates): [alpha] for updates, alpha in ((100, 50.0), (300, 62.0))}
    text = text_of(sweep_table("title", write_sweep(tmp_path, {**grasp, **uniform}), width=80))
    assert "with 100 % more updates" in " ".join(text.split())


def test_what_is_not_finished_is_left_out(tmp_path):
    paths = write_sweep(tmp_path, {("grasp", 50): [61, 63], ("uniform_balanced", 50): [60, 61]})
    (paths[0] / "summary.json").unlink()
    (paths[3] / "summary.json").write_text(json.dumps({"alpha": None, "seed": 1, "updates": 5, "policy": "x"}))
    table = cells(text_of(sweep_table("title", [*paths, tmp_path / "nowhere"], width=80)))
    assert "grasp 64.00 63.00" in table  # no seed is common to both: nothing to compare
    assert "uniform_balanced 61.00 60.00" in table


def test_without_the_baseline_there_is_no_column_for_it(tmp_path):
    paths = write_sweep(tmp_path, {("grasp", 50): [61, 63], ("uniform", 50): [60, 61]})
    text = text_of(sweep_table("title", paths, width=80))
    assert "grasp" in text and "uniform_balanced" not in text and " p " not in text


def test_a_folder_that_cannot_be_read_is_listed_and_not_skipped(tmp_path, monkeypatch):
    write_run(tmp_path / "mine", "grasp")
    (tmp_path / "others").mkdir()
    scan = os.scandir

    def refuse(path):
        if Path(path).name == "others":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr("os.scandir", refuse)
    mine, others = find_runs(tmp_path)
    assert mine.path.name == "mine" and (others.path.name, others.state) == ("others", "damaged")
    assert others.problems == ("the folder cannot be read (Permission denied)",)
    assert "others" in text_of(runs_table([mine, others], tmp_path))
    assert [run.state for run in read_runs([tmp_path, tmp_path / "others"])] == [mine.state, "damaged"]
