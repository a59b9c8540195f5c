"""Texts with labels in a table: one file, or files to train and to test on."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from graspcl.checks import Natural, Range, checked
from graspcl.data.hub import HUB, hub_name, hub_rows, load_splits
from graspcl.data.samples import Samples, hash_id, labels_of
from graspcl.data.splits import held_out, rank_in_class, rows_of_split
from graspcl.data.table_reader import READERS, Rows, read_rows
from graspcl.data.trees import list_folder
from graspcl.errors import GraspError

_VALS = ("val", "valid", "validation", "dev")
Val = Literal["ignore", "train"]


@checked
class TextTable(Samples[list[str]]):
    """Texts and their classes from two columns of CSV, TSV, JSONL or Parquet files.

    CSV files have a header, are quoted as spreadsheets do, and use commas, or semicolons or tabs if these split the
    header. They have no types: a text may consist of digits, and labels count as numbers if all of them are, so that
    1 and 1.0 are one class. In other files texts are strings, and labels are strings or whole numbers. Classes are
    sorted, by value if all are numbers.

    Rows are left out if they have no text or no label (nan counts as none), a text that is not a string, a fraction as
    a label, the wrong number of columns, or if they are malformed, not UTF-8 or longer than `graspcl.limits` allows.
    `problems` names each by file and row, up to 10,000 of them. It also names texts of more than 20,000 characters,
    which are kept; networks read at most the first 100,000. `ids` and `version` are hashes of the texts.

    Args:
        path: one file; a pair of files to train and to test on; a folder with `train.csv` and `test.csv` (or another
            format); or a data set of the Hugging Face hub as "hf:NAME" or "hf:NAME:CONFIG".
        text: name of the text column, or names of columns that are joined by spaces.
        label: name of the label column.
        test_share: share of each class to test on if there is no test file, chosen by a hash of the text. At least one
            text, but never the last. Equal texts of a class count once and stay together.
        test_per_class: number of texts per class to test on instead, or the maximum number taken from a test file.
        val: "train" adds the file `val` (or `valid`, `validation`, `dev`) to the training texts. "ignore" leaves it
            out, but tests on it if there is no `test`.

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
        path: str | Path | Sequence[str | Path],
        text: str | Sequence[str] = "text",
        label: str = "label",
        test_share: Annotated[float, Range(0, 1, below=True)] = 0.1,
        test_per_class: Natural | None = None,
        *,
        val: Val = "ignore",
    ) -> None:
        options = {"text": text, "label": label, "test_share": test_share, "test_per_class": test_per_class, "val": val}
        name, trained, separate = _read_parts(path, text, label, val)
        parts = [*trained, separate] if separate else trained
        classes = in_class_order(each for part in trained for each in part.labels)
        labels = np.concatenate([labels_of(part.labels, classes, part.where, "texts") for part in parts])
        texts = [each for part in parts for each in part.texts]
        hashes = np.array([hash_id(each) for each in texts], np.int64)
        self.own_test = separate is not None
        if separate is None:
            tested = held_out(labels, hashes, test_share, test_per_class)
            train, test = np.flatnonzero(~tested), np.flatnonzero(tested)
        else:
            train, test = np.split(np.arange(len(texts)), [-len(separate.texts)])
            if test_per_class is not None:
                test = test[rank_in_class(labels[test], hashes[test]) < test_per_class]
        ids = hashes + rank_in_class(hashes)  # equal texts get different ids
        rows, arrays = rows_of_split(labels, ids, train, test)
        self._texts = [texts[row] for row in rows.tolist()]
        super().__init__(
            name=name,
            version=hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()[:12],
            classes=classes,
            **arrays,
            options=options,
            problems=[problem for part in parts for problem in part.problems],
        )

    def read(self, indices: ArrayLike) -> list[str]:
        return [self._texts[row] for row in self.check(indices).tolist()]


def _read_parts(
    path: str | Path | Sequence[str | Path], text: str | Sequence[str], label: str, val: Val
) -> tuple[str, list[Rows], Rows | None]:
    """Return the name of the data set, the rows of each training file, and the rows of the test file, if any."""
    config, on_hub = None, str(path).startswith(HUB)
    files: Mapping[str, Any]
    if not isinstance(path, str | Path):
        if len(path) != 2:
            raise GraspError(
                f"path must be one path, or a pair of files to train and to test on, got {len(path)} paths"
            )
        files = dict(zip(("train", "test"), map(Path, path), strict=True))
        name = files["train"].parent.name or files["train"].stem
    elif on_hub:
        name, config = hub_name(str(path))
        files = load_splits(name, config)
    elif os.path.isdir(path):
        training_table(Path(path))  # there must be one
        name, files = Path(path).resolve().name, table_files(Path(path))
    else:
        name, files = Path(path).stem, {"train": Path(path)}

    def read(role: str) -> Rows:
        if on_hub:
            return hub_rows(f"{name} {role}", files[role], text, label)
        return read_rows(files[role], text, label)

    vals = [role for role in _VALS if role in files]
    tests = ["test"] if "test" in files else vals[:1] if val == "ignore" else []
    train = [read(role) for role in ["train", *(vals if val == "train" else [])]]
    title = "-".join(filter(None, [Path(name).name, config])) if on_hub else name
    return title, train, read(tests[0]) if tests else None


def training_table(path: Path) -> Path:
    """Return the table to train on: `path` itself, or `train` in a folder."""
    if not path.is_dir():
        return path
    if "train" not in (files := table_files(path)):
        remedy = f"add train.csv (or {', '.join([*READERS][1:])}); for images use `graspcl run images`"
        raise GraspError(f"{path} has no training data; {remedy}")
    return files["train"]


def in_class_order(names: Iterable[str]) -> list[str]:
    """Return the distinct names, sorted: by value if all are whole numbers."""
    distinct = sorted(set(names))
    if all(re.fullmatch(r"-?[0-9]{1,18}", name) for name in distinct):
        distinct.sort(key=int)
    return distinct


def table_files(folder: Path) -> dict[str, Path]:
    """Find the tables `train`, `test` and `val` of a folder, such as train.csv and test.parquet."""
    files: dict[str, Path] = {}
    for file in list_folder(folder):
        role = file.stem.lower()
        if role in ("train", "test", *_VALS) and file.suffix.lower() in READERS and os.path.isfile(file):
            if role in files:
                raise GraspError(f"{folder} has both {files[role].name} and {file.name}; remove one of them")
            files[role] = file
    return files
