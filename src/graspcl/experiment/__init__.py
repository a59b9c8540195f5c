"""Run experiments: prepare, the run loop, run folders, sweeps and prediction."""

from graspcl.experiment.automatic import resolve
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.prediction import Learned, Predictions, load_learner
from graspcl.experiment.runner import run
from graspcl.experiment.sweeps import Outcome, make_workers, sweep

__all__ = ["Learned", "Outcome", "Predictions", "RunFolder", "load_learner", "make_workers", "resolve", "run", "sweep"]
