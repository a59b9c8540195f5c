"""The lock of a workspace: one process writes; the error of a second writer names it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import time
from io import FileIO
from pathlib import Path

from graspcl.cache import open_lock
from graspcl.errors import GraspError
from graspcl.files import cause, read_regular

_PAUSE = 0.1  # seconds between two attempts


def hold(file: Path, wait: float = 0.0) -> FileIO:
    """Hold the lock `file` until the returned file is closed; the lock of a dead process is free.

    Args:
        file: the lock, created if there is none.
        wait: how many seconds to wait for the process that holds it.

    Raises:
        GraspError: another process holds it, or the folder cannot be written.
    """
    folder = file.parent
    try:
        opened = open_lock(file)
    except OSError as error:
        raise GraspError(f"the workspace {folder} cannot be written: {cause(error)}") from error
    try:
        until = time.monotonic() + wait
        while not _taken(opened):
            if time.monotonic() >= until:
                raise GraspError(
                    f"the workspace {folder} is being written by {_holder(opened)}; let it finish, or wait for it "
                    "(--wait SECONDS)"
                )
            time.sleep(_PAUSE)
        with contextlib.suppress(OSError):  # a full disk: the lock is held all the same
            opened.seek(0)
            opened.truncate()
            since = time.strftime("%H:%M:%S")
            opened.write(json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since}).encode())
    except BaseException:
        opened.close()
        raise
    return opened


def is_lock(file: Path) -> bool:
    """Whether a file is a lock of ours: empty, or with what `hold` notes in it."""
    try:
        content = read_regular(file)
        return not content or {"pid", "host", "since"} == {*json.loads(content)}
    except (OSError, ValueError, TypeError):
        return False


def _taken(opened: FileIO) -> bool:
    try:
        import fcntl

        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # no locks on this system or disk: each transaction still checks what it changes
        return True
    return True


def _holder(opened: FileIO) -> str:
    """Return who holds the lock, as far as its file tells."""
    try:
        opened.seek(0)
        found = json.loads(opened.read(1000))
        return f"process {int(found['pid'])} on {found['host']!s} (since {found['since']!s})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
