"""Several sets of texts as the tasks of one stream, with one label space."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from graspcl.data.base import Int64s, Samples
from graspcl.data.formats import READERS
from graspcl.data.hub import HUB
from graspcl.data.stored import few, name_hash
from graspcl.data.subset import Subset
from graspcl.data.tables import Parts, TextTable, hub_parts, in_class_order, in_folder, read_parts, table_files
from graspcl.errors import GraspError, nearest
from graspcl.random import generator

# The orders of the paper's text experiments (appendix, "Text Classification Experiments").
ORDERS = {
    1: ("ag_news", "yelp", "yahoo_answers"),
    2: ("yelp", "yahoo_answers", "ag_news"),
    3: ("yahoo_answers", "ag_news", "yelp"),
    4: ("ag_news", "yelp", "amazon", "yahoo_answers", "dbpedia"),
    5: ("yelp", "yahoo_answers", "amazon", "dbpedia", "ag_news"),
    6: ("dbpedia", "yahoo_answers", "ag_news", "amazon", "yelp"),
}
# Other names that the paper's data sets go by, in papers and as folders.
_ALIASES = {
    "ag": "ag_news",
    "agnews": "ag_news",
    "yelp_review_full": "yelp",
    "amazon_review_full": "amazon",
    "yahoo": "yahoo_answers",
    "yahoo_answers_topics": "yahoo_answers",
    "dbpedia_14": "dbpedia",
}
_SENTIMENTS = ("very negative", "negative", "neutral", "positive", "very positive")


@dataclass(frozen=True)
class OnHub:
    """A data set of the hub: its columns, and other names for its classes if it has so many."""

    name: str
    text: tuple[str, ...] = ("text",)
    label: str = "label"
    classes: tuple[str, ...] = ()


# Where the hub has the paper's data sets. One and five stars are called differently in Yelp and Amazon.
ON_HUB = {
    "ag_news": OnHub("fancyzhx/ag_news"),
    "yelp": OnHub("Yelp/yelp_review_full", classes=_SENTIMENTS),
    "amazon": OnHub(
        "yassiracharki/Amazon_Reviews_for_Sentiment_Analysis_fine_grained_5_classes",
        ("review_title", "review_text"), "class_index", _SENTIMENTS,
    ),
    "yahoo_answers": OnHub(
        "community-datasets/yahoo_answers_topics", ("question_title", "question_content", "best_answer"), "topic"
    ),
    "dbpedia": OnHub("fancyzhx/dbpedia_14", ("content",)),
}  # fmt: skip
_TITLES = {frozenset({"yelp", "amazon"}): "sentiment"}  # of labels that several data sets share

Name = tuple[str, str]  # of a class: whose label it is, and the label


class TextTasks(Samples[list[str]]):
    """The text data sets in `folder`, one task each, in the order of `names` (None: all that are there, sorted).

    A data set is a folder or a file as `TextTable` reads it, with columns `text` and `label`. `tasks` has their names
    and `task_of` [N] the position in it of each sample. Shorter names of the paper's data sets are understood: ag,
    yahoo. With "hf:" for a folder, the paper's data sets come from the Hugging Face hub, whatever `text` and `label`.

    All data sets together have one label space. A class is called "data set/label", so equal labels of two data sets
    are two classes, but for those that `shared` puts into one group, such as Yelp and Amazon with the same five
    sentiments: these are told by their labels, whatever their case and spacing, and called "sentiment/label" (any other
    group is called by the names of its data sets, as in "imdb+sst/label"). Classes are sorted by name, whatever the
    order of the tasks.

    Of each class and task at most `per_class` texts are for training (the reference has 2,000; None: all), drawn with
    `seed`, and at most `test_per_class` for testing, the same for every seed. The texts of a data set are the same
    whichever others there are.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, row in {"ag": "world,war", "yelp": "good,nice", "amazon": "Good,works"}.items():
    ...         size = (Path(folder) / f"{name}.csv").write_text(f"label,text\\n{row}\\n{row} indeed\\n")
    ...     texts = TextTasks(folder, ["yelp", "ag", "amazon"])
    >>> texts.classes, texts.tasks
    (['ag_news/world', 'sentiment/good'], ['yelp', 'ag_news', 'amazon'])
    >>> texts.labels.tolist(), texts.task_of.tolist()
    ([1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 2, 2])
    """

    def __init__(
        self,
        folder: str | Path,
        names: Sequence[str] | None = None,
        per_class: int | None = None,
        test_per_class: int | None = None,
        seed: int = 0,
        *,
        shared: Sequence[Sequence[str]] = (("yelp", "amazon"),),
        text: str = "text",
        label: str = "label",
        test_share: float = 0.1,
        val: str = "ignore",
    ) -> None:
        if seed < 0:
            raise GraspError(f"{folder}: seed must not be negative, but is {seed}")
        groups = _groups(shared)
        found: Mapping[str, Path | OnHub] = ON_HUB if folder == HUB else _data_sets(Path(folder))
        self.tasks = sorted(found) if names is None else _chosen(str(folder), names, found)
        parts = {}
        for task in self.tasks:
            read = _read(found[task], text, label, val)
            table = TextTable(read, text, label, test_share, test_per_class, val=val)
            parts[task] = Subset(table, per_class=per_class, rng=generator(seed, f"text_tasks.{task}"))
        labels_of = {task: _class_names(found[task], part.classes) for task, part in parts.items()}
        problems = _disagreements(labels_of, groups)
        names_of = _names(labels_of, groups)
        classes = _in_order(names_of)
        class_of = {task: np.array([classes.index(name) for name in names]) for task, names in names_of.items()}
        sizes = [len(part) for part in parts.values()]
        places = list(zip(np.cumsum(sizes) - sizes, parts.values(), strict=True))
        self.task_of: Int64s = np.repeat(np.arange(len(parts)), sizes)
        self.task_of.setflags(write=False)
        self._texts = [each for part in parts.values() for each in part.read(np.arange(len(part)))]
        versions = " ".join(parts[task].version for task in sorted(parts))
        super().__init__(
            name="hub" if folder == HUB else Path(folder).resolve().name,
            version=hashlib.sha256(versions.encode()).hexdigest()[:12],
            classes=["/".join(name) for name in classes],
            labels=np.concatenate([class_of[task][part.labels] for task, part in parts.items()]),
            # Data sets may have texts in common.
            ids=np.concatenate([part.ids ^ name_hash(task) for task, part in parts.items()]),
            train=np.concatenate([start + part.train for start, part in places]),
            test=np.concatenate([start + part.test for start, part in places]),
            options={
                "tasks": self.tasks,
                "per_class": per_class,
                "test_per_class": test_per_class,
                "seed": seed,
                "shared": [list(group) for group in groups],
            },
            problems=[*(problem for part in parts.values() for problem in part.problems), *problems],
        )

    def read(self, indices: ArrayLike) -> list[str]:
        """The texts at `indices` [n]."""
        return [self._texts[row] for row in self.check(indices).tolist()]


def text_order(number: int) -> tuple[str, ...]:
    """The data sets in the paper's order `number`, 1 to 6, as `names` of `TextTasks`.

    >>> text_order(1)
    ('ag_news', 'yelp', 'yahoo_answers')
    """
    if isinstance(number, bool) or not isinstance(number, int) or number not in ORDERS:
        raise GraspError(f"the paper has text orders 1 to {len(ORDERS)}, not {number!r}")
    return ORDERS[number]


def _usual(name: str) -> str:
    return _ALIASES.get(name.lower(), name)


def _data_sets(folder: Path) -> dict[str, Path]:
    """Data sets by name and where they are: folders that have something to train on, and tables by themselves."""
    if not folder.exists():
        raise GraspError(f"there is no folder {folder}; it should have a folder or a table for each data set")
    if folder.is_file() or "train" in table_files(folder):
        raise GraspError(
            f"{folder} is one data set; give the folder above it, in which each data set is a folder or a file, "
            "or read it as one table: --data.tasks none (in Python: TextTable)"
        )
    found: dict[str, Path] = {}
    for path in in_folder(folder):
        if "train" in table_files(path) if path.is_dir() else path.suffix.lower() in READERS:
            name = _usual(path.name if path.is_dir() else path.stem)
            if name in found:
                raise GraspError(f"{folder} has the data set {name} twice, as {found[name].name} and {path.name}")
            found[name] = path
    if not found:
        raise GraspError(
            f"{folder} has no data sets: no folder in it has a train.csv, and no table lies there by itself"
        )
    return found


def _read(source: Path | OnHub, text: str, label: str, val: str) -> Parts:
    if isinstance(source, OnHub):
        return hub_parts(source.name, None, source.text, source.label, val)
    return read_parts(source, text, label, val)


def _class_names(source: Path | OnHub, classes: list[str]) -> list[str]:
    named = source.classes if isinstance(source, OnHub) else ()
    return list(named) if len(named) == len(classes) else classes


def _chosen(folder: str, names: Sequence[str], found: Mapping[str, object]) -> list[str]:
    chosen = [_usual(name) for name in ([names] if isinstance(names, str) else names)]
    for name in chosen:
        if name not in found:
            raise GraspError(f"{folder} has no data set {name!r}; {nearest(name, found)}")
        if chosen.count(name) > 1:
            raise GraspError(f"{folder}: names has the data set {name!r} twice; a task comes once")
    if not chosen:
        raise GraspError(f"{folder}: names is empty; name at least one of {', '.join(found)}")
    return chosen


def _groups(shared: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    if isinstance(shared, str) or any(isinstance(group, str) for group in shared):
        raise GraspError(f'shared is a list of groups of data sets, such as [["yelp", "amazon"]], not {shared!r}')
    groups = [tuple(map(_usual, group)) for group in shared]
    names = [name for group in groups for name in group]
    for name in names:
        if names.count(name) > 1:
            raise GraspError(f"shared has the data set {name!r} twice; it belongs into one group at most")
    return groups


def _names(labels_of: Mapping[str, list[str]], groups: list[tuple[str, ...]]) -> dict[str, list[Name]]:
    """For each data set the names of its labels. Shared ones are spelled as the first of the group has it."""
    names = {task: [(task, label) for label in labels] for task, labels in labels_of.items()}
    for group in groups:
        title = _TITLES.get(frozenset(group), "+".join(group))
        if title in labels_of:
            raise GraspError(
                f"a data set is called {title}, as are the labels that {' and '.join(group)} share; rename it"
            )
        members = [task for task in group if task in labels_of]
        spelling = {_folded(label): label for task in reversed(members) for label in reversed(labels_of[task])}
        names |= {task: [(title, spelling[_folded(label)]) for label in labels_of[task]] for task in members}
    return names


def _in_order(names_of: Mapping[str, list[Name]]) -> list[Name]:
    every = {name for names in names_of.values() for name in names}
    titles = sorted({title for title, _ in every})
    return [
        (title, label) for title in titles for label in in_class_order(own for whose, own in every if whose == title)
    ]


def _disagreements(labels_of: Mapping[str, list[str]], groups: list[tuple[str, ...]]) -> list[str]:
    """Which labels are not in all data sets that share them; refused if that cannot be meant so."""
    problems = []
    for group in groups:
        members = [task for task in group if task in labels_of]
        every = {task: {_folded(label) for label in labels_of[task]} for task in members}
        for first, other in pairwise(members):
            apart = every[first] ^ every[other]
            numbers = all(label.isdecimal() for label in every[first] | every[other])
            # Stars 1..5 are not those of 0..4, though four of them look alike.
            if not every[first] & every[other] or (numbers and apart):
                raise GraspError(
                    f"{first} and {other} are to share labels, but {first} has {few(labels_of[first])} and {other} has "
                    f"{few(labels_of[other])}; give them the same labels, or leave them out of shared"
                )
            if apart:
                problems.append(f"{first} and {other} share labels, but only one has: {few(in_class_order(apart))}")
    return problems


def _folded(label: str) -> str:
    return " ".join(label.casefold().split())
