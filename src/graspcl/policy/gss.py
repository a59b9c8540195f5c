"""GSS: samples whose gradients point in directions that others do not cover."""

from dataclasses import dataclass

import numpy as np
import torch

from graspcl.checks import Array, Count
from graspcl.policy.drawing import best, candidates
from graspcl.policy.gradients import BACKWARD, Kind
from graspcl.policy.policy import Policy, policies
from graspcl.policy.session import Session


@policies.register("gss")
@dataclass
class Gss(Policy):
    """Gradient-based sample selection, greedy: C_i = max_b cos(g_i, G_b), smallest C first.

    g_i are the gradients of `candidates_per_pick` · n random stored samples. G_b is the mean gradient of the b-th of
    `references` mini-batches of `reference_size` random stored samples. The published method decides what to store: a
    sample with a large C, whose direction the memory already has, tends to be evicted. Here the same score decides what
    to rehearse: the n candidates least similar to the buffer.
    """

    candidates_per_pick: Count = 5
    references: Count = 10
    reference_size: Count = 10
    gradients: Kind = "last_layer"

    needs = frozenset({"gradients"})
    family = "gradient"
    cost = f"candidates_per_pick · n + references · reference_size forward passes per mini-batch; {BACKWARD}"
    source = "Aljundi et al. 2019"

    def select(self, session: Session, n: int) -> Array:
        stored = np.arange(len(session))
        slots = candidates(stored, self.candidates_per_pick * n, session.rng)
        drawn = [candidates(stored, self.reference_size, session.rng) for _ in range(self.references)]
        both = session.gradients(np.concatenate([slots, *drawn]), full=self.gradients == "full")
        g, *memory = both.split([len(slots), *map(len, drawn)])
        similarity = torch.stack([g.mean_cosines(reference) for reference in memory]).amax(0)
        return best(slots, -similarity, n)
