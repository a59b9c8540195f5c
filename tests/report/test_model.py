"""Which runs are averaged, which are compared, and how they are labelled."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import by_name, column, make_run, only, write_json

from graspcl.experiment.run_samples import open_samples
from graspcl.metric import interval
from graspcl.report import gather
from graspcl.report.figures import style
from graspcl.report.figures.style import over_seeds
from graspcl.report.grouping import _GROUPS_NOT_OF_A_METHOD, _NOT_OF_A_METHOD
from graspcl.report.measures import LABEL, Mean, distinct_labels, p_text, plural, shorten, significant, tick_label
from graspcl.report.read import flatten, read_runs
from graspcl.report.render.html import render_report
from graspcl.report.samples import TITLE
from graspcl.report.tables import comparison_table, cost_table
from graspcl.settings.config import Config, as_plain, identity


def change(file, **values):
    write_json(file, json.loads(file.read_text(encoding="utf-8")) | values)


# -- labels ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Two policies and three settings of the optimiser, all in their labels: 16 methods."""
    folder = tmp_path_factory.mktemp("grid")
    for number in range(16):
        policy = {"name": "uniform_balanced", "replace": False} if number % 2 else {"name": "grasp"}
        lr, schedule = (0.1, 0.01)[number // 2 % 2], ("cosine", "constant")[number // 4 % 2]
        optimiser = {"name": ("sgd", "adamw")[number // 8], "lr": lr, "schedule": schedule}
        make_run(folder / str(number), config={"policy": policy, "optimiser": optimiser}, drift=True)
    return only(gather([folder], baseline="uniform_balanced(replace=False)"))


def test_every_method_of_a_grid_is_drawn_as_one_of_its_own(grid):
    found = by_name(grid)
    bars, times = found["bars"].views[0], found["times"].views[0]
    assert len({trace["y"][0] for trace in bars.data}) == len(bars.data) == 16
    assert len(set(times.data[0]["y"])) == len(times.data[0]["y"]) == 16
    for name in ("learning-all", "repeats", "class-coverage", "drift", "classes"):
        names = [trace["name"] for trace in found[name].views[0].data if trace.get("showlegend", True)]
        assert len(set(names)) == len(names) == 16, name
    assert len({view.label for view in found["matrix"].views}) == 16


def test_bars_beyond_the_seventh_have_patterns(grid):
    looks = [json.dumps(trace["marker"]) for trace in by_name(grid)["repeats"].views[0].data]
    assert len(set(looks)) == 16
    assert [("pattern" in look) for look in looks] == [False] * 7 + [True] * 9


def test_a_long_label_is_shortened_before_it_is_numbered(tmp_path):
    for number, (lr, decay) in enumerate([(0.1, 0.001), (0.2, 0.001), (0.1, 0.002)]):
        make_run(tmp_path / str(number), config={"optimiser": {"learning_rate": lr, "weight_decay": decay}})
    labels = [method.label for method in only(gather([tmp_path])).methods]
    assert labels[0] == "grasp · learning_rate=0.1, weight_decay=0.001"


@given(st.lists(st.text("ab (·+", min_size=1, max_size=80), unique_by=lambda label: shorten(label, 200)))
def test_labels_stay_apart_when_they_are_shorten(labels):
    found = distinct_labels(labels)
    assert len({shorten(label, LABEL) for label in found}) == len({tick_label(label) for label in found}) == len(labels)
    assert all(new.startswith(old) for new, old in zip(found, labels, strict=True))


# -- what is averaged --------------------------------------------------------------------------------------------------


def make_on(folder, path, mark, seed, **others):
    """A run on the data at a path, whose fingerprint is `mark`."""
    make_run(folder, seed=seed, config={"data": {"path": path}, **others})
    change(folder / "environment.json", fingerprint=mark)


def test_data_that_differ_at_a_seed_are_other_experiments(tmp_path):
    for seed in range(2):
        make_on(tmp_path / f"cats{seed}", "/d/cats/images", f"cats{seed}", seed)
        make_on(tmp_path / f"dogs{seed}", "/d/dogs/images", f"dogs{seed}", seed)
    cats, dogs = gather([tmp_path]).experiments
    assert (cats.title, dogs.title) == ("toy (/d/cats/images)", "toy (/d/dogs/images)")
    assert [len(group.runs) for group in (*cats.groups, *dogs.groups)] == [2, 2]
    assert cats.repeats == dogs.repeats == 0


def test_data_that_changed_in_their_place_are_other_experiments(tmp_path):
    for seed in range(2):
        make_on(tmp_path / f"a{seed}", "/d/images", "before", seed)
        make_on(tmp_path / f"b{seed}", "/d/images", "after", seed)
    assert [len(experiment.groups[0].runs) for experiment in gather([tmp_path]).experiments] == [2, 2]


def test_seeds_and_networks_may_have_fingerprints_of_their_own(tmp_path):
    make_on(tmp_path / "a", "/one/images", "first", 0, network={"name": "transformer", "max_tokens": 32})
    make_on(tmp_path / "b", "/two/images", "second", 1, network={"name": "transformer", "max_tokens": 32})
    make_on(tmp_path / "c", "/two/images", "third", 0, network={"name": "transformer", "max_tokens": 64})
    assert [len(group.runs) for group in only(gather([tmp_path])).groups] == [2, 1]


def test_what_changes_nothing_that_is_learned_makes_no_method(tmp_path):
    plain = as_plain(Config(log="wandb"))
    for name in flatten({key: plain[key] for key in plain.keys() - identity(plain).keys()}):
        assert name in _NOT_OF_A_METHOD or name.startswith(_GROUPS_NOT_OF_A_METHOD)
    make_run(tmp_path / "a", config={"log": "wandb", "measure": {"drift": 0}, "execution": {"device": "cpu"}})
    make_run(tmp_path / "b", seed=1, config={"measure": {"drift": 50}, "execution": {"device": "cuda"}})
    (group,) = only(gather([tmp_path])).groups
    assert (len(group.runs), group.method.label) == (2, "grasp")


def test_runs_that_predict_through_the_codec_are_another_method(tmp_path):
    make_run(tmp_path / "before", config={})
    make_run(tmp_path / "coded", seed=1, config={"measure": {"coded": True}})
    make_run(tmp_path / "uncoded", config={"measure": {"coded": False}})
    groups = only(gather([tmp_path])).groups
    assert {group.method.label: len(group.runs) for group in groups} == {
        "grasp · measure.coded=true": 2, "grasp · measure.coded=false": 1,
    }  # fmt: skip


def test_a_mean_is_over_all_seeds_that_came_so_far():
    mean, half = over_seeds([[1.0, 2.0, 8.0], [3.0, np.nan], [5.0]])
    assert mean.tolist() == [3, 2, 8]
    assert half[0] == pytest.approx(interval([1, 3, 5]).high - 3) and np.isnan(half[1:]).all()
    assert [len(part) for part in over_seeds([])] == [0, 0]


def test_a_curve_of_unfinished_seeds_has_a_band_where_three_are(tmp_path):
    for seed, done in enumerate((2, 1, 1)):
        make_run(tmp_path / str(seed), seed=seed, done=done)
    runs = gather([tmp_path])
    band, line = by_name(only(runs))["learning-all"].views[0].data
    both = np.mean([run.curves["all"][:2] for run in runs.runs], axis=0)
    assert line["x"] == [0, 1, 2]
    assert line["y"][:2] == pytest.approx(both, abs=0.01)
    assert line["customdata"][2] == "" and all(line["customdata"][:2])
    assert band["x"] == [0, 1, 1, 0]


def test_sessions_of_different_lengths_begin_at_one_place(tmp_path):
    make_run(tmp_path / "a", seed=0, updates=4, drift=True)
    make_run(tmp_path / "b", seed=1, updates=2, drift=True)
    np.savez(tmp_path / "a" / "drift.npz", session_1=np.full(4, 1.0), session_2=np.full(4, 2.0))
    np.savez(tmp_path / "b" / "drift.npz", session_1=np.full(2, 3.0), session_2=np.full(2, 4.0))
    found = by_name(only(gather([tmp_path])))
    drift = found["drift"].views[0]
    assert drift.data[0]["y"] == [2, 2, 1, 1, 3, 3, 2, 2]
    assert [line["x0"] for line in drift.layout["shapes"]] == [4.5]
    assert found["coverage"].views[0].data[-1]["x"] == [1, 2, 3, 4]


# -- budgets, memory and time ------------------------------------------------------------------------------------------


def budgets(tmp_path, *of):
    for number, budget in enumerate(of):
        make_run(tmp_path / str(number), config={"budget": budget})
    return {condition.budget for condition in only(gather([tmp_path])).ranked_conditions}


def test_updates_that_were_set_are_named(tmp_path):
    assert budgets(tmp_path / "one", {"updates": 5, "times": 1.0}) == {"5 updates"}
    assert budgets(tmp_path / "two", {"updates": 5}, {"updates": 1251}) == {"5 updates", "1,251 updates"}
    assert budgets(tmp_path / "times", {"updates": 5, "times": 0.5}, {"updates": 5}) == {"0.5x", "1x"}
    both = {"updates": 5, "times": 0.5}, {"passes": 2.0}
    assert budgets(tmp_path / "both", *both) == {"0.5x of 5 updates", "1x of 2.0 passes"}
    assert by_name(only(gather([tmp_path / "two"])))["bars"].views[0].label in ("5 updates", "1,251 updates")


def test_buffers_that_hold_the_same_are_not_said_to_be_one(tmp_path):
    for capacity in (1000, 2000):
        folder = make_run(tmp_path / str(capacity), capacity=capacity)
        change(folder / "summary.json", buffer_bytes=500)
    assert by_name(only(gather([tmp_path])))["memory"].missing.startswith(
        "All buffers of these runs took the same number of bytes"
    )


def test_time_counts_the_updates_that_were_made(tmp_path):
    make_run(tmp_path / "a", "uniform", updates=10)
    make_run(tmp_path / "b", "grasp", updates=5)  # stopped early: half of the time
    view = by_name(only(gather([tmp_path])))["times"].views[0]
    total = np.sum([trace["x"] for trace in view.data], axis=0)
    assert dict(zip(view.data[0]["y"], total, strict=True)) == pytest.approx({"uniform": 1, "grasp": 0.5})


def test_time_is_relative_to_what_is_there_at_a_budget(tmp_path):
    for number, (policy, times) in enumerate([("uniform", 1.0), ("uniform_balanced", 1.0), ("uniform_balanced", 0.5)]):
        make_run(tmp_path / str(number), policy, times=times)
    views = {view.label: view for view in by_name(only(gather([tmp_path])))["times"].views}
    notes = {label: view.note for label, view in views.items()}
    assert notes == {"1x updates": "1 is the time of uniform.", "0.5x updates": "1 is the time of uniform_balanced."}


def test_small_costs_keep_their_digits(tmp_path):
    folder = make_run(tmp_path / "a", "grasp")
    change(folder / "summary.json", training_seconds=0.0042, selection_seconds=0.0)
    assert column(cost_table(only(gather([tmp_path]))), "train s")[0].text == "0.0042"


# -- tasks, files of earlier versions -----------------------------------------------------------------------


def test_streams_of_tasks_have_their_own_measure(tmp_path):
    folder = make_run(tmp_path / "a")
    assert "α tasks" not in [column.heading for column in comparison_table(only(gather([tmp_path]))).columns]
    change(folder / "summary.json", alpha_tasks=51.5)
    assert column(comparison_table(only(gather([tmp_path]))), "α tasks")[0].text == "51.50"


def without(file, name):
    """The file without one of its arrays."""
    with np.load(file) as found:
        kept = {key: found[key] for key in found.files if key != name}
    np.savez(file, **kept)


def test_files_of_earlier_versions_are_read_whole(tmp_path):
    new = make_run(tmp_path / "new", drift=True)
    old = make_run(tmp_path / "old", drift=True)
    without(old / "predictions.npz", "arrived")
    without(old / "plans" / "session-3.npz", "distances")
    own, other = gather([old]).runs[0], gather([new]).runs[0]
    assert own.problems == ()
    assert np.array_equal(own.matrix, other.matrix, equal_nan=True)
    assert own.curves["old"][1:] == other.curves["old"][1:] and own.class_accuracy == other.class_accuracy
    assert np.isnan(own.rehearsed.distance).all() and own.rehearsed.repeats.tolist() == other.rehearsed.repeats.tolist()


def test_policies_of_earlier_versions_are_not_labelled_as_those_of_today(tmp_path):
    """Their names mean something else now."""
    before = {"base": {"method": "none", "epochs": 50, "batch_size": 256, "lr": 0.2, "passes": 0.0}}
    for policy in ("gss", "min_margin", "grasp"):
        for when, config in (("before", before), ("today", {"base": {"stages": [], "passes": 0.0}})):
            make_run(tmp_path / policy / when, policy, config=config)
    labels = [run.policy for run in read_runs([tmp_path])]
    former = ["gss(mode=top, reference_size=10)", "min_margin(of=logits)"]
    assert sorted(labels) == sorted(["gss", "min_margin", "grasp", "grasp", *former])


def test_what_cannot_be_read_is_not_said_to_be_missing(tmp_path):
    folder = make_run(tmp_path / "a", drift=True)
    for name in ("predictions.npz", "plans/session-3.npz", "drift.npz"):
        (folder / name).write_bytes(b"PK no")
    report = gather([tmp_path])
    body = render_report(report, open_samples)
    for title in ("Accuracy by class", "Coverage by class", "Distance of rehearsed samples to their prototypes",
                  "Representation drift, norm", TITLE):  # fmt: skip
        assert f"<b>{title}</b> is left out. 1 run has files that cannot be read; see Runs." in body
    assert '1 run: 1 finished · <a href="#runs">1 with problems</a>' in body
    matrix = by_name(only(report))["matrix"].views[0].data[0]["z"]
    assert matrix[-1] == [round(value, 1) for value in report.runs[0].summary["matrix"][-1]]


# -- how values are written --------------------------------------------------------------------------------------------


def test_values_are_written_for_people():
    assert (p_text(0.0421), p_text(0.00001), p_text(math.nan)) == ("0.042", "< 0.001", "–")
    assert (significant(12.3, 2), significant(0.00123, 2)) == (2, 4)
    assert (plural(1, "run"), plural(2, "run")) == ("1 run", "2 runs")
    assert shorten("a" * 300, 9) == "aaaaaa…aa"
    assert tick_label("uniform_balanced(replace=False)") == "uniform_balanced<br>(replace=False)"
    assert Mean.of([60.0, 62.0, 64.0]).text(2) == "62.00 ± 4.97"
    assert style.plain_text("<b>bold</b>") == "&lt;b&gt;bold&lt;/b&gt;"


def test_values_are_prepared_for_plotly():
    assert style.rounded([1.239, math.nan]) == [1.24, None]
    assert style.bar_height(["one line", "two<br>lines"]) == {"meta": {"height": 68}}
    places, values = style.thinned([5, 6, 7, 8, 9], most=3)
    assert (places, values.tolist()) == ([0, 2, 4], [5, 7, 9])
