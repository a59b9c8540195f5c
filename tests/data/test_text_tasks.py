"""Several data sets of texts in one label space: which classes there are, which texts are drawn, for which task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graspcl.data import TextTable, TextTasks
from graspcl.errors import GraspError
from graspcl.stream import TaskIncremental

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "text"
FIVE = ("ag_news", "yelp", "amazon", "yahoo_answers", "dbpedia")
needs_data = pytest.mark.skipif(not all((SHARED / name).is_dir() for name in FIVE), reason="needs ../shared/data/text")


def write(path: Path, sizes: dict[str, int]) -> None:
    """Write a number of texts for each label. The texts of all data sets are alike."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{label},text {n} {label.strip().lower()}" for label, size in sizes.items() for n in range(size)]
    path.write_text("\n".join(["label,text", *rows]), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "ag" / "train.csv", {"World": 8, "Sports": 5})
    write(tmp_path / "ag" / "test.csv", {"World": 3, "Sports": 3})
    write(tmp_path / "yelp" / "train.csv", {"good": 6, "very bad": 6})
    write(tmp_path / "yelp" / "test.csv", {"good": 2, "very bad": 4})
    write(tmp_path / "amazon.csv", {" Good": 20, "Very  Bad": 10})
    write(tmp_path / "quiz.csv", {"Sports": 10, "10": 10, "9": 10})
    (tmp_path / "README.md").write_text("nothing")
    (tmp_path / "empty").mkdir()
    return tmp_path


def drawn(texts: TextTasks, task: str, split: str) -> list[str]:
    rows = getattr(texts, split)
    return texts.read(rows[texts.task_of[rows] == texts.tasks.index(task)])


# -- the label space ---------------------------------------------------------------------------------------------------


def test_one_label_space(folder: Path) -> None:
    texts = TextTasks(folder)
    assert texts.tasks == ["ag_news", "amazon", "quiz", "yelp"]
    assert texts.classes == [
        "ag_news/Sports",
        "ag_news/World",
        "quiz/10",
        "quiz/9",
        "quiz/Sports",
        "sentiment/good",
        "sentiment/very bad",
    ]
    label_of = {name: label for label, name in enumerate(texts.classes)}
    expected = {"ag_news": 2, "quiz": 3, "yelp": 2, "amazon": 2}
    for number, task in enumerate(texts.tasks):
        assert len(np.unique(texts.labels[texts.task_of == number])) == expected[task]
    for row in range(len(texts)):  # a text ends in its label
        text, name = texts.read([row])[0], texts.classes[texts.labels[row]]
        assert " ".join(text.split()[2:]) == name.partition("/")[2].lower()
    shared = [set(texts.labels[texts.task_of == texts.tasks.index(task)].tolist()) for task in ("yelp", "amazon")]
    assert shared[0] == shared[1] == {label_of["sentiment/good"], label_of["sentiment/very bad"]}
    assert not texts.problems


def test_names_give_the_order_of_the_tasks_but_not_of_the_classes(folder: Path) -> None:
    one, two = TextTasks(folder, ["yelp", "ag", "amazon"]), TextTasks(folder, ("amazon", "yelp", "ag_news"))
    assert one.tasks == ["yelp", "ag_news", "amazon"] and two.tasks == ["amazon", "yelp", "ag_news"]
    assert one.classes == two.classes and one.version == two.version and one.fingerprint() != two.fingerprint()
    assert np.unique(one.task_of).tolist() == [0, 1, 2] and (np.diff(one.task_of) >= 0).all()
    for task in one.tasks:
        assert drawn(one, task, "train") == drawn(two, task, "train")
    assert set(one.ids.tolist()) == set(two.ids.tolist())
    assert one.task_of.dtype == np.int64 and not one.task_of.flags.writeable


def test_a_class_is_called_the_same_without_the_other_data_set(folder: Path) -> None:
    assert TextTasks(folder, ["yelp"]).classes == ["sentiment/good", "sentiment/very bad"]


def test_labels_are_shared_only_on_demand(folder: Path) -> None:
    apart = TextTasks(folder, ["yelp", "amazon"], shared=())
    assert apart.classes == ["amazon/Good", "amazon/Very  Bad", "yelp/good", "yelp/very bad"]
    other = TextTasks(folder, ["ag", "quiz", "yelp"], shared=[["ag", "quiz"]])
    assert other.classes == [
        "ag_news+quiz/10", "ag_news+quiz/9", "ag_news+quiz/Sports", "ag_news+quiz/World", "yelp/good", "yelp/very bad",
    ]  # fmt: skip
    assert other.problems == ["ag_news and quiz share labels, but only one has: 10, 9, world"]


