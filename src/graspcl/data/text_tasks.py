"""Several data sets of texts as the tasks of one stream, with common classes; and the sources that open texts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike

from graspcl.checks import Count, Natural, Range, checked
from graspcl.data.hub import HUB, hub_name
from graspcl.data.samples import Int64s, Samples, few, hash_id
from graspcl.data.sources import data_sources
from graspcl.data.splits import Subset
from graspcl.data.table_reader import READERS
from graspcl.data.text_table import TextTable, Val, in_class_order, table_files
from graspcl.data.trees import list_folder
from graspcl.errors import GraspError, nearest, require
from graspcl.random import generator

Name = tuple[str, str]  # of a class: its data set or group, and its label

# Other names of the paper's data sets, in papers and as folders.
_ALIASES = {
    "ag": "ag_news",
    "agnews": "ag_news",
    "yelp_review_full": "yelp",
    "amazon_review_full": "amazon",
    "yahoo": "yahoo_answers",
    "yahoo_answers_topics": "yahoo_answers",
    "dbpedia_14": "dbpedia",
}
_USAGE = f"{HUB}NAME for a data set of the Hugging Face hub"
_SENTIMENTS = ("very negative", "negative", "neutral", "positive", "very positive")
_GROUP_NAMES = {frozenset({"yelp", "amazon"}): "sentiment"}  # names of groups that share their labels


@dataclass(frozen=True)
class TaskData:
    """A data set: what `TextTable` reads, and names that replace its class names if their number is the same."""

    path: str | Path
    text: str | tuple[str, ...] = "text"
    label: str = "label"
    classes: tuple[str, ...] = ()


# The paper's data sets on the hub. Yelp and Amazon name their stars differently, so both get the same names.
ON_HUB = {
    "ag_news": TaskData("hf:fancyzhx/ag_news"),
    "yelp": TaskData("hf:Yelp/yelp_review_full", classes=_SENTIMENTS),
    "amazon": TaskData(
        "hf:yassiracharki/Amazon_Reviews_for_Sentiment_Analysis_fine_grained_5_classes",
        ("review_title", "review_text"), "class_index", _SENTIMENTS,
    ),
    "yahoo_answers": TaskData(
        "hf:community-datasets/yahoo_answers_topics", ("question_title", "question_content", "best_answer"), "topic"
    ),
    "dbpedia": TaskData("hf:fancyzhx/dbpedia_14", "content"),
}  # fmt: skip


def _check_settings(data: Any) -> None:
    if data.tasks is not None and data.classes is not None:
        raise GraspError("--data.classes cannot be combined with --data.tasks, which decides which classes there are")
    if data.path.startswith(HUB):
        if data.tasks is None:
            hub_name(data.path)
        elif data.path != HUB:
            raise GraspError(f"--data {data.path} is one data set: --data.tasks none, or --data {HUB} to load tasks")
        require("datasets", "hub")


@data_sources.register("texts", gives="texts", check=_check_settings)
def open_texts(
    path: str | Path,
    text: str = "text",
    label: str = "label",
    tasks: str | None = None,
    per_class: Count | None = None,
    test_per_class: Natural | None = None,
    test_share: Annotated[float, Range(0, 1, below=True)] = 0.1,
) -> Samples[list[str]]:
    """Open texts as one table, or as several tasks.

    Args:
        path: what `TextTable` accepts; with `tasks`, what `TextTasks` accepts.
        tasks: names of data sets in the folder `path`, such as "ag,yelp,yahoo". None: `path` is one table.
        per_class, test_per_class: maximum number of texts per class of each task. A table is not reduced here.
        test_share: share of each class to test on if there is no test file.
    """
    if tasks is None:
        return TextTable(path, text, label, test_share)
    names = [name.strip() for name in tasks.split(",") if name.strip()]
    return TextTasks(path, names, per_class, test_per_class, text=text, label=label, test_share=test_share)


@data_sources.register("hf", HUB, gives="texts", check=_check_settings, usage=_USAGE)
def open_hub(
    path: str = "",
    text: str = "text",
    label: str = "label",
    tasks: str | None = None,
    per_class: Count | None = None,
    test_per_class: Natural | None = None,
    test_share: Annotated[float, Range(0, 1, below=True)] = 0.1,
) -> Samples[list[str]]:
    """Open the data set NAME or NAME:CONFIG of the Hugging Face hub. Without a name, load the data sets of `tasks`."""
    return open_texts(f"{HUB}{path}", text, label, tasks, per_class, test_per_class, test_share)


@checked
class TextTasks(Samples[list[str]]):
    """The text data sets in a folder, one task each, with one set of classes.

    A class is called "data set/label", so equal labels of two data sets are two classes. Data sets in one group of
    `shared` have common classes if their labels are equal up to case and spacing. These are called "sentiment/label"
    for Yelp and Amazon, else after the data sets, as in "imdb+sst/label". Classes are sorted by name, whatever the
    order of the tasks.

    `tasks` holds the names of the data sets, and `task_of` [N] the position of each sample's task in it. The texts of
    a data set do not depend on the other data sets.

    Args:
        folder: a folder with a folder or a file for each data set, as `TextTable` reads them. "hf:" loads the paper's
            data sets from the Hugging Face hub, whatever `text` and `label`.
        names: data sets in the order of the tasks. Short names of the paper's data sets (ag, yahoo) are understood.
            None: all data sets, sorted.
        per_class: maximum number of training texts per class and task (2,000 in the reference). None: all.
        test_per_class: maximum number of test texts per class and task, the same texts for every seed. None: all.
        seed: seed of the training texts.
        shared: groups of data sets that share their labels.
        text, label, test_share, val: parameters of `TextTable`.

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
        per_class: Count | None = None,
        test_per_class: Natural | None = None,
        seed: Natural = 0,
        *,
        shared: Sequence[Sequence[str]] = (("yelp", "amazon"),),
        text: str = "text",
        label: str = "label",
        test_share: float = 0.1,
        val: Val = "ignore",
    ) -> None:
        groups = _groups(shared)
        found = ON_HUB if folder == HUB else _find_datasets(Path(folder), text, label)
        self.tasks = sorted(found) if names is None else _chosen(str(folder), names, found)
        parts, labels_of_task = {}, {}
        for task in self.tasks:
            data = found[task]
            table = TextTable(data.path, data.text, data.label, test_share, test_per_class, val=val)
            parts[task] = Subset(table, per_class=per_class, rng=generator(seed, f"text_tasks.{task}"))
            renamed = len(data.classes) == len(table.classes)
            labels_of_task[task] = list(data.classes) if renamed else table.classes
        names_of_task, problems = _share_labels(labels_of_task, groups)
        classes = _sorted_names(names_of_task)
        class_of = {task: np.array([classes.index(name) for name in own]) for task, own in names_of_task.items()}
        sizes = [len(part) for part in parts.values()]
        places = list(zip(np.cumsum(sizes) - sizes, parts.values(), strict=True))
        self.task_of: Int64s = np.repeat(np.arange(len(parts)), sizes)
        self.task_of.setflags(write=False)
        self._texts = [each for part in parts.values() for each in part.read(np.arange(len(part)))]
        limits = {"per_class": per_class, "test_per_class": test_per_class}
        versions = " ".join(parts[task].version for task in sorted(parts))
        super().__init__(
            name="hub" if folder == HUB else Path(folder).resolve().name,
            version=hashlib.sha256(versions.encode()).hexdigest()[:12],
            classes=["/".join(name) for name in classes],
            labels=np.concatenate([class_of[task][part.labels] for task, part in parts.items()]),
            # The task is part of an id, since data sets may have texts in common.
            ids=np.concatenate([part.ids ^ hash_id(task) for task, part in parts.items()]),
            train=np.concatenate([start + part.train for start, part in places]),
            test=np.concatenate([start + part.test for start, part in places]),
            options={"tasks": self.tasks, **limits, "seed": seed, "shared": groups},
            problems=[*(problem for part in parts.values() for problem in part.problems), *problems],
        )

    def read(self, indices: ArrayLike) -> list[str]:
        return [self._texts[row] for row in self.check(indices).tolist()]


