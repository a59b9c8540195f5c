"""Texts with labels in a table: one file, or one to train on and one to test on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from graspcl.data.base import Int64s, Samples
from graspcl.data.formats import READERS, read_rows
from graspcl.data.hub import HUB, hub_name, hub_rows, load_splits
from graspcl.data.rows import Rows
from graspcl.data.stored import few, name_hash
from graspcl.errors import GraspError, nearest

_VALS = ("val", "valid", "validation", "dev")


class TextTable(Samples[list[str]]):
    """Texts and their classes from the columns `text` and `label` of CSV, TSV, JSONL or Parquet files.

    `path` is a folder with `train.csv` and `test.csv` (or another of these kinds of file), a pair of files to train
    and to test on, one file, a data set of the Hugging Face hub as "hf:NAME" or "hf:NAME:CONFIG", or `Parts` that have
    been read. In a folder with a `val` (or `valid`, `validation`, `dev`) beside the other two, `val` says whether that
    is left alone ("ignore") or trained on ("train"); without a `test`, it is what is tested on, unless it is trained
    on. Other files of a folder do not count.

    Where there is no file to test on, `test_share` of each class, chosen by a hash of the text, is for testing: at
    least one text but never the last. `test_per_class` asks for so many of each class instead; of a file to test on it
    keeps at most so many. Equal texts of a class count once here and stay together.

    CSV files have a header, are quoted as spreadsheets do it, and parted by commas, or semicolons or tabs if these part
    the header. Labels are text or whole numbers; classes are sorted, by value if all are numbers. A CSV file has no
    types: a text of digits is a text there (in JSONL and Parquet a number is none), and labels count as numbers if all
    of them look it, so that 1 and 1.0 are one class.

    Rows that cannot be used are left out: without a text or a label (also nan), with a text that is no string or a
    label that is a fraction, not in UTF-8, malformed, with too many or too few columns. `problems` names each by file
    and row, and also texts of more than 20,000 characters. These are kept, as all texts, as they are in the file. `ids`
    and `version` are hashes of the texts.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = (Path(folder) / "train.csv").write_text("label,text\\n10,tenth\\n9,ninth\\n9,\\n")
    ...     size = (Path(folder) / "test.csv").write_text("label,text\\n9,also ninth\\n")
    ...     table = TextTable(folder)
    >>> table.classes, table.labels.tolist(), table.read(table.test), table.problems[0].split("/")[-1]
    (['9', '10'], [1, 0, 0], ['also ninth'], 'train.csv row 4: empty text')
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path] | Parts,
        text: str = "text",
        label: str = "label",
        test_share: float = 0.1,
        test_per_class: int | None = None,
        *,
        val: str = "ignore",
    ) -> None:
        if not 0 <= test_share < 1:
            raise GraspError(f"test_share must be at least 0 and below 1, not {test_share}")
        if test_per_class is not None and test_per_class < 0:
            raise GraspError(f"test_per_class must not be negative, but is {test_per_class}")
        parts = path if isinstance(path, Parts) else read_parts(path, text, label, val)
        classes = in_class_order(name for part in parts.train for name in part.labels)
        labels = np.concatenate([_labels(part, classes) for part in parts.all])
        texts = [each for part in parts.all for each in part.texts]
        hashes = np.array([name_hash(each) for each in texts], np.int64)
        if parts.test is None:
            train, test = _held_out(labels, hashes, test_share, test_per_class)
        else:
            train, test = np.split(np.arange(len(texts)), [-len(parts.test.texts)])
            test = test if test_per_class is None else test[_ranks(labels[test], hashes[test])[0] < test_per_class]
        used = np.sort(np.concatenate([train, test]))
        ids = _told_apart(hashes)
        self._texts = [texts[row] for row in used.tolist()]
        super().__init__(
            name=parts.name,
            version=hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()[:12],
            classes=classes,
            labels=labels[used],
            ids=ids[used],
            train=np.searchsorted(used, train),
            test=np.searchsorted(used, test),
            options={
                "text": text,
                "label": label,
                "test_share": test_share,
                "test_per_class": test_per_class,
                "val": val,
            },
            problems=parts.problems,
        )

    @classmethod
    def from_hub(
        cls,
        name: str,
        config: str | None = None,
        text: str = "text",
        label: str = "label",
        test_share: float = 0.1,
        test_per_class: int | None = None,
        *,
        val: str = "ignore",
    ) -> TextTable:
        """The data set `name` of the Hugging Face hub in its configuration `config`, by the package datasets.

        Its splits count as files do. Classes that have names there are called by them.
        """
        return cls(hub_parts(name, config, [text], label, val), text, label, test_share, test_per_class, val=val)

    def read(self, indices: ArrayLike) -> list[str]:
        """The texts at `indices` [n]."""
        return [self._texts[row] for row in self.check(indices).tolist()]


@dataclass(frozen=True)
class Parts:
    """The rows to train on, which may come from several files, and those to test on, if they are kept apart."""

    name: str
    train: list[Rows]
    test: Rows | None

    @property
    def all(self) -> list[Rows]:
        """All rows, those to test on last."""
        return self.train if self.test is None else [*self.train, self.test]

    @property
    def problems(self) -> list[str]:
        """What is wrong with rows, or odd."""
        return [problem for part in self.all for problem in part.problems]


