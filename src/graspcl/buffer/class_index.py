"""Which slots hold which class: insertion, deletion, random choice and largest class in constant time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graspcl.checks import Array

if TYPE_CHECKING:
    from graspcl.buffer.kernels import IndexArrays

# Arrays grow by an eighth, so that unused room stays within the allowance of 32 bytes per sample.
_GROWTH = 1.125
_SMALLEST = 4
_NO_LIMIT = 2**31  # more samples than a class can have


class ClassIndex:
    """The slots of every class: one pool of integers with a run per class (see `kernels.IndexArrays`).

    >>> index = ClassIndex()
    >>> index.assign(np.array([0, 1, 2]), np.array([7, 5, 7]), held=np.full(3, -1, np.int32))
    >>> index.slots_of(7).tolist(), index.classes.tolist(), index.sizes.tolist()
    ([0, 2], [5, 7], [1, 2])
    """

    def __init__(self) -> None:
        empty = np.empty(0, np.int32)
        self._pool, self._end = empty, 0  # the pool is in use up to `_end`
        self._start, self._room, self._size, self._order, self._rank = (empty,) * 5  # per class
        self._pos = empty  # per slot
        self._above = np.zeros(1, np.int32)  # per number of samples

    @property
    def classes(self) -> Array:
        """Sorted labels of the classes that have samples."""
        return np.flatnonzero(self._size)

    @property
    def sizes(self) -> Array:
        """Number of samples of each of `classes`."""
        return self._size[self.classes].astype(np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays of the index."""
        return sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray))

    def slots_of(self, label: int) -> Array:
        """Return the slots of one class [n], empty if unknown: a read-only view that the next insertion may change."""
        if not 0 <= label < len(self._size):
            return np.empty(0, np.int32)
        run = self._pool[self._start[label] : self._start[label] + self._size[label]]
        run.flags.writeable = False
        return run

    def at(self, labels: Array, places: Array) -> Array:
        """Return the slot at each of `places` in the run of its class [n]."""
        return self._pool[self._start[labels] + places].astype(np.int64)

    def grouped(self) -> tuple[Array, Array]:
        """Return all slots ordered by class, and the K+1 offsets at which classes start."""
        offsets = np.concatenate(([0], np.cumsum(self.sizes)))
        runs = [self.slots_of(int(c)) for c in self.classes]
        return np.concatenate([np.empty(0, np.int64), *runs]), offsets

    # -- changes, in the given order -------------------------------------------------------------------------------

    def assign(self, slots: Array, labels: Array, held: Array) -> None:
        """Put class `labels[i]` into `slots[i]`, in turn. `held`, the class by slot, is updated. -1 is no class."""
        from graspcl.buffer import kernels

        self._reserve(labels, int(slots.max(initial=-1)) + 1)
        kernels.assign(slots, labels, held, self._arrays)

    def replace_largest(self, labels: Array, rng: np.random.Generator, limits: Array | None = None) -> Array:
        """For each label in turn, evict a random sample of the largest class; return the slots.

        A label whose class has `limits[i]` samples or more evicts nothing, and its slot is -1.
        """
        from graspcl.buffer import kernels

        slots = np.empty(len(labels), np.int64)
        limits = np.full(len(labels), _NO_LIMIT) if limits is None else limits
        self._reserve(labels)
        kernels.replace_largest(labels, limits, rng.random((len(labels), 2)), slots, self._arrays)
        return slots

    def remove_largest(self, number: int, rng: np.random.Generator) -> Array:
        """Evict a random sample of the largest class, `number` times; return the slots."""
        return self.replace_largest(np.full(number, -1), rng)

    def rename(self, source: Array, target: Array, labels: Array) -> None:
        """Move the samples in slots `source`, of classes `labels`, to the free slots `target`."""
        self._pool[self._start[labels] + self._pos[source]] = target
        self._pos[target] = self._pos[source]

    def sort_runs(self, key: Array) -> None:
        """Sort the slots within each class by `key` [n], one number per slot."""
        for c in self.classes:
            run = self._pool[self._start[c] : self._start[c] + self._size[c]]
            run[:] = run[np.argsort(key[run], kind="stable")]
            self._pos[run] = np.arange(len(run))

    # -- room ------------------------------------------------------------------------------------------------------

    def _reserve(self, labels: Array, slots: int = 0) -> None:
        """Make room for `labels` in slots below `slots`, without changing what is stored. -1 needs no room."""
        from graspcl.buffer import kernels

        if slots <= len(self._pos) and kernels.has_room(labels, self._size, self._room, len(self._above)):
            return
        classes, known = int(labels.max(initial=-1)) + 1, len(self._size)
        if not classes:
            return
        if classes > known:
            new = np.arange(known, classes, dtype=np.int32)
            self._start, self._room, self._size = (np.append(a, 0 * new) for a in (self._start, self._room, self._size))
            self._order, self._rank = np.append(self._order, new), np.append(self._rank, new)
        self._pos = _grown(self._pos, slots)
        wanted = self._size + np.bincount(labels, minlength=len(self._size))
        self._above = _grown(self._above, int(wanted.max()) + 1)
        if (wanted > self._room).any():
            self._relocate(wanted)

    def _relocate(self, wanted: Array) -> None:
        """Give larger runs, at the end of the pool, to classes short of room. If the pool is full, rebuild all runs.

        Rebuilding also frees the room of classes that have shrunk. Where classes arrive one after the other, each was
        once as large as its share of the buffer, and their old runs would add up to several buffers.
        """
        rooms = np.where(wanted > 0, np.maximum(_SMALLEST, np.ceil(wanted * _GROWTH)), 0).astype(np.int64)
        moving = np.flatnonzero(wanted > self._room)
        pool, end = self._pool, self._end
        if end + rooms[moving].sum() > len(pool):
            moving, end = np.arange(len(rooms)), 0
            pool = np.zeros(int(rooms.sum() * _GROWTH), np.int32)
            self._above = self._above[: int(wanted.max() * _GROWTH) + 1].copy()
        start = end + np.cumsum(rooms[moving]) - rooms[moving]
        sizes = self._size[moving]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        pool[np.repeat(start, sizes) + within] = self._pool[np.repeat(self._start[moving], sizes) + within]
        self._start[moving], self._room[moving] = start, rooms[moving]
        self._pool, self._end = pool, end + int(rooms[moving].sum())

    @property
    def _arrays(self) -> IndexArrays:
        from graspcl.buffer.kernels import IndexArrays

        return IndexArrays(self._pool, self._start, self._size, self._pos, self._order, self._rank, self._above)

    # -- state: all arrays, since the order within a class and among ties decides what a random number picks -----------

    def state_dict(self) -> dict[str, Any]:
        """Return arrays that restore the index exactly."""
        return {name[1:]: np.array(value) if name != "_end" else value for name, value in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        for name, value in state.items():
            setattr(self, f"_{name}", int(value) if name == "end" else np.array(value))


def _grown(array: Array, length: int) -> Array:
    """Return `array` with at least `length` entries, new ones zero. Growth by an eighth amortises appending."""
    new = max(length, int(len(array) * _GROWTH)) - len(array)
    return np.pad(array, (0, new)) if length > len(array) else array
