"""The names of files in a workspace, whether a folder may become one, and errors of writing there."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from graspcl.errors import GraspError
from graspcl.files import cause
from graspcl.integrity import Damaged
from graspcl.workspace import journal as journals
from graspcl.workspace.lock import is_lock

DATABASE, BACKUP, OBJECTS, LOCK = "workspace.db", "workspace.backup", "objects", "lock"
_JOURNALS = rf"{re.escape(DATABASE)}|{re.escape(BACKUP)}"
PARTIAL = rf"{_JOURNALS}|recent\.json"  # what is written beside its place first, as a pattern
_OWN = re.compile(rf"({_JOURNALS})(\.\d+\.part|-journal)?|{OBJECTS}|{LOCK}")


def check_free(folder: Path) -> None:
    """Refuse a folder that cannot become a workspace, because it has files."""
    if _in_use(folder):
        raise GraspError(f"the folder {folder} is not empty; choose another one for the new workspace")


def _in_use(folder: Path) -> bool:
    """Whether a folder has files other than those of a workspace that was left before its first version."""
    try:
        names = [path.name for path in folder.iterdir()]
        if not all(map(_OWN.fullmatch, names)):
            return True
        begun = [name for name in (DATABASE, BACKUP) if name in names]
        if not begun:
            return any(_foreign(folder / name) for name in names)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise GraspError(f"the folder {folder} cannot be used: {error.strerror}") from error
    try:
        return any(journals.read(folder / name).head is not None for name in begun)
    except (Damaged, GraspError):
        return True


def _foreign(path: Path) -> bool:
    """Whether a file or folder without a journal beside it may be of another program, although it has one of our names.

    Before the journal there are an empty folder for objects, the lock and partial files.
    """
    if path.name == OBJECTS:
        return any(path.iterdir())
    return not is_lock(path) if path.name == LOCK else path.name.endswith("-journal")


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn a full disk or a folder that cannot be written into a readable error."""
    try:
        yield
    except Damaged:
        raise
    except OSError as error:
        raise GraspError(f"the workspace {folder} cannot be written: {cause(error)}") from error
    except sqlite3.Error as error:
        raise GraspError(f"the workspace {folder} cannot be written: {error}") from error
