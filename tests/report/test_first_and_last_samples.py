"""The samples that GRASP rehearsed first and last, from real runs on generated files."""

import base64
import csv
import html.parser
import importlib.util
import io
import shutil
import sys

import numpy as np
import pytest
from browser import FAINT, WIDE
from hypothesis import given
from hypothesis import strategies as st
from making import make_run

from graspcl.experiment import run
from graspcl.experiment.run_samples import open_samples
from graspcl.images import thumbnail
from graspcl.report import gather, samples, write_page
from graspcl.report.render.html import render_part, render_report
from graspcl.report.render.text import write_tables
from graspcl.report.samples import IMAGES, TITLE, ClassSamples, FirstAndLast, both_ends, first_and_last, order_by_class
from graspcl.report.watch import WatchedRun
from graspcl.settings import from_plain

pytest.importorskip("PIL", reason="needs graspcl[images]")
from PIL import Image

HOSTILE = "<img src=x onerror='window.hacked=1'>"
SIZES = {HOSTILE: 14, "bee": 16, "cod": 12, "dab": 15, "emu": 14}  # to train on; in sorted order of the names
CHOSEN = ["bee", "dab", HOSTILE, "emu"]  # most stored first


def colour(label, number):
    """Of an image: red tells its class, green its number."""
    return 60 * label, 16 * number, 128


