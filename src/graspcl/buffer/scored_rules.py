"""The family of rules in which the largest class makes room and a score decides which of its samples goes."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from graspcl.buffer.maintenance import Maintenance, rules
from graspcl.checks import Array
from graspcl.errors import GraspError

if TYPE_CHECKING:
    from graspcl.buffer.buffer import Buffer


class ByClass(Maintenance):
    """As often as the buffer is over its capacity, the largest class (newcomers counted) loses one of its samples.

    A batch is taken as a whole: what is stored and what comes in stand side by side, every class's losses are counted
    first, and each class that loses any is asked once for its `victims`. Class sizes end as they would one by one, up
    to ties, which are broken uniformly. A new rule names its one column in `columns` and defines `victims`.
    """

    one_by_one: ClassVar[bool] = False

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        """Which `number` (0 < number < n) samples of class `label` go, as positions in `values` [n, …], float64.

        `values` is the rule's column for what the class has stored, followed by its newcomers in order of arrival.
        """
        raise GraspError(f"{type(self).__name__} must define victims(label, values, number, rng)")

    def place(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        stored = len(buffer)
        room = len(labels) if buffer.capacity is None else buffer.capacity - stored
        if room >= len(labels):
            return buffer.append(labels)
        (column,) = self.columns
        goes = np.zeros(stored + len(labels), bool)
        goes[self._leaving(buffer, labels, buffer.incoming[column], len(labels) - room, rng)] = True
        stay, freed = np.flatnonzero(~goes[stored:]), np.flatnonzero(goes[:stored])
        slots = np.full(len(labels), -1, np.int64)
        slots[stay[:room]] = buffer.append(labels[stay[:room]])
        slots[stay[room:]] = freed
        buffer.overwrite(freed, labels[stay[room:]])
        return slots

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        (column,) = self.columns
        gone = self._leaving(buffer, np.empty(0, np.int64), buffer[column][:0], excess, rng)
        buffer.index.discard(gone, buffer.labels[gone].astype(np.int64))
        return gone

    def _leaving(self, buffer: Buffer, labels: Array, incoming: Array, number: int, rng: np.random.Generator) -> Array:
        """The slots that `number` samples leave; newcomers, of `labels`, are numbered on from the last slot."""
        (column,) = self.columns
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
    """How many samples each class [K] loses if `number` times the largest loses one; ties are broken uniformly.

    >>> losses(np.array([5, 1, 9]), 8, np.random.default_rng(0)).tolist()
    [2, 0, 6]
    """
    keep = int(sizes.sum()) - number
    # The most that every class may have. One more fits for some of the classes that have more than that.
    level = bisect_right(range(int(sizes.max(initial=0)) + 1), keep, key=lambda top: np.minimum(sizes, top).sum()) - 1
    kept = np.minimum(sizes, level)
    larger = rng.permutation(np.flatnonzero(sizes > level))
    kept[larger[: keep - int(kept.sum())]] += 1
    return sizes - kept


def squared_distances(a: Array, b: Array) -> Array:
    """Squared Euclidean distances [n, m] between the rows of a [n, d] and b [m, d]."""
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    return np.asarray(np.maximum(squares, 0))


def unit(vectors: Array) -> Array:
    """Vectors [n, d] at length 1; a vector of zeros stays as it is."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


@rules.register("herding")
@dataclass
class Herding(ByClass):
    """iCaRL's exemplars (Rebuffi et al. 2017): the largest class loses the samples last in its herding order.

    The order takes, at each step t = 0, 1, …, the sample not taken yet that minimises ‖μ - (S + h)/(t + 1)‖: μ is the
    mean of the L2-normalised embeddings h, S the sum of those taken. μ and the order are of what the class has stored
    and its newcomers, and are computed anew, at most once per class and batch: O(n²d) for a class of n.
    """

    columns: ClassVar[frozenset[str]] = frozenset({"embedding"})

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        return np.setdiff1d(np.arange(len(values)), herding_order(values, len(values) - number))


def herding_order(embeddings: Array, number: int) -> Array:
    """The first `number` samples [number] of the herding order of embeddings [n, d].

    >>> herding_order(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), 2).tolist()
    [2, 0]
    """
    h = unit(embeddings)
    squares, pull = (h**2).sum(1), h @ h.mean(0)
    order, taken = np.empty(number, np.int64), np.zeros(len(h))  # h·S
    for t in range(number):
        # ‖(t + 1)μ - S - h‖² without the terms that all samples share.
        cost = squares + 2 * (taken - (t + 1) * pull)
        cost[order[:t]] = np.inf
        order[t] = cost.argmin()
        taken += h @ h[order[t]]
    return order


