"""Sequential steps of the class index, compiled: one-by-one insertion has an order that numpy cannot keep in a batch.

The arrays (see `classindex.ClassIndex`): `pool[start[c] : start[c] + size[c]]` are the slots of class c, `pos[slot]`
is a slot's place therein; `order` lists the classes from largest to smallest, `rank` is its inverse, and `above[n]`
is the number of classes with more than n samples. With these, finding the largest classes, adding and removing a
sample are each a handful of assignments, however many samples and classes there are.
"""

from __future__ import annotations

import numba

from graspcl.checks import Array


@numba.njit(cache=True, nogil=True, inline="always")
def _move_to(c: int, position: int, order: Array, rank: Array) -> None:
    other, old = order[position], rank[c]
    order[old], order[position] = other, c
    rank[other], rank[c] = old, position


@numba.njit(cache=True, nogil=True)
def add(
    slot: int, c: int, pool: Array, start: Array, size: Array, pos: Array, order: Array, rank: Array, above: Array
) -> None:
    """Append a slot to class c."""
    n = size[c]
    pool[start[c] + n] = slot
    pos[slot] = n
    _move_to(c, above[n], order, rank)
    above[n] += 1
    size[c] = n + 1


@numba.njit(cache=True, nogil=True)
def remove(
    slot: int, c: int, pool: Array, start: Array, size: Array, pos: Array, order: Array, rank: Array, above: Array
) -> None:
    """Take a slot out of class c; the class's last slot takes its place."""
    n = size[c] - 1
    last = pool[start[c] + n]
    pool[start[c] + pos[slot]] = last
    pos[last] = pos[slot]
    _move_to(c, above[n] - 1, order, rank)
    above[n] -= 1
    size[c] = n


@numba.njit(cache=True, nogil=True, inline="always")
def _victim(chance: Array, pool: Array, start: Array, size: Array, order: Array, above: Array) -> tuple[int, int]:
    """A random slot of a random one of the largest classes; `chance` holds two uniform numbers in [0, 1)."""
    ties = above[size[order[0]] - 1]
    c = order[int(chance[0] * ties)]
    return pool[start[c] + int(chance[1] * size[c])], c


@numba.njit(cache=True, nogil=True)
def replace_largest(
    classes: Array, chances: Array, slots: Array,
    pool: Array, start: Array, size: Array, pos: Array, order: Array, rank: Array, above: Array,
) -> None:  # fmt: skip
    """For each incoming class in turn: evict a random sample of the largest class and put the newcomer in its slot."""
    for i in range(len(classes)):
        slot, c = _victim(chances[i], pool, start, size, order, above)
        remove(slot, c, pool, start, size, pos, order, rank, above)
        add(slot, classes[i], pool, start, size, pos, order, rank, above)
        slots[i] = slot


@numba.njit(cache=True, nogil=True)
def remove_largest(
    chances: Array, slots: Array,
    pool: Array, start: Array, size: Array, pos: Array, order: Array, rank: Array, above: Array,
) -> None:  # fmt: skip
    """Evict a random sample of the largest class, as many times as there are chances."""
    for i in range(len(slots)):
        slot, c = _victim(chances[i], pool, start, size, order, above)
        remove(slot, c, pool, start, size, pos, order, rank, above)
        slots[i] = slot


@numba.njit(cache=True, nogil=True)
def assign(
    slots: Array, classes: Array, old: Array,
    pool: Array, start: Array, size: Array, pos: Array, order: Array, rank: Array, above: Array,
) -> None:  # fmt: skip
    """Put each class into its slot in turn; `old[i]` is the class that the slot held before, or -1."""
    for i in range(len(slots)):
        if old[i] >= 0:
            remove(slots[i], old[i], pool, start, size, pos, order, rank, above)
        add(slots[i], classes[i], pool, start, size, pos, order, rank, above)


@numba.njit(cache=True, nogil=True)
def discard(
    slots: Array, classes: Array,
    pool: Array, start: Array, size: Array, pos: Array, order: Array, rank: Array, above: Array,
) -> None:  # fmt: skip
    """Take each slot out of its class."""
    for i in range(len(slots)):
        remove(slots[i], classes[i], pool, start, size, pos, order, rank, above)