@pytest.mark.parametrize("one, two", [(["1", "2"], ["bad", "good"]), (["1", "2", "3"], ["0", "1", "2"])])
def test_labels_that_cannot_be_shared(tmp_path: Path, one: list[str], two: list[str]) -> None:
    for name, labels in (("yelp", one), ("amazon", two)):
        write(tmp_path / f"{name}.csv", dict.fromkeys(labels, 4))
    message = rf"yelp and amazon cannot share labels: yelp has {', '.join(one)} and amazon has {', '.join(two)}"
    with pytest.raises(GraspError, match=message):
        TextTasks(tmp_path)
    assert len(TextTasks(tmp_path, shared=()).classes) == len(one) + len(two)


def test_numbers_that_are_shared_are_sorted_by_value(tmp_path: Path) -> None:
    for name in ("yelp", "amazon"):
        write(tmp_path / f"{name}.csv", dict.fromkeys(["10", "9"], 4))
    assert TextTasks(tmp_path).classes == ["sentiment/9", "sentiment/10"]


# -- what is drawn -----------------------------------------------------------------------------------------------------


def test_the_number_of_texts_per_class_and_task_is_limited(folder: Path) -> None:
    texts = TextTasks(folder, ["ag", "yelp", "amazon"], per_class=5, test_per_class=3)

    def counts(split: str) -> dict[str, list[int]]:
        rows = getattr(texts, split)
        return {
            task: np.bincount(texts.labels[rows[texts.task_of[rows] == number]], minlength=4).tolist()
            for number, task in enumerate(texts.tasks)
        }

    assert counts("train") == {"ag_news": [5, 5, 0, 0], "yelp": [0, 0, 5, 5], "amazon": [0, 0, 5, 5]}
    assert counts("test") == {"ag_news": [3, 3, 0, 0], "yelp": [0, 0, 2, 3], "amazon": [0, 0, 3, 3]}


def test_the_seed_draws_what_is_trained_on_not_what_is_tested(folder: Path) -> None:
    zero, again, one = (TextTasks(folder, per_class=4, test_per_class=2, seed=seed) for seed in (0, 0, 1))
    assert zero.fingerprint() == again.fingerprint() != one.fingerprint()
    assert any(drawn(zero, task, "train") != drawn(one, task, "train") for task in zero.tasks)
    assert all(drawn(zero, task, "test") == drawn(one, task, "test") for task in zero.tasks)
    fewer = TextTasks(folder, ["quiz"], per_class=2, test_per_class=2)
    assert set(drawn(fewer, "quiz", "train")) < set(drawn(zero, "quiz", "train"))


def test_a_data_set_alone_is_a_table(folder: Path) -> None:
    table, texts = TextTable(folder / "quiz.csv", test_share=0.3), TextTasks(folder, ["quiz"], test_share=0.3)
    assert texts.read(texts.train) == table.read(table.train) and texts.read(texts.test) == table.read(table.test)
    assert texts.labels.tolist() == table.labels.tolist()


def test_problems_of_all_tables_are_kept(folder: Path) -> None:
    with open(folder / "quiz.csv", "a", encoding="utf-8") as file:
        file.write("\nSports,\n")
    with open(folder / "yelp" / "test.csv", "a", encoding="utf-8") as file:
        file.write("\ngood\n")
    assert [problem.removeprefix(f"{folder}/") for problem in TextTasks(folder).problems] == [
        "quiz.csv row 32: empty text",
        "yelp/test.csv row 8: 1 column where the header has 2",
    ]


