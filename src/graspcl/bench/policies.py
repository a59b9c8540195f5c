"""Session time of every policy, relative to uniform rehearsal, as in the paper's figure of training times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from graspcl.bench.figure import Figure
from graspcl.buffer import Buffer
from graspcl.learner import Learner, Optimiser, Rehearsal
from graspcl.model import vector_network
from graspcl.policy import Budget, Policy, Session, policies

_STORED, _DIM, _CLASSES, _BATCH = 100_000, 512, 100, 512
_NEW = 0.1  # share of the samples that arrived since the last session
_SLICE = 10  # updates timed where a policy works per mini-batch; the rest of the session is extrapolated


@dataclass
class _Times:
    begin: float
    select: float
    train: float

    @property
    def session(self) -> float:
        return self.begin + self.select + self.train


def run() -> Iterator[Figure]:
    """100,000 vectors of 512 numbers in 100 classes, a three-layer network with 512-d embeddings, one pass."""
    buffer = _buffer()
    updates = _STORED // _BATCH
    times: dict[str, _Times] = {}
    forward = _forward_seconds(buffer)
    for name in ["uniform", *(name for name in policies.names() if name != "uniform")]:
        times[name] = _time(buffer, policies.create(name), updates)
    base = times["uniform"]
    for name, spent in times.items():
        policy = policies.get(name)
        detail = (
            f"{policy.family}; {policy.cost}; selection {spent.begin + spent.select:.1f} s of {spent.session:.1f} s"
        )
        yield Figure("policies", f"{name}: session time / uniform", spent.session / base.session, detail=detail)
    train = base.train
    for name in ("grasp", "uniform_balanced", "mof", "hard_biased", "kmeans"):
        looks = "embeddings" in policies.get(name).needs
        extra = 100 * (times[name].begin + times[name].select - looks * forward) / train
        what = f"{name}: percent added to a session" + (" beside its forward pass" if looks else "")
        yield Figure("policies", what, extra, 10, False)
    for name in ("max_loss", "min_margin", "min_confidence", "min_logit_distance", "min_rehearsal"):
        extra = (
            100 * (times[name].begin + times[name].select - ("logits" in policies.get(name).needs) * forward) / train
        )
        yield Figure("policies", f"{name}: percent added beside one forward pass", extra, 10, False)
    yield Figure("policies", "a forward pass over the buffer, percent of training", 100 * forward / train)


def _buffer() -> Buffer:
    rng = np.random.default_rng(0)
    labels = rng.integers(_CLASSES, size=_STORED)
    centres = rng.standard_normal((_CLASSES, _DIM), np.float32)
    buffer = Buffer()
    buffer.insert(centres[labels] + rng.standard_normal((_STORED, _DIM), np.float32), labels)
    return buffer


def _learner(buffer: Buffer, policy: Policy) -> Learner:
    network = vector_network(_DIM, hidden=1024, embedding=_DIM, generator=torch.Generator().manual_seed(0))
    learner = Learner(network, buffer, policy, Optimiser(lr=0.1))
    learner.add_classes(buffer.labels)
    learner.buffer.since = int(_STORED * (1 - _NEW))
    return learner


def _forward_seconds(buffer: Buffer) -> float:
    learner = _learner(buffer, policies.create("uniform"))
    session = Session(buffer, Budget(1, 1), learner.rng, learner.network)
    begin = time.perf_counter()
    _: Any = session.embeddings
    return time.perf_counter() - begin


def _time(buffer: Buffer, policy: Policy, updates: int) -> _Times:
    """Seconds of a session; what a policy does at its begin is timed whole, mini-batches as many as `_SLICE`."""
    session = Rehearsal(_learner(buffer, policy), Budget(updates, _BATCH))
    costs = session.session.costs
    session.step()  # includes the policy's begin, and what is compiled or allocated once
    warm = (costs.selection_seconds, costs.training_seconds)
    for _ in range(_SLICE):
        session.step()
    select = (costs.selection_seconds - warm[0]) / _SLICE
    train = (costs.training_seconds - warm[1]) / _SLICE
    return _Times(max(0.0, warm[0] - select), select * updates, train * updates)