def _full_name(name: str) -> str:
    return _ALIASES.get(name.lower(), name)


def _find_datasets(folder: Path, text: str, label: str) -> dict[str, TaskData]:
    """Find the data sets of a folder by name: folders with training data, and tables."""
    if not folder.exists():
        raise GraspError(f"there is no folder {folder}; it must contain a folder or a table for each data set")
    if folder.is_file() or "train" in table_files(folder):
        remedy = "give the folder above it, or read it as one table: --data.tasks none (in Python: TextTable)"
        raise GraspError(f"{folder} is one data set; {remedy}")
    found: dict[str, TaskData] = {}
    for path in list_folder(folder):
        if "train" in table_files(path) if path.is_dir() else path.suffix.lower() in READERS:
            name = _full_name(path.name if path.is_dir() else path.stem)
            if name in found:
                before = Path(found[name].path).name
                raise GraspError(f"{folder} has the data set {name} twice, as {before} and {path.name}")
            found[name] = TaskData(path, text, label)
    if not found:
        raise GraspError(f"{folder} has no data sets: it contains no table, and no folder with a train.csv")
    return found


def _chosen(folder: str, names: Sequence[str], found: Mapping[str, object]) -> list[str]:
    chosen = [_full_name(name) for name in ([names] if isinstance(names, str) else names)]
    for name in chosen:
        if name not in found:
            raise GraspError(f"{folder} has no data set {name!r}; {nearest(name, found)}")
    _refuse_repeats("names", chosen)
    if not chosen:
        raise GraspError(f"{folder}: names is empty; name at least one of {', '.join(found)}")
    return chosen


