"""GRASP's race over shards, with draws by sample: each finds its earliest arrivals, and an owner merges a class."""

from __future__ import annotations

import numpy as np

from graspcl.checks import Array
from graspcl.policy.drawing import keyed_exponentials

_CHUNK = 1 << 18  # samples whose arrivals are computed at a time


def earliest(key: int, births: Array, slots: Array, d: Array, k: Array, draws: Array, eps: float) -> Array:
    """Return which samples of a shard can be drawn: of each class as many as it has draws, those that arrive first.

    Memory is needed for about twice as many samples as are returned, not for all arrivals.

    Args:
        key: of the race.
        births: of the samples in all slots [N].
        slots: of the shard's samples [n].
        d: their distances [n].
        k: their classes [n], 0 … K-1.
        draws: of each class [K].
        eps: added to distances.

    Returns:
        Positions, class after class, in order of arrival.
    """
    limit = np.full(len(draws), np.inf)  # later arrivals of a class are not drawn
    found, times, waiting = [np.empty(0, np.int64)], [np.empty(0)], 0
    for begin in range(0, len(d), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        arrival = keyed_exponentials(key, births[slots[part]]) * (d[part] + eps)
        early = np.flatnonzero(arrival <= limit[k[part]])
        found.append(begin + early)
        times.append(arrival[early])
        waiting += len(early)
        if waiting > draws.sum() + _CHUNK or part.stop >= len(d):
            rows, arrived = np.concatenate(found), np.concatenate(times)
            order = np.lexsort((arrived, k[rows]))
            rows, arrived = rows[order], arrived[order]
            classes = k[rows]
            sizes = np.bincount(classes, minlength=len(draws))
            place = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            last = place == draws[classes] - 1
            limit[classes[last]] = arrived[last]
            limit[draws == 0] = -np.inf
            kept = place < draws[classes]
            found, times, waiting = [rows[kept]], [arrived[kept]], 0
    return found[0]


def race_owned(
    keys: tuple[int, int], births: Array, d: Array, k: Array, owned: Array, ends: Array, extremes: Array, eps: float
) -> list[Array]:
    """Return the draws of each class in `owned`, as positions among the candidates of all shards.

    Args:
        keys: of the race, for first arrivals and for returns.
        births: of the candidates [n].
        d: their distances [n].
        k: their classes [n], sorted.
        owned: the classes.
        ends: where the draws of each class end [K + 1], counted class after class; the first is 0.
        extremes: the smallest and the largest distance of each class [2, K].
        eps: added to distances.
    """
    from graspcl.policy.race import race_class  # compiled code is loaded where it is used

    first, drawn = keyed_exponentials(keys[0], births), []
    begins, stops = np.searchsorted(k, owned), np.searchsorted(k, owned, side="right")
    for one, begin, stop in zip(owned, begins, stops, strict=True):
        again = keyed_exponentials(keys[1], np.arange(ends[one], ends[one + 1]))
        drawn.append(np.empty(len(again), np.int64))
        race_class(d[begin:stop], eps, first[begin:stop], again, drawn[-1], extremes[0, one], extremes[1, one])
        drawn[-1] += begin
    return drawn
