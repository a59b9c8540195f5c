"""Data settings arrive where the data are opened, and each number limits the split it is meant for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graspcl.data import Samples, Subset, TextTasks, open_samples, take, text_table, text_tasks

SETTINGS: dict[str, Any] = {
    "pixels": 32, "val_mapping": "classes.txt", "test_split": "exam", "text": "said", "label": "meant",
    "per_class": 5, "test_per_class": 3, "tasks": None, "test_share": 0.3,
}  # fmt: skip


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Opens data by their settings; returns the class that would read them, and what it is given."""

    def open_(path: str, reads: str, **settings: Any) -> Any:
        noted: list[Any] = []
        for module, names in (("image_list", ("ImageFolder", "ImageList")), ("text_tasks", ("TextTable", "TextTasks"))):
            for name in names:

                def note(*given: Any, of: str = name, **named: Any) -> None:
                    noted.append((of, *given, named))

                monkeypatch.setattr(f"graspcl.data.{module}.{name}", note)
        open_samples(SimpleNamespace(path=path, **{**SETTINGS, **settings}), reads)
        return noted[0]

    return open_


def test_images(opened: Any, tmp_path: Path) -> None:
    found = opened(str(tmp_path), "images")
    given = {"val_mapping": "classes.txt", "test_split": "exam", "test_share": 0.3}
    assert found == ("ImageFolder", str(tmp_path), 32, given)
    (tmp_path / "Places_LT_train.txt").write_text("abbey/1.jpg 0")
    named = opened(str(tmp_path), "images", val_mapping=None, test_split=None)
    assert named == ("ImageList", str(tmp_path), {"test": None, "pixels": 32})
    named = opened(str(tmp_path), "images", val_mapping=None, test_split="val")
    assert named == ("ImageList", str(tmp_path), {"test": "val", "pixels": 32})


@pytest.mark.parametrize(("path", "at"), [("texts.csv", "texts.csv"), ("hf:me/mine", "hf:me/mine")])
def test_texts(opened: Any, path: str, at: str) -> None:
    assert opened(path, "texts") == ("TextTable", at, "said", "meant", 0.3, {})


@pytest.mark.parametrize(("path", "at"), [("texts", "texts"), ("hf:", "hf:")])
def test_tasks_of_texts(opened: Any, path: str, at: str) -> None:
    found = opened(path, "texts", tasks="ag, yelp")
    named = {"text": "said", "label": "meant", "test_share": 0.3}
    assert found == ("TextTasks", at, ["ag", "yelp"], 5, 3, named)


def test_each_task_is_a_table_with_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ag", "quiz"):
        (tmp_path / name).mkdir()
        rows = "".join(f"{label},{name} {label} {n}\n" for label in "xy" for n in range(12))
        (tmp_path / name / "train.csv").write_text(f"meant,said\n{rows}")
        (tmp_path / name / "val.csv").write_text("meant,said\nx,one more\n")
    noted, table = [], text_tasks.TextTable

    def note(*given: Any, **named: Any) -> Any:
        noted.append((*given, named))
        return table(*given, **named)

    monkeypatch.setattr(text_tasks, "TextTable", note)
    given: dict[str, Any] = {"per_class": 5, "test_per_class": 2, "text": "said", "label": "meant", "val": "train"}
    texts = TextTasks(tmp_path, test_share=0.25, **given)
    assert noted == [(tmp_path / name, "said", "meant", 0.25, 2, {"val": "train"}) for name in ("ag", "quiz")]
    assert np.bincount(texts.labels[texts.train]).tolist() == [5] * 4
    assert np.bincount(texts.labels[texts.test]).tolist() == [2] * 4
    others = TextTasks(tmp_path, seed=1, test_share=0.25, **given)
    assert sorted(texts.ids[texts.test]) == sorted(others.ids[others.test])
    assert sorted(texts.ids[texts.train]) != sorted(others.ids[others.train])  # the seed draws these


def test_a_data_set_of_the_hub_is_read_by_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = []
    rows = SimpleNamespace(texts=["a", "b", "c"], labels=["1", "1", "1"], problems=[], where="hub")
    monkeypatch.setattr(text_table, "load_splits", lambda *given: noted.append(given) or {"train": "the split"})
    monkeypatch.setattr(text_table, "hub_rows", lambda *given: noted.append(given) or rows)
    text_table.TextTable("hf:me/mine:part", "said", "meant")
    assert noted == [("me/mine", "part"), ("me/mine train", "the split", "said", "meant")]


# -- limits ------------------------------------------------------------------------------------------------------------


class Numbers(Samples[Any]):
    """3 classes of 8 training and 6 test samples."""

    def __init__(self) -> None:
        labels = np.repeat([0, 1, 2], 14)
        train = np.flatnonzero(np.arange(42) % 14 < 8)
        test = np.setdiff1d(np.arange(42), train)
        super().__init__("numbers", "1", ["ant", "bee", "cod"], labels, np.arange(42), train, test)

    def read(self, indices: Any) -> Any:
        return self.check(indices)


def test_each_split_has_its_own_limit() -> None:
    part = Subset(Numbers(), per_class=5, test_per_class=2, rng=np.random.default_rng(0))
    assert np.bincount(part.labels[part.train]).tolist() == [5, 5, 5]
    assert np.bincount(part.labels[part.test]).tolist() == [2, 2, 2]
    part, order = take(Numbers(), np.array([2, 0, 1]), classes=2, per_class=4, test_per_class=3)
    assert part.classes == ["ant", "cod"] and order.tolist() == [1, 0]  # cod comes first
    assert np.bincount(part.labels[part.train]).tolist() == [4, 4]
    assert np.bincount(part.labels[part.test]).tolist() == [3, 3]
