"""Every number of a run stands under its own heading, and the best of each column is bold."""

import io
import json

import numpy as np
import pytest
from making import by_name, column, make_run, only, write_json
from rich.console import Console

from graspcl.report import gather, runs_table, sweep_table
from graspcl.report.render.html import render_report
from graspcl.report.tables import (
    comparison_table,
    cost_table,
    experiment_tables,
    paper_form_tables,
    run_list,
    session_table,
)

# A different value for everything that a run stores, so that no number can stand for another.
SUMMARY = {
    "mu_new": 11.0, "mu_old": 12.0, "mu_all": 13.0, "alpha": 14.0, "alpha_tasks": 15.0, "alpha_head": 16.0,
    "alpha_tail": 17.0, "top5": 18.0, "forgetting": 19.0, "drift_auc": 0.2, "drift_mean": 0.021, "updates": 22,
    "coverage": 0.23, "selection_forward": 24, "selection_backward": 25, "training_forward": 26,
    "training_backward": 27, "training_seconds": 28.0, "selection_seconds": 29.0, "seconds": 30.0,
    "buffer_bytes": 31_000_000, "joules": 32.0, "failed_sessions": 0, "unreadable_samples": 0, "updates_saved": 0,
}  # fmt: skip
LINE = {
    "session": 1, "accuracy_before_rehearsal": 41.0, "accuracy": 42.0, "top5": 43.0, "updates": 44,
    "training_seconds": 45.0, "selection_seconds": 46.0, "stored": 47, "loss": 4.8,
}  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The folder of one run that stores these values."""
    folder = make_run(tmp_path_factory.mktemp("columns") / "run", sessions=1)
    write_json(folder / "summary.json", SUMMARY)
    (folder / "metrics.jsonl").write_text(json.dumps(LINE) + "\n", encoding="utf-8")
    return folder


def by_heading(table, row=0):
    return {column.heading: cell.text for column, cell in zip(table.columns, table.rows[row], strict=True)}


ACCURACY = {"μ_N": "11.00", "μ_O": "12.00", "μ_A": "13.00", "α": "14.00"}
COSTS = {
    "updates": "22", "seen %": "23.0", "selection forward": "24", "selection backward": "25", "training forward": "26",
    "training backward": "27", "train s": "28.00", "select s": "29.00", "run s": "30.0", "buffer MB": "31.00",
    "energy J": "32",
}  # fmt: skip
OTHERS = {"α tasks": "15.00", "α_H": "16.00", "α_T": "17.00", "top-5": "18.00", "forgetting": "19.00"}


def test_a_summary_stands_under_its_headings(told):
    experiment = only(gather([told]))
    assert (ACCURACY | OTHERS | {"β norm": "0.2000", "φ norm": "0.0210"}).items() <= by_heading(
        comparison_table(experiment)
    ).items()
    assert COSTS.items() <= by_heading(cost_table(experiment)).items()
    (paper,) = paper_form_tables(experiment)
    assert by_heading(paper) == {"Method": "grasp", **ACCURACY}
    demo = {name: COSTS[name] for name in ("updates", "seen %", "train s", "select s")}
    assert by_heading(comparison_table(experiment, "demo")) == {"policy": "grasp", **ACCURACY, **demo}
    assert by_heading(comparison_table(experiment, "sweep")) == {"policy": "grasp", "μ_A": "13.00", "α": "14.00"}


def test_lists_of_runs_have_the_final_accuracy_and_the_time(told):
    (run,) = gather([told]).runs
    found = by_heading(run_list([run]))
    assert (found["policy"], found["learner"], found["α"], found["seconds"]) == ("grasp", "siesta", "14.00", "30.0")
    words = shown(runs_table([run], told.parent)).split()
    assert words[-4:] == ["finished", "22", "all", "14.00"]


def test_a_session_stands_under_its_headings(told):
    table = session_table(gather([told]).runs[0])
    expected = {
        "session": "1", "before %": "41.00", "after %": "42.00", "top-5 %": "43.00", "updates": "44",
        "train s": "45.00", "select s": "46.00", "stored": "47", "loss": "4.800",
    }  # fmt: skip
    assert expected.items() <= by_heading(table).items()
    assert table.caption.startswith("μ_N 11.00 · μ_O 12.00 · μ_A 13.00 · α 14.00 · drift (norm) β 0.2, φ 0.021")


def test_curves_and_classes_in_files_have_their_names(tmp_path):
    folder = make_run(tmp_path / "a", sessions=2, skill=0.5, classes=["ant", "bee", "cow", "dog"])
    (run,) = gather([folder]).runs
    tables = {table.name: table for table in experiment_tables(only(gather([folder])))}
    for name in ("all", "old", "new"):
        values = [cell.value for cell in column(tables["sessions"], name)]
        assert values == pytest.approx(run.curves[name], nan_ok=True)
    assert len({tuple(run.curves[name][1:]) for name in ("all", "old", "new")}) == 3
    for name in ("all", "old", "new"):  # and so do the figures
        line = by_name(only(gather([folder])))[f"learning-{name}"].views[0].data[0]
        assert line["y"] == pytest.approx([value for value in run.curves[name] if not np.isnan(value)], abs=0.006)
    found = dict(
        zip(*([cell.text for cell in column(tables["classes"], of)] for of in ("class", "accuracy")), strict=True)
    )
    assert found == {name: f"{value:.2f}" for name, value in run.class_accuracy.items()}


# -- the best ----------------------------------------------------------------------------------------------------------


def shown(table, width=120):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def bold_cells(table, heading):
    """Whether each cell of a terminal's column is bold."""
    (found,) = [column for column in table.columns if str(column.header).replace("\n", " ") == heading]
    return ["bold" in str(cell.style) for cell in found.cells]


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    """Three seeds at two budgets: GRASP has the higher α and forgets less with the smaller, uniform with the larger."""
    folder = tmp_path_factory.mktemp("ranked")
    for policy, times, right, forgetting in (
        ("grasp", 0.5, 5, 3.0), ("uniform_balanced", 0.5, 4, 4.0),
        ("grasp", 1.0, 7, 2.0), ("uniform_balanced", 1.0, 8, 1.0),
    ):  # fmt: skip
        for seed in range(3):
            place = make_run(folder / f"{policy}-{times}-{seed}", policy, seed, times=times, right=right, sessions=1)
            summary = json.loads((place / "summary.json").read_text(encoding="utf-8"))
            write_json(place / "summary.json", {**summary, "forgetting": forgetting})
    return folder


