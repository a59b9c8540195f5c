"""Maintenance rules that read columns: the largest class evicts, and a score of its samples decides which."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from graspcl.buffer.maintenance import Maintenance, rules
from graspcl.checks import Array, Count, Natural, Range
from graspcl.errors import GraspError

if TYPE_CHECKING:
    import torch

    from graspcl.buffer.buffer import Buffer
    from graspcl.buffer.maintenance import Head


_ROUNDING = 1e-9  # of squared lengths: distances that differ by less are equal


class ByClassRule(Maintenance):
    """While the buffer is over its capacity, the largest class (including newcomers) loses a sample.

    A batch is handled as a whole: the losses of every class are counted first, and each class with losses is asked once
    for its `victims`. Class sizes end as they would one by one, up to ties, which are broken uniformly. A subclass
    defines `victims` and, unless it reads embeddings, names its one column in `columns`.
    """

    columns = frozenset({"embedding"})
    unread: ClassVar[Set[str]] = frozenset()  # further columns, which `victims` does not read
    one_by_one = False

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        """Return which `number` (0 < number < n) samples of class `label` are evicted, as positions in `values` [n, …].

        `values` is the rule's column for the stored samples of the class, then for its newcomers in order of arrival.
        """
        raise GraspError(f"{type(self).__name__} must define victims(label, values, number, rng)")

    def place(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        stored = len(buffer)
        room = len(labels) if buffer.capacity is None else buffer.capacity - stored
        if room >= len(labels):
            return buffer.append(labels)
        (column,) = self.columns - self.unread
        goes = np.zeros(stored + len(labels), bool)
        goes[self._leaving(buffer, labels, buffer.incoming[column], len(labels) - room, rng)] = True
        stay, freed = np.flatnonzero(~goes[stored:]), np.flatnonzero(goes[:stored])
        slots = np.full(len(labels), -1, np.int64)
        slots[stay[:room]] = buffer.append(labels[stay[:room]])
        slots[stay[room:]] = freed
        buffer.overwrite(freed, labels[stay[room:]])
        return slots

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        (column,) = self.columns - self.unread
        return buffer.discard(self._leaving(buffer, np.empty(0, np.int64), buffer[column][:0], excess, rng))

    def _leaving(self, buffer: Buffer, labels: Array, incoming: Array, number: int, rng: np.random.Generator) -> Array:
        """Slots of the `number` samples that are evicted. Newcomers are numbered after the last slot."""
        (column,) = self.columns - self.unread
        known = np.concatenate([buffer.classes, labels])
        sizes = np.bincount(labels, minlength=int(known.max(initial=-1)) + 1)
        sizes[buffer.classes] += buffer.sizes
        lost, gone = losses(sizes, number, rng), [np.empty(0, np.int64)]
        for label in np.flatnonzero(lost).tolist():
            slots, new = buffer.slots_of(label), np.flatnonzero(labels == label)
            members = np.concatenate([slots, len(buffer) + new]).astype(np.int64)
            if lost[label] < len(members):
                values = np.concatenate([buffer[column][slots], incoming[new]]).astype(np.float64)
                members = members[self.victims(label, values, int(lost[label]), rng)]
            gone.append(members)
        return np.concatenate(gone)


def losses(sizes: Array, number: int, rng: np.random.Generator) -> Array:
    """Return how many samples each class [K] loses if the largest loses one, `number` times; ties are broken uniformly.

    >>> losses(np.array([5, 1, 9]), 8, np.random.default_rng(0)).tolist()
    [2, 0, 6]
    """
    keep = int(sizes.sum()) - number
    # The size that every class may keep. Some of the larger classes may keep one more.
    level = bisect_right(range(int(sizes.max(initial=0)) + 1), keep, key=lambda top: np.minimum(sizes, top).sum()) - 1
    kept = np.minimum(sizes, level)
    larger = rng.permutation(np.flatnonzero(sizes > level))
    kept[larger[: keep - int(kept.sum())]] += 1
    return sizes - kept


def squared_distances(a: Array, b: Array) -> Array:
    """Return squared Euclidean distances [n, m] between the rows of a [n, d] and b [m, d]."""
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.asarray(np.maximum(squares, 0))


def unit(vectors: Array) -> Array:
    """Return vectors [n, d] scaled to length 1. A vector of zeros is unchanged."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


