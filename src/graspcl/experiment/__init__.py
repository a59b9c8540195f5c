"""Run experiments: prepare, the run loop, run folders, sweeps and comparisons."""

from graspcl.experiment.compare import DEMO_CHOICES, Choice, choose
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.prediction import Learned, Predictions, load_learner
from graspcl.experiment.runner import run
from graspcl.experiment.sweeps import Outcome, make_workers, sweep
from graspcl.settings import Config, Part, change, from_plain, preset

__all__ = [
    "DEMO_CHOICES",
    "Choice",
    "Config",
    "Learned",
    "Outcome",
    "Part",
    "Predictions",
    "RunFolder",
    "change",
    "choose",
    "from_plain",
    "load_learner",
    "make_workers",
    "preset",
    "run",
    "sweep",
]