def make_images(folder):
    for label, (name, size) in enumerate(SIZES.items()):
        for split, numbers in (("train", range(size)), ("val", range(2))):
            (folder / split / name).mkdir(parents=True)
            for number in numbers:
                Image.new("RGB", (96, 80), colour(label, number)).save(folder / split / name / f"{number:02}.png")
    return folder


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The images and the folder of a finished run on them."""
    folder = tmp_path_factory.mktemp("done")
    images = make_images(folder / "images")
    plain = {
        "name": "solid", "data": {"path": str(images), "pixels": 80}, "network": {"name": "small"}, "codec": "half",
        "stream": {"base_classes": 2, "sessions": 3, "chunk": 8}, "budget": {"updates": 40, "batch_size": 8},
        "optimiser": {"lr": 0.1}, "execution": {"device": "cpu"}, "checkpoint": {"keep": "nothing"},
        "base": {"method": "none"},
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRASPCL_CACHE", str(folder / "cache"))
        run(from_plain(plain), folder / "runs" / "own")
    return images, folder / "runs" / "own"


def copy_of(done, place):
    """Another folder with the same run."""
    return shutil.copytree(done[1], place / "copy")


def shown(path):
    """What the only experiment in a folder has to show."""
    (experiment,) = gather([path]).experiments
    return first_and_last(experiment, open_samples)


def decoded(address):
    """Class and number of a thumbnail, by its colour; its size."""
    kind, _, data = address.partition(",")
    assert kind == "data:image/jpeg;base64"
    image = Image.open(io.BytesIO(base64.b64decode(data)))
    red, green, _ = np.asarray(image).reshape(-1, 3).mean(0)
    return round(red / 60), round(green / 16), image.size


def expected(folder):
    """Numbers of the images of each class in the order of their first showing, straight from the plan."""
    with np.load(folder / "plans" / "session-3.npz") as plan:
        labels, ids, picks = plan["labels"], plan["ids"], plan["picks"]
    begin = np.cumsum([0, *SIZES.values()])  # images to train on come first, class by class
    orders = {name: [] for name in SIZES}
    for slot in picks.ravel():
        number = int(ids[slot] - begin[labels[slot]])
        order = orders[[*SIZES][labels[slot]]]
        if number not in order:
            order.append(number)
    return orders


# -- which samples -----------------------------------------------------------------------------------------------------


@given(st.data())
def test_each_shown_sample_stands_once_where_it_came_first(data):
    labels = np.array(data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=12)))
    slots = st.integers(0, len(labels) - 1)
    picks = np.array(data.draw(st.lists(st.tuples(slots, slots), min_size=1, max_size=12)))
    order = list(dict.fromkeys(picks.ravel().tolist()))
    by_class = {label: [slot for slot in order if labels[slot] == label] for label in range(6)}
    largest = sorted((label for label in by_class if by_class[label]), key=lambda k: (-(labels == k).sum(), k))[:3]
    found = order_by_class(labels, picks, classes=3)
    assert {label: found[label].tolist() for label in found} == {label: by_class[label] for label in largest}
    assert [*found] == largest


@given(st.integers(1, 30), st.integers(1, 8))
def test_both_ends_are_as_long_as_there_are_samples_for(number, each):
    first, last = (places.tolist() for places in both_ends(number, each))
    assert first == [*range(len(first))] and last == [*range(number - len(last), number)]
    assert len(first) + len(last) == min(number, 2 * each) and 0 <= len(first) - len(last) <= 1


def test_images_are_those_that_the_plan_shows_first_and_last(done):
    found, orders = shown(done[1]), expected(done[1])
    assert found.images and found.missing == ""
    assert [picks.name for picks in found.classes] == CHOSEN
    for picks in found.classes:
        label, order = [*SIZES].index(picks.name), orders[picks.name]
        assert (picks.stored, picks.rehearsed) == (SIZES[picks.name], len(order)) and len(order) >= 2 * IMAGES
        assert [*picks.last] == [*range(len(order) - IMAGES + 1, len(order) + 1)]
        for own, numbers in ((picks.first, order[:IMAGES]), (picks.last, order[-IMAGES:])):
            assert [decoded(address) for address in own.values()] == [(label, number, (72, 72)) for number in numbers]
    assert found.caption.startswith("Session 3 of 3 of the run with seed 0, sorted by first use.")


def test_the_run_with_the_lowest_seed_is_shown(done, tmp_path):
    for seed in (2, 1):
        file = copy_of(done, tmp_path / str(seed)) / "config.toml"
        file.write_text(file.read_text().replace("seed = 0", f"seed = {seed}"))
        (file.parent / "checksums.json").unlink(missing_ok=True)
    assert "the run with seed 1," in shown(tmp_path).caption


def test_without_a_finished_run_of_grasp_there_is_nothing_to_show(tmp_path):
    make_run(tmp_path / "uniform", "uniform")
    make_run(tmp_path / "half", "grasp", done=1)
    assert shown(tmp_path) == FirstAndLast(
        missing="No finished run with GRASP stored which samples its sessions rehearsed."
    )


def test_thumbnails_of_a_whole_experiment_are_small():
    noise = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    smooth = np.kron(noise[:28, :28], np.ones((8, 8, 1), np.uint8))  # rougher than a photo
    assert 48 * len(thumbnail(smooth, 72)) < 200_000
    tiny = Image.open(io.BytesIO(base64.b64decode(thumbnail(noise[:20, :20], 72).partition(",")[2])))
    assert tiny.size == (20, 20)


# -- data that are not as they were ------------------------------------------------------------------------------------


def why(path):
    found = shown(path)
    assert found.classes == ()
    body = render_report(gather([path]), open_samples)
    assert f"<b>{TITLE}</b> is left out. Its samples are not available: " in body
    return found.missing


def test_data_that_were_taken_away_are_reported(done):
    images, folder = done
    away = images.rename(images.with_name("away"))
    try:
        assert str(images) in why(folder)
    finally:
        away.rename(images)


def test_data_that_have_changed_are_reported(done):
    images, folder = done
    more = images / "train" / "bee" / "99.png"
    Image.new("RGB", (96, 80)).save(more)
    try:
        assert f"the data at {images} have changed since the run" in why(folder)
    finally:
        more.unlink()
    assert shown(folder).classes


def test_an_image_that_cannot_be_read_is_left_out(done):
    images, folder = done
    whole = shown(folder)
    for number in expected(folder)["bee"][:IMAGES]:
        file = images / "train" / "bee" / f"{number:02}.png"
        before = file.read_bytes()
        file.write_bytes(b"x" * len(before))
        try:
            found = shown(folder)
        finally:
            file.write_bytes(before)
        if found.classes:
            break
    else:
        pytest.fail("the fingerprint knows the contents of all of them")
    assert found.caption == f"{whole.caption} 1 of 48 samples cannot be read and are left out."
    left = {place: own for place, own in whole.classes[0].first.items() if decoded(own)[1] != number}
    assert found.classes[0].first == left and len(left) == IMAGES - 1
    assert found.classes[1:] == whole.classes[1:]


def test_a_missing_package_is_reported(done, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert "pip install '.[images]'" in why(done[1])


@pytest.mark.parametrize("other", [{"ids": np.arange(71) + 10_000}, {"ids": np.arange(3)}, {"names": np.arange(3)}])
def test_a_plan_that_does_not_fit_is_reported(done, tmp_path, other):
    folder = copy_of(done, tmp_path)
    with np.load(folder / "plans" / "session-3.npz") as plan:
        arrays = {name: plan[name] for name in plan.files if name != "ids"}
    np.savez(folder / "plans" / "session-3.npz", **arrays, **other)
    assert why(folder)


def test_no_tokenizer_is_fetched(tmp_path):
    network = {"name": "transformer", "model": "someone/some-model"}
    make_run(tmp_path / "a", config={"network": network})
    assert "the tokenizer someone/some-model is not a local folder, and a report downloads nothing" in why(tmp_path)


# -- when data are opened ----------------------------------------------------------------------------------------------


def test_data_are_opened_for_the_page_alone(done, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(samples, "first_and_last", lambda found, _: opened.append(found) or FirstAndLast(missing="-"))
    assert TITLE.encode() not in WatchedRun(done[1]).page()
    write_tables(gather([done[1]]), tmp_path / "tables", "csv")
    assert TITLE not in render_report(gather([done[1]]))
    assert opened == []
    render_report(gather([done[1]]), open_samples)
    assert len(opened) == 1


def test_many_experiments_do_not_all_open_their_data(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(samples, "first_and_last", lambda found, _: opened.append(found) or FirstAndLast(missing="-"))
    for number in range(8):
        make_run(tmp_path / str(number), config={"data": {"path": f"data {number}"}})
    body = render_report(gather([tmp_path]), open_samples)
    assert len(opened) == 6
    assert body.count("Samples are shown for the first 6 experiments only.") == 2


# -- the card ----------------------------------------------------------------------------------------------------------


class Elements(html.parser.HTMLParser):
    """Elements of a kind with their attributes."""

    def __init__(self, text, tag):
        super().__init__()
        self.tag, self.found = tag, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == self.tag:
            self.found.append(dict(attributes))


def test_the_page_holds_the_images_with_their_names(done):
    found = shown(done[1])
    body = render_report(gather([done[1]]), open_samples)
    images = Elements(body, "img").found
    assert all(image.keys() == {"src", "width", "height", "alt"} for image in images)
    assert [image["src"] for image in images] == [
        address for picks in found.classes for end in (picks.first, picks.last) for address in end.values()
    ]
    assert images[0]["alt"] == "bee, first: 1 of 16" and images[11]["alt"] == "bee, last: 16 of 16"
    assert images[24]["alt"].startswith(f"{HOSTILE}, first: 1 of ")
    assert HOSTILE not in body


def card(*classes, caption=""):
    """The card of some texts."""
    return render_part("samples", FirstAndLast(classes, images=False, caption=caption), "e0")


def test_hostile_texts_stay_texts():
    found = card(ClassSamples(HOSTILE, 3, 2, {1: "</li><script>hacked()</script>"}, {2: "b"}), caption=HOSTILE)
    assert "<script>" not in found and HOSTILE not in found
    assert '<li value="1">&lt;/li&gt;&lt;script&gt;hacked()&lt;/script&gt;</li>' in found
    assert "<p>Last</p>" in found
    alone = card(ClassSamples("a", 1, 1, {1: "b"}, {}))
    assert "<p>First</p>" in alone and "<p>Last</p>" not in alone


# -- texts -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("wordllama") is None, reason="needs graspcl[demo]")
def test_texts_are_shown_by_how_they_begin(tmp_path, monkeypatch):
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    classes = {"fruit": "ripe apple pear plum", "tools": "steel hammer saw nail", "music": "loud drum flute horn"}
    (tmp_path / "texts").mkdir()
    for split, size in (("train", 12), ("test", 3)):
        with open(tmp_path / "texts" / f"{split}.csv", "w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "label"])
            for number in range(size):
                rows.writerows((f"{split} {name} {number}:\n {words * 9}", name) for name, words in classes.items())
    plain = {
        "name": "texts", "data": {"path": str(tmp_path / "texts"), "per_class": 8}, "codec": "half",
        "network": {"name": "vector", "dim": 256}, "base": {"method": "none"},
        "stream": {"base_classes": 1, "sessions": 2}, "budget": {"updates": 12, "batch_size": 8},
        "execution": {"device": "cpu"},
    }  # fmt: skip
    run(from_plain(plain), tmp_path / "runs" / "own")
    found = shown(tmp_path / "runs")
    assert not found.images and found.missing == ""
    assert {picks.name for picks in found.classes} == set(classes)
    for picks in found.classes:
        texts = [*picks.first.values(), *picks.last.values()]
        assert picks.stored == 8 and len(texts) == len(set(texts)) == 6
        assert all(text.startswith(f"train {picks.name} ") and len(text) == 120 and text[-1] == "…" for text in texts)


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(done, tmp_path_factory):
    pytest.importorskip("plotly", reason="plotly is not installed")
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(gather([done[1]]), path, open_samples)
    return path


def test_images_are_drawn_and_quiet(chromium, file):
    chromium.look()
    chromium.open(file.as_uri())
    widths = chromium.run("return [...document.querySelectorAll('.samples img')].map(i => [i.naturalWidth, i.width])")
    assert len(widths) == 48 and {natural for natural, _ in widths} == {72}
    assert all(40 <= drawn <= 72 for _, drawn in widths)
    assert chromium.run("return window.hacked") is None
    assert chromium.complaints() == []
    assert [a for a in chromium.requests() if not a.startswith(("file:", "data:", "blob:"))] == []


def test_images_keep_the_frame_and_captions_can_be_read(chromium, file):
    chromium.open(file.as_uri())
    for width in (360, 700, 1280, 1920):
        for dark in (False, True):
            chromium.look(width=width, dark=dark)
            assert chromium.run(WIDE) == []
            assert chromium.run(FAINT) == []
        rows = chromium.run(
            "return [...document.querySelectorAll('.thumbnails')].map("
            "s => new Set([...s.children].map(i => i.getBoundingClientRect().top)).size)"
        )
        assert rows == [1] * 8, width  # six fit beside each other
        assert min(chromium.run("return [...document.querySelectorAll('.samples img')].map(i => i.width)")) >= 40


def test_images_are_printed(chromium, file):
    chromium.look(dark=True)
    chromium.open(file.as_uri())
    chromium.run("window.dispatchEvent(new Event('beforeprint'))")
    chromium.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    chromium.settle()
    edge = chromium.run("return document.querySelector('.samples').getBoundingClientRect().right")
    ends_of_images = chromium.run(
        "return [...document.querySelectorAll('.samples img')].map(i => i.getBoundingClientRect().right)"
    )
    assert len(ends_of_images) == 48 and max(ends_of_images) <= edge
    assert chromium.run(FAINT) == []
    chromium.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
