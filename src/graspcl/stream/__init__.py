"""Order of arrival: which samples come when."""

from graspcl.stream.base import Chunk, Stream, streams
from graspcl.stream.incremental import ClassIncremental

__all__ = ["Chunk", "ClassIncremental", "Stream", "streams"]
