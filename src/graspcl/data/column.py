"""One column of a table (CSV, TSV, JSONL, Parquet), or the lines of a file: texts that have no labels yet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from graspcl.data.delimited import open_delimited
from graspcl.data.formats import READERS, json_object, refuse_utf16, values_of
from graspcl.data.rows import TWICE
from graspcl.errors import GraspError, nearest, require


class Field(NamedTuple):
    """What a row, counted as by `read_rows`, has in the column; or `fault`, why it cannot be read."""

    row: int
    value: object
    fault: str = ""


def read_column(path: Path, name: str) -> list[Field]:
    """The column `name` of the table at `path`, the others are not looked at; or of a .txt file each line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = (Path(folder) / "news.csv").write_text('id,text\\n1,"Rates, again"\\n2\\n')
    ...     [tuple(field) for field in read_column(Path(folder) / "news.csv", "text")]
    [(2, 'Rates, again', ''), (3, '', '1 column where the header has 2')]
    """
    kind = path.suffix.lower()
    readers = {".txt": _lines, ".csv": _delimited, ".tsv": _delimited, ".parquet": _parquet}
    try:
        refuse_utf16(path)
        return list(readers.get(kind, _json_lines)(path, name))
    except OSError as error:
        raise GraspError(f"{path} cannot be read: {error.strerror or error}") from error


KINDS = (*READERS, ".txt")
"""How the names of files end that `read_column` takes."""


def _lines(path: Path, name: str) -> Iterator[Field]:
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as lines:
        yield from (Field(row, line.rstrip("\n")) for row, line in enumerate(lines, start=1))


def _delimited(path: Path, name: str) -> Iterator[Field]:
    with open_delimited(path, "\t" if path.suffix.lower() == ".tsv" else ",") as (header, records):
        at = _at(path, header, name)
        yield from (Field(record.number, record.text, record.wrong) for record in records(at, at))


def _json_lines(path: Path, name: str) -> Iterator[Field]:
    columns: dict[str, None] = {}  # in the order in which they occur
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="\n") as lines:
        for row, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line, object_pairs_hook=json_object)
            except (ValueError, RecursionError) as error:
                yield Field(row, None, f"malformed JSON: {error}")
                continue
            if isinstance(record, dict):
                columns.update(dict.fromkeys(record))
                twice = record.get(name) is TWICE
                yield Field(row, None if twice else record.get(name), f"it has {name!r} twice" if twice else "")
            else:
                yield Field(row, None, "not an object with columns")
    if columns:
        _at(path, list(columns), name)


def _parquet(path: Path, name: str) -> Iterator[Field]:
    parquet, pyarrow = require("pyarrow.parquet", "text"), require("pyarrow", "text")
    try:
        with parquet.ParquetFile(path) as file:
            _at(path, file.schema_arrow.names, name)
            values = chain.from_iterable(values_of(batch.column(0)) for batch in file.iter_batches(columns=[name]))
            for row, value in enumerate(values, start=1):
                yield Field(row, value.decode(errors="surrogateescape") if isinstance(value, bytes) else value)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        said = " ".join(str(error).split())
        raise GraspError(f"{path} cannot be read as a Parquet file: {said}") from error


def _at(path: Path, columns: list[str], name: str) -> int:
    """The place of the column, or an error if there is not just one of that name."""
    if (number := columns.count(name)) > 1:
        raise GraspError(f"{path} has {number} columns called {name!r}; rename or remove all but one")
    if not number:
        # Names may be in any encoding, but an error must always be printable.
        shown = [column.encode(errors="backslashreplace").decode() for column in columns]
        hint = nearest(name, shown)
        more = hint if hint.startswith("did you mean") else "say by --text which to take"
        raise GraspError(f"{path} has no column {name!r}; its columns are {', '.join(shown)}; {more}")
    return columns.index(name)
