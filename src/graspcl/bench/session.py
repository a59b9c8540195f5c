"""A whole GRASP session against a bare PyTorch loop on the same network, batches and optimiser, with tensors ready."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import numpy as np
import torch

from graspcl.bench.figure import Figure
from graspcl.buffer import Buffer
from graspcl.codec import OPQ
from graspcl.learner import Optimiser, Siesta
from graspcl.model import mobilenet_v3_large
from graspcl.policy import Budget

_STORED, _CLASSES, _SHAPE, _ROUNDS = 256, 8, (80, 14, 14), 5
_BUDGET = Budget(updates=8, batch_size=32)


def run() -> Iterator[Figure]:
    """MobileNetV3-Large's plastic part on OPQ codes of 80 x 14 x 14 latents."""
    noise = torch.Generator().manual_seed(0)
    latents = torch.randn(_STORED, *_SHAPE, generator=noise)
    labels = np.arange(_STORED) % _CLASSES
    codec = OPQ(iterations=1, samples=4096).fit(latents)
    optimiser = Optimiser(lr=0.01)
    overheads, selections = [], []
    for _ in range(_ROUNDS):
        network = mobilenet_v3_large(generator=torch.Generator().manual_seed(0))
        learner = Siesta(network, Buffer(codec=codec), "grasp", optimiser, rng=0)
        learner.observe_codes(learner.buffer.encode(latents), labels)
        taken: list[tuple[torch.Tensor, torch.Tensor]] = []
        begin = time.perf_counter()
        log = learner.rehearse(_BUDGET)
        whole = time.perf_counter() - begin
        plan = np.asarray(learner.policy.state_dict()["_plan"]).reshape(_BUDGET.updates, -1)
        for slots in plan:
            inputs, classes = learner.buffer.fetch(slots)
            taken.append((inputs, learner.rows(classes)))
        bare = _bare_loop(learner, optimiser, taken)
        overheads.append((whole - log.costs.selection_seconds) / bare - 1)
        selections.append(log.costs.selection_seconds / whole)
    detail = f"fetch, decode, bookkeeping; {_ROUNDS} rounds of {_BUDGET.updates} updates of {_BUDGET.batch_size}"
    yield Figure("session", "percent on top of a bare loop", 100 * median(overheads), 10, False, detail)
    share = "percent of the session spent on selection (its forward pass over the buffer included)"
    yield Figure("session", share, 100 * median(selections))


def _bare_loop(learner: Siesta, optimiser: Optimiser, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    network = learner.network.train()
    optimizer = optimiser.build(network.plastic_parameters())
    scheduler = optimiser.scheduler(optimizer, len(batches))
    begin = time.perf_counter()
    for inputs, rows in batches:
        loss = torch.nn.functional.cross_entropy(network(inputs).logits, rows)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
    return time.perf_counter() - begin
