"""The journal of a workspace: one SQLite file that says which versions there are, and which one is current.

SQLite has no checksums of its own, so every row carries one, and one row carries the checksum of all others: a row
that was changed, lost or added is found when the file is read. A `Journal` in memory is always whole. It changes by one
transaction, from one `Journal` to the next.

The rollback journal (journal_mode=DELETE) keeps everything in one file between transactions. So a folder can be copied,
and read from a disk that cannot be written; a write-ahead log needs two more files for both. synchronous=EXTRA makes a
transaction last through a power failure from the moment it is acknowledged.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from graspcl.errors import GraspError
from graspcl.integrity import Damaged, checksum
from graspcl.state import write_whole

FORMAT = 1  # of the tables; a program refuses a newer one
_WAIT = 60.0  # seconds that a reader waits for a transaction, which takes milliseconds
_TABLES = {
    "workspace": "CREATE TABLE workspace (id INTEGER PRIMARY KEY, about TEXT, checksum TEXT)",
    "versions": "CREATE TABLE versions (number INTEGER PRIMARY KEY, parent INTEGER, verb TEXT, time TEXT, "
    "summary TEXT, manifest TEXT, checksum TEXT)",
    "journal": "CREATE TABLE journal (entry INTEGER PRIMARY KEY, time TEXT, verb TEXT, head INTEGER, checksum TEXT)",
}
_ODD = (sqlite3.Error, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Version:
    """What a workspace was after one change. `summary` and `manifest` are plain JSON."""

    number: int
    parent: int | None  # the version before the change; it may have been dropped
    verb: str
    time: str  # UTC, ISO 8601
    summary: dict[str, Any]
    manifest: dict[str, Any]  # names its objects anywhere inside, as text


@dataclass(frozen=True)
class Entry:
    """One line of the journal: what happened when, and which version was current after it."""

    entry: int
    time: str
    verb: str
    head: int | None


@dataclass(frozen=True)
class Journal:
    """All that the file says."""

    format: dict[str, Any]  # what the creator of the workspace noted, plain JSON
    versions: dict[int, Version]  # by number
    entries: tuple[Entry, ...]  # oldest first
    unclean: bool = False  # whether dropped versions may still have objects

    @property
    def head(self) -> Version | None:
        """The current version."""
        number = self.entries[-1].head if self.entries else None
        return None if number is None else self.versions[number]

    def then(self, time: str, verb: str, head: int | None) -> Journal:
        """Return this journal with one more entry."""
        return replace(self, entries=(*self.entries, Entry(len(self.entries) + 1, time, verb, head)))

    @cached_property
    def rows(self) -> dict[str, dict[int, tuple[Any, ...]]]:
        """The sealed rows of each table, by their keys."""
        found = {"versions": {one.number: _sealed(one) for one in self.versions.values()}}
        found["journal"] = {one.entry: _sealed(one) for one in self.entries}
        others = checksum(*(str(row[-1]) for table in found.values() for _, row in sorted(table.items())))
        about = {"tables": FORMAT, "format": self.format, "unclean": self.unclean, "others": others}
        return {**found, "workspace": {1: _seal(1, json.dumps(about))}}


def new_journal(format: dict[str, Any]) -> Journal:
    """Return the journal of a workspace without a version."""
    return Journal(format, {}, ())


def create(path: Path, journal: Journal) -> None:
    """Write the file of a new journal, whole or not at all."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for table in _TABLES.values():
            connection.execute(table)
        _apply(connection, None, journal)
        connection.commit()
        content = connection.serialize()
    write_whole(path, lambda file: file.write(content))


def read(path: Path, pages: bool = False) -> Journal:
    """Read and verify a journal.

    Args:
        path: the file.
        pages: whether to verify also what SQLite keeps beside the rows: without it they can be read, but not written.

    Raises:
        Damaged: the file is missing, or not what was written.
        GraspError: a newer version of graspcl wrote it, or it cannot be read now.
    """
    if not path.is_file():
        raise Damaged("it is missing")
    try:
        with _connected(path) as connection:
            found = _read(connection)
            if pages:
                _check_pages(connection)
            return found
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_BUSY:
            raise GraspError(f"{path} is being written by another process; try again") from error
        if code not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise Damaged(str(error)) from error
    except _ODD as error:
        raise Damaged(str(error) or type(error).__name__) from error
    return _read_aside(path)


def read_first(paths: Sequence[Path], pages: bool = False) -> tuple[Journal, list[str]]:
    """Return the first journal that is sound, and what is wrong with those before it."""
    problems: list[str] = []
    for path in paths:
        try:
            return read(path, pages), problems
        except Damaged as error:
            problems.append(f"{path} is damaged: {error}")
    raise GraspError(f"nothing of the workspace can be read: {'; '.join(problems)}; restore it from a copy")


