"""The cache: trained networks, latents and codes that several runs share. Also the locks that guard folders."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import time
from collections.abc import Callable, Container, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.files import check_regular, open_regular
from graspcl.integrity import pack_arrays, place_in_archive, read_arrays
from graspcl.progress import Progress, Silent
from graspcl.rows import Rows
from graspcl.state import write_whole

_SHARD = 1024  # samples per file
_GAP = 1 << 16  # bytes between two rows that are read with them: that is quicker than to ask twice
_POLL = 0.1  # seconds between two looks at a lock
_REQUIRED = ContextVar("_REQUIRED", default=False)  # whether the cache has to be written
_PATIENCE = ContextVar[float | None]("_PATIENCE", default=None)  # seconds that a lock may be held without progress
_held: list[io.FileIO] = []  # locks of this process


def cache_folder() -> Path:
    """Return the folder of all caches: $GRASPCL_CACHE, or graspcl in the user's cache folder."""
    users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("GRASPCL_CACHE") or users / "graspcl")


def open_lock(file: Path) -> io.FileIO:
    """Open a file to lock it, and create it if there is none.

    A foreign folder may hold a link or a pipe of this name. Neither is followed, waited for or emptied. What is written
    is not buffered: what a full disk refuses would be written again when the lock is closed, and fail there.
    """
    flags = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
    opened = io.FileIO(os.open(file, os.O_RDWR | os.O_CREAT | flags, 0o666), "r+")
    try:
        check_regular(file, os.fstat(opened.fileno()))
    except OSError:
        opened.close()
        raise
    return opened


@contextlib.contextmanager
def lock(file: Path, wait: bool = True, progress: Progress | None = None) -> Iterator[None]:
    """Hold the lock `file` while the context is open; the lock of a dead process is free.

    If another process holds it, `wait` for that process and tell `progress`, or raise a GraspError. Within `patience`,
    it is an error too if that process shows no progress (`beat`).
    """
    try:
        import fcntl

        file.parent.mkdir(parents=True, exist_ok=True)
        opened = open_lock(file)
    except (ImportError, OSError):  # no locks on this system, or a folder that cannot be written: work may be repeated
        yield
        return
    with opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            folder = file.parent
            if not wait:
                raise GraspError(f"another process is using {folder}; let it finish, or stop it first") from error
            if progress is not None:
                progress.note(f"waiting for another process that is using {folder}")
            with contextlib.suppress(OSError):
                _wait(opened, file)
        except OSError:  # a file system without locks
            pass
        held = _held  # a lock that is freed while Python shuts down would no longer find it
        held.append(opened)
        try:
            beat()
            yield
        finally:
            held.remove(opened)


def _wait(opened: io.FileIO, file: Path) -> None:
    """Lock a file that another process has locked, as soon as that one is done."""
    import fcntl

    limit, last, since = _PATIENCE.get(), -1, 0.0
    while limit is not None:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            touched, now = os.fstat(opened.fileno()).st_mtime_ns, time.monotonic()
        if touched != last:
            last, since = touched, now
            beat()  # who waits for this process waits for that one, too
        elif now - since > limit:
            what = f"the process that holds {file} has made no progress for {limit:g} seconds"
            raise GraspError(f"{what}: end it if it hangs, or raise --timeout; then run the same command again")
        time.sleep(_POLL)
    fcntl.flock(opened, fcntl.LOCK_EX)


def beat() -> None:
    """Show progress to the processes that wait for locks of this one, by touching them."""
    for opened in [*_held]:
        with contextlib.suppress(OSError, ValueError):  # not this user's file, or just closed
            os.utime(opened.fileno())


