"""Draw samples: class by class and dealt out round-robin, or from a list of candidates.

Class-balanced policies spend their budget in rounds, one sample of each class per round. Members and draws are held
class after class ("class-major") and dealt out at the end.
"""

from typing import NamedTuple

import numpy as np
import torch

from graspcl.checks import Array


class Groups(NamedTuple):
    """Samples by class: `members[offsets[k] : offsets[k + 1]]` belong to the k-th class present."""

    members: Array
    offsets: Array

    @property
    def sizes(self) -> Array:
        """Samples of each class [K]."""
        return np.diff(self.offsets)

    @property
    def number(self) -> int:
        """K, the number of classes present."""
        return len(self.offsets) - 1

    @property
    def each(self) -> list[Array]:
        """Slots of each class present."""
        return np.split(self.members, self.offsets[1:-1])


def group_by_class(labels: Array) -> Groups:
    """Group samples by sorted class. Within a class they keep their order.

    >>> groups = group_by_class(np.array([7, 2, 7, 2, 2]))
    >>> groups.members.tolist(), groups.offsets.tolist()
    ([1, 3, 4, 0, 2], [0, 3, 5])
    """
    if len(labels) and labels.min() >= 0 and labels.max() <= 4 * len(labels):  # counting beats sorting
        counts = np.bincount(labels)
        sizes = counts[counts > 0]
        ranks = (np.cumsum(counts > 0) - 1)[labels]
    else:
        _, ranks, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return Groups(_stable_order(ranks, len(sizes)), np.concatenate(([0], np.cumsum(sizes))))


def draws_per_class(classes: int, budget: int) -> Array:
    """Return how many of `budget` round-robin draws each class gets [K]: equal within one, more for the first."""
    base, extra = divmod(budget, classes)
    return base + (np.arange(classes) < extra)


def round_robin(draws: Array, classes: int) -> Array:
    """Deal out class-major `draws`, one of each class per round. `draws_per_class` gives the number of each class.

    >>> round_robin(np.array([10, 11, 12, 20, 21, 22, 30, 31]), classes=3).tolist()
    [10, 20, 30, 11, 21, 31, 12, 22]
    """
    base, extra = divmod(len(draws), classes)
    longer = draws[: extra * (base + 1)].reshape(extra, base + 1)
    shorter = draws[extra * (base + 1) :].reshape(classes - extra, base)
    dealt = np.empty_like(draws)
    rounds = dealt[: base * classes].reshape(base, classes)
    rounds[:, :extra] = longer[:, :base].T
    rounds[:, extra:] = shorter.T
    dealt[base * classes :] = longer[:, base]
    return dealt


def uniform_draws(groups: Groups, budget: int, rng: np.random.Generator) -> Array:
    """Draw `budget` samples, round-robin over classes, uniform within a class with replacement."""
    draws = draws_per_class(groups.number, budget)
    # Truncate before adding the offsets: a float sum could round up into the next class.
    picks = (rng.random(budget) * np.repeat(groups.sizes, draws)).astype(np.int64)
    picks += np.repeat(groups.offsets[:-1], draws)
    return round_robin(groups.members[picks], groups.number)


