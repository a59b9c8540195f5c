"""Made-up data for runs under torchrun, and the death of a rank: KILL="1 step 7" kills rank 1 before its 7th update.

A rank dies in the first attempt alone. "hang" in place of "step" stops it instead, so that it does not answer.
"""

import os
import signal
import time

import numpy as np
import torch

from graspcl.data import Samples, data_sources
from graspcl.learner import Rehearsal


class Clusters(Samples[torch.Tensor]):
    """6 classes of 30 vectors around their means."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        labels = np.repeat(np.arange(6), 30)
        number = len(labels)
        self.values = (rng.normal(size=(6, 16))[labels] + 0.8 * rng.normal(size=(number, 16))).astype(np.float32)
        train, test = np.flatnonzero(np.arange(number) % 3 > 0), np.flatnonzero(np.arange(number) % 3 == 0)
        names = [f"class {k}" for k in range(6)]
        super().__init__("few_clusters", "1", names, labels, np.arange(number), train, test)

    def read(self, indices):
        return torch.from_numpy(self.values[self.check(indices)])


data_sources.register("few_clusters", gives="vectors")(Clusters)

rank, what, number = (os.environ.get("KILL") or "none step 0").split()
if rank == os.environ.get("RANK") and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
    steps, step = iter(range(1, 1000)), Rehearsal.step

    def deadly(self):
        if next(steps) == int(number):
            if what == "step":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        step(self)

    Rehearsal.step = deadly
