"""What is stored: columns of arrays, the class index, maintenance rules, bytes."""

from graspcl.buffer.buffer import Buffer, Placed
from graspcl.buffer.maintenance import Fifo, LargestClass, Maintenance, Reservoir, Ring, rules

__all__ = ["Buffer", "Fifo", "LargestClass", "Maintenance", "Placed", "Reservoir", "Ring", "rules"]