@rules.register("herding")
class HerdingRule(ByClassRule):
    """iCaRL's exemplars (Rebuffi et al. 2017): the largest class loses the samples last in its herding order.

    Step t = 0, 1, … takes the remaining sample that minimises ‖μ - (S + h)/(t + 1)‖, where μ is the mean of the
    L2-normalised embeddings h and S the sum of those taken. Stored samples and newcomers of the class count. The order
    is computed at most once per class and batch: O(n²d) for a class of n.
    """

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        return np.setdiff1d(np.arange(len(values)), herding_order(values, len(values) - number))


def herding_order(embeddings: Array, number: int) -> Array:
    """Return the first `number` samples [number] of the herding order of embeddings [n, d].

    >>> herding_order(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), 2).tolist()
    [2, 0]
    """
    h = unit(embeddings)
    squares, pull = (h**2).sum(1), h @ h.mean(0)
    order, taken = np.empty(number, np.int64), np.zeros(len(h))  # h·S
    for t in range(number):
        # ‖(t + 1)μ - S - h‖² without the terms common to all samples.
        cost = squares + 2 * (taken - (t + 1) * pull)
        cost[order[:t]] = np.inf
        order[t] = cost.argmin()
        taken += h @ h[order[t]]
    return order


@rules.register("kmeans")
@dataclass
class KMeansRule(ByClassRule):
    """One sample per cluster, the one nearest to its centre, as IDBR keeps samples (Huang et al. 2021).

    When the largest class must shrink to m samples, its embeddings (stored and new) are clustered into m by
    `iterations` of Lloyd's algorithm from a k-means++ start. Of samples that are equally near, such as the two of a
    cluster, the first in the class's order stays. If clusters end empty, the samples farthest from their
    centres fill up. Computed per class and batch: O(nmd). (The online k-means of Chaudhry et al. 2019 is not published
    in enough detail.)
    """

    iterations: Natural = 5

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        keep = len(values) - number
        centres = _spread_centres(values, keep, rng)
        for _ in range(self.iterations):
            cluster = squared_distances(values, centres).argmin(1)
            sums, sizes = np.zeros_like(centres), np.bincount(cluster, minlength=keep)
            np.add.at(sums, cluster, values)
            centres[sizes > 0] = sums[sizes > 0] / sizes[sizes > 0, None]
        distances = squared_distances(values, centres)
        cluster, distance = distances.argmin(1), distances.min(1)
        least = np.full(keep, np.inf)
        np.minimum.at(least, cluster, distance)
        # Two samples of a cluster are as near to their centre: the first stays, whatever rounding makes of it.
        close = np.flatnonzero(distance <= least[cluster] + _ROUNDING * (values**2).sum(1))
        _, nearest = np.unique(cluster[close], return_index=True)
        order = -distance
        order[close[nearest]] = -np.inf
        return np.argsort(order, kind="stable")[keep:]


def _spread_centres(values: Array, number: int, rng: np.random.Generator) -> Array:
    """k-means++: draw each next centre with probability ~ d², the squared distance to the nearest so far."""
    chosen = [int(rng.integers(len(values)))]
    distance = squared_distances(values, values[chosen])[:, 0]
    while len(chosen) < number:
        distance[chosen] = 0
        total = distance.sum()
        # If all others are copies of a centre, draw any of them.
        weights = distance / total if total > 0 else np.full(len(values), 1 / len(values))
        chosen.append(int(rng.choice(len(values), p=weights)))
        distance = np.minimum(distance, squared_distances(values, values[chosen[-1:]])[:, 0])
    return values[chosen]


@rules.register("exstream")
class ExStreamRule(ByClassRule):
    """ExStream (Hayes et al. 2019) on real samples: one of the two closest samples of the largest class is evicted.

    ExStream merges the two closest prototypes of a class into their average. Stored codes cannot be averaged, so the
    one nearer to the class mean stays. The mean includes the batch's newcomers. O(n²d) in time and n² numbers in memory
    for a class of n, once per batch.
    """

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        off_centre = ((values - values.mean(0)) ** 2).sum(1)
        apart = squared_distances(values, values)
        np.fill_diagonal(apart, np.inf)
        gone = np.empty(number, np.int64)
        for i in range(number):
            pair = np.array(np.unravel_index(apart.argmin(), apart.shape))
            gone[i] = pair[off_centre[pair].argmax()]
            apart[gone[i]] = apart[:, gone[i]] = np.inf
        return gone


@rules.register("rainbow")
class RainbowRule(ByClassRule):
    """Rainbow Memory (Bang et al. 2021): the largest class keeps samples evenly spread from certain to uncertain.

    The original takes every ⌊n/m⌋-th sample by uncertainty once per task. For one sample at a time that stride is 1 and
    would drop the most uncertain ones. So here the densest place is thinned (`thinned`). A learner refreshes the
    uncertainty of a sample in every update on it.
    """

    columns = frozenset({"uncertainty"})

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        return thinned(values, number, rng)


