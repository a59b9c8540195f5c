"""Settings, presets, the run loop, run folders, sweeps and comparisons."""

from graspcl.experiment.compare import DEMO_CHOICES, Choice, choose, compare
from graspcl.experiment.config import Config, Part
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.predict import Learned, Predictions, load_learner
from graspcl.experiment.presets import preset
from graspcl.experiment.run import run
from graspcl.experiment.settings import change, from_plain
from graspcl.experiment.sweep import Outcome, sweep
from graspcl.experiment.workers import make_workers

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
    "compare",
    "from_plain",
    "load_learner",
    "make_workers",
    "preset",
    "run",
    "sweep",
]
