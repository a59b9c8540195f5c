"""Data sets of the hub, replaced by local folders; nothing here needs a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graspcl.data import TextTable, TextTasks, text_tasks
from graspcl.data.text_tasks import ON_HUB, TaskData
from graspcl.errors import GraspError


def everything(samples: TextTable | TextTasks) -> list[tuple[str, str]]:
    texts = samples.read(range(len(samples)))
    return [(text, samples.classes[label]) for text, label in zip(texts, samples.labels, strict=True)]


@pytest.fixture
def datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = pytest.importorskip("datasets")
    monkeypatch.setattr(module.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module.config, "HF_HUB_OFFLINE", True)
    return module


def save(datasets: Any, folder: Path, names: list[str], **parts: list[tuple[Any, ...]]) -> Path:
    """Splits of texts and labels by number; texts of several columns are called text, text1 and so on."""
    for part, rows in parts.items():
        *texts, labels = zip(*rows, strict=True)
        columns = {f"text{at or ''}": list(column) for at, column in enumerate(texts)}
        kinds = {name: datasets.Value("string") for name in columns}
        kinds["label"] = datasets.ClassLabel(names=names) if names else datasets.Value("int64")
        made = datasets.Dataset.from_dict({**columns, "label": list(labels)}, features=datasets.Features(kinds))
        made.to_parquet(folder / f"{part}.parquet")
    return folder


def test_a_data_set_of_the_hub(datasets: Any, tmp_path: Path) -> None:
    train = [("good", 0), ("bad", 1), ("", 0), ("hm", -1), (None, 1)]
    films = save(datasets, tmp_path / "films", ["pos", "neg"], train=train, test=[("nice", 0)])
    table = TextTable(f"hf:{films}")
    assert everything(table) == [("good", "pos"), ("bad", "neg"), ("nice", "pos")]
    assert table.name == "films" and table.classes == ["neg", "pos"] and table.read(table.test) == ["nice"]
    assert [problem.rpartition("/")[2] for problem in table.problems] == [
        "films train row 3: empty text",
        "films train row 4: no label",
        "films train row 5: no text",
    ]
    with pytest.raises(GraspError, match="no column 'words'; its columns are text, label"):
        TextTable(f"hf:{films}", text="words")
    with pytest.raises(GraspError, match=r"cannot be loaded from the hub: .*'odd' not found"):
        TextTable(f"hf:{films}:odd")


def test_without_a_connection_the_cache_is_used(datasets: Any, tmp_path: Path) -> None:
    films = save(datasets, tmp_path / "films", ["pos", "neg"], train=[("good", 0), ("bad", 1)], test=[("nice", 0)])
    local = TextTable(f"hf:{films}")
    [info] = (tmp_path / "cache").rglob("dataset_info.json")
    shutil.copytree(info.parent, tmp_path / "cache" / "someone___films" / "default" / "0.0.0" / ("a" * 40))
    assert everything(TextTable("hf:someone/films")) == everything(local)
    with pytest.raises(
        GraspError, match=r"the data set nobody/nothing cannot be loaded from the hub: there is no conn"
    ):
        TextTable("hf:nobody/nothing")


def test_without_a_connection_the_error_is_one_line(datasets: Any, tmp_path: Path) -> None:
    program = """
from graspcl.data import TextTable
from graspcl.errors import GraspError
import datasets
try:
    TextTable("hf:nobody/nothing")
except GraspError as error:
    print(error)
"""
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=90)
    assert done.returncode == 0 and not done.stderr, done.stderr
    [line] = done.stdout.splitlines()
    assert line.startswith("the data set nobody/nothing cannot be loaded from the hub: there is no connection, ")
    assert "OfflineModeIsEnabled" in line  # datasets did not try again and again


def test_tasks_from_the_hub(datasets: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("one", 0), ("two", 1), ("three", 2), ("four", 3), ("five", 4)]
    stars = [f"{n} star{'s' if n > 2 else ''}" for n in range(1, 6)]
    more = [(text, f"{text} more" if label else None, label + 1) for text, label in rows]
    folders = {
        "yelp": save(datasets, tmp_path / "reviews", stars, train=rows, test=rows[:2]),
        "amazon": save(datasets, tmp_path / "goods", [], train=more, test=more[:2]),
    }
    for name, folder in folders.items():
        text = ("text", "text1") if name == "amazon" else ("text",)
        monkeypatch.setitem(text_tasks.ON_HUB, name, TaskData(f"hf:{folder}", text, "label", ON_HUB[name].classes))
    texts = TextTasks("hf:", ["yelp", "amazon"])
    assert texts.tasks == ["yelp", "amazon"] and texts.name == "hub" and not texts.problems
    sentiments = ["very negative", "negative", "neutral", "positive", "very positive"]
    own = [(text, f"sentiment/{sentiments[label]}") for text, label in rows]
    assert everything(texts) == [
        *own, *own[:2], own[0], *((f"{text} {text} more", name) for text, name in own[1:]), own[0],
        (f"{own[1][0]} {own[1][0]} more", own[1][1]),
    ]  # fmt: skip
    with pytest.raises(GraspError, match="hf: has no data set 'imdb'; valid names: ag_news, amazon"):
        TextTasks("hf:", ["imdb"])


def test_the_papers_data_sets_have_names_on_the_hub() -> None:
    assert set(ON_HUB) == {"ag_news", "yelp", "amazon", "yahoo_answers", "dbpedia"}
    assert all(str(found.path).startswith("hf:") and str(found.path).count("/") == 1 for found in ON_HUB.values())


def test_a_name_is_required() -> None:
    with pytest.raises(GraspError, match="hf: names no data set; a data set of the hub is hf:NAME or hf:NAME:CONFIG"):
        TextTable("hf:")
