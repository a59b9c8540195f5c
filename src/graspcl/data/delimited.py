"""Rows of CSV and TSV files: quoted as spreadsheets do it, and read on after a quote that was left open."""

from __future__ import annotations

import csv
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from graspcl.data.rows import Rows, check_columns
from graspcl.errors import GraspError

_LONGEST = 2**31 - 1  # characters of a CSV field: more than any
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", re.IGNORECASE)
_NO_LABEL = ("", "nan", "NaN")  # what is written where there is none
_limit_in_use = threading.Lock()


def read_delimited(path: Path, text: str, label: str, rows: Rows, delimiter: str = ",") -> None:
    """Add the rows of the file at `path` to `rows`. If `delimiter` does not part the header, another one may.

    Everything in such a file is text, so a text may be a number. Labels that are all numbers count by their value: 1
    and 1.0 are one class, and 0.5 is none. A label of nan is no label.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "news.csv"
    ...     size = file.write_text("text;label\\nRates fall;1.0\\nGoal!;2\\n12345;nan\\n")
    ...     rows = Rows("news.csv")
    ...     read_delimited(file, "text", "label", rows)
    >>> rows.texts, rows.labels, rows.problems
    (['Rates fall', 'Goal!'], ['1', '2'], ['news.csv row 4: no label'])
    """
    with open_delimited(path, delimiter) as (header, records):
        check_columns(str(path), header, text, label)
        found = list(records(header.index(text), header.index(label)))
    _add(found, rows)


@contextmanager
def open_delimited(path: Path, delimiter: str) -> Iterator[tuple[list[str], Callable[[int, int], Iterator[Record]]]]:
    """The header of the file at `path`, and what gives its records once told which columns text and label are."""
    # Bytes that are not UTF-8 become lone surrogates, so that they spoil no more than their own row.
    with (
        open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as handle,
        _fields_of_any_length(),
    ):
        first = handle.readline()
        if not first:
            raise GraspError(f"{path} is empty")
        lines = _Lines(chain([first], handle))
        reader = csv.reader(lines, delimiter=_delimiter(first, delimiter), strict=True)
        try:
            header = [name.strip() for name in next(reader)]
        except csv.Error as error:
            raise GraspError(f"{path} row 1, the header, is malformed: {error}") from error
        yield header, partial(_records, reader, lines, len(header))


def _delimiter(header: str, usual: str) -> str:
    """What parts the columns of a header: where a comma is the decimal sign, spreadsheets write semicolons."""
    parts = (one for one in (usual, ",", ";", "\t") if len(next(csv.reader([header], delimiter=one))) > 1)
    return next(parts, usual)


class Record(NamedTuple):
    """A row by its number: its text and label, or what is wrong with it."""

    number: int
    text: str = ""
    label: str = ""
    wrong: str = ""
    again: bool = False  # whether it was read again, after a quote left open


def _records(reader: Any, lines: _Lines, columns: int, text_at: int, label_at: int) -> Iterator[Record]:
    for number in count(2):
        again = lines.begin_row()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            lines.give_back()
            yield Record(number, wrong=f"malformed, is a quote left open? ({error})")
            continue
        if not fields:
            continue  # a blank line
        if len(fields) != columns:
            found = "1 column" if len(fields) == 1 else f"{len(fields)} columns"
            yield Record(number, wrong=f"{found} where the header has {columns}")
        else:
            yield Record(number, fields[text_at], fields[label_at].strip(), again=again)


def _add(found: Sequence[Record], rows: Rows) -> None:
    # Lines of a text that was cut off must not pass for rows of new classes; a class has more than one row.
    seen = Counter(_told_by(record.label) for record in found if not record.wrong)
    doubtful = {record.number for record in found if record.again and seen[_told_by(record.label)] == 1}
    numbers = _all_numbers(record.label for record in found if not record.wrong and record.number not in doubtful)
    for record in found:
        if record.wrong:
            rows.report(record.number, record.wrong)
        elif record.number in doubtful:
            rows.report(record.number, "read again after a quote left open, and no other row has its label")
        else:
            rows.add(record.number, record.text, _value(record.label, numbers))


def _told_by(label: str) -> str | float:
    """What is equal for labels of one class, should they prove to be numbers."""
    return float(label) if _NUMBER.fullmatch(label) else label


def _all_numbers(labels: Iterable[str]) -> bool:
    return all(_NUMBER.fullmatch(label) for label in set(labels).difference(_NO_LABEL))


def _value(label: str, numbers: bool) -> object:
    """A label as it is meant. Whole numbers stay as they are written: 007 is a name, and digits may be many."""
    if label in _NO_LABEL:
        return None
    if numbers:
        return float(label) if set(label) & set(".eE") else label.removeprefix("+")
    return label


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
