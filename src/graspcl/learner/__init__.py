"""Learners: what is done online with new samples and offline with rehearsed ones."""

from graspcl.learner.aligned import Aligned
from graspcl.learner.baselines import ErAce, Finetune, GDumb
from graspcl.learner.closed_form import Ncm, RanPac, Slda, SolvedHead
from graspcl.learner.derpp import Derpp
from graspcl.learner.idbr import Idbr
from graspcl.learner.learner import Learner, column_shapes, learners
from graspcl.learner.offline import Offline
from graspcl.learner.optimiser import Optimiser
from graspcl.learner.probe import Probe
from graspcl.learner.rehearsal import Batch, Diverged, Rehearsal, SessionLog
from graspcl.learner.siesta import Siesta

__all__ = [
    "Aligned",
    "Batch",
    "Derpp",
    "Diverged",
    "ErAce",
    "Finetune",
    "GDumb",
    "Idbr",
    "Learner",
    "Ncm",
    "Offline",
    "Optimiser",
    "Probe",
    "RanPac",
    "Rehearsal",
    "SessionLog",
    "Siesta",
    "Slda",
    "SolvedHead",
    "column_shapes",
    "learners",
]
