"""A rehearsal policy of your own: neither the easiest nor the hardest samples first, but those in between."""

from dataclasses import dataclass

import numpy as np

from graspcl.policy import PlannedPolicy, policies


@policies.register("middle_first")
@dataclass
class MiddleFirst(PlannedPolicy):
    """Class-balanced draws, most likely for samples at a medium distance to their class prototype."""

    width: float = 0.25
    needs = {"distances"}
    balanced = True

    def plan(self, session):
        rank = session.distances.argsort().argsort() / len(session)
        return session.draw(np.exp(-(((rank - 0.5) / self.width) ** 2)))
