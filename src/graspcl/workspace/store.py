"""The folder of a workspace: immutable objects, and a journal of versions that name them.

workspace.db       the journal (`graspcl.workspace.journal`), changed by one transaction at a time
workspace.backup   a copy of it after the last transaction, read if the journal is damaged
objects/ab/ab….safetensors   arrays and values, named by the xxh3-128 of the file
lock               held by the process that writes

A version is committed after all its objects are on the disk, and nothing that a version names is ever overwritten. So
the folder is always entirely before or entirely after a change.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from graspcl.errors import GraspError
from graspcl.files import beside
from graspcl.integrity import Damaged
from graspcl.objects import Objects, is_name
from graspcl.state import drop_unfinished, sync_folder, write_whole
from graspcl.workspace import journal as journals
from graspcl.workspace.journal import Entry, Journal, Version
from graspcl.workspace.lock import hold
from graspcl.workspace.place import BACKUP, DATABASE, LOCK, OBJECTS, PARTIAL, check_free, disk_errors


class Store:
    """One workspace on disk. Open it with `Store.open`, or make a new one with `Store.create`.

    Readers see the workspace as of the moment they opened it, and do not hinder the writer.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home:
    ...     with Store.create(Path(home) / "shop", {"network": "wide"}) as store:
    ...         name = store.put({"rows": [1, 2, 3]})
    ...         version = store.commit("new", {"samples": 3}, {"memory": name})
    ...     with Store.open(Path(home) / "shop") as store:
    ...         store.head.number, store.get(store.head.manifest["memory"])
    (0, {'rows': [1, 2, 3]})
    """

    def __init__(self, folder: Path, journal: Journal, lock: IO[bytes] | None, problems: list[str]) -> None:
        self.folder, self._objects = folder, Objects(folder / OBJECTS)
        self.problems = problems  # why it cannot be written, if it is damaged
        self._journal = journal
        self._lock = lock

    @classmethod
    def create(cls, folder: str | Path, format: dict[str, Any]) -> Store:
        """Make a new workspace without a version, to be written.

        Args:
            folder: where; it must be empty or missing. One that was left before its first version is used again.
            format: anything to remember about the workspace, plain JSON.

        Raises:
            GraspError: the folder has files, or cannot be written.
        """
        folder = Path(folder)
        check_free(folder)
        try:
            (folder / OBJECTS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GraspError(f"the folder {folder} cannot be created: {error.strerror}") from error
        lock = hold(folder / LOCK)
        try:
            check_free(folder)  # another process may have used it meanwhile
            journal = journals.new_journal(json.loads(json.dumps(format)))
            store = cls(folder, journal, lock, [])
            try:
                with disk_errors(folder):
                    for name in (DATABASE, BACKUP):
                        (folder / f"{name}-journal").unlink(missing_ok=True)
                        journals.create(folder / name, journal)
                    sync_folder(folder.parent)
            except GraspError:
                store.discard()
                raise
            return store
        except BaseException:
            lock.close()
            raise

    @classmethod
    def open(
        cls, folder: str | Path, write: bool = False, wait: float = 0.0, damaged: bool = False,
        copy: str | Path | None = None,
    ) -> Store:  # fmt: skip
        """Open a workspace.

        Args:
            folder: where it is.
            write: whether to change it; only one process can.
            wait: how many seconds to wait for another process that writes.
            damaged: whether to open it to be written although its database is damaged. Then only `restore` can write.
            copy: a copy of it, whose journal is read if nothing of its own can be.

        Raises:
            GraspError: it is no workspace, it is of a newer version of graspcl, or nothing of it can be read; with
                `write` also if another process writes, or if it is damaged.
        """
        folder = Path(folder)
        if not any((folder / name).is_file() for name in (DATABASE, BACKUP)):
            absent = f"there is no such folder{beside(folder, DATABASE)}"
            raise GraspError(f"{folder} is not a workspace: {f'it has no {DATABASE}' if folder.exists() else absent}")
        lock = hold(folder / LOCK, wait) if write else None
        try:
            journal, problems = _read(folder, write, copy)
            if problems and damaged:  # rows that can be read are newer than the backup
                journal, _ = _read(folder, False, copy)
            store = cls(folder, journal, lock, problems)
            if write and problems and not damaged:
                raise GraspError(f"{store._unwritable()}; {store.way_out()}")
            if write and not problems and journal.unclean:  # a process was killed before dropped files were removed
                store.clean()
            return store
        except BaseException:
            if lock is not None:
                lock.close()
            raise

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def format(self) -> dict[str, Any]:
        """What `create` was told to remember."""
        return self._journal.format

    @property
    def head(self) -> Version | None:
        """The current version; None before the first commit."""
        return self._journal.head

    def versions(self) -> list[Version]:
        """The current version and those before it, newest first."""
        found, version = [], self.head
        while version is not None:
            found.append(version)
            version = self._journal.versions.get(-1 if version.parent is None else version.parent)
        return found

    def entries(self) -> list[Entry]:
        """Everything that ever happened to the workspace, newest first."""
        return [*reversed(self._journal.entries)]

    def get(self, name: str) -> dict[str, Any]:
        """Return the state that `put` stored under this name.

        Raises:
            GraspError: the file is missing or damaged.
        """
        try:
            return self._objects.get(name)
        except GraspError as error:
            raise GraspError(f"{error}; {self.way_out()}") from error

    def last_good(self, *parts: str) -> Version:
        """Return the newest version whose objects are sound.

        Args:
            parts: keys of the manifest whose objects are needed; all if none is given.

        Raises:
            GraspError: there is none.
        """
        for version in self.versions():
            needed = {key: value for key, value in version.manifest.items() if not parts or key in parts}
            if not self._faults(_names(needed)):
                return version
        raise GraspError(f"no version of the workspace {self.folder} is sound; restore it from a copy")

    def outdated(self) -> bool:
        """Whether the workspace has changed since it was opened: then what was read from it may have been removed."""
        try:
            return _read(self.folder, pages=False)[0].rows != self._journal.rows
        except GraspError:
            return False

    def check_files(self) -> None:
        """Refuse a current version that lacks files, before work is done; those that are read are verified then."""
        for name in () if self.head is None else _names(self.head.manifest):
            if not os.path.lexists(path := self._objects.path(name)):
                raise GraspError(f"{path} is missing; {self.way_out()}")

    def verify(self) -> list[str]:
        """Read every row and every object of the current version and of those before it; return what is wrong.

        What only undone versions name is never used again, and not read.
        """
        found = []
        for name in (DATABASE, BACKUP):
            path = self.folder / name
            try:
                journals.read(path, pages=True)
            except (Damaged, GraspError) as error:
                found.append(f"{path} is damaged: {error}")
        kept = {name: None for version in self.versions() for name in _names(version.manifest)}
        return found + self._faults(kept)

    def way_out(self) -> str:
        """Return what to do about damage that `verify` found."""
        if self.head is None:
            return "replace the folder by a copy"
        copy = f"restore files from a copy with `graspcl verify {self.folder} --restore COPY`"
        faults = [bool(self._faults(_names(version.manifest))) for version in self.versions()]
        if all(faults):
            return copy
        if not any(faults):
            again = f"`graspcl verify {self.folder} --restore {self.folder}`"
            late = f"; {BACKUP} lacks the last change if that could not be copied" if self.problems else ""
            return f"{again} writes {DATABASE} or {BACKUP} again, one from the other{late}"
        if self.problems:
            return copy
        if not faults[0]:
            return f"the current version is sound, but not every change can be undone; to mend that, {copy}"
        if faults[1]:
            return f"{copy}; until then it predicts as before the last {faults.index(False)} changes"
        return f"take the last change back with `graspcl undo`, or {copy}"

    def size(self) -> int:
        """Return the bytes of all files in the folder."""
        found = 0
        for path in self.folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # another process has just removed it
                found += path.stat().st_size if path.is_file() else 0
        return found

    # -- writing -------------------------------------------------------------------------------------------------------

    def put(self, state: dict[str, Any]) -> str:
        """Store a nested state of arrays, tensors and plain values; return its name.

        When it returns, the state is on the disk. Equal states are stored once.

        Raises:
            GraspError: the disk is full, or the workspace cannot be written.
        """
        self._check_writable()
        with disk_errors(self.folder):
            return self._objects.put(state)

    def commit(self, verb: str, summary: dict[str, Any], manifest: dict[str, Any], keep: int | None = None) -> Version:
        """Make a new version the current one.

        Args:
            verb: what was done.
            summary: what is shown about it, plain JSON.
            manifest: what it consists of, plain JSON. Names of objects are texts in it or in lists of it, or the
                `object` of dictionaries in such lists. Other dictionaries may have any texts.
            keep: how many versions stay, the new one among them; the others are removed, with the objects that only
                they name. Objects that cannot be removed are removed when the workspace is next opened to be written.

        Returns:
            The new version. It is on the disk.

        Raises:
            GraspError: an object is missing, the disk is full or the workspace cannot be written. Nothing is changed.
                Or only the new version was to stay, and objects of others could not be removed: the message says so.
        """
        self._check_writable()
        parent = None if self.head is None else self.head.number
        number = 1 + max((entry.head for entry in self._journal.entries if entry.head is not None), default=-1)
        plain = [json.loads(json.dumps(value)) for value in (summary, manifest)]
        version = Version(number, parent, verb, _now(), *plain)
        missing = [name for name in _names(version.manifest) if not self._objects.path(name).is_file()]
        if missing:
            self._refuse(f"{self._objects.path(missing[0])} is missing, which the new version names")
        before = self._journal.versions
        stay = before if keep is None else {one.number: one for one in self.versions()[: keep - 1]}
        unclean = self._journal.unclean or stay.keys() != before.keys()
        changed = replace(self._journal, versions={**stay, number: version}, unclean=unclean)
        self._advance(changed.then(version.time, verb, number))
        if unclean:
            try:
                self.clean()
            except GraspError as error:
                if keep == 1:
                    raise GraspError(
                        f"'{verb}' is done, but files of dropped versions are still there; they are removed when the "
                        f"workspace is next written ({error})"
                    ) from error
        return version

    def undo(self) -> Version:
        """Make the version before the current one current again, and return it.

        Raises:
            GraspError: there is none, it is damaged, or the workspace cannot be written. Nothing is changed.
        """
        self._check_writable()
        if self.head is None or self.head.parent is None:
            raise GraspError(f"there is nothing to undo in the workspace {self.folder}")
        before = self._journal.versions.get(self.head.parent)
        if before is None:
            raise GraspError(f"'{self.head.verb}' of {self.head.time} cannot be undone: it removed what was before it")
        if faults := self._faults(_names(before.manifest)):
            raise GraspError(f"the version before is damaged: {faults[0]}")
        self._advance(self._journal.then(_now(), "undo", before.number))
        return before

    def clean(self) -> int:
        """Remove versions that were undone, and all files that no kept version names; return how many bytes.

        Raises:
            GraspError: the workspace cannot be written.
        """
        self._check_writable()
        kept = {version.number: version for version in self.versions()}
        if kept.keys() != self._journal.versions.keys():
            self._advance(replace(self._journal, versions=kept, unclean=True))
        with disk_errors(self.folder):
            journals.back_up(self.folder / DATABASE, self.folder / BACKUP)  # it must not name what goes
            drop_unfinished(self.folder, PARTIAL)
            freed = self._objects.keep(name for version in kept.values() for name in _names(version.manifest))
        if self._journal.unclean:
            self._advance(replace(self._journal, unclean=False))
        return freed

    def restore(self, copy: str | Path) -> int:
        """Replace missing and damaged files; return how many. Nothing may have been changed since `open`.

        The database and its backup are written again, from each other or from a copy. Objects come from the copy.

        Raises:
            GraspError: the workspace cannot be written.
        """
        restored = self._restore_journal()
        self._check_writable()
        others = Objects(Path(copy) / OBJECTS)
        for name in dict.fromkeys(name for version in self.versions() for name in _names(version.manifest)):
            if self._objects.fault(name) and not others.fault(name):
                with disk_errors(self.folder):
                    _copy(others.path(name), self._objects.path(name))
                restored += 1
        return restored

    def discard(self) -> None:
        """Remove the files of a workspace that has no version yet, and the folder if it is empty then."""
        if self.head is None:
            self._objects.clear()
            with contextlib.suppress(OSError):
                for name in (DATABASE, BACKUP, LOCK):
                    (self.folder / name).unlink(missing_ok=True)
                self.folder.rmdir()

    def close(self) -> None:
        """Let other processes write. What was read stays valid."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _faults(self, names: Iterable[str]) -> list[str]:
        names = [*names]
        found = zip(names, self._objects.faults(names), strict=True)
        return [f"{self._objects.path(name)} {fault}" for name, fault in found if fault]

    def _restore_journal(self) -> int:
        """Write a damaged database and a damaged backup again; return how many were."""
        restored = 0
        if self._lock is None:
            self._check_writable()
        with disk_errors(self.folder):
            if self.problems:
                (self.folder / f"{DATABASE}-journal").unlink(missing_ok=True)  # it is of the damaged file
            for name in (DATABASE, BACKUP):
                try:
                    journals.read(self.folder / name, pages=True)
                except Damaged:
                    journals.create(self.folder / name, self._journal)
                    restored += 1
        self.problems.clear()
        return restored

    def _unwritable(self) -> str:
        return f"the workspace {self.folder} can be read but not written: {'; '.join(self.problems)}"

    def _check_writable(self) -> None:
        if self.problems:
            raise GraspError(self._unwritable())
        if self._lock is None:
            raise GraspError(f"the workspace {self.folder} is open to be read only; open it with write=True")

    def _refuse(self, problem: str) -> None:
        """Never write again: what is on the disk is not what it must be."""
        self.problems.append(problem)
        self._check_writable()

    def _advance(self, after: Journal) -> None:
        """Change the journal in one transaction, and copy it."""
        path = self.folder / DATABASE
        try:
            with disk_errors(self.folder):
                journals.advance(path, self._journal, after)
        except Damaged as error:
            self._refuse(f"{path}: {error}")
        except GraspError as error:
            if not self._unchanged():  # else it was rolled back, and can be tried again
                self.problems.append(f"the last change failed ({error}); open the workspace again")
            raise
        self._journal = after
        with contextlib.suppress(OSError, sqlite3.Error):  # the change is safe; the next one copies it again
            journals.back_up(path, self.folder / BACKUP)

    def _unchanged(self) -> bool:
        try:
            return journals.read(self.folder / DATABASE).rows == self._journal.rows
        except (Damaged, GraspError):
            return False


def _read(folder: Path, pages: bool, copy: str | Path | None = None) -> tuple[Journal, list[str]]:
    """Return the journal, or its backup if it is damaged, or that of a copy, and what is damaged."""
    places = [folder] if copy is None else [folder, Path(copy)]
    return journals.read_first([place / name for place in places for name in (DATABASE, BACKUP)], pages)


def _copy(source: Path, path: Path) -> None:
    content = source.read_bytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lambda file: file.write(content))


def _names(manifest: dict[str, Any]) -> Iterator[str]:
    """The objects that a manifest names, where `Store.commit` says; a class may be called as an object is."""
    for value in manifest.values():
        for one in value if isinstance(value, list) else [value] if isinstance(value, str) else []:
            name = one.get("object") if isinstance(one, dict) else one
            if isinstance(name, str) and is_name(name):
                yield name


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
