"""Settings, the run loop, run folders and comparisons."""

from graspcl.experiment.compare import DEMO_CHOICES, Choice, choose, compare
from graspcl.experiment.config import BufferConfig, Config
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.setups import setups
from graspcl.experiment.workers import make_workers

__all__ = [
    "DEMO_CHOICES",
    "BufferConfig",
    "Choice",
    "Config",
    "RunFolder",
    "choose",
    "compare",
    "make_workers",
    "setups",
]
