"""Made-up data for runs on Ray. A run notes its beginning and end in a file, and waits midway for another file."""

import os
import sys
import time

import numpy as np
import torch

from graspcl.data import Samples, data_sources
from graspcl.experiment import runner


class Clusters(Samples[torch.Tensor]):
    """6 classes of 30 vectors around their means."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        labels = np.repeat(np.arange(6), 30)
        number = len(labels)
        self.values = (rng.normal(size=(6, 16))[labels] + 0.8 * rng.normal(size=(number, 16))).astype(np.float32)
        train, test = np.flatnonzero(np.arange(number) % 3 > 0), np.flatnonzero(np.arange(number) % 3 == 0)
        names = [f"class {k}" for k in range(6)]
        super().__init__("ray_clusters", "1", names, labels, np.arange(number), train, test)

    def read(self, indices):
        return torch.from_numpy(self.values[self.check(indices)])


if "ray_clusters" not in data_sources.names():
    data_sources.register("ray_clusters", gives="vectors")(Clusters)


def note(what: str, run: str) -> None:
    import ray

    with open(os.environ["GRASPCL_TEST_LOG"], "a") as file:
        print(what, run, os.getpid(), ray.get_runtime_context().get_node_id(), file=file)


def watched() -> None:
    finish, session = runner._RunLoop.finish, runner._RunLoop._session
    run = ""

    def noted_finish(self):
        nonlocal run
        run = str(self.config.path)
        note("begin", run)
        found = finish(self)
        note("end", run)
        return found

    def waiting_session(self, number, state=None):
        if number == 2 and state is None and not os.path.exists(os.environ["GRASPCL_TEST_GO"]):
            note("middle", run)
            while not os.path.exists(os.environ["GRASPCL_TEST_GO"]):
                time.sleep(0.05)
        session(self, number, state)

    runner._RunLoop.finish, runner._RunLoop._session = noted_finish, waiting_session


if "ray" in sys.modules:
    import ray

    if ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
        watched()
