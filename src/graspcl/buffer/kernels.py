"""Sequential steps, compiled: numpy can neither keep the order of insertions in a batch nor follow links."""

from __future__ import annotations

from typing import NamedTuple

import numba

from graspcl.checks import Array


class IndexArrays(NamedTuple):
    """The arrays of a `ClassIndex`. Finding the largest classes, adding and removing a sample take constant time."""

    pool: Array  # pool[start[c] : start[c] + size[c]] are the slots of class c
    start: Array
    size: Array
    pos: Array  # the place of each slot within its class
    order: Array  # classes from largest to smallest
    rank: Array  # the inverse of `order`
    above: Array  # above[n] is the number of classes with more than n samples


@numba.njit(cache=True, nogil=True, inline="always")
def _move_to(c: int, position: int, index: IndexArrays) -> None:
    other, old = index.order[position], index.rank[c]
    index.order[old], index.order[position] = other, c
    index.rank[other], index.rank[c] = old, position


@numba.njit(cache=True, nogil=True)
def add(slot: int, c: int, index: IndexArrays) -> None:
    """Append a slot to class c."""
    n = index.size[c]
    index.pool[index.start[c] + n] = slot
    index.pos[slot] = n
    _move_to(c, index.above[n], index)
    index.above[n] += 1
    index.size[c] = n + 1


@numba.njit(cache=True, nogil=True)
def remove(slot: int, c: int, index: IndexArrays) -> None:
    """Take a slot out of class c. The last slot of the class takes its place."""
    n = index.size[c] - 1
    last = index.pool[index.start[c] + n]
    index.pool[index.start[c] + index.pos[slot]] = last
    index.pos[last] = index.pos[slot]
    _move_to(c, index.above[n] - 1, index)
    index.above[n] -= 1
    index.size[c] = n


@numba.njit(cache=True, nogil=True)
def has_room(classes: Array, size: Array, room: Array, sizes: int) -> bool:
    """Whether each class has room for its samples among `classes`, and none gets `sizes` samples. -1 needs no room."""
    wanted = size.copy()
    for c in classes:
        if c >= len(size):
            return False
        if c >= 0:
            wanted[c] += 1
            if wanted[c] > room[c] or wanted[c] >= sizes:
                return False
    return True


@numba.njit(cache=True, nogil=True, inline="always")
def _victim(chance: Array, index: IndexArrays) -> tuple[int, int]:
    """A random slot of a random one of the largest classes. `chance` holds two uniform numbers in [0, 1)."""
    ties = index.above[index.size[index.order[0]] - 1]
    c = index.order[int(chance[0] * ties)]
    return index.pool[index.start[c] + int(chance[1] * index.size[c])], c


@numba.njit(cache=True, nogil=True)
def replace_largest(classes: Array, limits: Array, chances: Array, slots: Array, index: IndexArrays) -> None:
    """For each class in turn, evict a random sample of the largest class and put the class there, unless it is -1.

    A class with `limits[i]` samples or more takes no slot: `slots[i]` is -1.
    """
    for i in range(len(classes)):
        slots[i] = -1
        if classes[i] >= 0 and index.size[classes[i]] >= limits[i]:
            continue
        slot, c = _victim(chances[i], index)
        remove(slot, c, index)
        if classes[i] >= 0:
            add(slot, classes[i], index)
        slots[i] = slot


@numba.njit(cache=True, nogil=True)
def assign(slots: Array, classes: Array, held: Array, index: IndexArrays) -> None:
    """Put each class into its slot in turn. `held` is the class by slot, and is updated. -1 is no class."""
    for i in range(len(slots)):
        slot = slots[i]
        if held[slot] >= 0:
            remove(slot, held[slot], index)
        if classes[i] >= 0:
            add(slot, classes[i], index)
        held[slot] = classes[i]


@numba.njit(cache=True, nogil=True)
def follow(starts: Array, links: Array, rows: Array) -> None:
    """Fill each of `rows` [n, most] with a start and what it links to in turn, until row 0 or one that is not there."""
    for i in range(len(starts)):
        row = starts[i]
        for place in range(rows.shape[1]):
            if not 0 < row < len(links):
                break
            rows[i, place] = row
            row = links[row]
