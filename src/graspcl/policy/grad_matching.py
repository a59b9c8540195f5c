"""Grad matching: samples whose gradients add up to that of their class, or to that of the buffer."""

from dataclasses import dataclass

import numpy as np

from graspcl.checks import Array
from graspcl.policy.drawing import draws_per_class, round_robin
from graspcl.policy.gradients import BACKWARD, Gradients, Kind
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

    `balanced=False` matches the mean of the whole buffer instead, over all samples and without regard to classes. All
    gradients are then in memory, and a draw costs one product with each of them.

    `gradients` are those of the last layer's weight, or with "full" those of all trainable parameters.

    Follows: the program of Borsos et al., as the paper does, but per class; theirs is `balanced=False`.
    """

    gradients: Kind = "last_layer"
    balanced: bool = True

    needs = frozenset({"labels", "gradients"})
    family = "gradient"
    cost = f"one forward pass over the buffer per session; {BACKWARD}"
    source = "Campbell & Broderick 2019; per class, without weights, as in Borsos et al. 2020 and Yoon et al. 2022"

    def plan(self, session: Session) -> Array:
        groups, rng, drawn = session.groups.each if self.balanced else [np.arange(len(session))], session.rng, []
        each = draws_per_class(len(groups), session.budget.samples)
        for k, draws in zip(rng.permutation(len(groups)), each, strict=True):
            if draws:
                members = rng.permutation(groups[k])
                g = session.gradients(members, full=self.gradients == "full").normalised()
                drawn.append(np.resize(members[matching_order(g, min(draws, len(g)))], draws))
        return round_robin(np.concatenate(drawn), len(groups))


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