@rules.register("grasp")
class GraspRule(ByClassRule):
    """GRASP's order as a rule: the largest class keeps samples evenly spread from prototypical to atypical.

    d = 1 - cos(z, q), where q is the class mean of stored samples and newcomers. The densest place along d is thinned
    (`thinned`), so that a session finds easy and hard samples. (Harun et al. name storage by prototypicality as future
    work; this rule is the library's own.)
    """

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        return thinned(1 - unit(values) @ unit(values.mean(0)), number, rng)


def thinned(scores: Array, number: int, rng: np.random.Generator) -> Array:
    """Return which `number` of scores [n] to remove so that the others stay evenly spread.

    Each step removes the score whose lower and upper neighbours are closest to each other. The smallest and the largest
    stay to the last. Ties are broken uniformly.

    >>> thinned(np.array([0.0, 0.5, 0.55, 1.0]), 1, np.random.default_rng(0)).tolist()
    [2]
    """
    left, gone = np.argsort(scores, kind="stable"), []
    for _ in range(number):
        gaps = np.full(len(left), np.inf)
        gaps[1:-1] = scores[left[2:]] - scores[left[:-2]]
        out = rng.choice(np.flatnonzero(gaps == gaps.min()))
        gone.append(left[out])
        left = np.delete(left, out)
    return np.array(gone)


