"""What is stored: columns of arrays, the class index, maintenance rules, bytes."""

from graspcl.buffer.buffer import Buffer, Codes, Placed
from graspcl.buffer.maintenance import Fifo, GDumb, LargestClass, Maintenance, Reservoir, Ring, rules
from graspcl.buffer.scored_rules import ByClass, Clib, ExStream, Grasp, Gss, Herding, KMeans, MoF, Rainbow

__all__ = [
    "Buffer",
    "ByClass",
    "Clib",
    "Codes",
    "ExStream",
    "Fifo",
    "GDumb",
    "Grasp",
    "Gss",
    "Herding",
    "KMeans",
    "LargestClass",
    "Maintenance",
    "MoF",
    "Placed",
    "Rainbow",
    "Reservoir",
    "Ring",
    "rules",
]
