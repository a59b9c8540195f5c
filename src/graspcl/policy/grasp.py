"""GRASP: gradually select less prototypical samples (section 3, Algorithm 1)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.machine import cores
from graspcl.policy.drawing import Groups, draws_per_class, group_by_class, round_robin
from graspcl.policy.policy import PlannedPolicy, policies
from graspcl.policy.prototype import check_eps, prototype_distances
from graspcl.policy.session import Session

# Chunks of classes have generators of their own, so that the draws do not depend on how many threads share the work.
_CHUNKS = 16


@policies.register("grasp")
@dataclass
class Grasp(PlannedPolicy):
    """Prototypical samples first, then gradually harder ones, class by class.

    Once per session the distance of every stored sample to its class prototype is measured. Each round draws one
    sample of each class with probability proportional to 1 / (d + ε); the drawn sample's distance then grows by the
    largest of its class, so that it is unlikely to come again while others have not.
    """

    eps: float = 1e-7

    needs = frozenset({"labels", "embeddings"})
    balanced = True
    family = "prototype"
    cost = "one forward pass over the buffer per session"
    source = "Harun et al. 2024, Algorithm 1"

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def warm_up(self) -> None:
        grasp_order(np.ones(2), np.zeros(2, np.int64), 2, np.random.default_rng(0))

    def plan(self, session: Session, budget: int, rng: np.random.Generator) -> Array:
        distances = prototype_distances(session.embeddings, session.group_tensor).numpy(force=True)
        return grasp_draws(distances, session.groups, budget, rng, self.eps)


def grasp_order(distances: Array, labels: Array, budget: int, rng: np.random.Generator, eps: float = 1e-7) -> Array:
    """The first `budget` draws of Algorithm 1: `distances` [N] ≥ 0 and `labels` [N] to int64 indices [budget].

    Round-robin over the sorted classes present; exact for any number of passes, see `graspcl.policy.race`.

    >>> d = np.array([0.1, 0.5, 0.1, 0.9])
    >>> order = grasp_order(d, np.array([0, 0, 1, 1]), budget=4, rng=np.random.default_rng(0))
    >>> order.dtype, order.shape
    (dtype('int64'), (4,))
    """
    distances, labels = np.asarray(distances, np.float64), np.asarray(labels)
    if distances.ndim != 1 or distances.shape != labels.shape:
        raise GraspError(f"one distance per label is needed, not shapes {distances.shape} and {labels.shape}")
    if len(labels) and labels.dtype.kind not in "iub":
        raise GraspError(f"labels must be integers, not {labels.dtype}")
    return grasp_draws(distances, group_by_class(labels.astype(np.int64)), budget, rng, eps)


def grasp_draws(distances: Array, groups: Groups, budget: int, rng: np.random.Generator, eps: float) -> Array:
    """As `grasp_order`, for samples that are grouped by class already."""
    _check(distances, budget, eps)
    if budget == 0:
        return np.empty(0, np.int64)
    from graspcl.policy.race import race_classes  # compiled code is loaded where it is used

    d, draws = distances[groups.members], draws_per_class(groups.number, budget)
    drawn = np.empty(budget, np.int64)
    ends = np.concatenate(([0], np.cumsum(draws)))
    bounds = np.linspace(0, groups.number, min(_CHUNKS, groups.number) + 1).astype(int)

    def race(chunk: tuple[tuple[int, int], int]) -> None:
        (low, high), seed = chunk
        exponential = np.random.default_rng(seed).standard_exponential
        offsets = groups.offsets[low : high + 1]
        part = drawn[ends[low] : ends[high]]
        first, again = exponential(offsets[-1] - offsets[0]), exponential(len(part))
        race_classes(d, offsets, draws[low:high], eps, first, again, part)

    chunks = zip(pairwise(bounds), rng.integers(2**63, size=len(bounds) - 1), strict=True)
    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(race, chunks))
    return round_robin(groups.members[drawn], groups.number)


def _check(distances: Array, budget: int, eps: float) -> None:
    if budget < 0:
        raise GraspError(f"a budget is 0 or more samples, not {budget}")
    if budget and not len(distances):
        raise GraspError(f"{budget} samples cannot be drawn from an empty buffer")
    check_eps(eps)
    bad = np.flatnonzero(~(distances >= 0) | ~np.isfinite(distances))
    if len(bad):
        raise GraspError(
            f"{len(bad)} of {len(distances)} distances are negative or not finite (rows {bad[:5].tolist()})"
        )
