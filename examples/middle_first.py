"""A rehearsal policy of one's own: neither the easiest nor the hardest samples, but those in between."""

from dataclasses import dataclass

import numpy as np

from graspcl.policy import PlannedPolicy, Session, policies, prototype_distances
from graspcl.policy.drawing import weighted_draws


@policies.register("middle_first")
@dataclass
class MiddleFirst(PlannedPolicy):
    """Class-balanced draws, most likely for samples of middling distance to their class prototype.

    A sample at quantile r of all distances (0 nearest, 1 farthest) has weight exp(-((r - 1/2) / width)²).
    """

    width: float = 0.25  # dataclass fields are the policy's parameters

    needs = frozenset({"labels", "embeddings"})  # all that the session will show it
    balanced = True
    cost = "one forward pass over the buffer per session"
    source = "the README"

    def plan(self, session: Session, budget: int, rng: np.random.Generator) -> np.ndarray:
        """`budget` slots, in the order in which they are rehearsed."""
        distances = prototype_distances(session.embeddings, session.label_tensor).numpy(force=True)
        quantile = distances.argsort().argsort() / len(distances)
        weights = np.exp(-(((quantile - 0.5) / self.width) ** 2))
        return weighted_draws(weights, session.groups, budget, rng)
