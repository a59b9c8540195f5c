"""References in a report: baselines next to the policies, marked, and not among what is compared."""

import tomllib

import pytest
import tomli_w
from making import make_run

from graspcl.report import gather
from graspcl.report.figures import all_figures
from graspcl.report.paper import paper_table
from graspcl.report.render.html import write_page
from graspcl.report.render.text import write_tables
from graspcl.report.tables import comparison_table, run_list, session_table


def reference(folder, learner, seed, **more):
    """A run of a learner that does not rehearse."""
    make_run(folder, seed=seed, learner=learner, **more)
    config = tomllib.loads((folder / "config.toml").read_text())
    del config["policy"]
    (folder / "config.toml").write_text(tomli_w.dumps(config))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two policies at two budgets, two references without a policy and er_ace, three seeds each."""
    place = tmp_path_factory.mktemp("references")
    for seed in range(3):
        for times in (0.5, 1.0):
            for policy, right in (("grasp", 7), ("uniform_balanced", 6)):
                more = {
                    "config": {"optimiser": {"lr": 0.5}},
                    "times": times,
                    "updates": int(10 * times),
                    "right": right,
                }
                make_run(place / f"{policy}-{times}-{seed}", policy, seed, capacity="8MB", **more)
        make_run(place / f"ace-{seed}", "uniform", seed, learner="er_ace", capacity="8MB", right=8)
        reference(place / f"slda-{seed}", "slda", seed, right=9)
        reference(place / f"probe-{seed}", "probe", seed, right=5, capacity="8MB")
    return gather([place])


def test_they_are_marked_and_stand_last(report):
    (experiment,) = report.experiments
    labels = [method.label for method in experiment.methods]
    assert labels[:2] == ["grasp", "uniform_balanced"]
    assert sorted(labels[2:]) == ["er_ace (reference)", "probe (reference)", "slda (reference)"]
    assert [method.reference for method in experiment.methods] == [False, False, True, True, True]


def test_they_stand_under_every_budget_and_change_none(report):
    (experiment,) = report.experiments
    assert [(at.budget, at.buffer) for at in experiment.conditions] == [("0.5x", "8MB"), ("1x", "8MB")]
    for condition, ace in zip(experiment.conditions, (0, 1), strict=True):
        found = [group.label for group in experiment.at(condition)]
        assert found.count("slda (reference)") == found.count("probe (reference)") == 1
        assert found.count("er_ace (reference)") == ace  # it has a budget of its own
    assert experiment.repeats == 0


def test_they_are_neither_tested_nor_best(report):
    (experiment,) = report.experiments
    for group in experiment.groups:
        assert (experiment.difference(group) is None) == (group.label != "grasp")
    table = comparison_table(experiment)
    alpha = [column.heading for column in table.columns].index("α")
    bold = {row[0].text for row in table.rows if row[alpha].bold}
    assert bold == {"grasp"} and table.columns[0].heading == "policy"
    assert max((row[alpha].value, row[0].text) for row in table.rows)[1] == "slda (reference)"
    assert "References are other learners on the same data" in table.caption


def test_every_page_and_file_copes(report, tmp_path):
    (experiment,) = report.experiments
    assert len(write_tables(report, tmp_path, "md")) == len(write_tables(report, tmp_path, "tex"))
    curves = next(figure for figure in all_figures(experiment) if figure.name == "learning-all")
    lines = {trace["name"]: trace for view in curves.views for trace in view.data if trace.get("showlegend", True)}
    assert lines["slda (reference)"]["line"]["dash"] == "dot" != lines["grasp"]["line"]["dash"]
    times = next(figure for figure in all_figures(experiment) if figure.name == "times")
    assert times.views and all("reference" not in str(view.data) for view in times.views)
    write_page(report, tmp_path / "page.html")
    assert "slda (reference)" in (tmp_path / "page.html").read_text()
    assert "er_ace" not in paper_table(report.experiments, "2").caption
    by_path = {run.path.name: run for run in report.runs}
    assert session_table(by_path["slda-0"]).title == "toy: slda"
    assert {row[2].text for row in run_list([by_path["slda-0"]]).rows} == {"–"}


def test_references_alone_are_methods(tmp_path):
    for seed in range(2):
        reference(tmp_path / f"ncm-{seed}", "ncm", seed)
        reference(tmp_path / f"slda-{seed}", "slda", seed)
    (experiment,) = gather([tmp_path]).experiments
    assert [method.label for method in experiment.methods] == ["ncm", "slda"]
    assert not any(method.reference for method in experiment.methods)
