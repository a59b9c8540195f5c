"""Rows of a text and a label, read from CSV, TSV, JSONL and Parquet files. Bad rows are reported and left out."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from graspcl.data.delimited import read_delimited
from graspcl.data.rows import TWICE, Rows, check_columns
from graspcl.errors import GraspError, require

_BOM = b"\xef\xbb\xbf"


def read_rows(path: Path, text: str, label: str) -> Rows:
    """The rows of the file at `path`, which has columns called `text` and `label`.

    Rows are counted as other programs do: a spreadsheet, where the header is row 1 and a field of several lines is
    part of one row; the lines of a JSONL file from 1; the rows of a Parquet file from 1.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "news.csv"
    ...     size = file.write_text('text,label\\n"Rates, again",Business\\nGoal!\\n')
    ...     rows = read_rows(file, "text", "label")
    >>> rows.texts, [problem.split("/")[-1] for problem in rows.problems]
    (['Rates, again'], ['news.csv row 3: 1 column where the header has 2'])
    """
    rows = Rows(str(path))
    if not path.exists():
        raise GraspError(f"there is no file or folder {path}")
    if path.suffix.lower() not in READERS:
        raise GraspError(f"{path} is no table; its name must end in one of {', '.join(READERS)}")
    try:
        refuse_utf16(path)
        READERS[path.suffix.lower()](path, text, label, rows)
    except OSError as error:
        raise GraspError(f"{path} cannot be read: {error.strerror or error}") from error
    return rows.checked()


def _read_jsonl(path: Path, text: str, label: str, rows: Rows) -> None:
    columns: dict[str, None] = {}  # in the order in which they occur
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            line = (line.removeprefix(_BOM) if number == 1 else line).strip()
            if not line:
                continue
            try:
                record = json.loads(line.decode(), object_pairs_hook=json_object)
            except UnicodeDecodeError:
                rows.report(number, "not UTF-8")
            except json.JSONDecodeError as error:
                rows.report(number, f"malformed JSON: {error.msg}, character {error.colno}")
            except (ValueError, RecursionError) as error:  # numbers too long, objects too deep
                rows.report(number, f"malformed JSON: {error}")
            else:
                if isinstance(record, dict):
                    columns.update(dict.fromkeys(record))
                    rows.add(number, record.get(text), record.get(label))
                else:
                    rows.report(number, f"{reprlib.repr(record)} is not an object with columns")
    if columns:
        check_columns(str(path), list(columns), text, label)


def json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which a name that comes twice is marked: neither value is the right one."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        found[name] = TWICE if name in found else value
    return found


def _read_parquet(path: Path, text: str, label: str, rows: Rows) -> None:
    parquet, pyarrow = require("pyarrow.parquet", "text"), require("pyarrow", "text")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            check_columns(str(path), file.schema_arrow.names, text, label)
            for batch in file.iter_batches(columns=[text, label]):
                for values in zip(values_of(batch.column(text)), values_of(batch.column(label)), strict=True):
                    number += 1
                    rows.add(number, *values)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        said = " ".join(str(error).split())
        raise GraspError(f"{path} cannot be read as a Parquet file: {said}") from error


READERS: dict[str, Callable[[Path, str, str, Rows], None]] = {
    ".csv": read_delimited,
    ".tsv": partial(read_delimited, delimiter="\t"),
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".parquet": _read_parquet,
}  # how a file is read, by the end of its name


def refuse_utf16(path: Path) -> None:
    """An error for a file in UTF-16, in which no row could be read."""
    with open(path, "rb") as handle:
        if handle.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            raise GraspError(f"{path} is in UTF-16; save it as UTF-8")


def values_of(column: Any) -> list[Any]:
    """The values of a pyarrow column; bytes, if some of its texts are not UTF-8."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = column.cast("large_binary").to_pylist()
    return values
