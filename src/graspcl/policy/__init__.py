"""Which stored samples are rehearsed, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graspcl.policy.aser import Aser
from graspcl.policy.clib import Clib
from graspcl.policy.grad_matching import GradMatching
from graspcl.policy.grasp import Grasp, grasp_order
from graspcl.policy.gss import Gss
from graspcl.policy.mir import Mir
from graspcl.policy.ocs import Ocs
from graspcl.policy.policy import IncomingPolicy, PlannedPolicy, Policy, policies
from graspcl.policy.prototype import HardBiased, Mof, prototype_distances
from graspcl.policy.rainbow import Rainbow
from graspcl.policy.scores import MaxLoss, MinConfidence, MinLogitDistance, MinMargin, MinRehearsal
from graspcl.policy.session import Budget, Costs, MiniBatch, Session, batches, rehearse
from graspcl.policy.uniform import Uniform, UniformBalanced

if TYPE_CHECKING:
    from graspcl.policy.kmeans import KMeans

__all__ = [
    "Aser", "Budget", "Clib", "Costs", "GradMatching", "Grasp", "Gss", "HardBiased", "IncomingPolicy", "KMeans",
    "MaxLoss", "MinConfidence", "MinLogitDistance", "MinMargin", "MinRehearsal", "MiniBatch", "Mir", "Mof", "Ocs",
    "PlannedPolicy", "Policy", "Rainbow", "Session", "Uniform", "UniformBalanced", "batches", "grasp_order",
    "policies", "prototype_distances", "rehearse",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "KMeans":  # its module loads numba, which takes long
        from graspcl.policy.kmeans import KMeans

        return KMeans
    raise AttributeError(f"module 'graspcl.policy' has no attribute {name!r}")