@rules.register("kmeans")
@dataclass
class KMeans(ByClass):
    """One sample per cluster, the one nearest to its centre, as IDBR keeps samples (Huang et al. 2021).

    Where the largest class must come down to m samples, its embeddings (stored ones and newcomers) are clustered into
    m by `iterations` of Lloyd's algorithm from a k-means++ start. Should clusters end empty, the samples farthest from
    their centres fill up. Computed per class and batch: O(nmd). (The online k-means of Chaudhry et al. 2019 is not
    published in enough detail to follow.)
    """

    iterations: int = 5
    columns: ClassVar[frozenset[str]] = frozenset({"embedding"})

    def __post_init__(self) -> None:
        if self.iterations < 0:
            raise GraspError(f"KMeans needs iterations of at least 0, not {self.iterations}")

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
        by_cluster = np.lexsort((distance, cluster))
        _, nearest = np.unique(cluster[by_cluster], return_index=True)
        order = -distance
        order[by_cluster[nearest]] = -np.inf
        return np.argsort(order, kind="stable")[keep:]


def _spread_centres(values: Array, number: int, rng: np.random.Generator) -> Array:
    """k-means++: each next centre is a sample drawn with probability proportional to d², d to the nearest so far."""
    chosen = [int(rng.integers(len(values)))]
    distance = squared_distances(values, values[chosen])[:, 0]
    while len(chosen) < number:
        distance[chosen] = 0
        total = distance.sum()
        # All others are copies of a centre: any of them will do.
        weights = distance / total if total > 0 else np.full(len(values), 1 / len(values))
        chosen.append(int(rng.choice(len(values), p=weights)))
        distance = np.minimum(distance, squared_distances(values, values[chosen[-1:]])[:, 0])
    return values[chosen]


@rules.register("exstream")
@dataclass
class ExStream(ByClass):
    """ExStream (Hayes et al. 2019) over real samples: of the two closest of the largest class, one goes.

    ExStream merges the two closest prototypes of a class into their average. Stored codes cannot be averaged, so of
    the two closest samples (Euclidean) the one nearer to the class mean stays, the mean being that of what is stored
    and the batch's newcomers. O(n²d) in time and n² numbers in memory for a class of n, once per batch.
    """

    columns: ClassVar[frozenset[str]] = frozenset({"embedding"})

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
@dataclass
class Rainbow(ByClass):
    """Rainbow Memory (Bang et al. 2021): the largest class keeps samples evenly spread from certain to uncertain.

    The original takes every ⌊n/m⌋-th of the samples sorted by uncertainty once per task; for one sample at a time that
    stride is 1 and would drop the most uncertain ones. So here the densest place is thinned (`thinned`), as often as a
    sample must go. The learner's current uncertainties count: it may write to buffer["uncertainty"] at any time.
    """

    columns: ClassVar[frozenset[str]] = frozenset({"uncertainty"})

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        return thinned(values, number, rng)


@rules.register("grasp")
@dataclass
class Grasp(ByClass):
    """GRASP's order as a rule: the largest class keeps samples evenly spread from prototypical to atypical.

    d = 1 - cos(z, q), q the class mean of what is stored and the batch's newcomers; the densest place along d is
    thinned (`thinned`), so that a session finds easy and hard samples to go through. (Harun et al. name the choice of
    what to store by prototypicality as future work; the rule is this library's.)
    """

    columns: ClassVar[frozenset[str]] = frozenset({"embedding"})

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        return thinned(1 - unit(values) @ unit(values.mean(0)), number, rng)


