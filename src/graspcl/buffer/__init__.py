"""What is stored: columns of arrays, the class index, maintenance rules, bytes."""

from graspcl.buffer.buffer import Buffer, Codes, Placed
from graspcl.buffer.byclass import ByClass
from graspcl.buffer.clib import Clib
from graspcl.buffer.coverage import ExStream, Herding, KMeans
from graspcl.buffer.gdumb import GDumb
from graspcl.buffer.gss import Gss
from graspcl.buffer.maintenance import Fifo, LargestClass, Maintenance, Reservoir, Ring, rules
from graspcl.buffer.mof import MoF
from graspcl.buffer.spread import Grasp, Rainbow

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
