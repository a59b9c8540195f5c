"""The report as one HTML page: what the runs of a comparison did, cost and brought."""

from graspcl.report.html.page import Report, gather, render, write_page

__all__ = ["Report", "gather", "render", "write_page"]
