"""Files in a folder or a zip file, by their names with forward slashes."""

from __future__ import annotations

import os
import re
import threading
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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


File = tuple[Tree, str]  # a file: its tree, and its name in the tree


class FolderTree(Tree):
    """Files below a folder. Links are followed."""

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
        return {path.name for path in list_folder(self._root) if path.is_file()}

    def size(self, name: str) -> int | None:  # without listing all files
        path = self._root / name
        return os.path.getsize(path) if os.path.isfile(path) else None

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
        with self._archive() as archive:
            names = [name for name in archive.namelist() if not _is_hidden(name)]
        wrap = f"{file.stem}/"
        self._inside = inside or (wrap if all(name.startswith(wrap) for name in names) else "")
        self.title = self._inside.rstrip("/").rpartition("/")[2] or file.stem

    def _entries(self) -> Iterable[tuple[str, int]]:
        with self._archive() as archive:
            sizes = [(member.filename, member.file_size) for member in archive.infolist()]
        return ((name.removeprefix(self._inside), size) for name, size in sizes if name.startswith(self._inside))

    def read(self, name: str) -> bytes:
        with self._archive() as archive:
            try:
                return archive.read(self._inside + name)
            except Exception as error:  # damaged, encrypted and missing members raise errors of many kinds
                raise GraspError(f"{self.where(name)} cannot be read: {error}") from error

    def where(self, name: str = "") -> str:
        member = self._inside + name
        return f"{self._file}, member {member}" if member else str(self._file)

    def part(self, name: str) -> Tree | None:
        return ZipTree(self._file, f"{self._inside}{name}/") if name in self.folders else None

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        process = os.getpid()  # a forked child shares the file position of its parent's handle, so it opens its own
        with self._locks.setdefault(process, threading.Lock()):
            try:
                archive = self._archives.get(process) or zipfile.ZipFile(self._file)
            except (OSError, zipfile.BadZipFile) as error:
                reason = getattr(error, "strerror", None) or error
                raise GraspError(f"{self._file} cannot be read as a zip file: {reason}") from error
            self._archives[process] = archive
            yield archive

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_locks": {}, "_archives": {}}


def open_tree(path: Path) -> Tree:
    """Open a folder or a zip file."""
    if path.is_dir():
        return FolderTree(path)
    if path.suffix.lower() == ".zip" and path.is_file():
        return ZipTree(path)
    if path.exists():
        raise GraspError(f"{path} is neither a folder of images nor a .zip file; for a table use `graspcl run texts`")
    raise GraspError(f"there is no image folder at {path}")


def find_file(given: str | Path, tree: Tree, what: str) -> File:
    """Find a file that is given as a path or as a name in a tree."""
    path = Path(given)
    if path.is_file():
        return FolderTree(path.parent), path.name
    if tree.size(str(given)) is not None:
        return tree, str(given)
    raise GraspError(f"there is no {what} {given}, neither as a path nor in {tree.where()}")


def read_lines(file: File) -> Iterator[tuple[str, str]]:
    """Yield the lines of a text file, stripped and without blank ones. Each comes with its place, for messages."""
    tree, name = file
    lines = re.split(r"\r\n?|\n", tree.read(name).decode("utf-8-sig", errors="replace"))
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield f"{tree.where(name)}, line {number}", line.strip()


def list_folder(folder: Path) -> list[Path]:
    """Return the contents of a folder, sorted, without hidden files."""
    try:
        return sorted(path for path in folder.iterdir() if not _is_hidden(path.name))
    except OSError as error:
        raise GraspError(f"{folder} cannot be read: {error.strerror}") from error


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