def _groups(shared: Sequence[Sequence[str]]) -> list[list[str]]:
    if isinstance(shared, str) or any(isinstance(group, str) for group in shared):
        raise GraspError(f'shared must be a list of groups of data sets, such as [["yelp", "amazon"]], got {shared!r}')
    groups = [[_full_name(name) for name in group] for group in shared]
    _refuse_repeats("shared", [name for group in groups for name in group])
    return groups


def _refuse_repeats(parameter: str, names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise GraspError(f"{parameter} has the data set {name!r} twice; name it once")


def _share_labels(
    labels_of_task: Mapping[str, list[str]], groups: list[list[str]]
) -> tuple[dict[str, list[Name]], list[str]]:
    """Name the labels of each data set, and report labels that not all data sets of a group have."""
    names = {task: [(task, label) for label in labels] for task, labels in labels_of_task.items()}
    problems: list[str] = []
    for group in groups:
        title = _GROUP_NAMES.get(frozenset(group), "+".join(group))
        if title in labels_of_task:
            owners = " and ".join(group)
            raise GraspError(f"the data set {title} has the same name as the labels that {owners} share; rename it")
        members = {task: labels_of_task[task] for task in group if task in labels_of_task}
        folded = {task: set(map(_folded, labels)) for task, labels in members.items()}
        for first, other in pairwise(members):
            one, two = folded[first], folded[other]
            # Stars 1..5 and 0..4 have different meanings, although four of the numbers are equal.
            if one.isdisjoint(two) or (one != two and all(label.isdecimal() for label in one | two)):
                found = f"{first} has {few(members[first])} and {other} has {few(members[other])}"
                remedy = "give them the same labels, or remove them from shared"
                raise GraspError(f"{first} and {other} cannot share labels: {found}; {remedy}")
            if one != two:
                problems.append(f"{first} and {other} share labels, but only one has: {few(in_class_order(one ^ two))}")
        # Labels are spelled as in the first data set of the group, which sets them last.
        every = [label for labels in members.values() for label in labels]
        spelling = {_folded(label): label for label in reversed(every)}
        names |= {task: [(title, spelling[_folded(label)]) for label in labels] for task, labels in members.items()}
    return names, problems


def _sorted_names(names_of_task: Mapping[str, list[Name]]) -> list[Name]:
    every = {name for names in names_of_task.values() for name in names}
    titles = sorted({title for title, _ in every})
    return [(title, label) for title in titles for label in in_class_order(own for of, own in every if of == title)]


def _folded(label: str) -> str:
    return " ".join(label.casefold().split())