def _read_aside(path: Path) -> Journal:
    """Read a copy: a killed process left a transaction to roll back, in a folder that cannot be written."""
    try:
        with tempfile.TemporaryDirectory() as aside:
            for name in (path.name, f"{path.name}-journal"):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(path.with_name(name), Path(aside) / name)
            with _connected(Path(aside) / path.name) as connection:
                return _read(connection)
    except OSError as error:
        raise GraspError(f"{path} cannot be read: {error.strerror}") from error
    except _ODD as error:
        raise Damaged(str(error) or type(error).__name__) from error


def advance(path: Path, before: Journal, after: Journal) -> None:
    """Replace `before` by `after` in one transaction.

    Raises:
        Damaged: the file does not say `before`; nothing is written.
        sqlite3.Error: the transaction failed. The file says `before` or `after`.
    """
    with _connected(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            try:
                found = _read(connection)
                _check_pages(connection)
            except _ODD as error:
                raise Damaged(str(error) or type(error).__name__) from error
            if found.rows != before.rows:
                raise Damaged("another process changed it")
            _apply(connection, before, after)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise


def back_up(path: Path, copy: Path) -> None:
    """Write a copy of the file, whole or not at all."""
    with _connected(path) as connection:
        content = connection.serialize()
    write_whole(copy, lambda file: file.write(content))


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the file for one transaction. Opened to be written: a reader rolls back what a killed process left."""
    uri = f"{Path(os.path.abspath(path)).as_uri()}?mode=rw"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_WAIT, isolation_level=None)) as connection:
        for setting in ("synchronous=EXTRA", "secure_delete=ON", "trusted_schema=OFF", "cell_size_check=ON"):
            connection.execute(f"PRAGMA {setting}")
        yield connection


def _apply(connection: sqlite3.Connection, before: Journal | None, after: Journal) -> None:
    """Write the rows in which two journals differ."""
    for table, rows in after.rows.items():
        old = before.rows[table] if before is not None else {}
        key = _TABLES[table].partition("(")[2].split()[0]
        connection.executemany(f"DELETE FROM {table} WHERE {key} = ?", [(gone,) for gone in old.keys() - rows.keys()])
        changed = [row for number, row in rows.items() if old.get(number) != row]
        if changed:
            marks = ", ".join("?" * len(changed[0]))
            connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", changed)


def _read(connection: sqlite3.Connection) -> Journal:
    """Read all rows, as of one moment."""
    inside = connection.in_transaction
    if not inside:
        connection.execute("BEGIN")
    try:
        tables = dict(connection.execute("SELECT name, sql FROM sqlite_master").fetchall())
        if "workspace" not in tables:
            raise Damaged("it has no table of a workspace")
        about = json.loads(_unseal(connection.execute("SELECT * FROM workspace").fetchone() or ())[1])
        if about["tables"] > FORMAT:
            raise GraspError(
                f"this workspace was written by a newer version of graspcl (format {about['tables']}, this version "
                f"reads up to {FORMAT}); update graspcl to use it"
            )
        if tables != _TABLES:
            raise Damaged("its tables are not those of a workspace")
        versions = [_version(*_unseal(row)) for row in connection.execute("SELECT * FROM versions ORDER BY number")]
        entries = [Entry(*_unseal(row)) for row in connection.execute("SELECT * FROM journal ORDER BY entry")]
    finally:
        if not inside and connection.in_transaction:
            connection.execute("ROLLBACK")
    journal = Journal(
        about["format"],
        {one.number: one for one in versions},
        tuple(entries),
        about["unclean"],
    )
    if journal.rows["workspace"][1][1] != json.dumps(about):
        raise Damaged("rows are missing or do not belong to it")
    _ = journal.head  # there is one
    return journal


def _check_pages(connection: sqlite3.Connection) -> None:
    found = [str(line) for (line,) in connection.execute("PRAGMA integrity_check")]
    if found != ["ok"]:
        raise Damaged(" ".join(" ".join(found).split()))


def _version(number: int, parent: int | None, verb: str, time: str, summary: str, manifest: str) -> Version:
    return Version(number, parent, verb, time, json.loads(summary), json.loads(manifest))


def _sealed(record: Version | Entry) -> tuple[Any, ...]:
    return _seal(*(json.dumps(value) if isinstance(value, dict) else value for value in asdict(record).values()))


def _seal(*values: Any) -> tuple[Any, ...]:
    return (*values, checksum(json.dumps(values)))


def _unseal(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row without its checksum."""
    if not row or row[-1] != checksum(json.dumps(row[:-1])):
        raise Damaged("a row does not match its checksum")
    return row[:-1]
