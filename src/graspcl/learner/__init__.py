"""Learners: what is done online with new samples and offline with rehearsed ones."""

from graspcl.learner.base import Learner, learners
from graspcl.learner.knowledge import column_shapes
from graspcl.learner.optimiser import Optimiser
from graspcl.learner.rehearsal import Rehearsal, SessionLog
from graspcl.learner.siesta import Siesta

__all__ = ["Learner", "Optimiser", "Rehearsal", "SessionLog", "Siesta", "column_shapes", "learners"]