def test_the_best_at_each_budget_is_bold(ranked):
    summary = comparison_table(only(gather([ranked])))
    rows = [
        (cell.text, budget.text)
        for cell, budget in zip(*(column(summary, of) for of in ("policy", "budget")), strict=True)
    ]
    assert rows == [(policy, budget) for budget in ("0.5x", "1x") for policy in ("grasp", "uniform_balanced")]
    assert [cell.bold for cell in column(summary, "α")] == [True, False, False, True]
    assert [cell.bold for cell in column(summary, "forgetting")] == [True, False, False, True]  # less is better
    assert summary.caption.startswith("3 seeds: ") and "bold: the best at the same budget" in summary.caption
    terminal = sweep_table("title", sorted(ranked.iterdir()))
    assert bold_cells(terminal, "α") == [True, False, False, True] and not any(bold_cells(terminal, "Δα"))
    page = render_report(gather([ranked]))
    assert "Best final accuracy" in page and "<strong>80.00 %</strong>" in page


def test_two_seeds_do_not_name_a_best(ranked):
    report = gather(path for path in ranked.iterdir() if not path.name.endswith("-2"))
    caption = comparison_table(only(report)).caption
    assert "bold: ahead at the same budget and buffer; fewer than 3 seeds do not show which is best." in caption
    page = render_report(report)
    assert "Best final" not in page and "Highest final accuracy" in page and "<strong>80.00 %</strong>" in page


def test_a_sweep_is_compared_with_the_baseline_that_is_asked_for(ranked):
    by_policy = {}
    for baseline in ("uniform_balanced", "grasp"):
        text = shown(sweep_table("title", sorted(ranked.iterdir()), baseline))
        by_policy[baseline] = [line.split()[0] for line in text.splitlines() if "+10.00" in line or "-10.00" in line]
    assert by_policy == {"uniform_balanced": ["grasp"] * 2, "grasp": ["uniform_balanced"] * 2}
    report = gather([ranked], baseline="grasp")
    assert {cell.text for cell in column(comparison_table(only(report)), "Δα")} == {
        "–",
        "-10.00 ± 0.00",
        "+10.00 ± 0.00",
    }


# -- time --------------------------------------------------------------------------------------------------------------


def test_times_are_shares_of_a_session_of_uniform(swept):
    """A run trains for 4 s and selects for 1 s, with MIR for 3 s; an update takes as long with every policy."""
    updates, selection = by_name(swept)["times"].views[0].data
    assert (updates["name"], selection["name"]) == ("updates", "selection")
    assert dict(zip(updates["y"], updates["x"], strict=True)) == {
        "grasp": 0.8, "uniform_balanced": 0.8, "uniform": 0.8, "mir": 0.8,
    }  # fmt: skip
    assert dict(zip(selection["y"], selection["x"], strict=True)) == {
        "grasp": 0.2, "uniform_balanced": 0.2, "uniform": 0.2, "mir": 0.6,
    }  # fmt: skip


def test_accuracy_by_memory_is_drawn_budget_by_budget(swept):
    """Buffers of 20 samples and of all 1,000, each of 100 bytes."""
    views = {view.label: view.data[0] for view in by_name(swept)["memory"].views}
    found = {label: (line["name"], line["x"], line["y"]) for label, line in views.items()}
    assert found == {
        "1x updates": ("grasp", [0.002, 0.1], [65, 75]), "0.5x updates": ("grasp", [0.002, 0.1], [45, 55]),
    }  # fmt: skip
