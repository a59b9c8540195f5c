"""A rehearsal of full size without its network: sessions, checkpoints, a kill, resuming and a report.

It has as many codes as ImageNet-1K has images. Codes are random bytes, and the plastic part is one small layer. So what
is measured is what the library itself does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
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
from graspcl.integrity import checksum
from graspcl.learner import Learner, Optimiser
from graspcl.model import LinearHead, SplitNetwork
from graspcl.policy import Budget
from graspcl.report import gather, write_page
from graspcl.state import copied

_BYTES, _WIDTH, _CHUNK = 1568, 16, 4096  # of a code, of an embedding, and samples that arrive together
_BATCH, _TESTS = 64, 50  # of an update, and test samples per class
_PEAK, _STOP = 200.0, 1.0  # MB of a checkpoint beside the buffer, and seconds per GB for which training stops


@dataclass(frozen=True)
class Sizes:
    """Sizes of the rehearsal."""

    capacity: str | None
    samples: int = 1_281_167
    classes: int = 1000
    sessions: int = 10
    updates: int = 20


@dataclass
class Spent:
    """What one process measured, by part: seconds, CPU seconds, and the most memory beside the buffer in MB."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    cpu: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    peak: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    stopped: float = 0.0  # seconds for which checkpoints stopped training
    saved: float = 0.0  # GB in all checkpoints together
    stored: float = 0.0  # GB in the buffer at the end
    content: str = ""  # checksum of the buffer in the last checkpoint

    @contextmanager
    def part(self, name: str, learner: Learner) -> Iterator[None]:
        """Book what is done within; the buffer's own growth does not count as memory."""
        held, before = learner.buffer.nbytes, peak_bytes(reset=True)
        begin, worked = time.perf_counter(), time.process_time()
        yield
        self.seconds[name] += time.perf_counter() - begin
        self.cpu[name] += time.process_time() - worked
        beside = peak_bytes() - before - (learner.buffer.nbytes - held)
        self.peak[name] = max(self.peak[name], beside / 1e6)


def run(samples: int = 1_281_167, classes: int = 1000, sessions: int = 10, updates: int = 20) -> Iterator[Bar]:
    """Yield the figures of a buffer of 1.5 GB (less for fewer samples) and of one without a bound.

    One process learns and is killed in the middle of a session. Another one resumes and reports.
    """
    share = samples / 1_281_167
    for name, capacity in (("bounded", f"{max(1, round(1500 * share))}MB"), ("unbounded", None)):
        sizes = Sizes(capacity, samples, classes, sessions, updates)
        with tempfile.TemporaryDirectory() as folder:
            killed, code = _in_process(_learn_until_killed, Path(folder), sizes)
            if code != -signal.SIGKILL:
                raise GraspError(f"the learning process was not killed, but ended with {code}")
            resumed, _ = _in_process(_resume_and_report, Path(folder), sizes)
        yield from bars(name, killed, resumed)


def bars(name: str, learned: Spent, resumed: Spent) -> Iterator[Bar]:
    """Yield what two processes have measured."""
    if resumed.content != learned.content:
        raise GraspError("the resumed buffer differs")
    yield Bar.of("full", f"{name}: GB stored", [learned.stored])
    for spent in (learned, resumed):
        for part, seconds in spent.seconds.items():
            yield Bar.of("full", f"{name}: seconds of {part}", [seconds])
            yield Bar.of("full", f"{name}: CPU seconds of {part}", [spent.cpu[part]])
            bar = _PEAK if part == "checkpoints" else None
            yield Bar.of("full", f"{name}: MB at the peak of {part}, beside the buffer", [spent.peak[part]], bar)
    stop = learned.stopped / learned.saved
    yield Bar.of("full", f"{name}: seconds per GB for which a checkpoint stops training", [stop], _STOP)


