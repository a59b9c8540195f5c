"""GSS: samples whose gradients point in directions that others do not cover."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from graspcl.checks import Array, Count
from graspcl.policy.drawing import best, candidates
from graspcl.policy.gradients import BACKWARD, Kind
from graspcl.policy.policy import Policy, policies
from graspcl.policy.session import Session

_EPS = 1e-7  # a sample opposed to every reference has C = 0


@policies.register("gss")
@dataclass
class Gss(Policy):
    """Gradient-based sample selection, greedy: C_i = 1 + max_b cos(g_i, G_b), small C first.

    g_i are the gradients of `candidates_per_pick` · n random stored samples. G_b is the mean gradient of the b-th of
    `references` sets of `reference_size` random stored samples. A sample with a large C has a direction that the memory
    already has. `mode` decides how n candidates are taken:
    - "proportional": without replacement, p ~ 1/C. The published rule keeps one of two samples in the same way: a
      newcomer of score c replaces sample i with probability C_i / (c + C_i).
    - "top": the n smallest C. Accuracy collapses: what the network gets wrong has similar gradients and is left out.

    `gradients` are those of the last layer's weight, or with "full" those of all trainable parameters.

    Follows: Algorithm 2 of Aljundi et al. (score), as the paper does; their program has `reference_size=10`.
    """

    candidates_per_pick: Count = 5
    references: Count = 10
    reference_size: Count = 1
    gradients: Kind = "last_layer"
    mode: Literal["proportional", "top"] = "proportional"

    needs = frozenset({"gradients"})
    family = "gradient"
    cost = f"candidates_per_pick · n + references · reference_size forward passes per mini-batch; {BACKWARD}"
    source = "Aljundi et al. 2019"

    def select(self, session: Session, n: int) -> Array:
        slots = candidates(np.arange(len(session)), self.candidates_per_pick * n, session.rng)
        scores = self.scores(session, slots)
        if self.mode == "top":
            return best(slots, -scores, n)
        # The n largest of log p + Gumbel noise are n draws without replacement with these p.
        noise = torch.from_numpy(session.rng.gumbel(size=len(slots)))
        return best(slots, noise - scores.cpu().double().clamp_min(_EPS).log(), n)

    def scores(self, session: Session, slots: Array) -> torch.Tensor:
        """Return C [n] of the samples in `slots` [n], against references drawn for them."""
        stored = np.arange(len(session))
        drawn = [candidates(stored, self.reference_size, session.rng) for _ in range(self.references)]
        both = session.gradients(np.concatenate([slots, *drawn]), full=self.gradients == "full")
        g, *memory = both.split([len(slots), *map(len, drawn)])
        return 1 + torch.stack([g.mean_cosines(reference) for reference in memory]).amax(0)
