"""What makes memory-mapped columns reopenable: an owner, a description, counters, and a checksum per row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graspcl.buffer.arguments import made_folder
from graspcl.buffer.columns import Columns, Storage, map_array
from graspcl.buffer.sequences import PER_CODE, Sequences
from graspcl.cache import digest_of, lock
from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.files import read_regular
from graspcl.integrity import checksum, read_object, seal_object
from graspcl.rows import Rows
from graspcl.state import write_whole

if TYPE_CHECKING:
    import torch

    from graspcl.buffer.buffer import Buffer
    from graspcl.buffer.maintenance import Maintenance
    from graspcl.codec import Codec

# Kept of every sample beside its code and the user's columns.
OWN: Columns = {"labels": ((), np.int32), "ids": ((), np.int64), "births": ((), np.int64)}
CHECKS = "row_checksums"  # the column of checksums
_AT_ONCE = 2**25  # bytes of codes that are verified at a time
_COVERED = ("codes", "labels", "ids", "births")  # other columns may be written to at any time


class Ledger:
    """Owns a folder of columns, and stores beside them how the buffer was made and how far it has come.

    Raises:
        GraspError: another buffer owns the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._counts: Array | None = None  # samples seen, how many of them are old, and a checksum
        self._lock = lock(folder / ".lock", wait=False)  # free again when this object is gone
        try:
            self._lock.__enter__()
        except GraspError:
            raise GraspError(f"{folder} belongs to a buffer that is open; close() it, or use another folder") from None

    def describe(self, buffer: Buffer) -> None:
        """Store how the buffer was made, before its first sample."""
        codes = buffer["codes"]
        about = {
            "capacity": buffer.given,
            "columns": {name: [list(shape), np.dtype(dtype).str] for name, (shape, dtype) in buffer.columns.items()},
            "codes": [list(codes.shape[1:]), codes.dtype.str], **_parts(buffer),
        }  # fmt: skip
        try:
            write_whole(self.folder / "buffer.json", lambda file: file.write(seal_object(about)))
            self._count(0, 0)
        except OSError as error:
            raise GraspError(f"the buffer cannot be stored in {self.folder}: {error.strerror}") from error

    def commit(self, buffer: Buffer, slots: Array | None = None) -> None:
        """Mark `slots` [n] as written, last of all: until then, `reopen` would leave them out."""
        if slots is not None and len(slots):
            buffer[CHECKS][slots] = row_checksums(buffer, slots)
        if self._counts is not None:
            self._counts[:] = _sealed(buffer.seen, buffer.since)

    def counts(self) -> tuple[int, int]:
        """Read what `commit` stored; zeros if there is no counts.npy."""
        file, seen, since = self.folder / "counts.npy", 0, 0
        try:
            self._counts = map_array(file)
            found = self._counts.tolist()
            seen, since = found[:2]
            if found != _sealed(seen, since)[: max(2, len(found))]:  # earlier versions stored no checksum
                raise ValueError("its content does not match its checksum")
        except FileNotFoundError:
            self._count(0, 0)
        except (OSError, ValueError, TypeError, OverflowError) as error:
            hint = f"delete it to open the buffer with all samples counted as new ({error})"
            raise GraspError(f"the buffer in {self.folder} cannot be opened: counts.npy is damaged; {hint}") from error
        if self._counts is not None and len(self._counts) == 2:
            self._count(seen, since)
        return seen, since

    def _count(self, seen: int, since: int) -> None:
        """Store counts in a new file."""
        file = self.folder / "counts.npy"
        write_whole(file, lambda opened: np.save(opened, np.array(_sealed(seen, since)), allow_pickle=False))
        self._counts = map_array(file)

    def close(self) -> None:
        """Give up the folder."""
        self._lock.__exit__(None, None, None)


def reopen(
    kind: type[Buffer],
    place: str | Path,
    codec: Codec | None,
    rule: Maintenance | str | None,
    rng: np.random.Generator | int,
    padding: torch.Tensor | None,
) -> Buffer:
    """Return a buffer with what is stored in a folder; see `Buffer.open`."""
    folder = made_folder(place)
    if folder is None:
        raise GraspError("a buffer in memory cannot be opened; give the folder of its storage")
    try:
        made = read_object(read_regular(folder / "buffer.json"))
        columns = {name: (tuple(shape), np.dtype(dtype)) for name, (shape, dtype) in made["columns"].items()}
        shape, dtype = tuple(made["codes"][0]), np.dtype(made["codes"][1])
        buffer = kind(made["capacity"], codec, rule, columns, rng=rng, padding=padding)
    except FileNotFoundError:
        raise GraspError(f"there is no buffer to open in {folder}: it has no buffer.json") from None
    except GraspError:
        raise
    except Exception as error:  # values of other types fail in many ways
        raise GraspError(f"the buffer in {folder} cannot be opened: buffer.json is damaged ({error})") from error
    for part, own in _parts(buffer).items():
        if own != made.get(part):
            raise GraspError(f"the buffer in {folder} was made with {part} {made.get(part)}, not {own}; pass the same")
    ledger = Ledger(folder)
    sequences, kinds = buffer._sequences, {CHECKS: ((), np.uint64), **OWN, **columns}
    storage = Storage.attach(folder, {**kinds, **({"codes": (shape, dtype)} if sequences is None else PER_CODE)})
    if sequences is not None:
        sequences.attach(folder, shape)
    rows = np.flatnonzero(sound_rows(storage)) if sequences is None else _sound_sequences(sequences, storage, shape)
    buffer._storage, buffer._shape, buffer._ledger = storage, shape, ledger
    _take_over(buffer, rows, *ledger.counts())
    return buffer


