"""What a run says of its data before it reads them, and which data its settings come to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from graspcl.data import check_source, open_samples
from graspcl.errors import GraspError
from graspcl.experiment import run
from graspcl.experiment.prepare import fit_to_data
from graspcl.settings import Config
from graspcl.settings.presets import preset
from graspcl.settings.read import change


def check_data(config: Config) -> None:
    check_source(config.data, config.reads, config.name)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all extras were there."""
    monkeypatch.setitem(sys.modules, "datasets", ModuleType("datasets"))


HUB = "by name there are listings, and hf:NAME for a data set of the Hugging Face hub"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("text-order-1", {"data": "clinc150"}, f"--data clinc150: there is no such folder or file; {HUB}"),
        ("text-order-1", {}, f"text-order-1 needs its texts: --data PATH, a table .* of such tables ({HUB})"),
        (
            "imagenet-300",
            {"data": "nowhere"},
            "--data nowhere: there is no such folder or file; by name there are groc",
        ),
        ("imagenet-300", {}, "imagenet-300 needs its images: --data PATH, a folder .*(by name there are groceries)"),
        ("text-order-1", {"data": "listings"}, "--data.tasks ag,yelp,yahoo: .*listings has no.* --data.tasks none"),
        ("text-order-1", {"data": "hf:imdb"}, "--data hf:imdb is one data set: .*--data.tasks none, or --data hf:"),
        ("text-order-1", {"data": "hf:", "data.tasks": "none"}, "hf: names no data set; .* is hf:NAME or hf:NAME:CONF"),
        ("imagenet-300", {"data": "hf:imdb"}, "--data hf:imdb.* gives texts, .* the network reads images"),
    ],
)
def test_data_that_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    for letter in "()":
        message = message.replace(letter, rf"\{letter}")
    with pytest.raises(GraspError, match=message):
        check_data(change(preset(name), options))


@pytest.mark.parametrize(
    "options",
    [
        {"data": "hf:"},
        {"data": "hf:stanfordnlp/imdb", "data.tasks": "none"},
        {"data": "hf:clinc/clinc_oos:plus", "data.tasks": "none"},
        {"data": "listings", "data.tasks": "none"},
    ],
)
def test_data_that_are_taken(options: dict[str, Any], installed: None) -> None:
    check_data(change(preset("text-order-1"), options))


def test_without_the_package_for_the_hub_one_line_says_so() -> None:
    program = """
import sys
sys.modules["datasets"] = None
from graspcl.settings.presets import preset
from graspcl.settings.read import change
from graspcl.data import check_source, open_samples
from graspcl.data import check_source
try:
    config = change(preset("text-order-1"), {"data": "hf:"})
    check_source(config.data, "texts", "x")
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=90)
    hint = "in the folder of graspcl's source run: pip install '.[hub]'"
    assert done.stdout == f"MissingExtra datasets is not installed; {hint}\n"


def test_a_data_set_of_the_hub_by_the_settings(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    (tmp_path / "films").mkdir()
    (tmp_path / "films" / "train.csv").write_text("review,stars\n" + "good,5\nbad,1\n" * 5)
    options = {"data": f"hf:{tmp_path / 'films'}", "data.text": "review", "data.label": "stars", "data.tasks": "none"}
    texts = open_samples(change(preset("text-order-1"), options).data, "texts")
    assert texts.classes == ["1", "5"] and len(texts) == 10


def test_more_classes_than_there_are_become_those_there_are(small: Config, tmp_path: Path) -> None:
    wanted = change(small, {"data.classes": 30, "stream.base_classes": 10, "stream.sessions": 20})
    found = fit_to_data(wanted)
    assert (found.data.classes, found.stream.base_classes, found.stream.sessions) == (12, 4, 8)
    said = "has only 12 classes; --data.classes 12 --stream.base_classes 4 --stream.sessions 8 would fit"
    with pytest.raises(GraspError, match=said):
        run(wanted, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_fits_stays_as_it_is(small: Config) -> None:
    fits = change(small, {"data.classes": 6, "stream.base_classes": 2})
    assert fit_to_data(fits) == fits and fit_to_data(small) == small


def test_data_that_do_not_fit_the_network_are_refused_before_they_are_read(add_source: Any) -> None:
    add_source("listings", lambda: pytest.fail("data were read"), "texts")
    with pytest.raises(GraspError, match=r"--data listings gives texts, (and|but) the network reads images"):
        check_data(change(preset("groceries"), {"data": "listings"}))
