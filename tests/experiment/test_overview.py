"""The learner of a finished run, and what GRASP draws of one of its classes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graspcl.errors import GraspError
from graspcl.experiment import load_learner
from graspcl.experiment.overview import choose_class, class_picture, project
from graspcl.experiment.prepare import prepare
from graspcl.policy import prototype_distances
from graspcl.progress import Silent


def test_the_learner_is_the_one_that_the_run_ended_with(finished, small):
    config, folder = finished
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    learner = load_learner(folder).learner
    prepared = prepare(config, Silent())
    with np.load(folder / "predictions.npz") as found, np.load(folder / "plans" / "session-4.npz") as plan:
        test = np.array(prepared.samples.test)
        assert (learner.predict_codes(prepared.codes[test]) == found["predictions"][-1]).all()
        assert (learner.buffer.labels == plan["labels"]).all() and (learner.buffer.ids == plan["ids"]).all()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_grasp_begins_near_the_prototype_and_shows_more_of_a_class(finished):
    _, folder = finished
    learner = load_learner(folder).learner
    names = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
    label = choose_class(learner, names)
    slots = learner.buffer.slots_of(label)
    assert len(slots) == learner.buffer.sizes.max()
    pictures = [class_picture(learner, label, np.random.default_rng(seed)) for seed in range(40)]
    one = pictures[0]
    assert one.points.shape == (len(slots), 2) and one.prototype.shape == (2,) and 0 < one.share <= 1
    embeddings = learner.outputs(learner.buffer["codes"][slots], "embedding").double().numpy()
    assert one.distances == pytest.approx(prototype_distances(embeddings, np.zeros(len(slots), int)))
    first = len(slots) // 4
    grasp = np.mean([one.distances[picture.grasp[:first]].mean() for picture in pictures])
    uniform = np.mean([one.distances[picture.uniform[:first]].mean() for picture in pictures])
    assert grasp < one.distances.mean() and grasp < uniform
    seen = [[len(np.unique(order)) / len(slots) for order in (p.grasp, p.uniform)] for p in pictures]
    grasp_seen, uniform_seen = np.mean(seen, axis=0)
    assert grasp_seen > 0.7 > uniform_seen > 0.55  # with replacement 1 - 1/e of them
    again = class_picture(learner, label, np.random.default_rng(0))
    assert all((getattr(again, name) == getattr(one, name)).all() for name in ("points", "grasp", "uniform"))
    longer = class_picture(learner, label, np.random.default_rng(0), draws=3 * len(slots))
    assert len(longer.grasp) == len(longer.uniform) == 3 * len(slots)


def test_classes_are_chosen_by_name(finished):
    _, folder = finished
    learner = load_learner(folder).learner
    names = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
    assert choose_class(learner, names, "class 7") == 7
    with pytest.raises(GraspError, match="--class 'clas 7' is not the name of a class; did you mean 'class 7'"):
        choose_class(learner, names, "clas 7")
    with pytest.raises(GraspError, match="'more' has no stored sample"):
        choose_class(learner, [*names, "more"], "more")
    with pytest.raises(GraspError, match="no sample of class 99"):
        class_picture(learner, 99, np.random.default_rng(0))


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 12))
def test_a_projection_shortens_distances_and_keeps_those_on_a_plane(seed, number, dim):
    z = np.random.default_rng(seed).normal(size=(number, dim))
    points, prototype, share = project(z)
    d = prototype_distances(z, np.zeros(number, int))
    apart = ((points - prototype) ** 2).sum(1)
    assert (apart <= 2 * d + 1e-9).all()
    assert 0 <= share <= 1 + 1e-9 and points.mean(0) == pytest.approx(np.zeros(2), abs=1e-9)
    if dim <= 2 and number > 2:
        assert apart == pytest.approx(2 * d, abs=1e-9)
    assert project(3 * z)[0] == pytest.approx(points, abs=1e-6)  # directions alone


def test_the_command_writes_the_page(finished, tmp_path, capsys):
    pytest.importorskip("plotly", reason="needs graspcl[report]")
    from graspcl.cli.overview import overview

    _, folder = finished
    overview(folder, class_="class 7", output=tmp_path / "page.html")
    assert "page.html: class 7, 40 stored samples" in capsys.readouterr().out
    assert "<h1>class 7</h1>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    with pytest.raises(GraspError, match="is a folder; try "):
        overview(folder, output=tmp_path)
