"""Made-up data for runs under torchrun, and what happens to a rank: KILL="1 step 7" kills rank 1 before its 7th update.

It happens in the first attempt alone. In place of "step" may stand

hang      the rank stops before its n-th update, so that it does not answer
prepare   it stops before it writes its n-th file of the cache; "any prepare 1" is the rank that is first to write one
term      it gets SIGTERM before its n-th update; writing a state takes five seconds longer
shares    it is killed while it writes its n-th file of codes; half of the file is written
state     it is killed while it writes its n-th state; half of the file is written
"""

import itertools
import os
import signal
import stat
import time

import numpy as np
import torch

import graspcl.cache
import graspcl.experiment.folder
from graspcl.data import Samples, data_sources
from graspcl.experiment.checkpoints import Segments
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


def on_call(owner, name, number, act):
    """Let `act` happen before the n-th call of a function."""
    calls, before = itertools.count(1), getattr(owner, name)

    def called(*given, **named):
        if next(calls) == number:
            act()
        return before(*given, **named)

    setattr(owner, name, called)


def on_sync_within(owner, name, number, act):
    """Let `act` happen before the n-th file is synced within a function; half of that file is there."""
    calls, before, sync = itertools.count(1), getattr(owner, name), os.fsync

    def halved(file):
        if stat.S_ISREG(os.fstat(file).st_mode) and next(calls) == number:
            os.ftruncate(file, os.fstat(file).st_size // 2)
            act()
        sync(file)

    def called(*given, **named):
        os.fsync = halved
        try:
            return before(*given, **named)
        finally:
            os.fsync = sync

    setattr(owner, name, called)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


rank, what, number = (os.environ.get("KILL") or "none step 0").split()
if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
    if what == "term":
        save_state = graspcl.experiment.folder.save_state
        graspcl.experiment.folder.save_state = lambda *given: (time.sleep(5), save_state(*given))
    if rank in (os.environ.get("RANK"), "any"):
        where, owner, name, act = {
            "step": (on_call, Rehearsal, "step", die),
            "hang": (on_call, Rehearsal, "step", lambda: time.sleep(60)),
            "prepare": (on_call, graspcl.cache, "_write", lambda: time.sleep(60)),
            "term": (on_call, Rehearsal, "step", lambda: signal.raise_signal(signal.SIGTERM)),
            "shares": (on_sync_within, Segments, "write_shares", die),
            "state": (on_sync_within, graspcl.experiment.folder, "save_state", die),
        }[what]
        where(owner, name, int(number), act)
