"""Files in a folder or a zip file, by their names with forward slashes."""

from __future__ import annotations

import os
import stat
import threading
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from graspcl.errors import GraspError


class Tree(ABC):
    """Names, sizes and contents of files. Hidden files are left out, and so is what macOS adds to zip files."""

    title: str  # name of the folder or zip file

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size of each file in bytes, by name."""
        return {name: size for name, size in self._visible.items() if not name.endswith("/")}

    @cached_property
    def files(self) -> set[str]:
        """Names of the files at the top."""
        return {name for name in self.sizes if "/" not in name}

    @cached_property
    def folders(self) -> set[str]:
        """Names of the folders at the top, including empty ones."""
        return {name.partition("/")[0] for name in self._visible if "/" in name}

    @cached_property
    def _visible(self) -> dict[str, int]:
        return {name: size for name, size in self._entries() if name and not _is_hidden(name)}

    @abstractmethod
    def _entries(self) -> Iterable[tuple[str, int]]:
        """Return names and sizes of all files, and names of all folders, which end in a slash."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the contents of a file."""

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, or None if there is no such file."""
        return self.sizes.get(name)

    @abstractmethod
    def where(self, name: str = "") -> str:
        """Return the name of the tree, or of one of its files, for messages."""

    @abstractmethod
    def part(self, name: str) -> Tree | None:
        """Return the tree of the folder `name` or of the file `name`.zip, if there is one."""

    def path(self, name: str) -> Path | None:
        """Return the path of a file, or None if it is inside a zip file."""
        return None


class FolderTree(Tree):
    """Files below a folder. Links are followed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / "cat").mkdir()
    ...     size = (Path(folder) / "cat" / "1.txt").write_bytes(b"miaow")
    ...     tree = FolderTree(Path(folder))
    ...     tree.sizes, tree.folders, tree.read("cat/1.txt")
    ({'cat/1.txt': 5}, {'cat'}, b'miaow')
    """

    def __init__(self, root: Path, title: str = "") -> None:
        self._root = root
        self.title = title or root.name or root.resolve().name

    def _entries(self) -> Iterable[tuple[str, int]]:
        try:
            return list(_walk(self._root))
        except OSError as error:
            raise GraspError(f"{error.filename or self._root} cannot be read: {error.strerror}") from error

    @cached_property
    def files(self) -> set[str]:  # without listing the folders below
        try:
            with os.scandir(self._root) as entries:
                return {entry.name for entry in entries if entry.is_file() and not _is_hidden(entry.name)}
        except OSError as error:
            raise GraspError(f"{self._root} cannot be read: {error.strerror}") from error

    def size(self, name: str) -> int | None:  # without listing all files
        try:
            found = os.stat(self._root / name)
        except OSError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def read(self, name: str) -> bytes:
        try:
            return (self._root / name).read_bytes()
        except OSError as error:
            raise GraspError(f"{self.where(name)} cannot be read: {error.strerror}") from error

    def where(self, name: str = "") -> str:
        return str(self._root / name)

    def part(self, name: str) -> Tree | None:
        if (self._root / name).is_dir():
            return FolderTree(self._root / name, name)
        archive = self._root / f"{name}.zip"
        return ZipTree(archive) if archive.is_file() else None

    def path(self, name: str) -> Path | None:
        return self._root / name


class ZipTree(Tree):
    """Members of a zip file, or of the folder `inside` of it.

    A folder around everything that is named like the file is skipped, as in train.zip with train/…. A tree may be used
    by several threads, after a fork, and pickled in another process: each process opens the file itself, and its
    threads take turns.
    """

    def __init__(self, file: Path, inside: str = "") -> None:
        self._file = file
        self._locks: dict[int, threading.Lock] = {}
        self._archives: dict[int, zipfile.ZipFile] = {}
        names = [member.filename for member in self._members() if not _is_hidden(member.filename)]
        wrap = f"{file.stem}/"
        self._inside = inside or (wrap if all(name.startswith(wrap) for name in names) else "")
        self.title = self._inside.rstrip("/").rpartition("/")[2] or file.stem

    def _entries(self) -> Iterable[tuple[str, int]]:
        inside = self._inside
        visible = (member for member in self._members() if member.filename.startswith(inside))
        return ((member.filename.removeprefix(inside), member.file_size) for member in visible)

    def read(self, name: str) -> bytes:
        with self._lock():
            archive = self._open()
            try:
                return archive.read(self._inside + name)
            except Exception as error:  # damaged, encrypted and missing members raise errors of many kinds
                raise GraspError(f"{self.where(name)} cannot be read: {error}") from error

    def where(self, name: str = "") -> str:
        member = self._inside + name
        return f"{self._file}, member {member}" if member else str(self._file)

    def part(self, name: str) -> Tree | None:
        return ZipTree(self._file, f"{self._inside}{name}/") if name in self.folders else None

    def _members(self) -> list[zipfile.ZipInfo]:
        with self._lock():
            return self._open().infolist()

    def _lock(self) -> threading.Lock:
        return self._locks.setdefault(os.getpid(), threading.Lock())

    def _open(self) -> zipfile.ZipFile:
        # A forked child shares the file position of its parent's handle, so it opens its own.
        if (archive := self._archives.get(os.getpid())) is None:
            try:
                archive = self._archives[os.getpid()] = zipfile.ZipFile(self._file)
            except (OSError, zipfile.BadZipFile) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else error
                raise GraspError(f"{self._file} cannot be read as a zip file: {reason}") from error
        return archive

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_locks": {}, "_archives": {}}


def open_tree(path: Path) -> Tree:
    """Open a folder or a zip file."""
    if path.is_dir():
        return FolderTree(path)
    if path.suffix.lower() == ".zip" and path.is_file():
        return ZipTree(path)
    if path.exists():
        raise GraspError(f"{path} is neither a folder of images nor a .zip file")
    raise GraspError(f"there is no image folder at {path}")


def _walk(folder: str | Path, prefix: str = "") -> Iterator[tuple[str, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield f"{prefix}{entry.name}/", 0
                yield from _walk(entry.path, f"{prefix}{entry.name}/")
            else:
                yield prefix + entry.name, entry.stat().st_size


def _is_hidden(name: str) -> bool:
    return name.startswith("__MACOSX/") or any(part.startswith(".") for part in name.split("/"))
