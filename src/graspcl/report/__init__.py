"""Tables and figures, made from run folders alone."""

from graspcl.report.summary import Row, read_run, rows
from graspcl.report.terminal import bar_chart, comparison, policy_table

__all__ = ["Row", "bar_chart", "comparison", "policy_table", "read_run", "rows"]
