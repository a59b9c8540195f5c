"""A rehearsal of full size without its network: sessions, checkpoints and resuming with as many codes as ImageNet-1K.

Codes are random bytes, and the plastic part is one small layer. So what is measured is what the library itself does.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from graspcl.bench.scale import peak_bytes
from graspcl.bench.timing import Bar
from graspcl.buffer import Buffer
from graspcl.buffer.state import saved_state
from graspcl.errors import GraspError
from graspcl.experiment.checkpoints import Background, Stored
from graspcl.experiment.folder import RunFolder
from graspcl.learner import Learner, Optimiser
from graspcl.model import LinearHead, SplitNetwork
from graspcl.policy import Budget
from graspcl.state import copied

_BYTES, _WIDTH, _CHUNK = 1568, 16, 4096  # of a code, of an embedding, and samples that arrive together
_PEAK, _STOP = 200.0, 1.0  # MB of a checkpoint beside the buffer, and seconds per GB for which training stops


def run(samples: int = 1_281_167, classes: int = 1000, sessions: int = 10, updates: int = 20) -> Iterator[Bar]:
    """Yield the figures of a buffer of 1.5 GB (less for fewer samples) and of one without a bound."""
    share = samples / 1_281_167
    for name, capacity in (("bounded", f"{max(1, round(1500 * share))}MB"), ("unbounded", None)):
        with tempfile.TemporaryDirectory() as folder:
            yield from _sessions(name, capacity, Path(folder), samples, classes, sessions, updates)


def _sessions(
    name: str, capacity: str | None, folder: Path, samples: int, classes: int, sessions: int, updates: int
) -> Iterator[Bar]:
    rng, learner = np.random.default_rng(0), _learner(capacity)
    place, writer, beside = RunFolder(folder), Background(), [0.0]
    spent: dict[str, float] = defaultdict(float)
    stopped = saved = 0.0  # seconds, and GB in all checkpoints together

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        spent[part] += time.perf_counter() - begin

    for part in np.array_split(rng.permutation(classes), sessions):
        labels = rng.permutation(np.repeat(part, samples // classes))
        for begin in range(0, len(labels), _CHUNK):
            some = labels[begin : begin + _CHUNK]
            codes = rng.integers(256, size=(len(some), _BYTES), dtype=np.uint8)
            with timed("inserting"):
                learner.observe_codes(codes, some)
        with timed("selecting and training"):
            learner.rehearse(Budget(updates, 64))
        before, stop = peak_bytes(reset=True), time.perf_counter()
        state, stored = _state(learner)
        writer.start(lambda read, state=state, stored=stored: place.save_checkpoint(state, stored, read))  # type: ignore[misc]
        writer.wait_until_read()  # as if the buffer changed at once
        stop = time.perf_counter() - stop
        writer.wait()
        spent["checkpoints"] += writer.seconds
        beside.append((peak_bytes() - before) / 1e6)
        stopped, saved = stopped + stop, saved + learner.buffer.nbytes / 1e9
        del state, stored
    with timed("resuming"):
        found = RunFolder(folder).load_checkpoint(lambda said: None)
        if found is None:
            raise GraspError("the checkpoint cannot be read")
        other = _learner(capacity)
        other.load_state_dict(found["learner"])
    if not all(np.array_equal(other.buffer[one], learner.buffer[one]) for one in ("codes", "labels", "ids")):
        raise GraspError("the resumed buffer differs")
    for what, seconds in spent.items():
        yield Bar.of("full", f"{name}: seconds of {what}", [seconds])
    yield Bar.of("full", f"{name}: GB stored", [learner.buffer.nbytes / 1e9])
    yield Bar.of("full", f"{name}: MB at the peak of a checkpoint, beside the buffer", [max(beside)], _PEAK)
    yield Bar.of("full", f"{name}: seconds per GB for which a checkpoint stops training", [stopped / saved], _STOP)


class _AsNumbers(nn.Module):
    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.float() / 128 - 1


def _learner(capacity: str | None) -> Learner:
    generator = torch.Generator().manual_seed(0)
    layer = nn.utils.skip_init(nn.Linear, _BYTES, _WIDTH)
    nn.init.normal_(layer.weight, std=0.03, generator=generator)
    nn.init.zeros_(layer.bias)
    plastic = nn.Sequential(_AsNumbers(), layer)
    network = SplitNetwork(nn.Identity(), plastic, LinearHead(_WIDTH, 0, generator=generator))
    return Learner(network, Buffer(capacity), "grasp", Optimiser(lr=0.01))


def _state(learner: Learner) -> tuple[dict[str, Any], Stored]:
    """Return a checkpoint as a run saves it."""
    known = {**learner.knowledge(), "buffer": saved_state(learner.buffer, "codes", copy=False)}
    state = copied({"stream": {}, "learner": known})
    return state, Stored(state["learner"]["buffer"]["columns"]["births"], learner.buffer["codes"])