def _sealed(seen: int, since: int) -> list[int]:
    """Return what counts.npy contains: two counts, and their checksum as a number."""
    return [seen, since, int(checksum(f"{seen} {since}")[:15], 16)]


def _sound_sequences(sequences: Sequences, storage: Storage, shape: tuple[int, ...]) -> Array:
    """Return which rows hold what was stored there [n], and free the room of all others."""
    starts = storage["code_starts"]
    codes: Any = Rows(lambda slots: sequences.read(starts[slots]), (len(starts), *shape), sequences.padding.dtype)
    rows = np.flatnonzero(sound_rows({**storage, "codes": codes}))
    rows = rows[sequences.claim(starts[rows])]
    starts[np.setdiff1d(np.arange(len(starts)), rows)] = 0
    storage["lengths"][:] = sequences.sizes(starts)
    return rows


def _take_over(buffer: Buffer, rows: Array, seen: int, since: int) -> None:
    """Keep only the samples in `rows` [n] of a reopened storage; slots without a sample are closed."""
    buffer._count = int(rows.max(initial=-1)) + 1
    buffer.index.assign(rows, buffer.labels[rows].astype(np.int64), np.full(buffer._count, -1, np.int32))
    buffer._close_gaps(np.setdiff1d(np.arange(buffer._count), rows))
    lengths = buffer["lengths"] if buffer.by_length else np.zeros(1)
    buffer.capacity = buffer._fitting(lengths.mean() if len(lengths) else 0)
    buffer._overfull = buffer._excess() > 0
    buffer.seen, buffer.since = max(seen, int(buffer.births.max(initial=-1)) + 1), since
    buffer.maintenance.load_state_dict(buffer.maintenance.assumed(buffer._count, buffer.seen))
    buffer.maintenance.renumbered(buffer)


def _parts(buffer: Buffer) -> dict[str, str | None]:
    """What must be the same when a buffer is reopened."""
    tables = "" if buffer.codec is None else f" with tables {digest_of(buffer.codec.state_dict())}"
    codec = f"{type(buffer.codec).__name__}{tables}"
    padding = None if buffer.padding is None else digest_of({"latent": buffer.padding})
    return {"codec": codec, "rule": repr(buffer.maintenance), "padding": padding}


def row_checksums(columns: Mapping[str, Array] | Buffer, rows: Array) -> Array:
    """Return a checksum of the code, label, id and birth in each of `rows` [n], uint64. No row of zeros has 0."""
    parts = [np.ascontiguousarray(columns[name][rows]).reshape(len(rows), -1).view(np.uint8) for name in _COVERED]
    content = np.concatenate(parts, axis=1)
    words = np.pad(content, ((0, 0), (0, -content.shape[1] % 4))).view(np.uint32)
    found: Array = np.einsum("nw,w->n", words, _factors(words.shape[1]), dtype=np.uint64, casting="unsafe")
    return found + np.uint64(1)


def sound_rows(columns: Mapping[str, Array]) -> Array:
    """Return which rows hold what was stored there [rows], bool; of two rows with one sample, the first."""
    checks, codes = columns[CHECKS], columns["codes"]
    chunk = max(1, _AT_ONCE // (math.prod(codes.shape[1:]) * codes.dtype.itemsize + 1))
    sound = np.zeros(len(checks), bool)
    for begin in range(0, len(checks), chunk):
        rows = np.arange(begin, min(begin + chunk, len(checks)))
        sound[rows] = row_checksums(columns, rows) == checks[rows]
    found = np.flatnonzero(sound)
    first = found[np.unique(columns["births"][found], return_index=True)[1]]
    sound[:] = False
    sound[first] = True
    return sound


@cache
def _factors(width: int) -> Array:
    """Random factors: a sum of 32-bit words times 64-bit factors stays the same by chance once in 2**33 times."""
    return np.random.default_rng(0).integers(2**64, size=width, dtype=np.uint64)