def thinned(scores: Array, number: int, rng: np.random.Generator) -> Array:
    """Which `number` of scores [n] go so that the others stay evenly spread.

    One after the other goes the score whose neighbours, one below and one above, are closest to each other; so the
    smallest and the largest stay to the last. Ties are broken uniformly.

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
class MoF(ByClass):
    """Mean of features (Chaudhry et al. 2019): the largest class keeps the samples nearest to its running mean.

    μ ← decay·μ + (1 - decay)·z for every sample of the class that comes, kept or not, from μ = z of the first; a batch
    moves it before the batch is placed. A newcomer of the largest class (itself counted) takes the place of the class's
    farthest sample (Euclidean) if it is nearer, and else is not kept; a newcomer of another class takes the place of
    the largest class's farthest sample. The paper gives no decay: 0.9 is this library's choice.
    """

    decay: float = 0.9
    columns: ClassVar[frozenset[str]] = frozenset({"embedding"})
    _means: dict[int, Array] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise GraspError(f"MoF needs a decay from 0 up to, but not, 1, not {self.decay}")

    def arriving(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> None:
        for label, z in zip(labels.tolist(), buffer.incoming["embedding"].astype(np.float64), strict=True):
            mean = self._means.get(label, z)
            self._means[label] = self.decay * mean + (1 - self.decay) * z

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        mean = self._means.get(label, values.mean(0))  # none yet for a class stored under another rule
        distance = ((values - mean) ** 2).sum(1)
        return np.argsort(distance, kind="stable")[-number:]  # newcomers stand last: of equals they go

    def state_dict(self) -> dict[str, Any]:
        return {"labels": np.array(list(self._means), np.int64), "means": np.array(list(self._means.values()))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._means = dict(zip(np.array(state["labels"]).tolist(), np.array(state["means"]), strict=True))


@rules.register("clib")
@dataclass
class Clib(ByClass):
    """CLIB (Koh et al. 2022): of the largest class, newcomers counted, the samples of smallest importance go.

    The learner writes importances (how much training on a sample lowers the loss) to buffer["importance"]; the current
    ones count. A newcomer starts with the mean of its class, the first of a class with the mean of all, the first of
    all with 0. Ties are broken uniformly, so that without a learner that writes them this is `largest_class` with the
    newcomer at risk.
    """

    columns: ClassVar[frozenset[str]] = frozenset({"importance"})
    fills: ClassVar[frozenset[str]] = frozenset({"importance"})

    def arriving(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> None:
        stored = buffer["importance"]
        first = np.zeros_like(buffer.incoming["importance"])
        for label in np.unique(labels).tolist():
            peers = stored[buffer.slots_of(label)]
            first[labels == label] = (peers if len(peers) else stored).mean() if len(stored) else 0
        buffer.incoming["importance"] = first

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        shuffled = rng.permutation(len(values))
        return shuffled[np.argsort(values[shuffled], kind="stable")[:number]]


_FIRST = 0.1  # the score of samples that come into an empty buffer, as in the original


@rules.register("gss")
@dataclass
class Gss(Maintenance):
    """GSS-greedy (Aljundi et al. 2019): a sample whose gradient resembles others' is likelier to go.

    Score C = the largest cosine of a sample's gradient with those of `references` random stored samples, taken once,
    when it comes, and kept in the column "similarity". In a full buffer the newcomers draw distinct victims i with
    probability proportional to (C_i - min C)/(max C - min C + 0.01), and each takes its victim's place with probability
    C_i'/(c' + C_i'), where z' = (z + 1)/2 and c is its own score; else it is not kept. With overflow, `compress` draws
    all that go in this way. Classes play no part.

    The gradient is whatever vector the learner gives. The original's references are gradients of mini-batches, and it
    considers only batches whose mean gradient scores below `threshold` 0; the default 1 considers all.
    """

    references: int = 10
    threshold: float = 1.0
    columns: ClassVar[frozenset[str]] = frozenset({"gradient", "similarity"})
    fills: ClassVar[frozenset[str]] = frozenset({"similarity"})
    one_by_one: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.references < 1:
            raise GraspError(f"Gss needs references of at least 1, not {self.references}")

    def arriving(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> None:
        score = self._similarity(buffer, buffer.incoming["gradient"], len(buffer), rng)
        buffer.incoming["similarity"] = score.astype(buffer["similarity"].dtype)

    def replace(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        score = buffer.incoming["similarity"].astype(np.float64)
        placed = len(score) - len(labels)  # the first of the batch found free slots at the end
        stored = buffer["similarity"].astype(np.float64)
        stored[len(stored) - placed :] = score[:placed]
        slots, mean = np.full(len(labels), -1, np.int64), buffer.incoming["gradient"].mean(0, keepdims=True)
        if self._similarity(buffer, mean, len(buffer) - placed, rng)[0] > self.threshold:
            return slots
        for begin in range(0, len(labels), len(buffer)):  # victims are distinct, so a buffer at a time
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
        gone = rng.choice(len(buffer), excess, replace=False, p=_chances(score)) if excess else np.empty(0, np.int64)
        buffer.index.discard(gone, buffer.labels[gone].astype(np.int64))
        return gone

    def _similarity(self, buffer: Buffer, gradients: Array, stored: int, rng: np.random.Generator) -> Array:
        """The largest cosine [n] of gradients [n, d] with those of random samples in the first `stored` slots."""
        if not stored:
            return np.full(len(gradients), _FIRST)
        drawn = rng.choice(stored, min(self.references, stored), replace=False)
        cosines = unit(gradients.astype(np.float64)) @ unit(buffer["gradient"][drawn].astype(np.float64)).T
        return np.asarray(cosines.max(1)).clip(-1, 1)


def _chances(score: Array) -> Array:
    """With which probability each sample is the first to be drawn as a victim."""
    weights = (score - score.min()) / (score.max() - score.min() + 0.01)
    weights += 1e-9  # so that equal scores are drawn from uniformly, and the smallest when no other is left
    return np.asarray(weights / weights.sum())
