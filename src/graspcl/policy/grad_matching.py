"""Grad matching: per class, samples whose gradients add up to that of the class."""

from dataclasses import dataclass

import numpy as np

from graspcl.checks import Array
from graspcl.policy.drawing import draws_per_class, round_robin
from graspcl.policy.gradients import Gradients, Kind
from graspcl.policy.policy import PlannedPolicy, policies
from graspcl.policy.session import Session

_GRAM = 4096  # the largest class whose products ⟨g_i, g_j⟩ are all kept in memory (64 MB)


@policies.register("grad_matching")
@dataclass
class GradMatching(PlannedPolicy):
    """Per class, the t-th draw (t = 0, 1, …) is argmin_i | ḡ - (S + g_i) / (t + 1) | over the samples not yet drawn.

    g_i is the normalised gradient of sample i, g / (|g| + 1e-8). ḡ is the mean over the class and S the sum of the
    draws so far. When all of a class was drawn, the order repeats. Only ties, and which class comes first in a round,
    are random. The gradients of one class at a time are in memory.
    """

    gradients: Kind = "last_layer"

    needs = frozenset({"labels", "gradients"})
    balanced = True
    family = "gradient"
    cost = "one forward pass over the buffer per session; with full gradients also one backward"
    source = "Campbell & Broderick 2019; per class, without weights, as in Borsos et al. 2020 and Yoon et al. 2022"

    def plan(self, session: Session) -> Array:
        groups, rng, drawn = session.groups, session.rng, []
        each = draws_per_class(groups.number, session.budget.samples)
        for k, draws in zip(rng.permutation(groups.number), each, strict=True):
            if draws:
                members = rng.permutation(groups.each[k])
                g = session.gradients(members, full=self.gradients == "full").normalised()
                drawn.append(np.resize(members[matching_order(g, min(draws, len(g)))], draws))
        return round_robin(np.concatenate(drawn), groups.number)


def matching_order(g: Gradients, number: int) -> Array:
    """Return the indices of `number` gradients; each next one brings the mean so far nearest to the mean of all."""
    # (t + 1)² | ḡ - (S + g_i) / (t + 1) |² = |g_i|² + 2⟨S, g_i⟩ - 2 (t + 1) ⟨ḡ, g_i⟩ + terms that do not depend on i.
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
