"""Always easy, always hard: the two ends between which GRASP moves, without its update of drawn samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from graspcl.errors import GraspError
from graspcl.policy.base import PlannedPolicy, policies
from graspcl.policy.drawing import weighted_draws
from graspcl.policy.prototype import check_eps, prototype_distances
from graspcl.policy.session import Session

Array = np.ndarray[Any, Any]


class _ByDistance(PlannedPolicy):
    """Class-balanced draws with replacement, weighted by a function of the distance to the prototype."""

    needs = frozenset({"labels", "embeddings"})
    balanced = True
    family = "prototype"
    cost = "one forward pass over the buffer per session"

    def plan(self, session: Session, budget: int, rng: np.random.Generator) -> Array:
        distances = prototype_distances(session.embeddings, session.group_tensor).numpy(force=True)
        return weighted_draws(self.weights(distances), session.groups, budget, rng)

    def weights(self, distances: Array) -> Array:
        """Weight of each sample [N] from its distance [N]."""
        raise GraspError(f"policy {type(self).__name__} must define weights(distances)")


@policies.register("mof", "easy_biased")
@dataclass
class Mof(_ByDistance):
    """Mean of features, easy-biased: p ~ 1 / (d + ε), near the class mean first, throughout the session."""

    eps: float = 1e-7

    source = "Chaudhry et al. 2019; GRASP's first-draw rule without its update"

    def __post_init__(self) -> None:
        check_eps(self.eps)

    def weights(self, distances: Array) -> Array:
        return 1 / (distances + self.eps)


@policies.register("hard_biased")
@dataclass
class HardBiased(_ByDistance):
    """Hard-biased: p ~ d, far from the class mean first, throughout the session."""

    source = "Harun et al. 2024, section 4.3"

    def weights(self, distances: Array) -> Array:
        return distances
