"""Settings, the run loop, run folders and comparisons."""

from graspcl.experiment.compare import DEMO_CHOICES, Choice, compare
from graspcl.experiment.config import Config
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.setups import setups
from graspcl.experiment.workers import make_workers

__all__ = ["DEMO_CHOICES", "Choice", "Config", "RunFolder", "compare", "make_workers", "setups"]