def shuffled_draws(groups: Groups, budget: int, rng: np.random.Generator) -> Array:
    """Draw `budget` samples, round-robin over classes, without replacement within a class.

    When a class is used up, it starts again in a new random order.
    """
    draws = draws_per_class(groups.number, budget)
    sizes = groups.sizes
    passes = -(-draws // sizes)
    # One deck per class and pass, each a copy of the class's members. Shuffle everything, then collect the decks.
    deck_size = np.repeat(sizes, passes)
    first = np.repeat(groups.offsets[:-1], passes)
    place = np.arange(deck_size.sum()) - np.repeat(np.cumsum(deck_size) - deck_size, deck_size)
    member = np.repeat(first, deck_size) + place
    deck = np.repeat(np.arange(len(deck_size)), deck_size)
    shuffle = rng.permutation(len(deck))
    cards = member[shuffle[_stable_order(deck[shuffle], len(deck_size))]]
    # Only the first `draws` cards of each class are used.
    begin = np.cumsum(passes * sizes) - passes * sizes
    used = np.arange(budget) - np.repeat(np.cumsum(draws) - draws, draws) + np.repeat(begin, draws)
    return round_robin(groups.members[cards[used]], groups.number)


def weighted_draws(weights: Array, groups: Groups, budget: int, rng: np.random.Generator) -> Array:
    """Draw `budget` samples, round-robin over classes, with replacement and probability ~ `weights` [N] ≥ 0 in a class.

    A class whose weights are all zero is drawn from uniformly.
    """
    w = weights[groups.members].astype(np.float64)
    begin, sizes = groups.offsets[:-1], groups.sizes
    w[np.repeat(np.add.reduceat(w, begin) == 0, sizes)] = 1.0
    w /= np.repeat(np.add.reduceat(w, begin), sizes)
    cumulated = np.cumsum(w)
    ends = cumulated[groups.offsets[1:] - 1]
    starts = np.append(0.0, ends[:-1])
    draws = draws_per_class(groups.number, budget)
    # Rounding must not leave [start, end) of the class. There `side="right"` finds only samples with weight.
    targets = np.repeat(starts, draws) + rng.random(budget) * np.repeat(ends - starts, draws)
    targets = np.minimum(targets, np.repeat(np.nextafter(ends, starts), draws))
    picks = np.searchsorted(cumulated, targets, side="right")
    return round_robin(groups.members[picks], groups.number)


def keyed_exponentials(key: int, counters: Array) -> Array:
    """Return an Exp(1) number for each of `counters` [n] ≥ 0: a function of it and of `key` alone, in any order.

    The bits of a counter are mixed twice by the function of SplitMix64, which makes them uniform.

    >>> bool((keyed_exponentials(7, np.array([3, 5])) == keyed_exponentials(7, np.array([5, 3]))[::-1]).all())
    True
    """
    x = counters.astype(np.uint64) + np.uint64(key)
    for _ in range(2):
        x *= np.uint64(0x9E3779B97F4A7C15)
        x ^= x >> np.uint64(30)
        x *= np.uint64(0xBF58476D1CE4E5B9)
        x ^= x >> np.uint64(27)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
        x += np.uint64(key)
    return np.asarray(-np.log(((x >> np.uint64(11)) + 0.5) * 2.0**-53))


def candidates(slots: Array, number: int, rng: np.random.Generator) -> Array:
    """Draw `number` of `slots` uniformly without replacement, or all of them if there are fewer; in random order."""
    return rng.choice(slots, min(number, len(slots)), replace=False)


def whole_passes(slots: Array, number: int) -> tuple[Array, int]:
    """Repeat all `slots` as often as they fit into `number`; return them and how many slots are still missing."""
    whole, rest = divmod(number, len(slots))
    return (np.tile(slots, whole) if whole else slots[:0]), rest


def evenly(slots: Array, number: int, rng: np.random.Generator) -> Array:
    """Draw `number` slots uniformly. No slot comes again before all have come."""
    whole, rest = whole_passes(slots, number)
    drawn = rng.choice(slots, rest, replace=False)
    return np.append(whole, drawn) if len(whole) else drawn


def best(slots: Array, scores: torch.Tensor, k: int) -> Array:
    """Return the `k` of `slots` [n] with the largest `scores` [n], largest first. If n < k, the order is repeated.

    The earlier of two equals wins: give the slots in random order, as `candidates` does.
    """
    ranked = torch.argsort(scores, descending=True, stable=True).numpy(force=True)
    return slots[np.resize(ranked, k)]


def _stable_order(keys: Array, bound: int) -> Array:
    """Stable argsort of keys in 0 … bound-1. numpy sorts 16-bit keys in linear time."""
    return np.argsort(keys.astype(np.uint16) if bound <= 2**16 else keys, kind="stable")
