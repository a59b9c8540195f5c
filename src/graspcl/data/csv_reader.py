"""Read CSV files: delimiters, quotes that are left open, and labels without types."""

from __future__ import annotations

import csv
import math
import re
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from graspcl.data.records import Record, Wanted, check_columns, too_long
from graspcl.errors import GraspError
from graspcl.files import bounded_lines
from graspcl.limits import limit

_PATIENCE = 20  # how often all lines of a file may be read again because of open quotes
_BLOCK = 1024  # rows that are read at a time
_NO_LABEL = ("", "nan", "NaN")  # what files contain in place of a missing label
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?(e[+-]?[0-9]+)?", re.IGNORECASE)
_field_limit_in_use = threading.Lock()


def read_delimited(path: Path, wanted: Wanted, delimiter: str = ",") -> Iterator[Record]:
    """Read a CSV file row by row. If `delimiter` does not split the header, try others.

    An open quote swallows lines up to the next quote, the end of the file, or the limit of a row. These lines are read
    again as rows. If a file has too many open quotes, the later ones end with their line.
    """
    with _opened(path) as lines:
        rows, some = _rows(path, _Lines(lines), wanted, delimiter), [Record(0)]
        while some:
            with _field_limit(limit("row")):
                some = list(islice(rows, _BLOCK))
            yield from some


def _rows(path: Path, lines: _Lines, wanted: Wanted, delimiter: str) -> Iterator[Record]:
    patience, reach = math.inf, math.inf  # lines to read again, and lines that a quote may span
    names = next(lines.since(0, 1), None)
    if names is None:
        raise GraspError(f"{path} is empty")
    delimiter = delimiter_of(names, delimiter)

    def rows_from(line: int) -> Any:  # mypy has no name for the type of a CSV reader
        return csv.reader(lines.since(line, reach), delimiter=delimiter, strict=True)

    first, swallowed = 0, 0  # the first line of the reader, and the line after those that open quotes swallowed
    reader = rows_from(first)
    try:
        header = [name.strip() for name in next(reader)]
    except csv.Error as error:
        raise GraspError(f"{path} row 1, the header, is malformed: {error}") from error
    check_columns(str(path), header, wanted)
    places, row = [header.index(name) for _, name in wanted], 1
    while True:
        start = first + reader.line_num
        lines.forget(start)
        row += 1
        try:
            fields = next(reader)
        except StopIteration:  # the end of the file, or of what an open quote may span
            if next(lines.since(start, 1), None) is None:
                return
            first, reader, row = start, rows_from(start), row - 1
            continue
        except csv.Error as error:
            if patience == math.inf:
                with _opened(path) as all_lines:
                    patience = _PATIENCE * sum(1 for _ in all_lines)
            swallowed = max(swallowed, first + reader.line_num)
            patience -= first + reader.line_num - start
            reach = reach if patience > 0 else 1
            first = start + 1
            reader = rows_from(first)
            yield Record(row, fault=f"malformed, is a quote left open? ({error})")
            continue
        if lines.long and not lines.long.isdisjoint(range(start, first + reader.line_num)):
            yield Record(row, fault=too_long())
        elif not fields:
            continue  # a blank line
        elif len(fields) == len(header):
            yield Record(row, tuple(fields[place] for place in places), reread=start < swallowed)
        else:
            said = "1 column" if len(fields) == 1 else f"{len(fields)} columns"
            yield Record(row, fault=f"{said} where the header has {len(header)}")


@contextmanager
def _opened(path: Path) -> Iterator[Iterator[str | None]]:
    # Bytes that are not UTF-8 become lone surrogates, so that they spoil only their own row.
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        yield bounded_lines(file, limit("row"))


class _Lines:
    """The lines of a file by number. They are read when they are needed, and kept until `forget`."""

    def __init__(self, source: Iterator[str | None]) -> None:
        self._source, self._held, self._first = source, list[str](), 0
        self.long: set[int] = set()  # lines that are longer than a row may be

    def since(self, place: int, number: float) -> Iterator[str]:
        """Yield at most `number` lines from the line `place` on. Lines that are too long are empty."""
        end = place + number
        while place < end:
            if place - self._first == len(self._held):
                if (line := next(self._source, "")) == "":  # the end: a line of a file is never empty
                    return
                if line is None:
                    self.long.add(place)
                self._held.append(line or "")
            yield self._held[place - self._first]
            place += 1

    def forget(self, before: int) -> None:
        """Give up the lines before the line `before`, many at a time."""
        gone = before - self._first
        if gone > _BLOCK and 2 * gone > len(self._held):
            del self._held[:gone]
            self._first = before


def delimiter_of(header: str, usual: str) -> str:
    """Find the delimiter of a header. Spreadsheets write semicolons where a comma is the decimal separator."""
    found = (one for one in (usual, ",", ";", "\t") if len(next(csv.reader([header], delimiter=one))) > 1)
    return next(found, usual)


@contextmanager
def _field_limit(most: int) -> Iterator[None]:
    """Set the csv module's limit of the field size. It is global, so one reader at a time changes and restores it."""
    with _field_limit_in_use:
        before = csv.field_size_limit(min(most, 2**31 - 1))
        try:
            yield
        finally:
            csv.field_size_limit(before)


def typed_labels(records: Sequence[Record]) -> Iterator[Record]:
    """Convert the labels of a CSV file, which has no types, and refuse doubtful rows after an open quote."""
    labels = {record.row: record.values[-1].strip() for record in records if not record.fault}
    # Lines of a text that was cut off must not become rows of new classes; real classes have more than one row.
    seen = Counter(map(_comparable, labels.values()))
    doubtful = {record.row for record in records if record.reread and seen[_comparable(labels[record.row])] == 1}
    named = {label for row, label in labels.items() if row not in doubtful}.difference(_NO_LABEL)
    numbers = all(_NUMBER.fullmatch(label) for label in named)
    for record in records:
        if record.row in doubtful:
            yield Record(record.row, fault="read again after a quote left open, and no other row has its label")
        elif record.fault:
            yield record
        else:
            label: Any = labels[record.row]
            if label in _NO_LABEL:
                label = None
            elif numbers:  # whole numbers stay as written: 007 is a name, and a number may have many digits
                label = float(label) if set(label) & set(".eE") else label.removeprefix("+")
            yield Record(record.row, (*record.values[:-1], label))


def _comparable(label: str) -> str | float:
    """Return a value that is equal for labels of one class, in case all labels turn out to be numbers."""
    return float(label) if _NUMBER.fullmatch(label) else label
