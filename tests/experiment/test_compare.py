"""Comparing policies: all of them at equal budgets, costs that add up, and tables of the result."""

import json

import pytest
from rich.console import Console

from graspcl.errors import GraspError
from graspcl.experiment import Choice, Part, choose, make_workers
from graspcl.experiment.compare import compare
from graspcl.policy import policies
from graspcl.progress import Silent
from graspcl.report import bar_chart, rows, sweep_table


def test_all_policies_spend_the_same_and_book_what_they_say(small, tmp_path):
    choices = choose("all")
    assert len(choices) >= 18
    with make_workers(1) as here:
        paths = compare(small, choices, [0], tmp_path, Silent(), here)
    stored, spent = set(), {}
    for path in paths:
        sessions = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        name = json.loads((path / "summary.json").read_text())["policy"]
        stored.add(tuple(row["stored"] for row in sessions))
        for row in sessions:
            assert row["training_forward"] == row["training_backward"] == row["updates"] * 64  # exactly U
        spent[name] = (sum(row["selection_forward"] for row in sessions), sum(row["updates"] for row in sessions))
    assert len(stored) == 1 and len({updates for _, updates in spent.values()}) == 1
    held = sum(stored.pop())
    for name in ("uniform", "uniform_balanced", "min_rehearsal"):
        assert spent[name][0] == 0
    one_pass = (
        "grasp",
        "mof",
        "hard_biased",
        "kmeans",
        "max_loss",
        "min_margin",
        "min_confidence",
        "min_logit_distance",
    )
    for name in (*one_pass, "grad_matching"):
        assert spent[name][0] == held, name
    assert spent["rainbow"][0] == 12 * held
    for name in ("mir", "aser", "ocs", "gss", "clib"):
        assert spent[name][0] > spent[name][1] * 32, name  # they look at candidates for every mini-batch


def test_choices_are_checked_before_any_work():
    assert choose("grasp, mof") == [Choice(Part("grasp")), Choice(Part("mof"))]
    assert [choice.policy.name for choice in choose("all")] == policies.names()
    assert choose("easy_biased") == [Choice(Part("mof"))]
    by_mode = {choice.policy.name: choice.policy.parameters for choice in choose("all", mode="top")}
    assert by_mode["max_loss"] == {"mode": "top"} and by_mode["grasp"] == {}
    for names, parameters, message in (
        ("grasp,mirr", None, "did you mean 'mir'"),
        ("mir", {"mir": {"candidate": 3}}, "did you mean 'candidates'"),
        ("grasp", {"mir": {"candidates": 3}}, "not among those compared"),
        ("mir", {"mir": {"candidates": -3}}, "candidates"),
    ):
        with pytest.raises(GraspError, match=message):
            choose(names, parameters)


@pytest.mark.parametrize("width", [80, 130])
def test_tables_fit_and_compare_with_uniform(small, tmp_path, width):
    with make_workers(1) as here:
        paths = compare(small, choose("grasp,uniform"), [0, 1], tmp_path, Silent(), here)
    console = Console(width=width, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(sweep_table("title", paths, "uniform", width))
        console.print(bar_chart("α", {row.policy: row.mean("alpha") for row in rows(paths)}))
    text = capture.get()
    for word in ("grasp", "uniform", "μ_A", "Δα", "█", "±"):
        assert word in text
    assert "…" not in text
