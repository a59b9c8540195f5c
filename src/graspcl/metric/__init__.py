"""The accuracy matrix and all that derives from it."""

from graspcl.metric.accuracy import Accuracies, accuracies

__all__ = ["Accuracies", "accuracies"]
