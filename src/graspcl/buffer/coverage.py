"""Rules that keep samples which together stand for their class in the embedding: herding, k-means, ExStream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from graspcl.buffer.byclass import ByClass, squared_distances, unit
from graspcl.buffer.maintenance import rules
from graspcl.errors import GraspError

Array = np.ndarray[Any, Any]


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
