"""k-means: near one of several centres of the class, instead of near its one mean."""

from dataclasses import dataclass

import numba
import numpy as np
import torch

from graspcl.checks import Array, Count, Positive
from graspcl.errors import GraspError
from graspcl.policy.policy import PlannedPolicy, policies
from graspcl.policy.session import Session


@policies.register("kmeans")
@dataclass
class KMeans(PlannedPolicy):
    """p ~ 1 / (d + ε) within each class, d = min_c |z/|z| - m_c|: near a cluster centre first, throughout the session.

    m are the `clusters` centres that k-means finds among the unit-length embeddings of the class. A sample that is its
    own cluster has d = 0 and, since ε is small, takes almost all draws of its class, as in the published code.

    Follows: the paper; clusters, lengths and ε are those of the reference program.
    """

    clusters: Count = 3
    iterations: Count = 100
    eps: Positive = 1e-10

    needs = frozenset({"labels", "embeddings"})
    balanced = True
    family = "prototype"
    cost = "one forward pass over the buffer and k-means in each class per session"
    source = "Chaudhry et al. 2019; Harun et al. 2024, section 4.1"

    def plan(self, session: Session) -> Array:
        generator = torch.Generator().manual_seed(int(session.rng.integers(2**63)))
        distances = np.empty(len(session))
        for members in session.groups.each:
            z = session.embeddings[torch.from_numpy(members)]
            distances[members] = self.distances(z, generator).numpy(force=True)
        return session.draw(1 / (distances + self.eps))

    def distances(self, z: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return the distance of each embedding [n, D] of a class to the nearest centre [n]."""
        x = torch.nn.functional.normalize(z.float(), dim=1)
        if not x.sum().isfinite():  # a single NaN or infinity makes the sum NaN
            raise GraspError("some embeddings are NaN or infinite: they have no distance to a cluster")
        centres = seed_centres(x, self.clusters, generator).numpy(force=True)
        nearest = lloyd(x.numpy(force=True), centres, self.iterations)
        own = torch.from_numpy(centres[nearest]).to(x.device)
        away: torch.Tensor = torch.linalg.vector_norm(x - own, dim=1)
        return away


def seed_centres(x: torch.Tensor, k: int, generator: torch.Generator) -> torch.Tensor:
    """k-means++: draw k rows of x [n, D], or all that differ, each with p ~ its squared distance to those before."""
    chosen = [int(torch.randint(len(x), (1,), generator=generator))]
    squared = (x - x[chosen[-1]]).square().sum(1)
    while len(chosen) < k and bool(squared.any()):
        chosen.append(int(torch.multinomial(squared.cpu(), 1, generator=generator)))
        squared = torch.minimum(squared, (x - x[chosen[-1]]).square().sum(1))
    return x[chosen]


@numba.njit(cache=True, nogil=True)
def lloyd(x: Array, centres: Array, iterations: int) -> Array:
    """Run k-means on x [n, D] from `centres` [k, D], updated in place; return the nearest centre of each sample [n].

    Stops when no sample changes its cluster. A centre without samples stays where it is. Late iterations move few
    samples, so only those change the sums.
    """
    nearest = np.full(len(x), -1)
    sums, sizes = np.zeros_like(centres), np.zeros(len(centres), np.int64)
    _assign(x, centres, nearest, sums, sizes)
    for _ in range(iterations):
        for c in range(len(centres)):
            if sizes[c] > 0:
                centres[c] = sums[c] / sizes[c]
        if not _assign(x, centres, nearest, sums, sizes):
            break
    return nearest


# Reassociation lets the inner products use vector instructions.
@numba.njit(cache=True, nogil=True, fastmath={"reassoc", "contract"})
def _assign(x: Array, centres: Array, nearest: Array, sums: Array, sizes: Array) -> bool:
    """Assign each sample to argmin_c |x - c|² = argmin_c |c|²/2 - ⟨x, c⟩; return whether any changed."""
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
