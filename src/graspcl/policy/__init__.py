"""Which stored samples are rehearsed, and in which order."""

from graspcl.policy.base import PlannedPolicy, Policy, policies
from graspcl.policy.batches import batches, rehearse
from graspcl.policy.budget import Budget
from graspcl.policy.grasp import Grasp, grasp_order
from graspcl.policy.prototype import prototype_distances
from graspcl.policy.session import Costs, Session

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
