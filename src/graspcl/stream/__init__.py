"""Streams: which samples arrive when."""

from graspcl.stream.kinds import IID, ClassIncremental, LongTailed, TaskIncremental
from graspcl.stream.order import class_order, imagenet_order
from graspcl.stream.stream import Chunk, Stream, load_stream, make_stream, save_stream, session_table, streams

__all__ = [
    "IID",
    "Chunk",
    "ClassIncremental",
    "LongTailed",
    "Stream",
    "TaskIncremental",
    "class_order",
    "imagenet_order",
    "load_stream",
    "make_stream",
    "save_stream",
    "session_table",
    "streams",
]
