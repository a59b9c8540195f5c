"""Which stored samples are rehearsed, and in which order."""

from graspcl.policy.grasp import Grasp, grasp_order
from graspcl.policy.policy import PlannedPolicy, Policy, policies
from graspcl.policy.prototype import prototype_distances
from graspcl.policy.session import Budget, Costs, Session, batches, rehearse

__all__ = [
    "Budget",
    "Costs",
    "Grasp",
    "PlannedPolicy",
    "Policy",
    "Session",
    "batches",
    "grasp_order",
    "policies",
    "prototype_distances",
    "rehearse",
]
