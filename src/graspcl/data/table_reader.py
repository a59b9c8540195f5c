"""Read texts from CSV, TSV, JSONL and Parquet files: a text and a label column, or one column, or lines.

Each format has a reader that yields `Record`s: the wanted columns of a row, or what is wrong with it. Rows are counted
as other programs do: as in a spreadsheet, where the header is row 1 and a field of several lines is part of one row;
lines of a JSONL file from 1; rows of a Parquet file from 1.

A row that is longer than `graspcl.limits` allows is left out like a malformed one.
"""

from __future__ import annotations

import csv
import io
import json
import os
import reprlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, NamedTuple

from graspcl.data.csv_reader import delimiter_of, read_delimited, typed_labels
from graspcl.data.records import Record, Wanted, check_columns, too_long, wanted_columns
from graspcl.errors import GraspError, require
from graspcl.files import bounded_lines, open_regular
from graspcl.limits import TEXT, beyond, limit, unpacks_too_far

_LONG = 20_000  # characters; longer texts are reported
_MANY = 10_000  # problems of a table that are listed; the others are counted
_FIRST = 10_000  # rows of a JSONL file, one of which has to have each wanted column
_BOM = b"\xef\xbb\xbf"


@dataclass
class Rows:
    """Texts and labels of a table, and a message for each row that is left out."""

    where: str
    texts: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Field(NamedTuple):
    """A value of a column, or `fault`, the reason why it cannot be read."""

    row: int
    value: object
    fault: str = ""


Reader = Callable[[Path, Wanted], Iterator[Record]]


def read_rows(path: Path, text: str | Sequence[str], label: str) -> Rows:
    """Read the columns `text` and `label` of a table, and report bad rows. Several text columns are joined by spaces.

    CSV and TSV files have no types. There, a text may be a number. Labels that are all numbers count by value: 1 and
    1.0 are one class, and 0.5 is refused. A label of nan is a missing label.
    """
    records = _read(path, READERS[_kind(path)], wanted_columns(text, label))
    return collect(str(path), typed_labels(list(records)) if _kind(path) in (".csv", ".tsv") else records)


def collect(where: str, records: Iterable[Record]) -> Rows:
    """Collect valid rows and report the others. Very long texts are kept, but reported.

    >>> rows = collect("news.csv", [Record(2, ("Rates fall.", "Business")), Record(3, (" ", "Sports"))])
    >>> rows.texts, rows.labels, rows.problems
    (['Rates fall.'], ['Business'], ['news.csv row 3: empty text'])
    """
    rows, more = Rows(where), 0
    for row, values, fault, _ in records:
        if not fault:
            try:
                text, label = _as_text(values[:-1]), _as_label(values[-1])
            except _BadValue as reason:
                fault = str(reason)
            else:
                rows.texts.append(text)
                rows.labels.append(label)
                if len(text) > TEXT:
                    fault = f"{len(text):,} characters; only the first {TEXT:,} are used"
                elif len(text) > _LONG:
                    fault = f"{len(text):,} characters; kept, but a transformer reads only its first tokens"
        if fault and len(rows.problems) < _MANY:
            rows.problems.append(f"{where} row {row}: {fault}")
        elif fault:
            more += 1
    if not rows.texts:
        bad = f"; bad rows: {len(rows.problems) + more}, the first: {rows.problems[0]}" if rows.problems else ""
        raise GraspError(f"{where} has no usable rows{bad}")
    if more:
        rows.problems.append(f"{where}: {more:,} more rows with problems")
    return rows


def read_column(path: Path, text: str) -> Iterator[Field]:
    """Read one column of a table, or the lines of any file that ends in .txt, row by row.

    Raises:
        GraspError: at once, if the file cannot be read or has no such column.
    """
    reader = {".txt": _read_lines, **READERS}.get(path.suffix.lower(), _read_jsonl)
    with closing(_read(path, reader, [("--text", text)])) as records:
        next(islice(records, _FIRST if reader is _read_jsonl else 0, None), None)
    return map(_as_field, _read(path, reader, [("--text", text)]))


def _as_field(record: Record) -> Field:
    value = record.values[0] if record.values else None
    value = value.decode(errors="surrogateescape") if isinstance(value, bytes) else value
    return Field(record.row, value, record.fault)


