"""Algorithm 1 (see `graspcl.policy.grasp`) as an exponential race, compiled.

Algorithm 1 draws a sample of a class with probability proportional to 1 / (d + ε), then adds max d to its distance. A
race has exactly the same distribution of draws:

- Every sample arrives at time E · (d + ε) with E ~ Exp(1). The earliest arrival t is the draw.
- The drawn sample gets its new distance and arrives again at t + E' · (d + ε).

Exponential waiting times have no memory, so at each draw all samples race with their current rates. A draw costs
O(log J) instead of O(J). Three facts keep it fast and exact:

- A drawn sample becomes the farthest of its class (d + max d ≥ max d), so the maximum is the last updated distance.
- First arrivals are sorted once. Only samples that were drawn wait in a heap, and they rarely return within a pass.
- Distances grow by a factor of about J per pass. Before they overflow, times, distances and ε are scaled down together.
"""

import numba
import numpy as np

from graspcl.checks import Array

_LARGE = 1e100


@numba.njit(cache=True, nogil=True)
def argsort_arrivals(times: Array) -> Array:
    """Return the indices that sort positive times, in expected linear time.

    A counting sort on the leading bits of the float (exponent and some mantissa, that is, the logarithm), finished by
    insertion. The logarithm of E · (d + ε) has a density of at most 1/e for any d. So with about J buckets per octave,
    each bucket holds a bounded number of samples.
    """
    n = len(times)
    bits = times.view(np.int64)
    mantissa = 2
    while (1 << mantissa) < n >> 3 and mantissa < 20:
        mantissa += 1
    low, high = bits.min(), bits.max()
    while ((high >> (52 - mantissa)) - (low >> (52 - mantissa))) > max(8 * n, 64) and mantissa > 0:
        mantissa -= 1
    shift = 52 - mantissa
    base = low >> shift
    begin = np.zeros((high >> shift) - base + 2, np.int32)
    for i in range(n):
        begin[(bits[i] >> shift) - base + 1] += 1
    for b in range(1, len(begin)):
        begin[b] += begin[b - 1]
    order = np.empty(n, np.int32)
    for i in range(n):
        b = (bits[i] >> shift) - base
        order[begin[b]] = i
        begin[b] += 1
    for k in range(1, n):
        i, j = order[k], k
        while j > 0 and times[order[j - 1]] > times[i]:
            order[j] = order[j - 1]
            j -= 1
        order[j] = i
    return order


@numba.njit(cache=True, nogil=True, inline="always")
def _lift(times: Array, who: Array, at: int, time: float, sample: int) -> None:
    """Put (time, sample) into the heap's hole `at` and move it up past later arrivals."""
    while at > 0:
        parent = (at - 1) >> 1
        if times[parent] <= time:
            break
        times[at], who[at] = times[parent], who[parent]
        at = parent
    times[at], who[at] = time, sample


@numba.njit(cache=True, nogil=True, inline="always")
def _replace_top(times: Array, who: Array, n: int, time: float, sample: int) -> None:
    """Replace the top by (time, sample): walk the hole to a leaf, then lift. A late newcomer hardly moves."""
    at, child = 0, 1
    while child < n:
        if child + 1 < n and times[child + 1] < times[child]:
            child += 1
        times[at], who[at] = times[child], who[child]
        at, child = child, 2 * child + 1
    _lift(times, who, at, time, sample)


@numba.njit(cache=True, nogil=True)
def race_class(
    distances: Array,
    eps: float,
    first: Array,
    again: Array,
    drawn: Array,
    nearest: float = -1.0,
    farthest: float = -1.0,
) -> None:
    """Draw `len(drawn)` samples of one class into `drawn`, as indices into `distances` [J].

    `first` [J] and `again` [len(drawn)] are Exp(1) numbers, for the first arrivals and for the return of each draw.
    `nearest` and `farthest` are the extreme distances of the class, if `distances` has only the `len(drawn)` samples of
    it that arrive first, or more.
    """
    n = len(distances)
    if farthest < 0:
        nearest, farthest = distances.min(), distances.max()
    unit = max(farthest, eps)
    d = distances / unit
    eps /= unit
    nearest /= unit
    farthest /= unit
    # An exponential number of exactly 0 has probability 2^-53. The floor keeps the sort's range of octaves small.
    # It lies far below the first arrival of the nearest sample, so two samples never arrive together because of it.
    arrival = np.maximum(first * (d + eps), (nearest + eps) * 2.0**-80)
    order = argsort_arrivals(arrival)
    times, who = np.empty(n), np.empty(n, np.int32)  # a heap of the samples that were drawn before
    waiting = arrived = 0
    for r in range(len(drawn)):
        fresh = arrived < n and (waiting == 0 or arrival[order[arrived]] <= times[0])
        i = order[arrived] if fresh else who[0]
        now = arrival[i] if fresh else times[0]
        drawn[r] = i
        d[i] += farthest
        farthest = d[i]
        back = now + again[r] * (farthest + eps)
        if fresh:
            _lift(times, who, waiting, back, i)
            arrived += 1
            waiting += 1
        else:
            _replace_top(times, who, waiting, back, i)
        if farthest > _LARGE:
            # Only ratios of rates and the order of arrivals matter: restart time at `now`, in larger units.
            eps /= farthest
            for j in range(n):
                d[j] /= farthest
                arrival[j] = (arrival[j] - now) / farthest
            for j in range(waiting):
                times[j] = (times[j] - now) / farthest
            farthest = 1.0


@numba.njit(cache=True, nogil=True)
def race_classes(
    distances: Array, offsets: Array, draws: Array, eps: float, first: Array, again: Array, order: Array
) -> None:
    """Run `race_class` for consecutive classes: `distances[offsets[c] : offsets[c + 1]]` belongs to class c.

    `draws[c]` samples of class c are written to `order`, class after class, as indices into `distances`.
    """
    at, origin = 0, offsets[0]
    for c in range(len(draws)):
        begin, end, after = offsets[c], offsets[c + 1], at + draws[c]
        race_class(distances[begin:end], eps, first[begin - origin : end - origin], again[at:after], order[at:after])
        order[at:after] += begin
        at = after
