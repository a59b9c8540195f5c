"""OCS: old samples whose gradients agree with their batch and differ from each other."""

from dataclasses import dataclass

import numpy as np

from graspcl.checks import Array, Count
from graspcl.policy.drawing import best, candidates
from graspcl.policy.gradients import BACKWARD, Kind
from graspcl.policy.policy import IncomingPolicy, policies
from graspcl.policy.session import Session


@policies.register("ocs")
@dataclass
class Ocs(IncomingPolicy):
    """Online coreset selection: S(i) = cos(g_i, ḡ) - mean_j cos(g_i, g_j) + τ cos(g_i, g_ref), largest S first.

    g_i are the gradients of `candidates_per_pick` · k random old samples, ḡ is their mean, and j runs over all of them,
    including i. g_ref is the mean gradient of the incoming samples. The published method picks from the stream with the
    memory as reference; here it picks from the memory, with the stream as reference.

    `gradients` are those of the last layer's weight, or with "full" those of all trainable parameters.

    Follows: the program of Yoon et al. (score, τ); the paper names the first two terms only, which is `tau=0`.
    """

    tau: float = 1000.0
    candidates_per_pick: Count = 5
    gradients: Kind = "last_layer"

    needs = frozenset({"new", "gradients"})
    family = "gradient"
    cost = f"⌈n/2⌉ + candidates_per_pick · ⌊n/2⌋ forward passes per mini-batch; {BACKWARD}"
    source = "Yoon et al. 2022"

    def choose(self, session: Session, incoming: Array, old: Array, k: int) -> Array:
        slots = candidates(old, self.candidates_per_pick * k, session.rng)
        both = session.gradients(np.concatenate([slots, incoming]), full=self.gradients == "full")
        g, reference = both.split([len(slots), len(incoming)])
        similarity, diversity = g.mean_cosines(g), -g.cosines(g).mean(1)
        return best(slots, similarity + diversity + self.tau * g.mean_cosines(reference), k)
