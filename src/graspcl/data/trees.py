"""Files in a folder, a zip file or a tar file, by their names with forward slashes."""

from __future__ import annotations

import copy
import errno
import os
import posixpath
import re
import tarfile
import threading
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any, cast

from graspcl.errors import GraspError
from graspcl.files import open_regular, read_regular, walk
from graspcl.limits import beyond, unpacks_too_far

_HEADERS = 1 << 14  # bytes of the headers of one member of a tar file; a name has a few hundred


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
    def problems(self) -> list[str]:
        """A message for each file or folder that is left out."""
        return self._listed[1]

    @cached_property
    def _visible(self) -> dict[str, int]:
        return {name: size for name, size in self._listed[0].items() if name and not _is_hidden(name)}

    @cached_property
    def _listed(self) -> tuple[dict[str, int], list[str]]:
        return self._entries()

    @abstractmethod
    def _entries(self) -> tuple[dict[str, int], list[str]]:
        """Return sizes of all files by name, with folders, whose names end in a slash, and what is left out."""

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
        """Return the tree of the folder `name` or of the file `name`.zip or `name`.tar, if there is one."""

    def path(self, name: str) -> Path | None:
        """Return the path of a file, or None if it is inside an archive."""
        return None


File = tuple[Tree, str]  # a file: its tree, and its name in the tree


class FolderTree(Tree):
    """Files below a folder, as `walk` finds them: regular files, each folder once. Links are followed."""

    def __init__(self, root: Path, title: str = "") -> None:
        self._root = root
        self.title = title or root.name or root.resolve().name

    def _entries(self) -> tuple[dict[str, int], list[str]]:
        try:
            return walk(self._root)
        except OSError as error:
            raise GraspError(f"{self._root} cannot be read: {error.strerror}") from error

    @cached_property
    def files(self) -> set[str]:  # without listing the folders below
        return {path.name for path in list_folder(self._root) if os.path.isfile(path)}

    def size(self, name: str) -> int | None:  # without listing all files
        path = self._root / name
        if os.path.isfile(path):
            return os.path.getsize(path)
        # What is there but cannot be read, such as a broken link, is reported when it is read.
        return 0 if os.path.lexists(path) and not os.path.isdir(path) else None

    def read(self, name: str) -> bytes:
        try:
            return read_regular(self._root / name)
        except OSError as error:
            raise GraspError(f"{self.where(name)} cannot be read: {error.strerror}") from error

    def where(self, name: str = "") -> str:
        return str(self._root / name)

    def part(self, name: str) -> Tree | None:
        if os.path.isdir(self._root / name):
            return FolderTree(self._root / name, name)
        for kind, suffix in ((ZipTree, ".zip"), (TarTree, ".tar")):
            if os.path.isfile(archive := self._root / f"{name}{suffix}"):
                return kind(archive)
        return None

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
            unpacked = sum(member.file_size for member in archive.infolist())
        if fault := unpacks_too_far(os.path.getsize(file), unpacked):
            raise GraspError(f"{file} is not read: {fault}")
        wrap = f"{file.stem}/"
        self._inside = inside or (wrap if all(name.startswith(wrap) for name in names) else "")
        self.title = self._inside.rstrip("/").rpartition("/")[2] or file.stem

    def _entries(self) -> tuple[dict[str, int], list[str]]:
        with self._archive() as archive:
            sizes = [(member.filename, member.file_size) for member in archive.infolist()]
        own = {name.removeprefix(self._inside): size for name, size in sizes if name.startswith(self._inside)}
        return own, []

    def read(self, name: str) -> bytes:
        with self._archive() as archive:
            try:
                member = archive.getinfo(self._inside + name)
                fault = beyond("bytes", member.file_size, "file")
                fault = fault or unpacks_too_far(member.compress_size, member.file_size)
                content = b"" if fault else archive.read(member)  # never more than the size in the header
            except Exception as error:  # damaged, encrypted and missing members raise errors of many kinds
                raise GraspError(f"{self.where(name)} cannot be read: {error}") from error
        if fault:
            raise GraspError(f"{self.where(name)} cannot be read: {fault}")
        return content

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
            except Exception as error:  # a damaged directory raises errors of many kinds
                reason = getattr(error, "strerror", None) or error
                raise GraspError(f"{self._file} cannot be read as a zip file: {reason}") from error
            self._archives[process] = archive
            yield archive

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_locks": {}, "_archives": {}}


