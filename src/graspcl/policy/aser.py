"""ASER: old samples that represent old classes and oppose incoming ones, by their Shapley values."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from graspcl.checks import Array, Count
from graspcl.policy.drawing import best, candidates
from graspcl.policy.policy import IncomingPolicy, policies
from graspcl.policy.session import Session


@policies.register("aser")
@dataclass
class Aser(IncomingPolicy):
    """Largest score first: mean_j s_j(i) over old samples j, minus mean_j s_j(i) over incoming ones ("asvm").

    s_j(i) is the Shapley value of candidate i when j is classified by its `k` nearest neighbours. Candidates are
    `n_smp_cls` old samples of each class, or more if more are to be chosen; `n_smp_cls` others represent the old ones.
    "asv" takes max_j and min_j instead of the means. "neg_sv" is minus the sum over incoming samples alone.

    Follows: the program of Shim et al. (scores, k, `n_smp_cls`), as the paper does.
    """

    k: Count = 3
    n_smp_cls: Count = 2
    score: Literal["asvm", "asv", "neg_sv"] = "asvm"

    needs = frozenset({"labels", "new", "embeddings", "forward"})
    cost = "a forward pass over the incoming half and 2 · `n_smp_cls` (2 · 2) old samples of each class per mini-batch"
    source = "Shim et al. 2021"

    def choose(self, session: Session, incoming: Array, old: Array, k: int) -> Array:
        slots, others = self.sets(session, old, k)
        outputs = session.forward(np.concatenate([slots, others, incoming]))
        sizes = [len(slots), len(others), len(incoming)]
        z, z_old, z_new = outputs.embedding.split(sizes)
        y, y_old, y_new = outputs.rows.split(sizes)
        cooperative = knn_shapley(z, y, z_old, y_old, self.k)
        adversarial = knn_shapley(z, y, z_new, y_new, self.k)
        if self.score == "asvm":
            scores = cooperative.mean(0) - adversarial.mean(0)
        elif self.score == "asv":
            scores = cooperative.amax(0) - adversarial.amin(0)
        else:
            scores = -adversarial.sum(0)
        return best(slots, scores, k)

    def sets(self, session: Session, old: Array, k: int) -> tuple[Array, Array]:
        """Return candidates (at least `k`, if there are) and other old samples, if there are, to evaluate them on."""
        classes = session.old_groups
        number, sizes = self.n_smp_cls, np.array([len(run) for run in classes])
        while np.minimum(sizes, number).sum() < min(k, len(old)):
            number += 1
        drawn = [candidates(run, number + self.n_smp_cls, session.rng) for run in classes]
        slots = np.concatenate([run[:number] for run in drawn])
        return session.rng.permutation(slots), np.concatenate([run[-self.n_smp_cls :] for run in drawn])


def knn_shapley(z: torch.Tensor, y: torch.Tensor, at: torch.Tensor, labels: torch.Tensor, k: int) -> torch.Tensor:
    """Return Shapley values [m, n] of candidates z [n, D], classes y [n], for points `at` [m, D], classes `labels` [m].

    The value of a set S is v(S) = (1/k) Σ 1[y = label] over the min(k, |S|) members of S nearest to the point. With a_1
    the nearest and a_n the farthest, s(a_i) = s(a_{i+1}) + (1[y_{a_i} = y] - 1[y_{a_{i+1}} = y]) min(k, i) / (k i),
    starting from 0 beyond a_n.
    """
    order = torch.cdist(at, z).argsort(dim=1, stable=True)
    right = (y[order] == labels[:, None]).double()
    place = torch.arange(1, len(z) + 1, dtype=torch.float64, device=z.device)
    steps = -torch.nn.functional.pad(right, (0, 1)).diff(dim=1) * place.clamp_max(k) / (k * place)
    values = steps.flip(1).cumsum(1).flip(1)
    return torch.empty_like(values).scatter_(1, order, values)
