"""Test samples are predicted uncoded, unless a run is to predict through its codec."""

import json

import numpy as np
import pytest
import tomli_w
import torch

from graspcl.codec import OPQ
from graspcl.errors import GraspError
from graspcl.experiment import encoding, load_learner, run
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.prepare import prepare
from graspcl.progress import Silent
from graspcl.settings import Config, change, preset
from graspcl.settings.config import as_plain

COARSE = {"codec": "opq", "codec.codebooks": 2, "codec.size": 4, "codec.iterations": 1, "budget.updates": 1}


@pytest.mark.parametrize("cached", ["all", "test", "none"])
@pytest.mark.parametrize("coded", [False, True])
def test_a_run_predicts_uncoded_inputs_unless_asked(coded, cached, small, notes, tmp_path, monkeypatch):
    config = change(small, {**COARSE, "measure.coded": coded})
    room = {"all": 10**9, "test": 300 * 512, "none": 0}[cached]  # 720 latents of 512 bytes, 240 of them for tests
    monkeypatch.setattr(encoding, "_LATENTS", room)
    summary = run(config, tmp_path / "run", notes)
    learned, prepared = load_learner(tmp_path / "run"), prepare(config, Silent())
    test = np.array(prepared.samples.test)
    through_codec = learned.learner.predict_codes(prepared.codes[test])
    latents = learned.learner.latents(prepared.samples.read(test)).half()
    uncoded = np.asarray(learned.learner.classes)[learned.learner.outputs(latents, "logits", coded=False).argmax(1)]
    assert (through_codec != uncoded).any()
    with np.load(tmp_path / "run" / "predictions.npz") as found:
        through = coded or cached == "none"
        assert (found["predictions"][-1] == (through_codec if through else uncoded)).all()
    assert summary["coded"] == through
    assert ("test samples pass through the codec, because" in notes) == (cached == "none" and not coded)
    own = learned.learner.logits(prepared.samples.read(test)).argmax(1)
    assert (np.asarray(learned.learner.classes)[own] == (through_codec if coded else uncoded)).mean() > 0.99


def test_drift_is_measured_on_what_is_predicted(small, tmp_path):
    curves = []
    for coded in (False, True):
        config = change(small, {**COARSE, "measure.coded": coded, "measure.drift": 20, "stream.sessions": 1})
        run(config, tmp_path / str(coded))
        curves.append(json.loads((tmp_path / str(coded) / "metrics.jsonl").read_text())["drift_mean"])
    assert curves[0] != curves[1]


def test_a_folder_of_an_earlier_version_predicts_through_the_codec(tmp_path):
    plain = as_plain(Config())
    del plain["measure"]["coded"]
    (tmp_path / "config.toml").write_text(tomli_w.dumps(plain))
    coded = change(Config(), {"measure.coded": True})
    folder = RunFolder(tmp_path)
    assert folder.config() == coded and folder.holds(coded)
    with pytest.raises(GraspError, match=r"has a run with other settings \(measure\)"):
        folder.holds(Config())
    (tmp_path / "config.toml").write_text(tomli_w.dumps({**plain, "rehearsal": "veridical"}))
    assert not folder.config().measure.coded


def test_the_reference_predicts_through_the_codec():
    assert preset("imagenet-300").measure.coded and preset("drift", "small").measure.coded
    assert not preset("groceries").measure.coded


def test_uncoded_inputs_may_be_in_half_precision(small):
    prepared = prepare(change(small, COARSE), Silent())
    learner = prepared.new_learner(small)
    learner.add_classes(np.arange(3))
    assert isinstance(learner.buffer.codec, OPQ) and not learner.coded
    latents = learner.latents(prepared.samples.read([0, 1]))
    expected = learner.network(latents).logits
    assert torch.equal(learner.logits(prepared.samples.read([0, 1])), expected)
    torch.testing.assert_close(learner.outputs(latents.half(), "logits", coded=False), expected, rtol=0, atol=1e-2)
