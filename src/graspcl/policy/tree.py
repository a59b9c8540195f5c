"""Draws by weight without replacement while weights change, O(log N) for a draw or a change, compiled.

Every leaf has a level and a weight. A draw falls on a leaf of the highest level there is, with probability proportional
to its weight among the leaves of that level. Weights alone (`by_weight`) make a sum-tree; levels alone (`by_level`)
give the largest first, ties in random order; and zero weights are a lower level, drawn only when nothing else is left.

The tree is one array [2N, 2] of (level, weight): node p has the children 2p and 2p + 1, leaf i is node N + i, and an
inner node holds the highest level below it and the sum of the weights there. Sums are always taken anew from the two
children, never corrected by a difference, so they stay as accurate as when the tree was built.
"""

from __future__ import annotations

import numba
import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError


def by_weight(weights: Array) -> Array:
    """Leaves [n, 2] that are drawn with probability ~ `weights` [n] ≥ 0; those of weight 0 after all others, uniformly.

    >>> by_weight(np.array([0.5, 0.0, 3.0])).tolist()
    [[1.0, 0.5], [0.0, 1.0], [1.0, 3.0]]
    """
    some = weights > 0
    return np.column_stack([some, np.where(some, weights, 1.0)])


def by_level(levels: Array) -> Array:
    """Leaves [n, 2] that are drawn from the largest of `levels` [n] downwards, equal ones in random order."""
    return np.column_stack([levels, np.ones(len(levels))])


@numba.njit(cache=True, nogil=True, inline="always")
def _join(tree: Array, parent: int) -> None:
    left, right = 2 * parent, 2 * parent + 1
    if tree[left, 0] == tree[right, 0]:
        tree[parent, 0] = tree[left, 0]
        tree[parent, 1] = tree[left, 1] + tree[right, 1]
    else:
        higher = left if tree[left, 0] > tree[right, 0] else right
        tree[parent, 0] = tree[higher, 0]
        tree[parent, 1] = tree[higher, 1]


@numba.njit(cache=True, nogil=True, inline="always")
def _set(tree: Array, node: int, level: float, weight: float) -> None:
    tree[node, 0], tree[node, 1] = level, weight
    while node > 1:
        node >>= 1
        _join(tree, node)


@numba.njit(cache=True, nogil=True)
def build(leaves: Array) -> Array:
    """The tree [2N, 2] over `leaves` [N, 2], N ≥ 1; the sum of their weights must be finite."""
    n = len(leaves)
    tree = np.zeros((2 * n, 2))
    tree[n:] = leaves
    for parent in range(n - 1, 0, -1):
        _join(tree, parent)
    return tree


@numba.njit(cache=True, nogil=True)
def update(tree: Array, slots: Array, leaves: Array) -> None:
    """Put `leaves` [n, 2] in place of those at `slots` [n], one after the other."""
    n = len(tree) // 2
    for i in range(len(slots)):
        _set(tree, n + slots[i], leaves[i, 0], leaves[i, 1])


@numba.njit(cache=True, nogil=True, inline="always")
def _find(tree: Array, chance: float) -> int:
    """The leaf that a uniform number in [0, 1) falls on.

    Rounding may carry the target past the sum of a subtree, but not past the subtree: the walk only enters nodes of the
    root's level, and below each of them is a leaf of that level, which has weight.
    """
    node, target = 1, chance * tree[1, 1]
    while 2 * node < len(tree):
        left = 2 * node
        if tree[left, 0] > tree[left + 1, 0]:
            node = left
        elif tree[left, 0] < tree[left + 1, 0]:
            node = left + 1
        elif target < tree[left, 1]:
            node = left
        else:
            target -= tree[left, 1]
            node = left + 1
    return node


@numba.njit(cache=True, nogil=True)
def draw(tree: Array, chances: Array) -> Array:
    """Slots [n] of n ≤ N different leaves, one after the other; `chances` [n] are uniform numbers in [0, 1).

    What was drawn lies below every level until the last draw; afterwards the tree is as it was before.
    """
    n = len(tree) // 2
    if len(chances) > n:
        raise GraspError("more draws without replacement than there are leaves")
    nodes = np.empty(len(chances), np.int64)
    held = np.empty((len(chances), 2))
    for i in range(len(chances)):
        node = _find(tree, chances[i])
        nodes[i] = node
        held[i] = tree[node]
        _set(tree, node, -np.inf, 0.0)
    for i in range(len(nodes)):
        _set(tree, nodes[i], held[i, 0], held[i, 1])
    return nodes - n
