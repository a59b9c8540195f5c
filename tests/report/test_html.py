"""What the page of a report holds, whatever lies in the run folders."""

import csv
import html.parser
import io
import json
import math
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from making import BASE, by_name, column, make_run, only, write_json
from rich.console import Console

from graspcl.errors import GraspError
from graspcl.metric import interval, mcnemar, paired_interval, saved_updates
from graspcl.report import gather, read_run, sweep_table, write_page
from graspcl.report.figures import all_figures
from graspcl.report.measures import MEASURES, Measure
from graspcl.report.render.html import json_for_script, render_report
from graspcl.report.render.images import standalone
from graspcl.report.render.text import as_csv, as_latex, as_markdown
from graspcl.report.tables import comparison_table, cost_table, paper_form_tables, run_list, settings_tables

FIGURES = {
    "learning-all", "learning-old", "learning-new", "bars", "updates", "seconds", "memory", "times", "distance",
    "repeats", "coverage", "class-coverage", "drift", "drift-mse", "class-sessions", "matrix", "classes",
}  # fmt: skip


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_the_summary_has_means_deviations_and_the_best_in_bold(tmp_path):
    for seed, (own, other) in enumerate([(8, 7), (6, 5)]):
        make_run(tmp_path / f"g{seed}", "grasp", seed, right=own)
        make_run(tmp_path / f"u{seed}", "uniform_balanced", seed, right=other)
    table = comparison_table(only(gather([tmp_path])))
    assert [cell.text for cell in column(table, "policy")] == ["grasp", "uniform_balanced"]
    grasp, uniform = column(table, "α")
    half = interval([80.0, 60.0]).high - 70
    assert (grasp.text, grasp.bold) == (f"70.00 ± {half:.2f}", True)
    assert (uniform.text, uniform.bold) == (f"60.00 ± {half:.2f}", False)
    assert grasp.std == pytest.approx(200**0.5)
    assert [cell.text for cell in column(table, "Δα")] == ["+10.00 ± 0.00", "–"]
    assert "2 seeds: mean ± half of its 95 % t-interval over seeds" in table.caption


def test_each_test_has_its_own_column(tmp_path):
    """p is the paired t-test over seeds, McNemar p the median over the seeds that both have."""
    rng = np.random.default_rng(0)
    own, other = rng.random((4, 50)) < 0.7, rng.random((4, 50)) < 0.5
    for seed in range(4):
        make_run(tmp_path / f"g{seed}", "grasp", seed, right=own[seed])
        if seed < 3:
            make_run(tmp_path / f"u{seed}", "uniform_balanced", seed, right=other[seed])
    ps = [mcnemar(own[seed], other[seed]).p for seed in range(3)]
    paired = paired_interval(100 * own[:3].mean(1), 100 * other[:3].mean(1))
    report = gather([tmp_path])
    table = comparison_table(only(report))
    assert column(table, "McNemar p")[0].value == sorted(ps)[1] != mcnemar(own[:3].ravel(), other[:3].ravel()).p
    assert column(table, "p")[0].value == pytest.approx(paired.p)
    difference = f"{paired.mean:+.2f} ± {paired.high - paired.mean:.2f}"
    assert column(table, "Δα")[0].text == f"{difference} (3 seeds)"  # of the four
    assert "Δα, p and McNemar p compare with uniform_balanced over 3 seeds." in table.caption
    tile = render_report(report).partition("Difference in α")[2]
    assert f"<strong>{difference}</strong>" in tile
    assert f"3 seeds · p = {paired.p:.3f} · McNemar p = {sorted(ps)[1]:.3f}" in tile
    (tmp_path / "u1" / "predictions.npz").unlink()
    table = comparison_table(only(gather([tmp_path])))
    assert column(table, "McNemar p")[0].text == f"{np.median([ps[0], ps[2]]):.3f} (2 seeds)"
    assert "over 3 seeds" not in table.caption


def test_runs_alike_count_once(tmp_path):
    for place, done in (("a", None), ("b", None), ("c", 1)):  # the last was stopped
        make_run(tmp_path / place, "grasp", 0, done=done)
    experiment = only(gather([tmp_path]))
    assert [run.path.name for run in experiment.groups[0].runs] == ["a"]
    assert "1 run with the settings and seed of another left out." in comparison_table(experiment).caption


