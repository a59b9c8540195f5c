"""Grad matching: herding in gradient space, so that what was rehearsed so far has the mean gradient of its class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graspcl.checks import Array
from graspcl.policy.drawing import draws_per_class, round_robin
from graspcl.policy.gradients import Gradients, check_settings
from graspcl.policy.policy import PlannedPolicy, policies
from graspcl.policy.session import Session

_GRAM = 4096  # the largest class whose products ⟨g_i, g_j⟩ are all held at once (64 MB)


@policies.register("grad_matching")
@dataclass
class GradMatching(PlannedPolicy):
    """Per class, the t-th draw (t = 0, 1, …) is argmin_i | ḡ - (S + g_i) / (t + 1) | over the samples not yet drawn.

    g_i is the gradient of sample i, normalised: g / (|g| + 1e-8); ḡ is the mean over the class and S the sum of what
    was drawn. When all of a class was drawn, the order begins again. Only ties, and which class comes first in a round,
    are left to chance. `gradients` are those of the "last_layer" in closed form, or "full": of all that learns; those
    of one class at a time are then held in memory.
    """

    gradients: str = "last_layer"

    needs = frozenset({"labels", "gradients"})
    balanced = True
    family = "gradient"
    cost = "one forward pass over the buffer per session; with full gradients also one backward"
    source = "Campbell & Broderick 2019; per class, without weights, as in Borsos et al. 2020 and Yoon et al. 2022"

    def __post_init__(self) -> None:
        check_settings(self.gradients)

    def plan(self, session: Session, budget: int, rng: np.random.Generator) -> Array:
        groups = session.groups
        drawn = []
        for k, draws in zip(rng.permutation(groups.number), draws_per_class(groups.number, budget), strict=True):
            if draws:
                members = rng.permutation(groups.members[groups.offsets[k] : groups.offsets[k + 1]])
                g = session.gradients(members, full=self.gradients == "full").normalised()
                drawn.append(np.resize(members[matching_order(g, min(draws, len(g)))], draws))
        return round_robin(np.concatenate(drawn), groups.number)


def matching_order(g: Gradients, number: int) -> Array:
    """`number` of n gradients, each next one such that the mean of those so far comes nearest to the mean of all.

    >>> import torch
    >>> matching_order(Gradients(torch.tensor([[3.0, 0.0], [0.0, 1.0], [1.0, 1.0]])), 3).tolist()
    [2, 0, 1]
    """
    # (t + 1)² | ḡ - (S + g_i) / (t + 1) |² = |g_i|² + 2⟨S, g_i⟩ - 2 (t + 1) ⟨ḡ, g_i⟩ + what is the same for all i.
    gram = g.dots(g) if len(g) <= _GRAM else None
    means = (g.mean_dots(g) if gram is None else gram.mean(1)).double().numpy(force=True)
    lengths = g.norms().double().square().numpy(force=True)
    sums = np.zeros(len(g))
    order = np.empty(number, np.int64)
    for t in range(number):
        order[t] = i = int(np.argmin(lengths + 2 * sums - 2 * (t + 1) * means))
        lengths[i] = np.inf
        sums += (g.dots(g[i : i + 1])[:, 0] if gram is None else gram[i]).numpy(force=True)
    return order
