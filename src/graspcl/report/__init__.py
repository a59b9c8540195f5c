"""Tables and figures, made from run folders alone."""

from graspcl.report.runs import RunRecord, find_runs, read_record, run_table, runs_table
from graspcl.report.summary import Row, rows
from graspcl.report.sweeps import sweep_table
from graspcl.report.terminal import bar_chart, comparison, policy_table

__all__ = [
    "Row",
    "RunRecord",
    "bar_chart",
    "comparison",
    "find_runs",
    "policy_table",
    "read_record",
    "rows",
    "run_table",
    "runs_table",
    "sweep_table",
]