def test_without_the_baseline_the_page_says_so(tmp_path):
    make_run(tmp_path / "a", "grasp")
    table = comparison_table(only(gather([tmp_path])))
    assert "No policy can be compared with uniform_balanced" in table.caption
    assert "Δα" not in [column.heading for column in table.columns]


def test_a_baseline_that_is_named_must_be_there(tmp_path):
    make_run(tmp_path / "a", "uniform")
    with pytest.raises(
        GraspError, match=r"--baseline must be the policy of a run, got 'unifrom'; did you mean 'uniform'"
    ):
        gather([tmp_path], baseline="unifrom")


def test_other_data_are_another_experiment_and_other_settings_another_method(tmp_path):
    make_run(tmp_path / "a", config={"optimiser": {"lr": 0.1}})
    make_run(tmp_path / "b", config={"optimiser": {"lr": 0.2}})
    make_run(tmp_path / "c", config={"data": {"path": "/elsewhere/toys"}, "optimiser": {"lr": 0.1}}, seed=1)
    make_run(tmp_path / "d", name="other", config={"data": {"path": "flowers"}})
    toys, flowers = gather([tmp_path]).experiments
    assert [method.label for method in toys.methods] == ["grasp · optimiser.lr=0.1", "grasp · optimiser.lr=0.2"]
    assert [len(group.runs) for group in toys.groups] == [2, 1]  # where the data lie makes no difference
    assert flowers.title == "other"


def test_what_was_rehearsed_is_read_from_the_last_plan(tmp_path):
    folder = make_run(tmp_path / "a")
    labels, picks, distances = np.array([0, 0, 1, 1]), np.array([[0, 0], [1, 2]]), np.array([0.1, 0.3, 0.0, np.nan])
    np.savez(folder / "plans" / "session-3.npz", labels=labels, picks=picks, distances=distances)
    found = read_run(folder).rehearsed
    assert found.session == 3
    assert found.repeats[:3].tolist() == [25, 50, 25]
    assert found.class_coverage == {"class 0": 100, "class 1": 50}
    assert found.coverage.tolist() == [25, 75]
    assert found.distance.tolist() == pytest.approx([0.5, 1.5])  # class 1 was not measured whole


def test_curves_are_those_of_the_accuracy_matrix(tmp_path):
    run = read_run(make_run(tmp_path / "a", right=4))
    assert run.curves["all"][-1] == run.value("alpha") == 40
    assert run.curves["new"][1:] == [run.matrix[t, t] for t in (1, 2, 3)]
    assert math.isnan(run.curves["old"][0])


def test_accuracy_by_class_and_session_is_side_by_side_for_methods(tmp_path):
    for policy, right in (("grasp", 4), ("uniform", 1)):
        make_run(tmp_path / policy, policy, right=right)
    experiment = only(gather([tmp_path]))
    (view,) = by_name(experiment)["class-sessions"].views
    (trace,) = view.data
    runs = [group.runs[0] for group in experiment.groups]
    methods, sessions = trace["x"]
    assert methods == [run.policy for run in runs for _ in run.curves["all"]]
    assert sessions == [str(session) for run in runs for session in range(len(run.curves["all"]))]
    for name, row in zip(trace["y"], trace["z"], strict=True):
        assert row == [
            None if math.isnan(value) else pytest.approx(value, abs=0.05)
            for run in runs for value in run.class_sessions[name]
        ]  # fmt: skip
    # Rows follow the order of arrival: what is unknown before grows from row to row.
    missing = [row.index(next(value for value in row if value is not None)) for row in trace["z"]]
    assert missing == sorted(missing) and missing[-1] > 0


def test_the_accuracy_of_a_class_is_followed_over_sessions(tmp_path):
    folder = make_run(tmp_path / "a")
    predictions = np.array([[0, 1, -1, -1], [0, 0, 1, 0], [1, 1, 1, 1]])
    labels, arrived = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])
    np.savez(folder / "predictions.npz", labels=labels, arrived=arrived, predictions=predictions)
    found = read_run(folder).class_sessions
    assert found["class 0"] == [50, 100, 0]
    assert math.isnan(found["class 1"][0]) and found["class 1"][1:] == [50, 100]