def in_class_order(names: Iterable[str]) -> list[str]:
    """The different names, sorted: by value if all are whole numbers.

    >>> in_class_order(["10", "9", "9"]), in_class_order(["10", "9", "none"])
    (['9', '10'], ['10', '9', 'none'])
    """
    different = sorted(set(names))
    if all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in different):
        different.sort(key=int)
    return different


def read_parts(path: str | Path | Sequence[str | Path], text: str, label: str, val: str) -> Parts:
    """The rows of a folder, a pair of files, one file or a data set of the hub, as `TextTable` says."""
    _check_val(val)
    if not isinstance(path, str | Path):
        if len(path) != 2:
            raise GraspError(f"a table is one path, or a pair of files to train and to test on, not {len(path)} paths")
        train, test = map(Path, path)
        return Parts(train.parent.name or train.stem, [read_rows(train, text, label)], read_rows(test, text, label))
    if str(path).startswith(HUB):
        return hub_parts(*hub_name(str(path)), [text], label, val)
    folder = Path(path)
    if not folder.is_dir():
        return Parts(folder.stem, [read_rows(folder, text, label)], None)
    files = table_files(folder)
    trained, tested = _roles(files, val)
    if "train" not in files:
        raise GraspError(f"{folder} has no file train.csv to train on, nor a train with {', '.join([*READERS][1:])}")
    rows = {role: read_rows(files[role], text, label) for role in [*trained, *tested]}
    return Parts(folder.resolve().name, [rows[role] for role in trained], next((rows[role] for role in tested), None))


def hub_parts(name: str, config: str | None, text: Sequence[str], label: str, val: str) -> Parts:
    """The rows of a data set of the hub; a text is what its columns `text` have, one after the other."""
    _check_val(val)
    splits = load_splits(name, config)
    trained, tested = _roles(splits, val)
    rows = {role: hub_rows(f"{name} {role}", splits[role], text, label) for role in [*trained, *tested]}
    title = Path(name).name + (f"-{config}" if config else "")
    return Parts(title, [rows[role] for role in trained], next((rows[role] for role in tested), None))


def table_files(folder: Path) -> dict[str, Path]:
    """The tables `train`, `test` and `val` of a folder, or those of them that are there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("train.csv", "oos_test.csv", "test.parquet", "val.txt"):
    ...         (Path(folder) / name).touch()
    ...     {role: file.name for role, file in table_files(Path(folder)).items()}
    {'test': 'test.parquet', 'train': 'train.csv'}
    """
    files: dict[str, Path] = {}
    for file in in_folder(folder):
        role = file.stem.lower()
        if role in ("train", "test", *_VALS) and file.suffix.lower() in READERS and file.is_file():
            if role in files:
                raise GraspError(
                    f"{folder} has both {files[role].name} and {file.name}; keep one, or name a pair of files"
                )
            files[role] = file
    return files


def in_folder(folder: Path) -> list[Path]:
    """What lies in a folder, sorted, without hidden files."""
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise GraspError(f"{folder} cannot be read: {error.strerror}") from error


def _roles(found: Iterable[str], val: str) -> tuple[list[str], list[str]]:
    """Which parts are trained on, and the one that is tested on, if any."""
    names = set(found)
    vals = [name for name in _VALS if name in names]
    tests = ["test"] if "test" in names else vals[:1] if val == "ignore" else []
    return ["train", *(vals if val == "train" else [])], tests


def _check_val(val: str) -> None:
    if val not in ("train", "ignore"):
        raise GraspError(f"val cannot be {val!r}; {nearest(str(val), ['train', 'ignore'])}")


def _labels(part: Rows, classes: list[str]) -> Int64s:
    label_of = {name: label for label, name in enumerate(classes)}
    if unknown := in_class_order(set(part.labels) - set(classes)):
        raise GraspError(
            f"{part.where} has classes that are not trained on: {few(unknown)}; "
            "a class needs texts to train on before it can be tested"
        )
    return np.array([label_of[name] for name in part.labels], np.int64)


def _held_out(labels: Int64s, hashes: Int64s, share: float, per_class: int | None) -> tuple[Int64s, Int64s]:
    """Rows to train on and rows to test on, which are those with the smallest hashes of each class."""
    rank, sizes = _ranks(labels, hashes)
    least = 1 if share else 0
    asked = np.maximum(np.round(share * sizes), least) if per_class is None else np.full(len(sizes), per_class)
    tested = rank < np.minimum(asked, sizes - 1)[labels]
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def _ranks(labels: Int64s, hashes: Int64s) -> tuple[Int64s, Int64s]:
    """The place of each text among the different ones of its class, by hash, and how many a class has of them."""
    order = np.lexsort((hashes, labels))
    by_label, by_hash = labels[order], hashes[order]
    new_class = np.diff(by_label, prepend=-1) != 0
    new_text = new_class | (np.diff(by_hash, prepend=-1) != 0)
    before = np.cumsum(new_text) - 1
    rank = np.empty(len(labels), np.int64)
    rank[order] = before - np.maximum.accumulate(np.where(new_class, before, 0))
    return rank, np.bincount(by_label[new_text])


def _told_apart(hashes: Int64s) -> Int64s:
    """The hashes, counted up where a text occurs again."""
    order = np.argsort(hashes, kind="stable")
    ids = hashes.copy()
    ids[order] += np.arange(len(order)) - np.searchsorted(hashes[order], hashes[order])
    return ids