def column_names(path: Path) -> list[str]:
    """Return the names of the columns of a table; of a JSONL file those of its first object."""
    kind = _kind(path)
    if kind == ".parquet":
        parquet = require("pyarrow.parquet", "text")
        try:
            with open_regular(path) as content:  # pyarrow would wait for a pipe
                return list(parquet.read_schema(content).names)
        except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            raise GraspError(f"{path} cannot be read as a Parquet file: {reason}") from error
    try:
        with open_regular(path) as content:
            file = io.TextIOWrapper(content, "utf-8-sig", "backslashreplace", newline="")
            first = next((line for line in bounded_lines(file, limit("row")) if line and line.strip()), "")
            if first and kind not in (".jsonl", ".ndjson"):
                delimiter = delimiter_of(first, "\t" if kind == ".tsv" else ",")
                return [name.strip() for name in next(csv.reader(chain([first], file), delimiter=delimiter))]
        record = json.loads(first) if first else None
    except (OSError, ValueError, RecursionError, csv.Error, StopIteration) as error:
        reason = str(getattr(error, "strerror", None) or error)
        raise GraspError(f"the columns of {path} cannot be read: {reason}") from error
    if not isinstance(record, dict):
        found = f"row 1: {reprlib.repr(record)} is not an object with columns" if first else "is empty"
        raise GraspError(f"{path} {found}")
    return list(record)


def _kind(path: Path) -> str:
    """Return the ending of a table's name, in lower case; refuse what is no table."""
    kind = path.suffix.lower()
    if not os.path.lexists(path):
        raise GraspError(f"there is no file or folder {path}")
    if kind not in READERS:
        raise GraspError(f"{path} is not a table; its name must end in one of {', '.join(READERS)}")
    return kind


# -- formats -----------------------------------------------------------------------------------------------------------


def _read(path: Path, reader: Reader, wanted: Wanted) -> Generator[Record, None, None]:
    try:
        with open_regular(path) as handle:
            if handle.read(2) in (b"\xff\xfe", b"\xfe\xff"):
                raise GraspError(f"{path} is in UTF-16; save it as UTF-8")
            if fault := beyond("bytes", handle.seek(0, io.SEEK_END), "table"):
                raise GraspError(f"{path} is not read: {fault}")
        yield from reader(path, wanted)
    except OSError as error:
        raise GraspError(f"{path} cannot be read: {error.strerror or error}") from error


def _read_lines(path: Path, wanted: Wanted) -> Iterator[Record]:
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
        for row, line in enumerate(bounded_lines(file, limit("row")), start=1):
            yield Record(row, fault=too_long()) if line is None else Record(row, (line.rstrip("\n"),))


def _read_jsonl(path: Path, wanted: Wanted) -> Iterator[Record]:
    columns: dict[str, None] = {}  # of the first objects, in the order in which they occur
    objects = 0
    with open(path, "rb") as file:
        for row, line in enumerate(bounded_lines(file, limit("row")), start=1):
            if line is None:
                yield Record(row, fault=too_long())
                continue
            line = (line.removeprefix(_BOM) if row == 1 else line).strip()
            if not line:
                continue
            try:
                record = json.loads(line.decode(), object_pairs_hook=_json_object)
            except UnicodeDecodeError:
                yield Record(row, fault="not UTF-8")
            except json.JSONDecodeError as error:
                yield Record(row, fault=f"malformed JSON: {error.msg}, character {error.colno}")
            except (ValueError, RecursionError) as error:  # numbers too long, objects too deep
                yield Record(row, fault=f"malformed JSON: {error}")
            else:
                if not isinstance(record, dict):
                    yield Record(row, fault=f"{reprlib.repr(record)} is not an object with columns")
                    continue
                objects += 1
                if objects <= _FIRST:
                    columns.update(dict.fromkeys(record))
                if objects == _FIRST:
                    check_columns(str(path), list(columns), wanted)
                values = tuple(record.get(name) for _, name in wanted)
                twice = [name for _, name in wanted if record.get(name) is _TWICE]
                yield Record(row, fault=f"it has {twice[0]!r} twice") if twice else Record(row, values)
    if columns and objects < _FIRST:
        check_columns(str(path), list(columns), wanted)