def test_the_saving_is_drawn_in_and_said(swept):
    # α rises from 4 to 6 of 10 with the budget, and GRASP's is 1 of 10 higher: it is there halfway between.
    updates = [15, 30]
    assert saved_updates(updates, [50, 70], updates, [40, 60]) == 0.25
    for view in by_name(swept)["updates"].views:
        assert "grasp reaches the best α of uniform_balanced with 25 % fewer updates" in view.note
        arrow, text = view.layout["annotations"]
        assert (arrow["ax"], arrow["x"]) == (30, 22.5)
        assert text["text"] == "same accuracy with<br>25 % fewer updates"


def test_accuracy_by_time_counts_selection(tmp_path):
    """GRASP needs 25 % fewer updates; its selection takes half of the training time, that of uniform a quarter."""
    for policy, right in (("grasp", (5, 7)), ("uniform_balanced", (4, 6))):
        for times, own in zip((1.0, 2.0), right, strict=True):
            folder = make_run(tmp_path / f"{policy}{times}", policy, times=times, updates=int(10 * times), right=own)
            summary = json.loads((folder / "summary.json").read_text())
            selection = summary["training_seconds"] * (0.5 if policy == "grasp" else 0.25)
            write_json(folder / "summary.json", {**summary, "selection_seconds": selection})
    experiment = only(gather([tmp_path]))
    (saving,) = experiment.savings("unbounded").values()
    assert (saving.share, saving.time) == (pytest.approx(0.25), pytest.approx(1 - 0.75 * 1.5 / 1.25))
    assert str(saving) == "25 % fewer updates and 10 % less time"
    (view,) = by_name(experiment)["seconds"].views
    assert "with 25 % fewer updates and 10 % less time" in view.note
    arrow, text = view.layout["annotations"]
    assert text["text"] == "same accuracy with<br>10 % less time"
    # 16 s for 180 updates in all: 60 updates take 16 / 3 s, and selection a quarter of that.
    assert arrow["ax"] == pytest.approx(16 / 180 * 60 * 1.25)
    assert arrow["x"] == pytest.approx(16 / 180 * 45 * 1.5)


def test_time_is_relative_to_uniform_and_split(swept):
    view = by_name(swept)["times"].views[0]
    parts = {trace["name"]: dict(zip(trace["y"], trace["x"], strict=True)) for trace in view.data}
    assert parts["updates"]["uniform"] + parts["selection"]["uniform"] == pytest.approx(1)
    assert parts["selection"]["mir"] == pytest.approx(3 * parts["selection"]["uniform"])


def test_costs_and_settings_have_differences_first(swept):
    table = cost_table(swept)
    assert "Energy was not measured" in table.caption
    assert {cell.text for cell in column(table, "selection forward")} == {"100"}
    differing, common = settings_tables(swept.runs)
    assert {row[0].text for row in differing.rows} == {"seed", "policy.name", "budget.times", "buffer.capacity"}
    assert ["stream.kind", "class_incremental"] in [[cell.text for cell in row] for row in common.rows]


def test_a_full_comparison_draws_everything(swept):
    found = by_name(swept)
    assert found.keys() == FIGURES
    assert [name for name, figure in found.items() if not figure.views] == []


def test_what_has_no_data_is_left_out_and_says_why(tmp_path):
    make_run(tmp_path / "a")
    page = render_report(gather([tmp_path]))
    drawn = {name for name in FIGURES if f'id="e0-{name}"' in page}
    assert drawn == FIGURES - {"updates", "seconds", "memory", "drift", "drift-mse", "times"}
    for title in ("Accuracy by updates", "Accuracy by time", "Accuracy by memory", "Representation drift, norm"):
        assert f"<b>{title}</b> is left out." in page


def test_plotly_takes_every_figure(swept):
    graph_objects = pytest.importorskip("plotly.graph_objects")
    for figure in all_figures(swept):
        for view in figure.views:
            drawn = standalone(figure, view)
            graph_objects.Figure(drawn)  # an unknown name or value is an error


# -- one list of measures ----------------------------------------------------------------------------------------------