@contextlib.contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Within this context, waiting for a lock ends with an error after `seconds` without progress of its holder."""
    token = _PATIENCE.set(seconds)
    try:
        yield
    finally:
        _PATIENCE.reset(token)


@contextlib.contextmanager
def required() -> Iterator[None]:
    """Within this context, it is an error if the cache cannot be written. Elsewhere, runs continue without it."""
    token = _REQUIRED.set(True)
    try:
        yield
    finally:
        _REQUIRED.reset(token)


@dataclass(frozen=True)
class CachedRows:
    """One row for each of N samples."""

    values: Rows  # [N, …], read from the cache when they are indexed; zeros where a sample cannot be read
    readable: Array  # [N], False where a sample cannot be read
    problems: list[str]  # why not, one line each


Shard = tuple[Array, Array, list[str]]  # values of readable samples, their positions, and the problems of the others
Compute = Callable[[Array], Shard]
Keep = Callable[[int, Shard, Path | None], None]  # takes the first row of a shard, the shard, and its file if any


def cached_rows(key: str, number: int, compute: Compute, progress: Progress, title: str) -> CachedRows:
    """Return the rows of `number` samples from the cache, or compute and store them.

    Rows are stored in files of a thousand, so that stopped work resumes. Each file is verified here, and its values are
    read again when they are used. They are in memory together only if the cache cannot be written.

    Processes that want the same rows at the same time share the work: each computes files that no other one is
    computing. What a killed one held is free at once.

    The folder `key` in the cache must identify everything the rows depend on. `compute` maps indices to a `Shard`.
    """
    stored = _Stored(number)
    _shards(key, number, compute, progress, title, stored.add)
    return stored.rows()


def fill_rows(key: str, number: int, compute: Compute, progress: Progress, title: str) -> None:
    """Compute and store rows like `cached_rows`, for other processes."""
    _shards(key, number, compute, progress, title, lambda begin, shard, file: None)


def _shards(key: str, number: int, compute: Compute, progress: Progress, title: str, keep: Keep) -> None:
    """Read or compute all shards, and give each to `keep`."""
    folder, done, computed = Path(os.path.abspath(cache_folder() / key)), set[int](), False
    sizes = {begin: min(_SHARD, number - begin) for begin in range(0, number, _SHARD)}

    def find(begin: int, progress: Progress) -> bool:
        file = folder / f"{begin:08d}.npz"
        if (shard := _read(file, sizes[begin], progress)) is not None:
            keep(begin, shard, file)
            done.add(begin)
        return begin in done

    if missing := [begin for begin in sizes if not find(begin, Silent())]:
        with progress.task(title, sum(sizes[begin] for begin in missing)) as advance:
            for begin, held in _taken(folder, missing, done, progress):
                with held:
                    if not find(begin, progress):  # another process may have computed it in the meantime
                        indices, computed = np.arange(begin, begin + sizes[begin]), True
                        values, kept, problems = compute(indices)
                        shard = np.ascontiguousarray(values), kept, problems
                        keep(begin, shard, _write(folder / f"{begin:08d}.npz", shard, progress))
                        done.add(begin)
                advance(sizes[begin])
    if done and not computed:
        progress.note(f"{title}: read from the cache ({folder})")


def _taken(
    folder: Path, missing: list[int], done: Container[int], progress: Progress
) -> Iterator[tuple[int, contextlib.ExitStack]]:
    """Yield each missing shard with the lock on it: first those that no other process holds, then the others."""
    for wait in (False, True):
        for begin in (begin for begin in missing if begin not in done):
            file, held = folder / f"{begin:08d}.lock", contextlib.ExitStack()
            try:
                held.enter_context(lock(file, wait, progress))
            except GraspError:
                if wait:
                    raise
                continue  # it is computed elsewhere
            yield begin, held
            if (folder / f"{begin:08d}.npz").exists():  # else another process may be about to lock this file
                with contextlib.suppress(OSError):
                    file.unlink()


class _Stored:
    """Rows of `number` samples in files of the cache. Those that are in no file stay in memory."""

    def __init__(self, number: int) -> None:
        self._readable, self._problems = np.zeros(number, bool), dict[int, list[str]]()
        self._shape, self._dtype = tuple[int, ...](), np.dtype(np.float32)  # of a row
        self._values: dict[int, Array | tuple[Path, int]] = {}  # of each shard: file and first byte, or themselves

    def add(self, begin: int, shard: Shard, file: Path | None) -> None:
        """Take over the shard that starts with row `begin`, and is in this file, if any."""
        values, kept, self._problems[begin] = shard
        if not len(kept):  # values have no shape
            return
        if not self._values:
            self._shape, self._dtype = values.shape[1:], values.dtype
        elif (self._shape, self._dtype) != (values.shape[1:], values.dtype):
            raise GraspError(f"{file or 'what was computed'} has rows of another kind than the other files beside it")
        self._readable[begin + kept] = True
        place = place_in_archive(file, "values", values.nbytes) if file and values.flags.c_contiguous else None
        self._values[begin] = values if file is None or place is None else (file, place)

    def rows(self) -> CachedRows:
        """Return all rows."""
        values = Rows(self._read, (len(self._readable), *self._shape), self._dtype)
        problems = [problem for begin in sorted(self._problems) for problem in self._problems[begin]]
        return CachedRows(values, self._readable, problems)

    def _read(self, rows: Array) -> Array:
        found = np.zeros((len(rows), *self._shape), self._dtype)
        wanted = np.flatnonzero(self._readable[rows])
        wanted = wanted[np.argsort(rows[wanted], kind="stable")]
        for some in np.split(wanted, np.flatnonzero(np.diff(rows[wanted] // _SHARD)) + 1):
            if len(some):
                begin = int(rows[some[0]]) // _SHARD * _SHARD
                places = np.cumsum(self._readable[begin : begin + _SHARD])[rows[some] - begin] - 1
                values = self._values[begin]
                found[some] = values[places] if isinstance(values, np.ndarray) else self._read_file(*values, places)
        return found

    def _read_file(self, path: Path, start: int, places: Array) -> Array:
        """Return the rows at `places` [m], ascending, of those that start at a byte of a file."""
        found = np.empty((len(places), *self._shape), self._dtype)
        size = math.prod(self._shape) * self._dtype.itemsize
        cuts = (np.flatnonzero(np.diff(places) * size > _GAP) + 1).tolist()
        try:
            with open_regular(path) as file:
                for begin, end in zip([0, *cuts], [*cuts, len(places)], strict=True):
                    first = int(places[begin])
                    part = np.empty((int(places[end - 1]) - first + 1, *self._shape), self._dtype)
                    file.seek(start + first * size)
                    if file.readinto(part.reshape(-1).view(np.uint8)) < part.nbytes:  # type: ignore[attr-defined]
                        raise OSError(errno.EIO, "it has been cut")
                    found[begin:end] = part[places[begin:end] - first]
        except OSError as error:
            said = f"the cache file {path} cannot be read again: {error.strerror}"
            raise GraspError(f"{said}; run the same command again, which computes what is missing") from error
        return found


def _read(path: Path, number: int, progress: Progress) -> Shard | None:
    try:
        file = read_arrays(path)
        values, kept, problems = file["values"], file["kept"], json.loads(str(file["problems"]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, KeyError) as error:
        progress.note(f"the cache file {path} cannot be read ({error}); computing it again")
        return None
    if len(values) != len(kept) or (len(kept) and kept.max() >= number) or len(kept) + len(problems) != number:
        progress.note(f"the cache file {path} does not have {number} rows; computing it again")
        return None
    return values, kept, list(problems)


def _write(path: Path, shard: Shard, progress: Progress) -> Path | None:
    """Write a shard, and return its file; None if it could not be written."""
    values, kept, problems = shard
    arrays = {"values": values, "kept": kept, "problems": np.array(json.dumps(problems))}
    try:
        write_whole(path, lambda file: file.write(pack_arrays(arrays, compress=False)))
    except OSError as error:
        said = f"{path.parent} could not be written ({error.strerror})"
        if _REQUIRED.get():
            raise GraspError(f"{said}; make room, or name another folder in GRASPCL_CACHE, and run it again") from error
        progress.note(f"{said}; continuing without a cache")
        return None
    return path


def digest_of(tensors: dict[str, Any]) -> str:
    """Return 16 hex digits of the contents of named tensors and arrays."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        array = np.asarray(value) if not hasattr(value, "detach") else value.detach().cpu().contiguous().numpy()
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
