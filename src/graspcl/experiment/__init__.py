"""Run experiments: prepare, the run loop, run folders, sweeps and prediction."""

from graspcl.experiment.folder import RunFolder
from graspcl.experiment.prediction import Learned, Predictions, load_learner
from graspcl.experiment.prepare import Prepared, PreparedCache
from graspcl.experiment.runner import run
from graspcl.experiment.sweeps import Outcome, make_workers, sweep
from graspcl.settings import Config, Part, change, from_plain, preset

__all__ = [
    "Config",
    "Learned",
    "Outcome",
    "Part",
    "Predictions",
    "Prepared",
    "PreparedCache",
    "RunFolder",
    "change",
    "from_plain",
    "load_learner",
    "make_workers",
    "preset",
    "run",
    "sweep",
]
