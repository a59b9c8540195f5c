"""Batches in which a value comes several times: which occurrence is which, and which is the last."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def occurrence(values: Array) -> Array:
    """How often each value came before.

    >>> occurrence(np.array([3, 5, 3, 3])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(values, kind="stable")
    _, begins, counts = np.unique(values[order], return_index=True, return_counts=True)
    result = np.empty(len(values), np.int64)
    result[order] = np.arange(len(values)) - np.repeat(begins, counts)
    return result


def last_owner(slots: Array) -> Array:
    """Where a slot was given to several samples of a batch, only the last keeps it; the others get -1.

    >>> last_owner(np.array([7, 2, 7, -1])).tolist()
    [-1, 2, 7, -1]
    """
    seen, last = np.unique(slots[::-1], return_index=True)
    result = np.full(len(slots), -1, np.int64)
    result[len(slots) - 1 - last] = seen
    return result
