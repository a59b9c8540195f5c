"""Learners: what is done online with new samples and offline with rehearsed ones."""

from graspcl.learner.baselines import Finetune, GDumb
from graspcl.learner.derpp import Derpp
from graspcl.learner.idbr import Idbr
from graspcl.learner.learner import Learner, column_shapes, learners
from graspcl.learner.offline import Offline
from graspcl.learner.optimiser import Optimiser
from graspcl.learner.rehearsal import Batch, Diverged, Rehearsal, SessionLog
from graspcl.learner.siesta import Siesta

__all__ = [
    "Batch",
    "Derpp",
    "Diverged",
    "Finetune",
    "GDumb",
    "Idbr",
    "Learner",
    "Offline",
    "Optimiser",
    "Rehearsal",
    "SessionLog",
    "Siesta",
    "column_shapes",
    "learners",
]
