"""Runs: what belongs to which session, folders that are somebody's, caches that tell executions apart."""

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tomli_w
import torch
from made_up import Notes
from safetensors.torch import save_file

from graspcl import machine
from graspcl.cache import lock
from graspcl.codec import Identity
from graspcl.data import Samples
from graspcl.errors import GraspError
from graspcl.experiment import encoding, load_learner, run
from graspcl.experiment import prepare as preparing
from graspcl.experiment.measure import arrivals
from graspcl.experiment.prepare import PreparedCache, _stamp, arrange, make_learner, open_data, prepare
from graspcl.experiment.pretraining import _seen, build_network
from graspcl.model import vector_network
from graspcl.progress import Silent
from graspcl.report import read_run
from graspcl.settings import Config, change, preset
from graspcl.settings.config import BaseConfig, Part, StreamConfig
from graspcl.settings.read import read_toml
from graspcl.stream import ClassIncremental, Stream, imagenet_order, save_stream


def test_a_folder_with_other_files_is_left_alone(small, tmp_path):
    (tmp_path / "mine" / "checkpoints").mkdir(parents=True)
    (tmp_path / "mine" / "checkpoints" / "model.pt").write_text("precious")
    with pytest.raises(GraspError, match="files that do not belong to a run"):
        run(small, tmp_path / "mine")
    assert (tmp_path / "mine" / "checkpoints" / "model.pt").read_text() == "precious"


def test_a_run_of_an_earlier_version_is_found_in_its_folder(finished, small, tmp_path):
    config, done = finished
    folder = shutil.copytree(done, tmp_path / "run")
    plain = read_toml(folder / "config.toml")
    plain["base"] = {"method": "none", "epochs": 50, "batch_size": 256, "lr": 0.2, "passes": plain["base"]["passes"]}
    (folder / "config.toml").write_text(tomli_w.dumps(plain))
    (folder / "checksums.json").unlink()
    notes = Notes()
    assert run(config, folder, notes) == json.loads((done / "summary.json").read_text())
    (told,) = (line for line in notes.said if "already holds this run, finished" in line)
    assert f"graspcl report {folder}" in told and "another --out or delete the folder" in told
    assert load_learner(folder).classes == load_learner(done).classes


def test_settings_without_effect_do_not_make_another_run(small, tmp_path):
    run(change(small, {"budget.updates": 1}), tmp_path / "run")
    same = replace(change(small, {"budget.updates": 1}), budget=replace(small.budget, updates=1, passes=7.0))
    run(same, tmp_path / "run")
    assert same.path == change(small, {"budget.updates": 1}).path


def test_the_frozen_part_learns_in_a_veridical_run_if_wanted():
    start = change(preset("groceries", "smoke", "veridical"), {"network": "small"})
    for given, learns in (({}, False), ({"network.frozen": True}, False), ({"network.frozen": False}, True)):
        config = change(start, given)
        learner = make_learner(config, build_network(config), Identity(), 6)
        assert (learner.network.share_plastic() == 1.0) == learns


def test_published_weights_that_know_classes_of_the_stream_are_reported():
    samples, config = (
        SimpleNamespace(classes=[*imagenet_order()[:3], "x"]),
        change(Config(), {"network": "efficientnet_lite0"}),
    )
    found = _seen(config, samples, np.array([0]))
    assert found == "the published weights of efficientnet_lite0 were trained on 2 classes of the stream"
    assert (
        _seen(config, samples, np.arange(3))
        == _seen(change(config, {"network.pretrained": False}), samples, np.array([0]))
        == ""
    )


