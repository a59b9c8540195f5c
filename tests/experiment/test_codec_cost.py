"""What a codec costs: measured on samples that it was not trained on, told, and used to choose one."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from graspcl.codec import OPQ, Auto, Codec, Half, Identity, Int8, codecs
from graspcl.experiment import load_learner, run
from graspcl.experiment.codec_cost import CodecCost, CodecMeter, CodecTrials, described_cost, split
from graspcl.experiment.prepare import prepare
from graspcl.model import CosineHead, SplitNetwork
from graspcl.progress import Silent
from graspcl.settings import Part, change


class Nothing(Half):
    """Keeps no information at all."""

    def encode(self, inputs):
        return super().encode(torch.zeros_like(inputs))


@pytest.fixture
def plain():
    """A network whose features are its inputs."""
    return SplitNetwork(nn.Identity(), nn.Flatten(), CosineHead(2, generator=torch.Generator().manual_seed(0)))


def corners(each=4):
    """Two classes of samples at (0, 3) and (4, 0)."""
    labels = np.repeat([5, 9], each)
    return torch.tensor([[0.0, 3.0], [4.0, 0.0]])[torch.from_numpy((labels == 9).astype(int))], labels


def test_error_and_accuracies_are_those_of_what_is_decoded(plain):
    meter = CodecMeter(plain, *corners())
    nothing = meter.cost(Nothing(), "nothing")
    # Both means are at 0, so all samples are nearest to the first class, and all scores of the ridge are equal.
    assert nothing == CodecCost("nothing", 4.0, 1.0, 50.0, 50.0, 8)
    assert meter.cost(Identity(), "identity") == CodecCost("identity", 8.0, 0.0, 0.0, 0.0, 8)
    assert nothing.points == 50


class UpToFour(Identity):
    """Keeps no number above 4."""

    def encode(self, inputs):
        return super().encode(inputs.clamp(max=4))


def test_padding_counts_neither_as_error_nor_as_bytes():
    network = SplitNetwork(nn.Identity(), nn.Flatten(), CosineHead(4, generator=torch.Generator().manual_seed(0)))
    (x, labels), padding = corners(), torch.full((2, 1), 9.0)
    padded = torch.stack([x * torch.tensor([1, 5 / 3]), padding[:, 0].expand(8, 2)], dim=2)  # (0, 5) and (4, 0)
    found = CodecMeter(network, padded, labels, padding).cost(UpToFour(), "up to four")
    assert found.relative_error == pytest.approx((1 / (25 + 16)) ** 0.5)
    assert found.bytes == 2 * 4  # one location of two numbers; the other is padding


def test_a_network_without_finite_features_is_not_measured(plain):
    latents, labels = corners(8)
    found = trials(plain, latents * float("inf"), labels, []).report(Part("half"))
    assert found == {"codec": "half", "not_measured": "the network has NaN or infinite features"}


def test_a_warning_says_if_no_codec_is_within(plain, monkeypatch):
    latents, labels = corners()
    bad = CodecCost("x", 1.0, 0.5, 0.0, 7.0, 8)
    monkeypatch.setattr(CodecTrials, "cost", lambda self, part, fitted=None: bad)
    found = trials(plain, latents, labels, []).report(Part("int8"))
    assert found["within"] is None
    assert described_cost(found).endswith("warning: more than 1 point, and no larger codec is within it")


def test_half_of_each_class_is_measured_if_it_is_large_enough():
    labels = np.repeat([3, 1, 2, 0], [10, 5, 3, 4])
    measured, others = split(labels, 8, np.random.default_rng(0))
    assert np.bincount(labels[measured]).tolist() == [2, 2, 0, 5]
    assert sorted([*measured, *others]) == [*range(22)]
    few, _ = split(labels, 30_000_000, np.random.default_rng(0))  # memory for 8 latents
    assert np.bincount(labels[few]).tolist() == [2, 2, 0, 2]


def trials(network, latents, labels, seen):
    def fit(codec, rows):
        seen.append(rows)
        return codec.fit(latents[rows])

    def read(rows):
        return latents[rows], np.arange(len(rows))

    return CodecTrials(network, np.arange(len(labels)), labels, read, fit, 10_000, np.random.default_rng(0))


def test_a_codec_is_measured_on_samples_that_it_was_not_trained_on(plain, monkeypatch):
    latents, labels = torch.arange(40.0).reshape(20, 2), np.repeat([0, 1], 10)
    seen, measured = [], []
    real = CodecMeter.__init__
    monkeypatch.setattr(
        CodecMeter, "__init__", lambda self, network, x, *rest: (measured.append(x), real(self, network, x, *rest))[1]
    )
    trials(plain, latents, labels, seen).cost(Part("int8"))
    rows = (measured[0][:, 0] / 2).int().tolist()
    assert sorted([*rows, *seen[0]]) == [*range(20)] and len(rows) == 10


def test_too_few_samples_are_told(plain):
    latents, labels = corners(3)
    found = trials(plain, latents, labels, []).report(Part("int8"))
    assert found == {"codec": "int8", "not_measured": "measuring a codec takes 4 base samples or more of two classes"}
    assert trials(plain, latents, labels, []).smallest(1.0) == (Part("half"), None)
    assert "was not measured: measuring a codec takes 4" in described_cost(found)


@pytest.mark.parametrize(
    ("dim", "points", "tolerance", "chosen"),
    [
        (64, {8: 3.0, 16: 0.9}, 1.0, "opq(codebooks=16)"),
        (64, {8: 3.0, 16: 1.1, 32: 1.1}, 1.0, "int8"),
        (64, {8: 3.0, 16: 1.1}, 5.0, "opq(codebooks=8)"),
        (64, {8: 9.0, 16: 9.0, 32: 9.0, "int8": 9.0, "half": 9.0}, 5.0, "half"),
        (4096, {}, 5.0, "int8"),  # for 10,000 vectors the tables of OPQ are larger than the codes of int8
    ],
)
def test_the_smallest_codec_within_the_tolerance_is_chosen(dim, points, tolerance, chosen, monkeypatch):
    tried = []

    def cost(self, part, fitted=None):
        size = part.parameters.get("codebooks", part.name)
        tried.append(str(part))
        return CodecCost(str(part), 1.0, 0.0, 0.0, points.get(size, 0.0), 8)

    monkeypatch.setattr(CodecTrials, "cost", cost)
    network = SplitNetwork(nn.Identity(), nn.Flatten(), CosineHead(dim, generator=torch.Generator().manual_seed(0)))
    latents, labels = torch.randn(8, dim, generator=torch.Generator().manual_seed(0)), np.repeat([0, 1], 4)
    part, _ = trials(network, latents, labels, []).smallest(tolerance)
    assert str(part) == chosen and tried[-1] == chosen


def test_a_codec_that_costs_too_much_names_one_that_does_not(small, notes, tmp_path):
    coarse = {"codec": "opq", "codec.codebooks": 2, "codec.size": 4, "codec.iterations": 1, "budget.updates": 1}
    summary = run(change(small, coarse), tmp_path / "run", notes)
    cost = summary["codec_cost"]
    assert cost == json.loads((tmp_path / "run" / "summary.json").read_text())["codec_cost"]
    assert cost["bytes"] == 2 and cost["held_out"] == 80 and max(cost["nearest_mean"], cost["ridge"]) > 1
    assert cost["within"] in ("int8", "half")  # OPQ takes more base samples
    (told,) = [line for line in notes.said if line.startswith("codec ")]
    assert f"warning: more than 1 point, --codec '{cost['within']}' is within it" in told
    again = type(notes)()
    assert prepare(change(small, coarse), again).codec_cost == cost and told in again  # from the cache


def test_what_costs_little_gives_no_warning(small, notes):
    cost = prepare(change(small, {"codec": "auto(tolerance=100)"}), notes).codec_cost
    assert "within" not in cost and "warning" not in " ".join(notes.said)
    assert not prepare(change(small, {"codec": "half"}), notes).codec_cost  # it is not fitted


def test_auto_is_chosen_once_and_kept_with_the_run(small, notes, tmp_path, monkeypatch):
    config = change(small, {"codec": "auto(tolerance=100)", "budget.updates": 1})
    summary = run(config, tmp_path / "run", notes)
    assert "codec auto: int8 is chosen, the smallest that costs at most 100 points of accuracy" in notes
    assert summary["codec_cost"]["codec"] == "int8"
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "empty"))
    codec = load_learner(tmp_path / "run").learner.buffer.codec
    assert isinstance(codec, Auto) and isinstance(codec.chosen, Int8)
    values = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    expected = prepare(config, Silent()).codec  # chosen again, to the same
    assert torch.equal(codec.decode(codec.encode(values)), expected.decode(expected.encode(values)))


def test_auto_must_be_chosen_before_it_is_used():
    with pytest.raises(Exception, match="the codec 'auto' is chosen when a run is prepared"):
        codecs.create("auto").encode(torch.zeros(1, 2))
    state = Auto().choose(OPQ(codebooks=2, size=4)).state_dict()
    restored = Auto()
    restored.load_state_dict(state)
    assert isinstance(restored.chosen, Codec) and restored.chosen == OPQ(codebooks=2, size=4)
