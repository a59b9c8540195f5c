"""Draw by weight without replacement while weights change: O(log N) for a draw or a change, compiled.

Every leaf has a level and a weight. A draw falls on a leaf of the highest level present, with probability proportional
to its weight among the leaves of that level.

- Weights alone (`by_weight`) make a sum-tree. Zero weights are a lower level, drawn only when nothing else is left.
- Levels alone (`by_level`) give the largest first, ties in random order.

The tree is one array [2N, 2] of (level, weight). Node p has the children 2p and 2p + 1, and leaf i is node N + i. An
inner node holds the highest level below it and the sum of the weights at that level. Sums are always recomputed from
the two children, never corrected by a difference, so they stay as accurate as when the tree was built.
"""

import numba
import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError


def by_weight(weights: Array) -> Array:
    """Return leaves [n, 2] drawn with probability ~ `weights` [n] ≥ 0; weights of 0 come last, uniformly."""
    some = weights > 0
    return np.column_stack([some, np.where(some, weights, 1.0)])


def by_level(levels: Array) -> Array:
    """Return leaves [n, 2] drawn from the largest of `levels` [n] downwards, ties in random order."""
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
    """Return the tree [2N, 2] over `leaves` [N, 2], N ≥ 1. The sum of the weights must be finite."""
    n = len(leaves)
    tree = np.zeros((2 * n, 2))
    tree[n:] = leaves
    for parent in range(n - 1, 0, -1):
        _join(tree, parent)
    return tree


@numba.njit(cache=True, nogil=True)
def update(tree: Array, slots: Array, leaves: Array) -> None:
    """Replace the leaves at `slots` [n] by `leaves` [n, 2], one after the other."""
    n = len(tree) // 2
    for i in range(len(slots)):
        _set(tree, n + slots[i], leaves[i, 0], leaves[i, 1])


@numba.njit(cache=True, nogil=True)
def draw(tree: Array, chances: Array) -> Array:
    """Draw the slots [n] of n ≤ N different leaves, one after the other, from uniform `chances` [n] in [0, 1).

    Drawn leaves are lowered below every level until the last draw. Afterwards the tree is unchanged.
    """
    n = len(tree) // 2
    if len(chances) > n:
        raise GraspError("more draws without replacement than there are leaves")
    nodes = np.empty(len(chances), np.int64)
    held = np.empty((len(chances), 2))
    for i in range(len(chances)):
        # Rounding may carry the target past the sum of a subtree, but not past the subtree: the walk only enters nodes
        # of the root's level, and below each of them is a leaf of that level with a positive weight.
        node, target = 1, chances[i] * tree[1, 1]
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
        nodes[i] = node
        held[i] = tree[node]
        _set(tree, node, -np.inf, 0.0)
    for i in range(len(nodes)):
        _set(tree, nodes[i], held[i, 0], held[i, 1])
    return nodes - n