def test_two_processes_do_not_share_a_folder(small, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    with lock(folder / ".lock"), pytest.raises(GraspError, match="another process is using"):
        run(small, folder)
    assert run(small, folder)["alpha"] > 30  # and now it may


def test_a_rules_columns_fit_a_learner_that_widens_the_head(small):
    buffer = replace(small.buffer, maintenance=Part("gss"))
    config = replace(small, learner=Part("idbr", {"regularised": True}), buffer=buffer)
    network = vector_network(16, embedding=8, generator=torch.Generator().manual_seed(0))
    learner = make_learner(config, network, Identity(), classes=4)
    assert learner.buffer.columns["gradient"] == ((learner.network.head.features,), np.float32)


class Tasks(Samples[torch.Tensor]):
    """Two tasks with the same two classes."""

    def __init__(self) -> None:
        labels, self.task_of = np.tile([0, 1], 20), np.repeat([0, 1], 20)
        train, test = np.arange(40)[np.arange(40) % 4 < 2], np.arange(40)[np.arange(40) % 4 >= 2]
        super().__init__("tasks", "1", ["no", "yes"], labels, np.arange(40), train, test)

    def read(self, indices):
        return torch.zeros(len(indices), 4)


def test_texts_of_a_later_task_are_not_tested_before_it_comes():
    samples = Tasks()
    sessions = [samples.train[samples.task_of[samples.train] == task] for task in (1, 0)]
    stream = Stream([], sessions, labels=samples.labels, tasks=[1, 0])
    came = arrivals(stream, samples, samples.test)
    assert came.tolist() == [2 if task == 0 else 1 for task in samples.task_of[samples.test]]


def test_a_blurred_class_belongs_to_its_own_session():
    labels = np.repeat(np.arange(6), 50)
    stream = ClassIncremental(np.arange(300), labels, 2, 2, np.random.default_rng(0), blurry=0.5)
    samples = Tasks()
    samples.labels, samples.task_of = labels, None
    came = arrivals(stream, samples, np.arange(300))
    assert sorted(np.unique(came).tolist()) == [0, 1, 2] and np.bincount(came).tolist() == [100, 100, 100]
    assert set(stream.arrival.values()) == {0, 1}  # though samples of all classes are there from the first on


def test_weights_from_elsewhere_have_no_codec_and_no_classes(small, tmp_path):
    state = {name: value for name, value in build_network(small).state_dict().items() if "extra" not in name}
    state = {name: value for name, value in state.items() if not name.startswith("head.")}
    torch.save(state, tmp_path / "weights.pth")
    save_file(state, tmp_path / "weights.safetensors")
    for name in ("weights.pth", "weights.safetensors"):
        options = {"base.stages": f"weights(file={tmp_path / name})", "name": name}
        assert run(change(small, options), tmp_path / "runs" / name)["alpha"] > 30


def test_latents_and_codes_of_another_precision_are_not_taken(small, monkeypatch):
    """Of a network whose frozen part multiplies, bf16 latents differ; the cache must not mix them."""
    keys, real = [], encoding.cached_rows
    monkeypatch.setattr(machine, "can_bf16", lambda: None)  # it tries it out; nothing is multiplied here
    monkeypatch.setattr(encoding, "cached_rows", lambda key, *rest: (keys.append(key), real(key, *rest))[1])
    for precision in ("fp32", "bf16", "fp32"):
        prepare(change(small, {"execution.precision": precision}), Silent())
    assert [key.partition("/")[0] for key in keys] == ["latents", "codes"] * 3
    assert keys[:2] == keys[4:] and not {*keys[:2]} & {*keys[2:4]}


@pytest.mark.parametrize("base_classes", [4, 0])
def test_a_codec_learns_from_the_base_or_else_from_the_first_session(small, monkeypatch, base_classes):
    real, given = preparing.encode_samples, []
    monkeypatch.setattr(preparing, "encode_samples", lambda *what: (given.append(what[3]), real(*what))[1])
    stream = prepare(change(small, {"stream.base_classes": base_classes}), Silent()).stream
    assert given[0].tolist() == (stream.base if base_classes else stream.sessions[0]).tolist()


def test_samples_are_reduced_to_so_many_of_a_class(small):
    options = {"data.classes": 9, "data.per_class": 7, "data.test_per_class": 3}
    samples, order = open_data(change(small, options))
    assert np.bincount(samples.labels[samples.train]).tolist() == [7] * 9
    assert np.bincount(samples.labels[samples.test]).tolist() == [3] * 9
    whole, its_order = open_data(small)
    assert [samples.classes[label] for label in order] == [whole.classes[label] for label in its_order[:9]]


def test_plans_name_samples_by_their_place_in_the_data(small, tmp_path):
    config = change(small, {"stream.sessions": 2, "budget.updates": 2, "base.passes": 0.1, "buffer": "none"})
    run(config, tmp_path / "run")
    stream, labels = arrange(config, *open_data(config)), open_data(config)[0].labels
    with np.load(tmp_path / "run" / "plans" / "session-1.npz") as plan:
        assert plan["ids"].tolist() == [*stream.base, *stream.sessions[0]]
        assert plan["labels"].tolist() == labels[plan["ids"]].tolist()


def test_a_network_that_cannot_take_the_data_is_refused(small, tmp_path):
    with pytest.raises(GraspError, match="does not take the samples of clusters"):
        run(change(small, {"network.dim": 17}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_written_anew_is_read_anew(small, tmp_path):
    file, cache = tmp_path / "stream.npz", PreparedCache()
    for seed in (0, 1):
        samples, order = open_data(change(small, {"seed": seed}))
        save_stream(arrange(change(small, {"seed": seed}), samples, order), file, fingerprint=samples.fingerprint())
        found = cache.get(change(small, {"stream.file": str(file)}), Silent()).stream.samples.tolist()
        if seed == 0:
            before = found
    assert found != before


def test_final_accuracy_of_tasks_is_the_mean_over_tasks(tmp_path, monkeypatch, add_source):
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))

    class Vectors(Tasks):
        def __init__(self) -> None:
            super().__init__()
            rng = np.random.default_rng(0)
            self.values = (4 * self.labels[:, None] + rng.normal(size=(40, 4))).astype(np.float32)

        def read(self, indices):
            return torch.from_numpy(self.values[self.check(indices)])

    add_source("pairs", lambda: Vectors())
    options = {"data.path": "pairs", "network.dim": 4, "learner": "idbr", "stream.sessions": 2, "name": "pairs"}
    plain = preset("listings", memory="unbounded")
    plain = replace(plain, base=BaseConfig(), stream=StreamConfig("task_incremental", sessions=2, order="sorted"))
    summary = run(change(plain, options), tmp_path / "run")
    last = [
        value
        for value in json.loads((tmp_path / "run" / "summary.json").read_text())["matrix"][-1]
        if value is not None
    ]
    assert len(last) == 2 and summary["alpha_tasks"] == pytest.approx(np.mean(last), abs=1e-3)
    told = read_run(tmp_path / "run")  # as a report reads it, tasks are the sessions too
    assert told.problems == () and told.matrix[-1][1:].tolist() == pytest.approx(last, abs=1e-3)


def test_whole_classes_are_measured_before_a_session(small, tmp_path):
    run(change(small, {"measure.distances": 60}), tmp_path / "run")
    with np.load(tmp_path / "run" / "plans" / "session-1.npz") as plan:
        labels, measured = plan["labels"], np.isfinite(plan["distances"])
    sizes = np.bincount(labels)
    assert 0 < measured.sum() <= max(60, sizes.max())
    assert all(measured[labels == k].all() for k in np.unique(labels[measured]))
    rise = read_run(tmp_path / "run").rehearsed.distance
    assert np.nanmean(rise[: len(rise) // 3]) < np.nanmean(rise[-len(rise) // 3 :])  # GRASP: from easy to hard


def test_links_to_nowhere_among_the_data_are_no_mistake(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.png").symlink_to(tmp_path / "nowhere")
    before = _stamp(str(tmp_path))
    (tmp_path / "a" / "new.png").write_bytes(b"x")
    assert _stamp(str(tmp_path)) != before and _stamp("listings") == _stamp(None) == []
