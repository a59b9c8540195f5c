"""What is stored: columns of arrays, the class index, maintenance rules, bytes."""

from graspcl.buffer.buffer import Buffer, Codes, Placed
from graspcl.buffer.columns import Columns, code_array, finite_tensor, label_array
from graspcl.buffer.maintenance import (
    FifoRule,
    GDumbRule,
    LargestClassRule,
    Maintenance,
    ReservoirRule,
    RingRule,
    rules,
)
from graspcl.buffer.scored_rules import (
    ByClassRule,
    ClibRule,
    ExStreamRule,
    GraspRule,
    GssRule,
    HerdingRule,
    KMeansRule,
    MofRule,
    RainbowRule,
)

__all__ = [
    "Buffer", "ByClassRule", "ClibRule", "Codes", "Columns", "ExStreamRule", "FifoRule", "GDumbRule", "GraspRule",
    "GssRule", "HerdingRule", "KMeansRule", "LargestClassRule", "Maintenance", "MofRule", "Placed", "RainbowRule",
    "ReservoirRule", "RingRule", "code_array", "finite_tensor", "label_array", "rules",
]  # fmt: skip
