"""What is expensive to make and often used again, kept between runs: trained networks, latents, codes."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.progress import Progress, Silent
from graspcl.state import write_whole

_SHARD = 1024  # samples in a file


def cache_folder() -> Path:
    """Where caches lie: $GRASPCL_CACHE, else graspcl in the user's cache folder."""
    given = os.environ.get("GRASPCL_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graspcl"


@contextlib.contextmanager
def locked(folder: Path, progress: Progress | None = None) -> Iterator[None]:
    """Within, no other process that asks for the same folder goes on; the lock of a dead process is nobody's.

    `progress` is told if there is another one to wait for.
    """
    try:
        import fcntl

        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "w")  # noqa: SIM115  (closed below)
    except (ImportError, OSError):  # not on this system, or a cache that cannot be written: the work may be done twice
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress is not None:
                progress.note(f"another process is at work in {folder}; this one waits for it")
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: as above
            pass
        yield


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Within, nobody else is at work in `folder`; if somebody is, that is an error."""
    try:
        import fcntl

        file = open(folder / ".lock", "w")  # noqa: SIM115  (closed below)
    except (ImportError, OSError):
        yield
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise GraspError(f"another process is at work in {folder}; let it finish, or end it first") from error
        yield


@dataclass(frozen=True)
class Rows:
    """Something of N samples, one row each: `values` [N, …], and `readable` [N], false where a sample cannot be read.

    `problems` says why not, one line each.
    """

    values: Array
    readable: Array
    problems: list[str]


Shard = tuple[Array, Array, list[str]]  # values, which rows they are, and what is wrong with the others
Compute = Callable[[Array], Shard]


def cached_rows(key: str, number: int, compute: Compute, progress: Progress, title: str) -> Rows:
    """Rows of `number` samples under `key`, which must name all that they depend on.

    `compute` takes indices and gives the rows of those that can be read, their positions, and what is wrong with the
    others. Rows are kept in files of a thousand, so that work which was stopped goes on where it was. Of several
    processes that want them at once one computes, and the others wait for it.
    """
    folder = cache_folder() / key
    found, made = _read_all(folder, number, Silent()), False
    if None in found:
        with locked(folder, progress):
            found = _read_all(folder, number, progress)  # another process may have made it in the meantime
            if made := None in found:
                _complete(folder, number, found, compute, progress, title)
    if found and not made:
        progress.note(f"{title}: read from the cache ({folder})")
    return _together(number, [part for part in found if part is not None])


def _read_all(folder: Path, number: int, progress: Progress) -> list[Shard | None]:
    """The files of a thousand rows each, None for those that are missing."""
    return [
        _read(folder / f"{begin:08d}.npz", min(_SHARD, number - begin), progress) for begin in range(0, number, _SHARD)
    ]


def _complete(
    folder: Path, number: int, found: list[Shard | None], compute: Compute, progress: Progress, title: str
) -> None:
    """Make what is missing."""
    missing = [place * _SHARD for place, part in enumerate(found) if part is None]
    with progress.task(title, sum(min(_SHARD, number - begin) for begin in missing)) as advance:
        for begin in missing:
            indices = np.arange(begin, min(begin + _SHARD, number))
            part = compute(indices)
            _write(folder / f"{begin:08d}.npz", part, progress)
            found[begin // _SHARD] = part
            advance(len(indices))


def _together(number: int, parts: list[Shard]) -> Rows:
    shapes = [values.shape[1:] for values, _, _ in parts if len(values)]
    kind = next((values.dtype for values, _, _ in parts if len(values)), np.dtype(np.float32))
    together, readable = np.zeros((number, *(shapes[0] if shapes else ())), kind), np.zeros(number, bool)
    for place, (values, kept, _) in enumerate(parts):
        if len(kept):  # else their values have no shape
            rows = place * _SHARD + kept
            together[rows], readable[rows] = values, True
    return Rows(together, readable, [problem for *_, problems in parts for problem in problems])


def _read(path: Path, number: int, progress: Progress) -> Shard | None:
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            values, kept, problems = file["values"], file["kept"], json.loads(str(file["problems"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        progress.note(f"the cache file {path} cannot be read ({error}); it is made anew")
        return None
    if len(values) != len(kept) or (len(kept) and kept.max() >= number) or len(kept) + len(problems) != number:
        progress.note(f"the cache file {path} does not have {number} rows; it is made anew")
        return None
    return values, kept, list(problems)


def _write(path: Path, part: Shard, progress: Progress) -> None:
    values, kept, problems = part
    content = io.BytesIO()
    np.savez(content, values=values, kept=kept, problems=np.array(json.dumps(problems)))
    try:
        write_whole(path, lambda file: file.write(content.getvalue()))
    except OSError as error:
        progress.note(f"{path.parent} could not be written ({error.strerror}); the run goes on without a cache")


def digest_of(tensors: dict[str, Any]) -> str:
    """16 hex digits of the contents of tensors and arrays by name."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        array = value.detach().cpu().contiguous().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
