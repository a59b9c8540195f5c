"""A session on two ranks with a sharded buffer, against one process: seconds, the share of exchanges, bytes sent."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from graspcl.bench.timing import Bar
from graspcl.buffer import Buffer
from graspcl.distributed import Ranks, distributed, joined
from graspcl.learner import Learner, Optimiser
from graspcl.model import vector_network
from graspcl.policy import Budget
from graspcl.policy.grasp import Grasp

_RANKS, _ROUNDS = 2, 3
_EXCESS = 1.1  # of bytes over what the formula says


@dataclass(frozen=True)
class Sizes:
    """Sizes of the session: a perceptron on vectors, rehearsed with GRASP's draws by sample."""

    stored: int = 20_000
    classes: int = 100
    updates: int = 30
    batch: int = 128
    width: int = 784  # of a stored vector, so that a code has twice the bytes of the paper's
    hidden: int = 1024
    embedding: int = 256


@dataclass(frozen=True)
class Spent:
    """What the sessions of one process took."""

    seconds: list[float]  # by session
    waiting: list[float]  # of them, in exchanges
    cpu: list[float]  # CPU seconds, by session
    sent: dict[str, int]  # bytes that were counted in the last session, by part
    wire: int | None  # bytes that the system counted in the last session, if it can
    parameters: int  # that were trained


def run(sizes: Sizes | None = None) -> Iterator[Bar]:
    """Yield the seconds of a session in one process and on two ranks, and what a rank sends."""
    sizes = sizes or Sizes()
    (alone,), pair = _processes(1, sizes), _processes(_RANKS, sizes)
    slowest = np.max([one.seconds for one in pair], axis=0)
    waiting = np.max([np.divide(one.waiting, one.seconds) for one in pair], axis=0)
    yield Bar.of("scale", "seconds of a session in one process", alone.seconds)
    yield Bar.of("scale", f"seconds of a session on {_RANKS} ranks", slowest)
    yield Bar.of("scale", f"share of a session on {_RANKS} ranks spent sending and waiting", waiting)
    work = np.sum([one.cpu for one in pair], axis=0) / np.array(alone.cpu)
    yield Bar.of("scale", f"CPU seconds of a session, {_RANKS} ranks together / one process", work)
    sent, expected = pair[0].sent, formula(sizes, pair[0].parameters)
    for part, number in sorted(sent.items()):
        yield Bar.of("scale", f"bytes sent by a rank in a session: {part}", [number])
    ratio = sum(sent.values()) / sum(expected.values())
    yield Bar.of("scale", "bytes sent by a rank / bytes by formula", [ratio], _EXCESS)
    if pair[0].wire is not None:
        what = "bytes that the system has sent / bytes counted"
        yield Bar.of("scale", what, [pair[0].wire / sum(sent.values())], _EXCESS)


def formula(sizes: Sizes, parameters: int, ranks: int = _RANKS) -> dict[str, float]:
    """Return the bytes that one rank sends in a session, by part, as docs/scale.md has them.

    The last mini-batch passes through the network once more when the session ends.
    """
    passes, share, draws = sizes.updates + 1, 2 * (ranks - 1) / ranks, sizes.updates * sizes.batch
    outputs = 4 * (2 * sizes.embedding + sizes.classes)
    candidates = min(draws, sizes.stored // ranks)
    return {
        "gradients": sizes.updates * share * 4 * parameters,
        "outputs": passes * (ranks - 1) * -(-sizes.batch // ranks) * outputs,
        "codes": passes * (ranks - 1) * sizes.batch / ranks * 4 * sizes.width,
        "prototypes": share * 8 * sizes.classes * (sizes.embedding + 1),
        "candidates": share * 16 * sizes.classes + (ranks - 1) / ranks * 16 * candidates + 8 * ranks,
        "plans": (ranks - 1) * 8 * -(-draws // ranks),
    }


def _processes(number: int, sizes: Sizes) -> list[Spent]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with ProcessPoolExecutor(number, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(_sessions, range(number), [number] * number, [port] * number, [sizes] * number))


def _sessions(rank: int, number: int, port: int, sizes: Sizes) -> Spent:
    """Rehearse in this process, which is one of `number`."""
    torch.set_num_threads(1)
    given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": number, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in given.items()}
    learner = _learner(sizes)
    with joined(device="cpu") if number > 1 else contextlib.nullcontext() as ranks:
        if ranks is not None:
            distributed(learner, ranks, "ranks")
        rng = np.random.default_rng(0)
        labels = rng.permutation(sizes.stored) % sizes.classes
        learner.observe_codes(rng.standard_normal((sizes.stored, sizes.width), np.float32), labels)
        return _measured(learner, ranks, Budget(sizes.updates, sizes.batch))


def _measured(learner: Learner, ranks: Ranks | None, budget: Budget) -> Spent:
    seconds, waiting, cpu, sent, wire = [], [], [], Counter[str](), None
    for number in range(1 + _ROUNDS):  # the first compiles, and is not counted
        waited, counted, before = (ranks.seconds, ranks.sent.copy(), sent_bytes()) if ranks else (0.0, sent, None)
        begin, worked = time.perf_counter(), time.process_time()
        learner.rehearse(budget)
        if number:
            cpu.append(time.process_time() - worked)
            seconds.append(time.perf_counter() - begin)
            waiting.append(ranks.seconds - waited if ranks else 0.0)
            sent = ranks.sent - counted if ranks else sent
            now = sent_bytes() if ranks else None
            wire = None if now is None or before is None else now - before
    parameters = sum(value.numel() for _, value in learner.network.plastic_parameters())
    return Spent(seconds, waiting, cpu, dict(sent), wire, parameters)


def _learner(sizes: Sizes) -> Learner:
    generator = torch.Generator().manual_seed(0)
    network = vector_network(sizes.width, sizes.hidden, sizes.embedding, generator=generator)
    policy: Any = Grasp(draws="by_sample")
    return Learner(network, Buffer(), policy, Optimiser("sgd", 0.01, schedule="constant"))


def sent_bytes() -> int | None:
    """Return the bytes that this process has sent over its open TCP connections; None where no system tells it."""
    if not hasattr(socket, "TCP_INFO") or not os.path.isdir("/proc/self/fd"):
        return None
    total = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6):
                about = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 128)
                total += int.from_bytes(about[120:128], "little")  # tcpi_bytes_acked
    return total