_TWICE = object()  # replaces the values of a name that a JSON object has twice


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        found[name] = _TWICE if name in found else value
    return found


def _read_parquet(path: Path, wanted: Wanted) -> Iterator[Record]:
    parquet, pyarrow = require("pyarrow.parquet", "text"), require("pyarrow", "text")
    names, rows, size, unpacked = [name for _, name in wanted], count(1), os.path.getsize(path), 0
    try:
        with parquet.ParquetFile(path) as file:
            check_columns(str(path), file.schema_arrow.names, wanted)
            if fault := _parquet_fault(file, names, size):
                raise GraspError(f"{path} is not read: {fault}")
        with parquet.ParquetFile(path, read_dictionary=names) as file:
            for batch in file.iter_batches(columns=names):
                columns = [_arrow_values(batch.column(name)) for name in names]
                # Sizes in the file count a text once, however many rows name it.
                unpacked += sum(len(value) for value in chain(*columns) if isinstance(value, str | bytes))
                if fault := unpacks_too_far(size, unpacked):
                    raise GraspError(f"{path} is not read: {fault}")
                for values in zip(*columns, strict=True):
                    yield Record(next(rows), values)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise GraspError(f"{path} cannot be read as a Parquet file: {reason}") from error


def _parquet_fault(file: Any, names: Sequence[str], size: int) -> str:
    """Return why a Parquet file is not read: a few bytes may stand for any number of rows."""
    data = file.metadata
    groups = [data.row_group(number) for number in range(data.num_row_groups)]
    columns = [group.column(place) for group in groups for place in range(group.num_columns)]
    unpacked = sum(one.total_uncompressed_size for one in columns if one.path_in_schema.partition(".")[0] in names)
    nested = [name for name in names if file.schema_arrow.field(name).type.num_fields]
    if nested:
        return f"its column {nested[0]!r} is a {file.schema_arrow.field(nested[0]).type}, not texts"
    return beyond("rows", data.num_rows, "rows") or unpacks_too_far(size, unpacked)


def _arrow_values(column: Any) -> list[Any]:
    """Return the values of a pyarrow column, as bytes if some texts are not UTF-8. Equal texts are one object."""
    if hasattr(column, "dictionary"):
        values = [*_arrow_values(column.dictionary), None]
        return [values[place] for place in column.indices.fill_null(len(values) - 1).to_pylist()]
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return list(column.cast("large_binary").to_pylist())


READERS: dict[str, Reader] = {
    ".csv": read_delimited,
    ".tsv": partial(read_delimited, delimiter="\t"),
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".parquet": _read_parquet,
}
"""The reader of a table by the ending of its name."""
KINDS = (*READERS, ".txt")
"""Endings of the files that `read_column` accepts."""


# -- values ------------------------------------------------------------------------------------------------------------


class _BadValue(Exception):
    """The reason why a row cannot be used."""


def _as_text(values: Sequence[object]) -> str:
    if values[0] is None and len(values) == 1:
        raise _BadValue("no text")
    texts = [_decoded(value, "text") for value in values]
    text = texts[0] if len(texts) == 1 else " ".join(str(each) for each in texts if each)
    if not isinstance(text, str):
        raise _BadValue(f"text is {reprlib.repr(text)}, not a string")
    if not text or text.isspace():
        raise _BadValue("empty text")
    return text


def _as_label(value: object) -> str:
    """Return the name of a class: a text without spaces around it, a whole number, or true or false."""
    label = _decoded(value, "label")
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, float) and label.is_integer():
        label = int(label)  # pandas writes whole numbers so if a column has gaps
    if isinstance(label, int):
        return str(label)
    if label is None or label != label or (isinstance(label, str) and not label.strip()):  # nan differs from itself
        raise _BadValue("no label")
    if not isinstance(label, str):
        raise _BadValue(f"label is {reprlib.repr(label)}, neither text nor a whole number")
    return label.strip()


def _decoded(value: object, what: str) -> object:
    try:
        if isinstance(value, str):
            value.encode()  # fails at lone surrogates, from bad bytes or written out in JSON
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeError:
        raise _BadValue(f"{what} is not UTF-8") from None
