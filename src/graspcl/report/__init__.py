"""Tables and figures, made from run folders alone."""

from graspcl.report.summary import Row, read_run, rows
from graspcl.report.terminal import comparison

__all__ = ["Row", "comparison", "read_run", "rows"]
