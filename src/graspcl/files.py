"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside `path`, bring it to the disk, and put it in place in one step; folders are made.

    Where that fails (OSError) whatever was at `path` is still there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder) / "deep" / "a", lambda file: file.write(b"content"))
    ...     (Path(folder) / "deep" / "a").read_bytes()
    b'content'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