class TarTree(Tree):
    """Members of a tar file, or of the folder `inside` of it.

    The headers are read once, from one to the next. Then each member is read at its place, by itself. A folder around
    everything that is named like the file is skipped. What follows a damaged header is left out.
    """

    def __init__(self, file: Path, inside: str = "") -> None:
        self._file = file
        self._places, self._left_out = list_tar(file)
        wrap = f"{file.stem}/"
        shown = [name for name in self._places if not _is_hidden(name)]
        self._inside = inside or (wrap if shown and all(name.startswith(wrap) for name in shown) else "")
        self.title = self._inside.rstrip("/").rpartition("/")[2] or file.stem

    def _entries(self) -> tuple[dict[str, int], list[str]]:
        own = {name: size for name, (_, size) in self._places.items() if name.startswith(self._inside)}
        return {name.removeprefix(self._inside): size for name, size in own.items()}, self._left_out

    def read(self, name: str) -> bytes:
        try:
            if self._inside + name not in self._places:
                raise OSError(errno.ENOENT, "there is no such member")
            place, size = self._places[self._inside + name]
            if fault := beyond("bytes", size, "file"):
                raise OSError(errno.EFBIG, fault)
            with open_regular(self._file) as file:
                file.seek(place)
                content = file.read(size)
            if len(content) < size:
                raise OSError(errno.EIO, "the tar file ends too early")
        except OSError as error:
            raise GraspError(f"{self.where(name)} cannot be read: {error.strerror}") from error
        return content

    def where(self, name: str = "") -> str:
        member = self._inside + name
        return f"{self._file}, member {member}" if member else str(self._file)

    def part(self, name: str) -> Tree | None:
        if name not in self.folders:
            return None
        part = copy.copy(self)
        for found in ("sizes", "files", "folders", "problems", "_visible", "_listed"):
            part.__dict__.pop(found, None)
        part._inside, part.title = f"{self._inside}{name}/", name
        return part


class _Headers:
    """A tar file of which only headers are read, at most `left` bytes before that is set again.

    A header says how long it is and how many follow, and tarfile may take the square of that as time.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.seek, self.tell, self._read, self.left = file.seek, file.tell, file.read, _HEADERS

    def read(self, size: int) -> bytes:
        self.left -= size
        if size < 0 or self.left < 0:
            raise tarfile.ReadError(f"headers of more than {_HEADERS:,} bytes")
        return self._read(size)


def tar_members(file: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar file, in order.

    Raises:
        OSError: it cannot be opened.
        tarfile.ReadError: it is no tar file, or is damaged from here on.
    """
    with open_regular(file) as opened:
        try:
            headers = _Headers(opened)
            with tarfile.open(fileobj=cast("IO[bytes]", headers), mode="r:") as archive:
                while (member := archive.next()) is not None:
                    archive.members = []  # type: ignore[attr-defined]  # else they all stay in memory
                    headers.left = _HEADERS
                    if member.size < 0 or archive.offset <= member.offset:  # it would be read again and again
                        raise tarfile.ReadError("a size below zero")
                    yield member
                opened.seek(archive.offset)
                _check_end(opened)
        except (OSError, tarfile.ReadError):
            raise
        except Exception as error:  # damaged headers raise errors of many kinds
            raise tarfile.ReadError(str(error) or type(error).__name__) from error


def _check_end(file: IO[bytes]) -> None:
    """Refuse an archive that does not end here: in zeros up to the end of the file, two blocks of them or more.

    To tarfile, one block of zeros is the end, and so is the end of the file.
    """
    zeros = 0
    while part := file.read(1 << 20):
        if part.strip(b"\0"):
            raise tarfile.ReadError("neither a header nor the end of the archive")
        zeros += len(part)
    if zeros < 2 * tarfile.BLOCKSIZE:
        raise tarfile.ReadError("the end of the archive is missing")


def list_tar(file: Path) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Return place and size of each member of a tar file by name, folders as names that end in a slash.

    The second list has a message for each member that is left out.
    """
    places, problems = dict[str, tuple[int, int]](), list[str]()
    try:
        for member in tar_members(file):
            name = posixpath.normpath(member.name).lstrip("/")
            if member.isdir():
                places[f"{name}/" if name != "." else ""] = (0, 0)
            elif member.isreg() and not member.issparse():
                places[name] = (member.offset_data, member.size)
            else:
                problems.append(f"{file}, member {name} is left out: it is no regular file")
    except (tarfile.ReadError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, OSError) or not (places or problems):
            raise GraspError(f"{file} cannot be read as a tar file: {reason}") from error
        problems.append(f"{file} is damaged after {len(places):,} members, and what follows is left out: {reason}")
    return places, problems


def open_tree(path: Path) -> Tree:
    """Open a folder, a zip file or a tar file."""
    if os.path.isdir(path):
        return FolderTree(path)
    if path.suffix.lower() == ".zip" and os.path.isfile(path):
        return ZipTree(path)
    if path.suffix.lower() == ".tar" and os.path.isfile(path):
        return TarTree(path)
    if re.search(r"\.(tar\.\w+|tgz)$", path.name.lower()) and os.path.isfile(path):
        raise GraspError(
            f"{path} is compressed as a whole, so no image can be read by itself: unpack it to a .tar file"
        )
    if os.path.exists(path):
        kinds = "neither a folder of images nor a .zip or .tar file"
        raise GraspError(f"{path} is {kinds}; for a table use `graspcl run texts`")
    raise GraspError(f"there is no image folder at {path}")


def find_file(given: str | Path, tree: Tree, what: str) -> File:
    """Find a file that is given as a path or as a name in a tree."""
    path = Path(given)
    if os.path.isfile(path):
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


def _is_hidden(name: str) -> bool:
    return name.startswith("__MACOSX/") or any(part.startswith(".") for part in name.split("/"))