def test_a_new_measure_is_a_column_of_every_rendering(tmp_path, monkeypatch):
    for seed in range(2):
        folder = make_run(tmp_path / f"g{seed}", "grasp", seed)
        summary = json.loads((folder / "summary.json").read_text())
        write_json(folder / "summary.json", {**summary, "calibration": 0.25 + 0.5 * seed})
    measure = Measure("calibration", "ECE", "calibration error", "%", "lower", 1, 100, tex=r"\mathrm{ECE}")
    monkeypatch.setattr("graspcl.report.measures.MEASURES", [*MEASURES, measure])
    report = gather([tmp_path])
    half = interval([25, 75]).high - 50
    console = Console(width=130, file=io.StringIO(), record=True)
    console.print(sweep_table("title", [run.path for run in report.runs], width=130))
    assert "ECE" in (text := console.export_text()) and f"50.0 ± {half:.1f}" in text
    page = render_report(report)
    assert ">ECE<" in page and f'data-value="50">50.0 <small>± {half:.1f}</small>' in page
    table = comparison_table(only(report))
    (row,) = csv.DictReader(as_csv(table).splitlines())
    assert (float(row["ECE"]), float(row["ECE std"])) == (50, pytest.approx(1250**0.5))
    assert float(row["ECE ± 95 %"]) == pytest.approx(half)
    assert "| ECE |" in as_markdown(table) and f"50.0 ± {half:.1f}" in as_markdown(table)
    assert r"$\mathrm{ECE} \downarrow$" in as_latex(table) and rf"$50.0$ \tiny $\pm {half:.1f}$" in as_latex(table)


# -- the form of the paper ---------------------------------------------------------------------------------------------


def test_memories_stand_side_by_side_as_in_the_paper(swept):
    half, whole = paper_form_tables(swept)
    assert [half.name, whole.name] == ["paper-form-0.5x", "paper-form-1x"]
    assert [column.group for column in whole.columns] == ["", *4 * ["Unbounded Memory"], *4 * ["Bounded Memory"]]
    assert [column.heading for column in whole.columns[1:5]] == ["μ_N", "μ_O", "μ_A", "α"]
    assert all(sum(row[place].bold for row in whole.rows) >= 1 for place in range(1, 9))


# -- hostile and damaged folders ---------------------------------------------------------------------------------------


class Elements(html.parser.HTMLParser):
    """Names of all elements, and of attributes that could do something."""

    def __init__(self, text):
        super().__init__()
        self.names, self.active = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        self.active += [name for name, value in attributes if name.startswith("on") or "javascript" in (value or "")]


HOSTILE = [
    "</script><script>window.hacked = 1</script>", "<img src=x onerror='window.hacked=1'>", '"><b onclick="hacked()">',
    "{{ title }} {% raw %} {# %{x} $\\alpha$",
    "🦉 <!-- ", "x" * 300, "a|b\nc\td", "&lt;b&gt; &amp;", "\u202eevil", "'; --",
]  # fmt: skip


def test_no_name_can_break_or_script_the_page(tmp_path):
    for number, text in enumerate(HOSTILE):
        make_run(
            tmp_path / f"{number}{text[:40].replace('/', '_')}", text, number % 2, name=text, learner=text, drift=True,
            classes=[f"{text}{k}" for k in range(5)], capacity=30, config={"data": {"path": "same"}, "note": text},
        )  # fmt: skip
    report = gather([tmp_path], baseline=HOSTILE[0])
    page = render_report(report)
    mild = tmp_path / "mild"
    for number in range(len(HOSTILE)):
        config = {"data": {"path": "same"}, "note": f"n{number}"}
        make_run(mild / f"{number}", f"p{number}", number % 2, drift=True, capacity=30, config=config)
    found, expected = Elements(page), Elements(render_report(gather([mild], baseline="p0")))
    assert found.active == []
    assert found.names.count("script") == expected.names.count("script") == 3
    assert set(found.names) == set(expected.names)
    assert "window.hacked = 1</script>" not in page


LEAVES = st.text() | st.floats(allow_nan=False, allow_infinity=False) | st.none()


@given(st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3)))
def test_embedded_data_come_out_as_they_went_in(value):
    text = json_for_script(value)
    assert json.loads(text) == value
    assert not set("<>&") & set(text)


