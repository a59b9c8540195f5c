"""Rows of a text and a label, read from CSV, TSV, JSONL and Parquet files. Bad rows are reported and left out."""

from __future__ import annotations

import csv
import json
import math
import reprlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from graspcl.errors import GraspError, nearest, require

LISTED = 20  # bad rows that are described; the others are counted
_LONGEST = 2**31 - 1  # characters of a CSV field: more than any
_BOM = b"\xef\xbb\xbf"
_limit_in_use = threading.Lock()


@dataclass
class Rows:
    """Texts and their labels, what was wrong with the first of the bad rows, and how many bad rows there were.

    >>> rows = Rows("news.csv")
    >>> rows.add(2, "Rates fall.", "Business")
    >>> rows.add(3, " ", "Sports")
    >>> rows.texts, rows.labels, rows.problems
    (['Rates fall.'], ['Business'], ['news.csv row 3: empty text'])
    """

    where: str
    texts: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    left_out: int = 0

    def add(self, number: int, text: object, label: object) -> None:
        """Take a row if it is sound; else report it."""
        try:
            sound = _text(text), _label(label)
        except _Unfit as reason:
            self.refuse(number, str(reason))
        else:
            self.texts.append(sound[0])
            self.labels.append(sound[1])

    def refuse(self, number: int, reason: str) -> None:
        """Report a row and leave it out."""
        self.left_out += 1
        if len(self.problems) < LISTED:
            self.problems.append(f"{self.where} row {number}: {reason}")

    def checked(self) -> Rows:
        """These rows, or an error if there are none."""
        if not self.texts:
            reason = f"; {self.left_out} are bad, the first: {self.problems[0]}" if self.problems else ""
            raise GraspError(f"{self.where} has no rows that can be used{reason}")
        return self


def read_rows(path: Path, text: str, label: str) -> Rows:
    """The rows of the file at `path`, which has columns called `text` and `label`.

    Rows are counted as other programs do: a spreadsheet, where the header is row 1 and a field of several lines is
    part of one row; the lines of a JSONL file from 1; the rows of a Parquet file from 1.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "news.csv"
    ...     size = file.write_text('text,label\\n"Rates, again",Business\\nGoal!\\n')
    ...     rows = read_rows(file, "text", "label")
    >>> rows.texts, rows.left_out, rows.problems[0].split("/")[-1]
    (['Rates, again'], 1, 'news.csv row 3: 1 column where the header has 2')
    """
    rows = Rows(str(path))
    if not path.exists():
        raise GraspError(f"there is no file or folder {path}")
    if path.suffix.lower() not in READERS:
        raise GraspError(f"{path} is no table; its name must end in one of {', '.join(READERS)}")
    try:
        READERS[path.suffix.lower()](path, text, label, rows)
    except OSError as error:
        raise GraspError(f"{path} cannot be read: {error.strerror or error}") from error
    return rows.checked()


def check_columns(where: str, columns: Sequence[str], text: str, label: str) -> None:
    """Refuse a table without a column `text` or `label`.

    >>> check_columns("news.csv", ["texts", "label"], "text", "label")
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: news.csv has no column 'text'; its columns are texts, label; did you mean 'texts'?
    """
    if text == label:
        raise GraspError(f"{where}: text and label must be two columns, not both {text!r}")
    for name in (text, label):
        if name not in columns:
            # Names may be in any encoding, but an error must always be printable.
            shown = [column.encode(errors="backslashreplace").decode() for column in columns]
            hint = nearest(name, shown)
            more = f"; {hint}" if hint.startswith("did you mean") else ""
            raise GraspError(f"{where} has no column {name!r}; its columns are {', '.join(shown)}{more}")


def _read_csv(path: Path, text: str, label: str, rows: Rows, delimiter: str = ",") -> None:
    _refuse_utf16(path)
    # Bytes that are not UTF-8 become lone surrogates, so that they spoil no more than their own row.
    with (
        open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as handle,
        _fields_of_any_length(),
    ):
        lines = _Lines(handle)
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next(reader)]
        except StopIteration:
            raise GraspError(f"{path} is empty") from None
        except csv.Error as error:
            raise GraspError(f"{path} row 1, the header, is malformed: {error}") from error
        check_columns(str(path), header, text, label)
        _read_records(reader, lines, header, (header.index(text), header.index(label)), rows)


