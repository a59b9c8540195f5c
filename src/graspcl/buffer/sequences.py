"""Codes of texts, stored without the padding at their end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graspcl.buffer.columns import Columns, Storage
from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.rows import Rows

if TYPE_CHECKING:
    import torch

    from graspcl.codec import Codec

# Beside each code: where it starts, and how many bytes it takes.
PER_CODE: Columns = {"code_starts": ((), np.int32), "lengths": ((), np.int64)}
POOL = _PLACES, _LINKS = "code_places", "code_links"  # the columns of the pool
_LINK = np.dtype(np.int32)
_CHUNK = 256  # codes that are compared at a time


def sequence_bytes(locations: float, each: int) -> int:
    """Return the bytes that a buffer stores for a code of `locations` locations of `each` bytes, rounded up.

    >>> sequence_bytes(10, each=768)
    7732
    """
    return math.ceil(locations * (each + _LINK.itemsize)) + sum(
        np.dtype(dtype).itemsize for _, dtype in PER_CODE.values()
    )


class Sequences:
    """A pool of locations. A code [C, L] takes as many of them as it has before its padding.

    Row 0 of the pool is the padding, and is stored once. Each location links to the next of its code, the last one to
    row 0. Free rows are linked too, so room is used again without moving anything: what is stored stays as it is, also
    if the process dies.

    Args:
        codec: what made the codes; None if they are the latents.
        latent: the latent [C, 1] of a padded location.
        folder: for memory-mapped files.

    >>> import torch
    >>> sequences = Sequences(None, torch.tensor([[-4.0]]))
    >>> codes = np.array([[[1, 2, -4, -4]], [[3, -4, 5, -4]]], np.float32)
    >>> sequences.create((1, 4))
    >>> lengths = sequences.lengths(codes)
    >>> starts = sequences.write(codes, lengths)
    >>> lengths.tolist(), sequences.read(starts).tolist() == codes.tolist()
    ([16, 24], True)
    """

    def __init__(self, codec: Codec | None, latent: torch.Tensor, folder: Path | None = None) -> None:
        if codec is not None and codec.ragged:
            raise GraspError(f"codec {type(codec).__name__} stores files, which have no padding; leave out `padding`")
        self.latent = latent.detach().cpu()
        self._codec, self._folder, self._pool = codec, folder, Storage()
        self._shape: tuple[int, ...] = ()  # of one code
        self._free = self._head = 0  # the number of free rows, and the first of them
        self._padding: Array | None = None  # the code of a padded location [W]; known when it is first needed

    @property
    def padding(self) -> Array:
        """The code of a padded location [W]."""
        if self._padding is None:
            code: Any = self.latent[None] if self._codec is None else self._codec.encode(self.latent[None])
            self._padding = code.numpy(force=True).ravel()
        return self._padding

    @property
    def nbytes(self) -> int:
        """Bytes of the padding's code, which is stored once."""
        return self.padding.nbytes if self._pool else 0

    def lengths(self, codes: Array) -> Array:
        """Return the bytes [n] that codes [n, …] take: those of each location before the padding, and of its link."""
        padding, places = self.padding, np.moveaxis(codes, self._axis, 1)
        if codes.ndim < 3 or math.prod(places.shape[2:]) != len(padding):
            wanted = f"sequences with {len(padding)} numbers per location, as their padding has"
            raise GraspError(f"the buffer stores {wanted}, got codes of shape {codes.shape[1:]}")
        parts = np.split(codes, range(_CHUNK, len(codes), _CHUNK))
        return np.concatenate([self._before_padding(part) for part in parts])

    def packed(self, codes: Array, lengths: Array) -> dict[str, Any]:
        """Return codes [n, …] as `saved_state` does."""
        places, counts = np.moveaxis(codes, self._axis, 1), lengths // self._each
        real = np.arange(places.shape[1]) < counts[:, None]
        return self._described(places[real].reshape(-1, len(self.padding)), counts)

    def write(self, codes: Array, lengths: Array) -> Array:
        """Store codes [n, …], which take `lengths` [n] bytes; return where they start [n]."""
        return self._store(self.packed(codes, lengths)["locations"], lengths)

    def read(self, starts: Array) -> Array:
        """Return the codes [n, …] that start at `starts` [n], with their padding."""
        codes = np.empty((len(starts), *self._shape), self.padding.dtype)
        places = np.moveaxis(codes, self._axis, 1)
        places[:] = self._pool[_PLACES][self._rows(starts)].reshape(places.shape)
        return codes

    def rows(self, number: int, read: Callable[[Array], Array]) -> Rows:
        """Return codes [number, …] that are padded where they are read."""
        return Rows(read, (number, *self._shape), self.padding.dtype)

    def release(self, starts: Array) -> None:
        """Free the room of the codes that start at `starts` [n]."""
        rows = self._rows(starts)
        self._link_free(rows[rows > 0])

    def reserve(self, size: int, within: int | None = None) -> None:
        """Make room for codes of `size` bytes, and for some in advance, up to `within` bytes in all."""
        if (missing := size // self._each - self._free) > 0:
            old = self._pool.rows
            self._pool.reserve(old + missing, most=None if within is None else within // self._each)
            self._link_free(np.arange(old, self._pool.rows, dtype=_LINK))

    def sizes(self, starts: Array) -> Array:
        """Return the bytes [n] of the codes that start at `starts` [n]."""
        return np.asarray((self._rows(starts) > 0).sum(1) * self._each)

    # -- a pool from nothing, from files and from states -----------------------------------------------------------

    def create(self, shape: tuple[int, ...]) -> None:
        """Make an empty pool for codes of `shape`."""
        self._shape, self._free, self._head = shape, 0, 0
        self._pool = Storage(self._folder, {_PLACES: self.padding[None], _LINKS: np.zeros(1, _LINK)})

    def attach(self, folder: Path, shape: tuple[int, ...]) -> None:
        """Map the pool in a folder. Call `claim` before anything is written."""
        self._folder, self._shape = folder, shape
        kinds: Columns = {_PLACES: ((len(self.padding),), self.padding.dtype), _LINKS: ((), _LINK)}
        self._pool = Storage.attach(folder, kinds)

    def claim(self, starts: Array) -> Array:
        """Keep the codes that start at `starts` [n] and free all other rows; return which share no row [n], bool."""
        rows = self._rows(starts)
        first = np.zeros(rows.size, bool)
        first[np.unique(rows, return_index=True)[1]] = True
        kept: Array = (first.reshape(rows.shape) | (rows == 0)).all(1)
        free = np.ones(self._pool.rows, bool)
        free[0] = free[rows[kept]] = False
        self._free = self._head = 0
        self._link_free(np.flatnonzero(free).astype(_LINK))
        return kept

    def saved_state(self, starts: Array) -> dict[str, Any]:
        """Return the codes that start at `starts` [n] without their padding; `padded` adds it again.

        There are all locations, one code after the other, how many each code has, the padding, and the codes' axis of
        locations.
        """
        rows = self._rows(starts)
        real = rows > 0
        return self._described(self._pool[_PLACES][rows[real]], real.sum(1))

    def restore_state(self, state: Any, shape: tuple[int, ...], lengths: Array) -> Array:
        """Store the codes of a state; return where they start [n].

        Args:
            state: what `saved_state` returned, or codes [n, …] in files.
            shape: of one code.
            lengths: how many bytes each code takes [n].
        """
        if isinstance(state, Mapping):
            self._padding = np.asarray(state["padding"])
            self.create(shape)
            return self._store(np.asarray(state["locations"]), lengths)
        self.create(shape)
        self.reserve(int(lengths.sum()))
        starts = np.zeros(len(lengths), _LINK)
        for place, codes in state.parts():
            starts[place] = self.write(codes, lengths[place])
        return starts

    def flush(self) -> None:
        """Write mapped rows to the disk and give them up."""
        self._pool.flush()
        self._pool = Storage()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _described(self, locations: Array, counts: Array) -> dict[str, Any]:
        return {
            "locations": locations, "counts": counts.astype(np.int32), "padding": self.padding, "axis": self._axis,
        }  # fmt: skip

    @property
    def _axis(self) -> int:
        return -1 if self._codec is None else self._codec.locations

    @property
    def _each(self) -> int:
        """Bytes of a location with its link."""
        return self.padding.nbytes + _LINK.itemsize

    def _before_padding(self, codes: Array) -> Array:
        """Return the bytes [n] up to the last location that differs from the padding in any bit."""
        bits = f"u{self.padding.itemsize}"
        given = np.moveaxis(codes.astype(self.padding.dtype, copy=False).view(bits), self._axis, 1)
        padding = self.padding.view(bits).reshape(given.shape[2:])
        real = (given != padding).any(tuple(range(2, given.ndim)))
        last: Array = (real * np.arange(1, real.shape[1] + 1)).max(1, initial=0)
        return last * self._each

    def _store(self, locations: Array, lengths: Array) -> Array:
        """Store locations of codes, one code after the other; return where the codes start [n]."""
        number = lengths // self._each
        self.reserve(int(lengths.sum()))
        rows, ends = self._rows(np.array([self._head]), len(locations))[0], np.cumsum(number)
        self._free -= len(rows)
        self._head = int(self._pool[_LINKS][rows[-1]]) if len(rows) else self._head
        self._pool[_PLACES][rows] = locations
        starts, some = np.zeros(len(lengths), _LINK), number > 0
        starts[some] = rows[(ends - number)[some]]
        links = np.append(rows[1:], 0)[: len(rows)]
        links[ends[some] - 1] = 0
        self._pool[_LINKS][rows] = links
        return starts

    def _rows(self, starts: Array, most: int | None = None) -> Array:
        """Return the rows linked from `starts` [n] and zeros after them: [n, L], or [n, most]."""
        from graspcl.buffer import kernels

        rows = np.zeros((len(starts), self._shape[self._axis] if most is None else most), _LINK)
        kernels.follow(np.asarray(starts, _LINK), np.asarray(self._pool[_LINKS]), rows)
        return rows

    def _link_free(self, rows: Array) -> None:
        """Add `rows` [n] to the free ones."""
        if len(rows):
            self._pool[_LINKS][rows] = np.append(rows[1:], self._head)
            self._head, self._free = int(rows[0]), self._free + len(rows)


def padded(state: Mapping[str, Any], shape: tuple[int, ...]) -> Array:
    """Return the codes [n, …] of `shape` that `Sequences.saved_state` has returned."""
    counts, padding = np.asarray(state["counts"]), np.asarray(state["padding"])
    codes = np.empty((len(counts), *shape), padding.dtype)
    places = np.moveaxis(codes, state["axis"], 1)
    places[:] = padding.reshape(places.shape[2:])
    real = np.arange(places.shape[1]) < counts[:, None]
    places[real] = np.asarray(state["locations"]).reshape(-1, *places.shape[2:])
    return codes
