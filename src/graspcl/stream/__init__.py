"""Order of arrival: which samples come when."""

from graspcl.stream.base import Chunk, Stream, make_stream, streams
from graspcl.stream.describe import describe
from graspcl.stream.files import load_stream, save_stream
from graspcl.stream.iid import IID
from graspcl.stream.incremental import ClassIncremental
from graspcl.stream.long_tailed import LongTailed
from graspcl.stream.order import class_order, imagenet_order
from graspcl.stream.tasks import TaskIncremental

__all__ = [
    "IID",
    "Chunk",
    "ClassIncremental",
    "LongTailed",
    "Stream",
    "TaskIncremental",
    "class_order",
    "describe",
    "imagenet_order",
    "load_stream",
    "make_stream",
    "save_stream",
    "streams",
]