def _read_records(reader: Any, lines: _Lines, header: list[str], at: tuple[int, int], rows: Rows) -> None:
    text_at, label_at = at
    known: set[str] = set()
    for number in count(2):
        again = lines.begin_row()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            lines.give_back()
            rows.refuse(number, f"malformed, is a quote left open? ({error})")
            continue
        if not fields:
            continue  # a blank line
        if len(fields) != len(header):
            columns = "column" if len(fields) == 1 else "columns"
            rows.refuse(number, f"{len(fields)} {columns} where the header has {len(header)}")
        elif again and fields[label_at] not in known:
            # Lines of a text that was cut off must not pass for rows of new classes.
            rows.refuse(number, "read again after a quote left open, and no row before that has its label")
        else:
            known.add(fields[label_at])
            rows.add(number, fields[text_at], fields[label_at])


def _read_tsv(path: Path, text: str, label: str, rows: Rows) -> None:
    _read_csv(path, text, label, rows, delimiter="\t")


def _read_jsonl(path: Path, text: str, label: str, rows: Rows) -> None:
    _refuse_utf16(path)
    columns: dict[str, None] = {}  # in the order in which they occur
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            line = (line.removeprefix(_BOM) if number == 1 else line).strip()
            if not line:
                continue
            try:
                record = json.loads(line.decode())
            except UnicodeDecodeError:
                rows.refuse(number, "not UTF-8")
            except json.JSONDecodeError as error:
                rows.refuse(number, f"malformed JSON: {error.msg}, character {error.colno}")
            except (ValueError, RecursionError) as error:  # numbers too long, objects too deep
                rows.refuse(number, f"malformed JSON: {error}")
            else:
                if isinstance(record, dict):
                    columns.update(dict.fromkeys(record))
                    rows.add(number, record.get(text), record.get(label))
                else:
                    rows.refuse(number, f"{reprlib.repr(record)} is not an object with columns")
    if columns:
        check_columns(str(path), list(columns), text, label)


def _read_parquet(path: Path, text: str, label: str, rows: Rows) -> None:
    parquet = require("pyarrow.parquet", "text")
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            check_columns(str(path), file.schema_arrow.names, text, label)
            for batch in file.iter_batches(columns=[text, label]):
                for values in zip(_values(batch.column(text)), _values(batch.column(label)), strict=True):
                    number += 1
                    rows.add(number, *values)
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
        raise GraspError(f"{path} cannot be read as a Parquet file: {error}") from error


READERS = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".parquet": _read_parquet,
}  # how a file is read, by the end of its name


class _Unfit(Exception):
    """Why a row cannot be used."""


def _text(value: object) -> str:
    if value is None:
        raise _Unfit("no text")
    text = _decoded(value, "text")
    if not isinstance(text, str):
        raise _Unfit(f"text is {reprlib.repr(text)}, not a string")
    if not text or text.isspace():
        raise _Unfit("empty text")
    return text


def _label(value: object) -> str:
    """A label as the name of a class: text without spaces around it, a whole number, or true or false."""
    label = _decoded(value, "label")
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, float) and label.is_integer():
        label = int(label)  # what pandas makes of whole numbers in a column with gaps
    if isinstance(label, int):
        return str(label)
    if (
        label is None
        or (isinstance(label, float) and math.isnan(label))
        or (isinstance(label, str) and not label.strip())
    ):
        raise _Unfit("no label")
    if not isinstance(label, str):
        raise _Unfit(f"label is {reprlib.repr(label)}, neither text nor a whole number")
    return label.strip()


def _decoded(value: object, what: str) -> object:
    try:
        if isinstance(value, str):
            value.encode()  # a lone surrogate fails, be it from bad bytes or written out in JSON
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeError:
        raise _Unfit(f"{what} is not UTF-8") from None


class _Lines(Iterator[str]):
    """Lines for a CSV reader, which takes a quote left open to reach to the next quote, or to the end of the file.

    The lines that such a row has swallowed can be given back, all but its first, and are then read again.
    """

    def __init__(self, handle: Iterable[str]) -> None:
        self._handle = iter(handle)
        self._ahead: deque[str] = deque()
        self._taken: list[str] = []

    def __next__(self) -> str:
        line = self._ahead.popleft() if self._ahead else next(self._handle)
        self._taken.append(line)
        return line

    def begin_row(self) -> bool:
        """Note that a row begins here; whether its lines are read again."""
        self._taken.clear()
        return bool(self._ahead)

    def give_back(self) -> None:
        self._ahead.extendleft(reversed(self._taken[1:]))


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """The csv module's limit belongs to the whole process: it is lifted by one reader at a time, and put back."""
    with _limit_in_use:
        limit = csv.field_size_limit(_LONGEST)
        try:
            yield
        finally:
            csv.field_size_limit(limit)


def _refuse_utf16(path: Path) -> None:
    with open(path, "rb") as handle:
        if handle.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            raise GraspError(f"{path} is in UTF-16; save it as UTF-8")


def _values(column: Any) -> list[Any]:
    """The values of a pyarrow column; bytes, if some of its texts are not UTF-8."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = column.cast("large_binary").to_pylist()
    return values
