"""The accuracy matrix and what derives from it, representation drift, and statistics that compare policies."""

from graspcl.metric.accuracy import Accuracies, accuracies, by_group, head_and_tail, top_k
from graspcl.metric.representation_drift import DriftSummary, drift, summarise_drift
from graspcl.metric.statistics import (
    Interval,
    McNemar,
    PairedInterval,
    interval,
    mcnemar,
    paired_interval,
    saved_updates,
    updates_to_reach,
)

__all__ = [
    "Accuracies", "DriftSummary", "Interval", "McNemar", "PairedInterval", "accuracies", "by_group", "drift",
    "head_and_tail", "interval", "mcnemar", "paired_interval", "saved_updates", "summarise_drift", "top_k",
    "updates_to_reach",
]  # fmt: skip
