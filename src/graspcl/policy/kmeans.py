"""k-means: near one of several centres of the class, instead of near its one mean."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numba
import numpy as np
import torch

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.policy.drawing import weighted_draws
from graspcl.policy.policy import PlannedPolicy, policies
from graspcl.policy.prototype import check_eps
from graspcl.policy.session import Session


@policies.register("kmeans")
@dataclass
class KMeans(PlannedPolicy):
    """p ~ 1 / (d + ε) within each class, d = min_c |z/|z| - m_c|: near a cluster's centre first, all session long.

    m are the `clusters` centres that k-means finds among the unit-length embeddings of the class. A sample that is a
    cluster of its own has d = 0 and, ε being small, is nearly all that is drawn of its class: so was it published.
    """

    clusters: int = 3
    iterations: int = 100
    eps: float = 1e-10

    needs = frozenset({"labels", "embeddings"})
    balanced = True
    family = "prototype"
    cost = "one forward pass over the buffer and k-means in each class per session"
    source = "Chaudhry et al. 2019; Harun et al. 2024, section 4.1"

    def __post_init__(self) -> None:
        check_eps(self.eps)
        if self.clusters < 1 or self.iterations < 1:
            raise GraspError(f"clusters and iterations are 1 or more, not {self.clusters} and {self.iterations}")

    def plan(self, session: Session, budget: int, rng: np.random.Generator) -> Array:
        generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        distances = np.empty(len(session.labels))
        for begin, end in pairwise(session.groups.offsets):
            members = session.groups.members[begin:end]
            z = session.embeddings[torch.from_numpy(members)]
            distances[members] = self.distances(z, generator).numpy(force=True)
        return weighted_draws(1 / (distances + self.eps), session.groups, budget, rng)

    def distances(self, z: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Distance of each embedding [n, D] of a class to the nearest centre of the class [n]."""
        x = torch.nn.functional.normalize(z.float(), dim=1)
        if not x.sum().isfinite():  # of unit vectors: one NaN or infinity is enough to make it NaN
            raise GraspError("some embeddings hold NaN or infinity: they have no distance to a cluster")
        centres, nearest = lloyd(x, seed_centres(x, self.clusters, generator), self.iterations)
        away: torch.Tensor = torch.linalg.vector_norm(x - centres[nearest], dim=1)
        return away


def seed_centres(x: torch.Tensor, k: int, generator: torch.Generator) -> torch.Tensor:
    """k-means++: samples of x [n, D], each drawn with p ~ its squared distance to those before it [≤ k, D].

    Fewer than k where x has fewer different rows.
    """
    chosen = [int(torch.randint(len(x), (1,), generator=generator))]
    squared = (x - x[chosen[-1]]).square().sum(1)
    while len(chosen) < k and bool(squared.any()):
        chosen.append(int(torch.multinomial(squared.cpu(), 1, generator=generator)))
        squared = torch.minimum(squared, (x - x[chosen[-1]]).square().sum(1))
    return x[chosen]


def lloyd(x: torch.Tensor, centres: torch.Tensor, iterations: int) -> tuple[torch.Tensor, torch.Tensor]:
    """k-means of x [n, D] from `centres` [k, D] on: the centres [k, D], and the nearest one of each sample [n].

    Stops when no sample changes its cluster. A centre that is nobody's nearest stays where it is.

    >>> x = torch.tensor([[0.0], [1.0], [8.0], [9.0]])
    >>> centres, nearest = lloyd(x, x[:2], iterations=10)
    >>> centres.tolist(), nearest.tolist()
    ([[0.5], [8.5]], [0, 0, 1, 1])
    """
    found, nearest = centres.numpy(force=True).copy(), np.full(len(x), -1)
    _lloyd(x.numpy(force=True), found, iterations, nearest)
    return torch.from_numpy(found).to(x.device), torch.from_numpy(nearest).to(x.device)


@numba.njit(cache=True, nogil=True)
def _lloyd(x: Array, centres: Array, iterations: int, nearest: Array) -> None:
    """Changes `centres` and `nearest`. Late iterations move few samples: the sums follow those alone."""
    sums, sizes = np.zeros_like(centres), np.zeros(len(centres), np.int64)
    _assign(x, centres, nearest, sums, sizes)
    for _ in range(iterations):
        for c in range(len(centres)):
            if sizes[c] > 0:
                centres[c] = sums[c] / sizes[c]
        if not _assign(x, centres, nearest, sums, sizes):
            break


# Reassociation lets the inner products use vector instructions.
@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _assign(x: Array, centres: Array, nearest: Array, sums: Array, sizes: Array) -> bool:
    """argmin_c |x - c|² = argmin_c |c|²/2 - ⟨x, c⟩ of each sample; whether any changed."""
    changed = False
    halves = np.empty(len(centres), x.dtype)
    for c in range(len(centres)):
        halves[c] = (centres[c] * centres[c]).sum() / 2
    for i in range(len(x)):
        best, least = 0, halves[0] + np.inf
        for c in range(len(centres)):
            product = x[i, 0] * centres[c, 0]
            for j in range(1, x.shape[1]):
                product += x[i, j] * centres[c, j]
            if halves[c] - product < least:
                best, least = c, halves[c] - product
        before = nearest[i]
        if before == best:
            continue
        changed, nearest[i] = True, best
        sums[best] += x[i]
        sizes[best] += 1
        if before >= 0:
            sums[before] -= x[i]
            sizes[before] -= 1
    return changed
