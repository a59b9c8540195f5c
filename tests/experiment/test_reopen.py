"""A finished run opened again, and what GRASP draws of one of its classes."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graspcl.errors import GraspError
from graspcl.experiment import change, run
from graspcl.experiment.overview import choose_class, class_picture, project
from graspcl.experiment.prediction import reopen
from graspcl.experiment.source import SOURCES
from graspcl.experiment.start import forget, ready
from graspcl.policy import prototype_distances
from graspcl.progress import Silent

pytest.importorskip("faiss", reason="needs graspcl[opq]")


@pytest.fixture
def done(small, tmp_path):
    """The settings and the folder of a finished run."""
    config = change(small, {"budget.updates": 3, "codec": "half"})
    run(config, tmp_path / "run")
    forget()
    return config, tmp_path / "run"


def test_the_learner_is_the_one_that_the_run_ended_with(done):
    config, folder = done
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    learner = reopen(folder)
    start = ready(config, Silent())
    with np.load(folder / "predictions.npz") as found, np.load(folder / "plans" / "session-4.npz") as plan:
        test = np.array(start.samples.test)
        assert (learner.predict_codes(start.codes[test]) == found["predictions"][-1]).all()
        assert (learner.buffer.labels == plan["labels"]).all() and (learner.buffer.ids == plan["ids"]).all()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_what_cannot_be_reopened_is_told(done, small, tmp_path, monkeypatch):
    _, folder = done

    def refused(words, path=folder):
        with pytest.raises(GraspError, match=words):
            reopen(path)

    refused("has no config.toml", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    unfinished = shutil.copytree(folder, tmp_path / "unfinished")
    (unfinished / "summary.json").unlink()
    refused("is not finished", unfinished)
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    next(damaged.glob("checkpoints/*")).write_bytes(b"no")
    refused("cannot be reopened: the checkpoint .* is damaged", damaged)
    bare = shutil.copytree(folder, tmp_path / "bare")
    shutil.rmtree(bare / "checkpoints")
    refused("kept no state; run it with --checkpoint.keep state", bare)
    original = SOURCES["clusters"]

    def changed(data):
        samples = original(data)
        samples.values = samples.values + 1
        samples.fingerprint = lambda: "other"
        return samples

    monkeypatch.setitem(SOURCES, "clusters", changed)
    refused("are not those that it began with")
    forget()
    monkeypatch.delitem(SOURCES, "clusters")
    refused("cannot be reopened: --data clusters: there is no such folder")


def test_grasp_begins_near_the_prototype_and_shows_more_of_a_class(done):
    _, folder = done
    learner = reopen(folder)
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


def test_classes_are_chosen_by_name(done):
    _, folder = done
    learner = reopen(folder)
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


def test_the_command_writes_the_page(done, tmp_path, capsys):
    pytest.importorskip("plotly", reason="needs graspcl[report]")
    from graspcl.cli.overview import overview

    _, folder = done
    overview(folder, class_="class 7", output=tmp_path / "page.html")
    assert "page.html: class 7, 40 stored samples" in capsys.readouterr().out
    assert "<h1>class 7</h1>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    with pytest.raises(GraspError, match="is a folder; try "):
        overview(folder, output=tmp_path)