def _in_process(work: Callable[..., None], *given: Any) -> tuple[Spent, int | None]:
    """Return what `work` sends from a new process, and the exit code of that process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(sender, *given))
    process.start()
    sender.close()
    try:
        found: Spent = receiver.recv()
    except EOFError:
        raise GraspError("a process of the bench has failed; its error is above") from None
    process.join()
    return found, process.exitcode


def _learn_until_killed(sender: Connection, folder: Path, sizes: Sizes) -> None:
    """Learn, and die in the middle of one more session, whose beginning no checkpoint has."""
    learner = make_learner(sizes.capacity)
    sender.send(learn(learner, folder, sizes))
    learner.rehearse(Budget(sizes.updates, _BATCH), on_step=lambda session: os.kill(os.getpid(), signal.SIGKILL))


def _resume_and_report(sender: Connection, folder: Path, sizes: Sizes) -> None:
    sender.send(resume(make_learner(sizes.capacity), folder, sizes))


def learn(learner: Learner, folder: Path, sizes: Sizes) -> Spent:
    """Insert, rehearse and save a checkpoint in each session."""
    rng, place, writer, spent = np.random.default_rng(0), RunFolder(folder), Background(), Spent()
    place.write_texts({"config.toml": _CONFIG})
    for number, part in enumerate(np.array_split(rng.permutation(sizes.classes), sizes.sessions), start=1):
        labels = rng.permutation(np.repeat(part, sizes.samples // sizes.classes))
        for begin in range(0, len(labels), _CHUNK):
            some = labels[begin : begin + _CHUNK]
            codes = rng.integers(256, size=(len(some), _BYTES), dtype=np.uint8)
            with spent.part("inserting", learner):
                learner.observe_codes(codes, some)
        with spent.part("selecting and training", learner):
            log = learner.rehearse(Budget(sizes.updates, _BATCH))
        with spent.part("plans", learner):
            place.write_arrays(f"plans/session-{number}", labels=log.labels, ids=log.ids, picks=log.picks)
        with spent.part("checkpoints", learner):
            stop = time.perf_counter()
            state, stored = _state(learner)
            writer.start(lambda read, state=state, stored=stored: place.save_checkpoint(state, stored, read))  # type: ignore[misc]
            writer.wait_until_read()  # as if the buffer changed at once
            spent.stopped += time.perf_counter() - stop
            writer.wait()
            del state, stored
        spent.saved += learner.buffer.nbytes / 1e9
    spent.stored, spent.content = learner.buffer.nbytes / 1e9, _content(learner.buffer)
    return spent


def resume(learner: Learner, folder: Path, sizes: Sizes) -> Spent:
    """Load the last checkpoint, rehearse once more, and write the page of a report."""
    spent, place = Spent(), RunFolder(folder)
    with spent.part("resuming", learner):
        found = place.load_checkpoint(lambda said: None)
        if found is None:
            raise GraspError("the checkpoint cannot be read")
        learner.load_state_dict(found["learner"])
        del found
    spent.stored, spent.content = learner.buffer.nbytes / 1e9, _content(learner.buffer)
    with spent.part("the session after resuming", learner):
        learner.rehearse(Budget(sizes.updates, _BATCH))
    _finish(place, sizes)
    with spent.part("a report", learner):
        report = gather([folder])
        write_page(report, folder / "report.html")
    if any(run.problems for one in report.experiments for run in one.runs):
        raise GraspError("the report has problems")
    return spent


def _content(buffer: Buffer) -> str:
    return checksum(*(np.asarray(buffer[name]) for name in ("codes", "labels", "ids", "births")))


_CONFIG = """name = "full"
rehearsal = "latent"
seed = 0
[policy]
name = "grasp"
[learner]
name = "siesta"
"""


def _finish(place: RunFolder, sizes: Sizes) -> None:
    """Write made-up results, so that the run can be reported as a finished one."""
    rng, labels = np.random.default_rng(1), np.repeat(np.arange(sizes.classes), _TESTS)
    arrived = 1 + labels * sizes.sessions // sizes.classes
    predictions = rng.integers(sizes.classes, size=(sizes.sessions + 1, len(labels)))
    predictions[arrived > np.arange(sizes.sessions + 1)[:, None]] = -1
    place.write_arrays("predictions", labels=labels, arrived=arrived, predictions=predictions)
    place.write_json("classes", [f"class {number}" for number in range(sizes.classes)])
    place.write_metrics([{"session": number + 1, "accuracy": 50.0} for number in range(sizes.sessions)])
    place.write_json("summary", {"policy": "grasp", "learner": "siesta", "seed": 0, "alpha": 50.0})


class _AsNumbers(nn.Module):
    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.float() / 128 - 1


def make_learner(capacity: str | None) -> Learner:
    generator = torch.Generator().manual_seed(0)
    layer = nn.utils.skip_init(nn.Linear, _BYTES, _WIDTH)
    nn.init.normal_(layer.weight, std=0.03, generator=generator)
    nn.init.zeros_(layer.bias)
    plastic = nn.Sequential(_AsNumbers(), layer)
    network = SplitNetwork(nn.Identity(), plastic, LinearHead(_WIDTH, 0, generator=generator))
    return Learner(network, Buffer(capacity), "grasp", Optimiser(lr=0.01))


def _state(learner: Learner) -> tuple[dict[str, Any], Stored]:
    """Return a checkpoint as a run saves it."""
    known = {**learner.knowledge(copy=False), "buffer": saved_state(learner.buffer, "codes", copy=False)}
    state = copied({"stream": {}, "learner": known})
    return state, Stored(state["learner"]["buffer"]["columns"]["births"], learner.buffer["codes"])