@rules.register("mof")
@dataclass
class MofRule(ByClassRule):
    """Mean of features (Chaudhry et al. 2019): the largest class keeps the samples nearest to its running mean.

    μ ← decay·μ + (1 - decay)·z for every arriving sample of the class, kept or not, starting from the first; a batch
    moves μ before it is placed. Updates on stored samples refresh their z and move μ in the same way.

    A newcomer of the largest class (including itself) replaces the class's farthest sample (Euclidean) if it is nearer,
    and else is not kept. A newcomer of another class replaces the farthest sample of the largest class. The paper gives
    no decay; 0.9 is this library's choice.
    """

    decay: Annotated[float, Range(0, 1, below=True)] = 0.9
    _means: dict[int, Array] = field(default_factory=dict, init=False, repr=False)

    def arriving(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> None:
        self._move(labels, buffer.incoming["embedding"])

    def trained(self, buffer: Buffer, slots: Array, outputs: Any, targets: torch.Tensor, head: Head) -> None:
        super().trained(buffer, slots, outputs, targets, head)
        self._move(buffer.labels[slots], buffer["embedding"][slots])

    def _move(self, labels: Array, embeddings: Array) -> None:
        order = np.argsort(labels, kind="stable")
        classes, begins, counts = np.unique(labels[order], return_index=True, return_counts=True)
        z = embeddings[order].astype(np.float64)
        after = np.repeat(begins + counts, counts) - 1 - np.arange(len(labels))  # samples of the class that follow
        steps = np.add.reduceat((1 - self.decay) * self.decay ** after[:, None] * z, begins)
        for label, begin, count, step in zip(classes.tolist(), begins, counts, steps, strict=True):
            self._means[label] = self.decay**count * self._means.get(label, z[begin]) + step

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        mean = self._means.get(label, values.mean(0))  # unknown for a class stored under another rule
        distance = ((values - mean) ** 2).sum(1)
        return np.argsort(distance, kind="stable")[-number:]  # newcomers come last, so they lose ties

    def state_dict(self) -> dict[str, Any]:
        return {"labels": np.array(list(self._means), np.int64), "means": np.array(list(self._means.values()))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._means = dict(zip(np.array(state["labels"]).tolist(), np.array(state["means"]), strict=True))


@rules.register("clib")
@dataclass
class ClibRule(ByClassRule):
    """CLIB (Koh et al. 2022): the largest class, including newcomers, loses the samples of smallest importance.

    I ← decay·I + (1 - decay)·(l before - l now), each time a learner trains on a sample whose loss was l when it was
    last trained on. So what training on a sample gained is known when it comes again, without a further forward pass.
    (The original evaluates all stored samples after every update.)

    A newcomer starts with the mean of its class, the first of a class with the mean of all, the very first with 0. Ties
    are broken uniformly. So without a learner this is `largest_class`, but newcomers can be evicted too.
    """

    decay: Annotated[float, Range(0, 1, below=True)] = 0.9
    columns = frozenset({"importance", "last_loss"})  # a last loss of -1: never trained on
    fills = columns
    unread = frozenset({"last_loss"})

    def arriving(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> None:
        stored = buffer["importance"]
        first = np.zeros_like(buffer.incoming["importance"])
        for label in np.unique(labels).tolist():
            peers = stored[buffer.slots_of(label)]
            first[labels == label] = (peers if len(peers) else stored).mean() if len(stored) else 0
        buffer.incoming["importance"] = first
        buffer.incoming["last_loss"] = np.full_like(buffer.incoming["last_loss"], -1)

    def trained(self, buffer: Buffer, slots: Array, outputs: Any, targets: torch.Tensor, head: Head) -> None:
        losses, before = outputs.losses.numpy(force=True), buffer["last_loss"][slots]
        again = np.flatnonzero(before >= 0)
        kept = self.decay * buffer["importance"][slots[again]]
        buffer["importance"][slots[again]] = kept + (1 - self.decay) * (before - losses)[again]
        buffer["last_loss"][slots] = losses

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        shuffled = rng.permutation(len(values))
        return shuffled[np.argsort(values[shuffled], kind="stable")[:number]]


_FIRST = 0.1  # the score of samples that enter an empty buffer, as in the original


@rules.register("gss")
@dataclass
class GssRule(Maintenance):
    """GSS-greedy (Aljundi et al. 2019): a sample whose gradient resembles others' is more likely to be evicted.

    The score C is the largest cosine of a sample's gradient with those of `references` random stored samples. It is
    computed once, on arrival, and kept in the column "similarity". In a full buffer the newcomers draw distinct victims
    i with probability proportional to (C_i - min C)/(max C - min C + 0.01). Each replaces its victim with probability
    C_i'/(c' + C_i'), where z' = (z + 1)/2 and c is its own score; else it is not kept. With overflow, `compress` draws
    all victims in this way. Classes play no part.

    The original's references are gradients of mini-batches, and it considers only batches whose mean gradient scores
    below `threshold` 0. The default 1 considers all.
    """

    references: Count = 10
    threshold: float = 1.0
    columns = frozenset({"gradient", "similarity"})
    fills = frozenset({"similarity"})
    one_by_one = False

    def arriving(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> None:
        score = self._similarity(buffer, buffer.incoming["gradient"], len(buffer), rng)
        buffer.incoming["similarity"] = score.astype(buffer["similarity"].dtype)

    def replace(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        score = buffer.incoming["similarity"].astype(np.float64)
        placed = len(score) - len(labels)  # the first of the batch took free slots at the end
        stored = buffer["similarity"].astype(np.float64)
        stored[len(stored) - placed :] = score[:placed]
        slots, mean = np.full(len(labels), -1, np.int64), buffer.incoming["gradient"].mean(0, keepdims=True)
        if self._similarity(buffer, mean, len(buffer) - placed, rng)[0] > self.threshold:
            return slots
        for begin in range(0, len(labels), len(buffer)):  # victims are distinct, so one buffer at a time
            c = score[placed + begin :][: len(buffer)]
            victims = rng.choice(len(buffer), len(c), replace=False, p=_chances(stored))
            ours, theirs = (c + 1) / 2, (stored[victims] + 1) / 2
            enters = rng.random(len(c)) * (ours + theirs) < theirs
            slots[begin : begin + len(c)][enters] = victims[enters]
            stored[victims[enters]] = c[enters]
        buffer.overwrite(slots[slots >= 0], labels[slots >= 0])
        return slots

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        score = buffer["similarity"].astype(np.float64)
        gone = rng.choice(len(buffer), excess, replace=False, p=_chances(score)) if excess else np.arange(0)
        return buffer.discard(gone)

    def _similarity(self, buffer: Buffer, gradients: Array, stored: int, rng: np.random.Generator) -> Array:
        """The largest cosine [n] of gradients [n, d] with those of random samples in the first `stored` slots."""
        if not stored:
            return np.full(len(gradients), _FIRST)
        drawn = rng.choice(stored, min(self.references, stored), replace=False)
        cosines = unit(gradients.astype(np.float64)) @ unit(buffer["gradient"][drawn].astype(np.float64)).T
        return np.asarray(cosines.max(1)).clip(-1, 1)


def _chances(score: Array) -> Array:
    """Probability that each sample is the first victim."""
    weights = (score - score.min()) / (score.max() - score.min() + 0.01)
    weights += 1e-9  # equal scores are drawn uniformly, and the smallest when no other is left
    return np.asarray(weights / weights.sum())