def test_tasks_make_a_stream(folder: Path) -> None:
    texts = TextTasks(folder, ["yelp", "ag", "amazon"])
    train = texts.train
    stream = TaskIncremental(train, texts.labels[train], texts.task_of[train], np.random.default_rng(0))
    for number, session in enumerate(stream.sessions):
        assert sorted(session.tolist()) == train[texts.task_of[train] == number].tolist()


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, message",
    [
        ({"names": ["yepl"]}, "has no data set 'yepl'; did you mean 'yelp'"),
        ({"names": ["imdb"]}, "has no data set 'imdb'; valid names: ag_news, amazon, quiz, yelp"),
        ({"names": ["ag", "ag_news"]}, "names has the data set 'ag_news' twice"),
        ({"names": []}, "names is empty"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"per_class": 0}, "per_class must be a whole number of at least 1 or none, got 0"),
        ({"test_per_class": -1}, "test_per_class must be a whole number of at least 0 or none, got -1"),
        ({"shared": ("yelp", "amazon")}, "shared must be a list of groups"),
        ({"shared": [["yelp", "ag"], ["ag_news", "quiz"]]}, "shared has the data set 'ag_news' twice"),
        ({"label": "lable"}, "no column 'lable'.* did you mean 'label'"),
    ],
)
def test_impossible_options_are_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraspError, match=message):
        TextTasks(folder, **options)


@pytest.mark.parametrize("names", [["ag"], None])
def test_one_data_set_is_not_a_folder_of_data_sets(folder: Path, names: list[str] | None) -> None:
    for one in (folder / "ag", folder / "quiz.csv"):
        with pytest.raises(GraspError, match=rf"{one.name} is one data set; give the folder above it.*data.tasks none"):
            TextTasks(one, names)


def test_unusable_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(GraspError, match=r"there is no folder .*none"):
        TextTasks(tmp_path / "none")
    with pytest.raises(GraspError, match="empty has no data sets"):
        TextTasks(tmp_path / "empty")
    write(folder / "sentiment.csv", {"good": 3})
    with pytest.raises(
        GraspError, match="the data set sentiment has the same name as the labels that yelp and amazon share"
    ):
        TextTasks(folder)
    write(folder / "ag_news.csv", {"World": 3})
    with pytest.raises(GraspError, match=r"has the data set ag_news twice, as ag and ag_news\.csv"):
        TextTasks(folder)


# -- the paper's orders and data ---------------------------------------------------------------------------------------


# As the paper names them (appendix, "Text Classification Experiments").
PAPER = {
    1: "ag yelp yahoo",
    2: "yelp yahoo ag",
    3: "yahoo ag yelp",
    4: "ag yelp amazon yahoo dbpedia",
    5: "yelp yahoo amazon dbpedia ag",
    6: "dbpedia yahoo ag amazon yelp",
}


@pytest.mark.parametrize("number", PAPER)
@pytest.mark.parametrize("scale", ["full", "small"])
def test_the_presets_have_the_orders_of_the_paper(number: int, scale: str) -> None:
    from graspcl.settings.presets import preset

    config = preset(f"text-order-{number}", scale)
    assert str(config.data.tasks).split(",") == PAPER[number].split()
    assert config.stream.sessions == len(PAPER[number].split()) and config.stream.kind == "task_incremental"


@needs_data
@pytest.mark.parametrize("number, classes", [(2, 19), (5, 33)])  # the other orders have the same data sets
def test_classes_of_the_paper(number: int, classes: int) -> None:
    texts = TextTasks(SHARED, PAPER[number].split(), per_class=20, test_per_class=5)
    full = {"ag": "ag_news", "yahoo": "yahoo_answers"}
    assert texts.tasks == [full.get(name, name) for name in PAPER[number].split()]
    assert len(texts.classes) == classes and not texts.problems
    per_task = {"ag_news": 4, "yelp": 5, "amazon": 5, "yahoo_answers": 10, "dbpedia": 14}
    sizes = [20 * per_task[task] for task in texts.tasks]
    assert np.bincount(texts.task_of[texts.train]).tolist() == sizes
    assert np.bincount(texts.task_of[texts.test]).tolist() == [size // 4 for size in sizes]


@needs_data
def test_yelp_and_amazon_have_the_same_labels() -> None:
    yelp, amazon = (TextTable(SHARED / name) for name in ("yelp", "amazon"))
    assert yelp.classes == amazon.classes == ["negative", "neutral", "positive", "very negative", "very positive"]
    texts = TextTasks(SHARED, FIVE)
    by_task = [np.unique(texts.labels[texts.task_of == number]).tolist() for number in range(5)]
    assert by_task[FIVE.index("yelp")] == by_task[FIVE.index("amazon")]
    assert len(texts) == 37_895 + 24_800
    assert sum(map(len, by_task)) == 33 + 5