def test_names_that_are_no_text_can_be_written(tmp_path):
    folder = make_run(tmp_path / "a")
    (folder / "classes.json").write_text('["\\ud800", "b", "c", "d", "e"]')
    write_page(gather([tmp_path]), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_states_are_listed_and_do_not_stop_the_report(tmp_path):
    make_run(tmp_path / "good")
    make_run(tmp_path / "half", seed=1, done=1)
    (tmp_path / "empty").mkdir()
    make_run(tmp_path / "toml")
    (tmp_path / "toml" / "config.toml").write_text("policy = ")
    make_run(tmp_path / "none")
    (tmp_path / "none" / "config.toml").unlink()
    make_run(tmp_path / "list")
    write_json(tmp_path / "list" / "summary.json", [1, 2])
    make_run(tmp_path / "arrays", seed=2)
    (tmp_path / "arrays" / "predictions.npz").write_bytes(b"PK\x03\x04 no")
    report = gather([tmp_path, tmp_path / "empty"])
    found = {row[0].text.rpartition("/")[2]: (row[1].text, row[-1].text) for row in run_list(report.runs).rows}
    assert found["good"] == ("finished", "")
    assert found["half"] == ("unfinished", "")
    assert found["empty"] == ("empty", "the folder holds no run")
    assert found["toml"][0] == found["none"][0] == found["list"][0] == "damaged"
    assert "config.toml cannot be read" in found["toml"][1]
    assert found["none"][1] == "config.toml is missing"
    assert found["list"][1] == "summary.json has no final accuracy"
    assert found["arrays"][0] == "finished" and "predictions.npz cannot be read" in found["arrays"][1]
    assert sum(len(group.runs) for group in only(report).groups) == 2  # the good one, and the one without predictions
    assert "damaged" in render_report(report)


def test_a_folder_that_is_not_there_is_a_mistake(tmp_path):
    with pytest.raises(GraspError, match="there is no folder"):
        gather([tmp_path / "nowhere"])


FILES = ("config.toml", "summary.json", "metrics.jsonl", "environment.json", "classes.json", "stream.npz",
         "predictions.npz", "plans/session-3.npz", "drift.npz")  # fmt: skip
VALUES = ["null", "[]", "{}", "3", '"x"', "[[[", "{" * 9999, "1e999", "NaN", '{"alpha": "x"}', "\x00",
          '{"alpha": 1, "matrix": 3}', '{"alpha": 50.0, "updates": [], "seed": {}}',
          'a = 1\nseed = "x"\nstream = 3\nbudget = []\npolicy = 7']  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("sound") / "a", drift=True)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FILES), st.sampled_from(VALUES) | st.binary(max_size=40) | st.integers(0, 10_000))
def test_no_damage_to_a_file_stops_the_report(sound, tmp_path_factory, name, damage):
    folder = tmp_path_factory.mktemp("damaged")
    for file in FILES:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes((sound / file).read_bytes())
    whole = (folder / name).read_bytes()
    if isinstance(damage, int):  # cut off, or a byte of it turned over
        damage %= len(whole)
        bent = bytearray(whole)
        bent[damage] ^= 0xFF
        damage = whole[:damage] if damage % 2 else bytes(bent)
    (folder / name).write_bytes(damage.encode() if isinstance(damage, str) else damage)
    report = gather([folder])
    assert len(report.runs) == 1
    render_report(report)


# -- size --------------------------------------------------------------------------------------------------------------


def test_two_hundred_runs_of_twenty_sessions_fit(tmp_path):
    plotly = pytest.importorskip("plotly.offline")
    policies = [f"policy_{number}" for number in range(18)] + ["grasp", "uniform_balanced"]
    random.Random(0).shuffle(policies)
    for policy in policies:
        for seed in range(5):
            for times in (0.5, 1.0):
                make_run(tmp_path / policy / f"{seed}-{times}", policy, seed, times=times, sessions=20, drift=True)
    report = gather([tmp_path])
    page = render_report(report)
    assert len(report.runs) == 200
    assert len(page.encode()) - len(plotly.get_plotlyjs().encode()) < 2_000_000
    assert page.count("plotly.js v") == plotly.get_plotlyjs().count("plotly.js v") == 1
    assert len(report.runs[0].class_accuracy) == BASE + 20
