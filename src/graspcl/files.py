"""Foreign files, opened safely: regular files alone, folders without loops, and no more bytes than a limit allows.

Opening a pipe would wait for a writer, reading a device may never end, and a linked folder may contain itself.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import mmap
import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, AnyStr

from graspcl.limits import beyond

_LOOKED_AT = 1000  # names that a missing one is compared with

_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip
_POPULATE = 22  # MADV_POPULATE_READ of Linux 5.14


def open_regular(path: str | Path) -> IO[bytes]:
    """Open a regular file to read its bytes, without waiting.

    Raises:
        OSError: it cannot be opened, or is something else; `strerror` says what.
    """
    try:
        check_regular(path, os.stat(path))  # opening a device may already do something
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a NUL character
        raise OSError(errno.EINVAL, f"its name is not one of a file ({error})", str(path)) from error
    file = open(number, "rb")  # noqa: SIM115  (the caller closes it)
    try:
        check_regular(path, os.fstat(number))  # it may have been replaced meanwhile
    except OSError:
        file.close()
        raise
    return file


def beside(missing: Path, having: str = "") -> str:
    """Return a hint, "; did you mean …?", with what is called much like a missing file or folder; empty if nothing is.

    Args:
        missing: the path that does not exist.
        having: suggest only folders with a file of this name.
    """
    try:
        names = [one.name for one in islice(missing.parent.iterdir(), _LOOKED_AT) if os.path.exists(one / having)]
    except (OSError, ValueError):  # the folder cannot be read, or its name has a NUL character
        return ""
    close = difflib.get_close_matches(missing.name, names, 1)
    return f"; did you mean {str(missing.with_name(close[0]))!r}?" if close else ""


def cause(error: OSError) -> str:
    """Return what went wrong with a file, and its name unless it is a partial one, which the user has never seen."""
    name = str(error.filename or "")
    return f"{error.strerror or error}" + (f" ({name})" if name and not name.endswith(".part") else "")


def check_regular(path: str | Path, status: os.stat_result) -> None:
    """Raise an OSError for a folder, pipe, socket or device."""
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


@contextlib.contextmanager
def mapped(path: str | Path) -> Iterator[mmap.mmap | bytes]:
    """Map a regular file: its bytes without a copy.

    Raises:
        OSError: it cannot be opened, is something else, or the disk fails. Where the system cannot tell a failing
            disk beforehand (other than Linux), it ends the process when the bytes are used.
    """
    with open_regular(path) as file:
        if not os.fstat(file.fileno()).st_size:  # nothing to map
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                content.madvise(_POPULATE)
            except (AttributeError, OSError) as error:
                if getattr(error, "errno", errno.EINVAL) != errno.EINVAL:  # this system does not know the request
                    raise OSError(errno.EIO, "the disk fails, or the file has been cut", str(path)) from error
            yield content


def read_regular(path: str | Path, most: str = "file") -> bytes:
    """Return the content of a regular file of at most limit(`most`) bytes; raise an OSError for any other."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if beyond("bytes", size, most) else file.read(size + 1)  # memory for all of it is taken at once
    if fault := beyond("bytes", max(size, len(content)), most):
        raise OSError(errno.EFBIG, fault, str(path))
    return content


def walk(root: Path) -> tuple[dict[str, int], list[str]]:
    """List what is below a folder: sizes of regular files by name, folders as names that end in a slash.

    Hidden files and folders are not listed. Names are relative to `root`, with forward slashes. Links are followed, but
    each folder is read once: a link that leads to a folder that is read elsewhere, or into itself, is left out.

    Returns:
        The entries, and a message for each one that was left out.

    Raises:
        OSError: `root` itself cannot be read.
    """
    found: dict[str, int] = {}
    problems: list[str] = []
    read: dict[tuple[int, int], str] = {}  # folders by device and inode
    folders, linked = [""], list[str]()
    while folders or linked:  # linked folders come last, so that of two names the real one is kept
        prefix = folders.pop() if folders else linked.pop()
        place = os.path.join(root, prefix)
        try:
            status = os.stat(place)
            if (before := read.setdefault((status.st_dev, status.st_ino), prefix)) != prefix:
                found.pop(prefix)
                problems.append(f"{place.rstrip('/')} is left out: it leads to {os.path.join(root, before)}")
                continue
            with os.scandir(place) as opened:
                shown = [entry for entry in opened if not entry.name.startswith(".")]
        except OSError as error:
            if not prefix:
                raise
            problems.append(f"{place.rstrip('/')} cannot be read: {error.strerror}")
            continue
        for entry in sorted(shown, key=lambda entry: entry.name, reverse=True):  # the last folder is read first
            try:
                status = entry.stat()
                if stat.S_ISDIR(status.st_mode):
                    found[f"{prefix}{entry.name}/"] = 0
                    (linked if entry.is_symlink() else folders).append(f"{prefix}{entry.name}/")
                else:
                    check_regular(entry.path, status)
                    found[prefix + entry.name] = status.st_size
            except OSError as error:
                problems.append(f"{entry.path} cannot be read: {error.strerror}")
    return found, problems


def bounded_lines(file: IO[AnyStr], most: int) -> Iterator[AnyStr | None]:
    """Yield the lines of a file with their ends, and None in place of one that is longer than `most`."""
    while line := file.readline(most + 1):
        if len(line) <= most or line[-1:] in ("\n", b"\n", "\r"):
            yield line
            continue
        while (rest := file.readline(2**20)) and rest[-1:] not in ("\n", b"\n", "\r"):
            pass
        yield None


def inert_cell(cell: str) -> str:
    """Return a cell as a spreadsheet shows it: with an apostrophe before what it would execute as a formula.

    >>> [inert_cell(cell) for cell in ("=1+1", "@home/1.jpg", "-1.5", "cat")]
    ["'=1+1", "'@home/1.jpg", '-1.5', 'cat']
    """
    return f"'{cell}" if re.match(r"[=+\-@\t\r\n]", cell) and not re.fullmatch(r"[+-]?\d+(\.\d*)?", cell) else cell


def one_line(text: str, most: int = 10_000) -> str:
    """Return text, such as a foreign name, as one line of at most `most` characters that cannot control the terminal.

    >>> one_line("a\\nb"), one_line("abcdef", 3)
    ('a\\\\nb', 'abc…')
    """
    cut = text if len(text) <= most else f"{text[:most]}…"
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in cut)
