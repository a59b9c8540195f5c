"""The bars this project sets itself. Each function measures ratios within one run and yields them as bars."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from graspcl.buffer import Buffer
from graspcl.checks import Array
from graspcl.codec import OPQ
from graspcl.errors import require
from graspcl.learner import Learner, Optimiser, Rehearsal, Siesta
from graspcl.model import mobilenet_v3_large, vector_network
from graspcl.policy import Budget, Policy, Session, policies
from graspcl.policy.drawing import group_by_class, uniform_draws
from graspcl.policy.grasp import grasp_draws


@dataclass(frozen=True)
class Bar:
    """A ratio (or rate) measured within one run. `bar` is what it must reach or, unless `at_least`, not exceed."""

    bench: str
    what: str
    value: float
    bar: float | None = None
    at_least: bool = True
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Whether the bar is met. Without a bar the value is for information."""
        return self.bar is None or (self.value >= self.bar if self.at_least else self.value <= self.bar)

    def line(self) -> str:
        """Return one line to print.

        >>> Bar("decode", "speed-up over faiss", 9.0, bar=5.0).line()
        'decode: speed-up over faiss = 9.00 (at least 5: met)'
        """
        text = f"{self.bench}: {self.what} = {self.value:,.2f}"
        if self.bar is not None:
            text += f" ({'at least' if self.at_least else 'at most'} {self.bar:,g}: {'met' if self.ok else 'MISSED'})"
        return f"{text} · {self.detail}" if self.detail else text


def seconds(call: Callable[[], object]) -> float:
    """Return the time of one call."""
    begin = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def median_seconds(call: Callable[[], object], runs: int) -> float:
    """Return the median time of `runs` calls, after one that is not counted."""
    call()
    return median(seconds(call) for _ in range(runs))


def selection(classes: int = 1000, per_class: int = 1281, budget: int = 1_281_024, runs: int = 9) -> Iterator[Bar]:
    """GRASP's draws for one pass, against the published loop and uniform draws; then for ten times the classes."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), per_class)
    distances = rng.beta(4, 8, len(labels))
    groups = group_by_class(labels)
    timed = 3000
    loop = seconds(lambda: _published_loop(np.split(distances.copy(), classes), rng, timed)) * budget / timed
    uniform = median_seconds(lambda: uniform_draws(groups, budget, rng), runs)
    grasp = median_seconds(lambda: grasp_draws(distances, groups, budget, rng, 1e-7), runs)
    detail = f"loop: {timed:,} draws timed, extrapolated to {loop:,.0f} s for {budget:,}; grasp {grasp:.3f} s"
    yield Bar("selection", "grasp faster than the loop as published, times", loop / grasp, 300, detail=detail)
    what = "grasp / uniform_balanced with replacement"
    yield Bar("selection", what, grasp / uniform, 10, False, f"medians of {runs} runs")
    many = group_by_class(np.concatenate([labels + classes * i for i in range(10)]))
    far = np.tile(distances, 10)
    tenfold = median_seconds(lambda: grasp_draws(far, many, 10 * budget, rng, 1e-7), 3)
    yield Bar("selection", "ten times the samples cost, times", tenfold / grasp, 13, False, "median of 3 runs")


def _published_loop(distances: list[Array], rng: np.random.Generator, draws: int) -> None:
    """Algorithm 1 as it is written, class by class."""
    for draw in range(draws):
        d_k = distances[draw % len(distances)]
        p = 1 / (d_k + 1e-7)
        m = rng.choice(len(d_k), p=p / p.sum())
        d_k[m] += d_k.max()


def insert(capacity: int = 959_665, insertions: int = 2_000_000, batch: int = 2048) -> Iterator[Bar]:
    """Codes of 1,568 bytes in 1,000 classes, in a full buffer of the paper's size; each insertion evicts a sample."""
    rng = np.random.default_rng(0)
    buffer = Buffer(capacity=capacity, rng=1)
    codes = rng.integers(256, size=(batch, 14, 14, 8), dtype=np.uint8)

    def step() -> float:
        labels = rng.integers(1000, size=batch)
        return seconds(lambda: buffer.insert(codes, labels))

    while len(buffer) < capacity:
        step()
    for _ in range(20):
        step()
    times = [step() for _ in range(insertions // batch)]
    detail = f"{len(times)} batches of {batch:,}; buffer of {buffer.nbytes / 1e9:.2f} GB"
    rate = batch * len(times) / sum(times)
    yield Bar("insert", "insertions with eviction per second", rate, 300_000, detail=detail)
    tenth = len(times) // 10
    ratio = median(times[-tenth:]) / median(times[:tenth])
    yield Bar("insert", "time per batch, last tenth / first tenth", ratio, 1.3, False, "medians")


def decode(runs: int = 15, batch: int = 128, side: int = 14, channels: int = 80) -> Iterator[Bar]:
    """Sums of table rows for latents of 80 x 14 x 14, against faiss's decode and reverse transform, one thread each."""
    noise = torch.Generator().manual_seed(0)
    mix = torch.randn(channels, channels, generator=noise)
    latents = torch.einsum("ce,nehw->nchw", mix, torch.randn(batch, channels, side, side, generator=noise))
    codec = OPQ(iterations=2, samples=10_000).fit(latents)
    codes = codec.encode(latents)
    faiss, state = require("faiss", "opq"), codec.state_dict()
    rotation = faiss.OPQMatrix(channels, codec.codebooks)
    faiss.copy_array_to_vector(state["rotation"].numpy().ravel(), rotation.A)
    rotation.is_trained = rotation.is_orthonormal = True
    quantizer = faiss.ProductQuantizer(channels, codec.codebooks, codec.size.bit_length() - 1)
    faiss.copy_array_to_vector(state["centroids"].numpy().ravel(), quantizer.centroids)
    flat = codes.reshape(-1, codec.codebooks).numpy()

    def by_faiss() -> torch.Tensor:
        vectors = torch.from_numpy(rotation.reverse_transform(quantizer.decode(flat)))
        return vectors.reshape(batch, side, side, channels).permute(0, 3, 1, 2).contiguous()

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        faiss.omp_set_num_threads(1)
        ours, theirs = median_seconds(lambda: codec.decode(codes), runs), median_seconds(by_faiss, runs)
    finally:
        torch.set_num_threads(threads)
        faiss.omp_set_num_threads(threads)
    rate = f"{len(flat) / ours / 1e6:.1f} million vectors/s on one core; medians of {runs} runs"
    yield Bar("decode", "faster than faiss, times", theirs / ours, 5, detail=rate)
    difference = float((codec.decode(codes) - by_faiss()).abs().max())
    yield Bar("decode", "largest difference to faiss, in units of 1e-4", difference * 1e4, 1, False)


def session(stored: int = 256, rounds: int = 5) -> Iterator[Bar]:
    """A GRASP session of MobileNetV3-Large's plastic part on OPQ codes, against a bare loop with the same batches."""
    latents = torch.randn(stored, 80, 14, 14, generator=torch.Generator().manual_seed(0))
    codec = OPQ(iterations=1, samples=4096).fit(latents)
    optimiser, budget = Optimiser(lr=0.01), Budget(updates=8, batch_size=32)
    overheads, selections = [], []
    for _ in range(rounds):
        network = mobilenet_v3_large(generator=torch.Generator().manual_seed(0))
        learner = Siesta(network, Buffer(codec=codec), "grasp", optimiser, rng=0)
        learner.observe_codes(learner.buffer.encode(latents), np.arange(stored) % 8)
        begin = time.perf_counter()
        log = learner.rehearse(budget)
        whole, selecting = time.perf_counter() - begin, log.costs.selection_seconds
        taken = [learner.buffer.fetch(slots) for slots in log.picks]
        bare = _bare_loop(learner, optimiser, [(inputs, learner.rows(labels)) for inputs, labels in taken])
        overheads.append((whole - selecting) / bare - 1)
        selections.append(selecting / whole)
    detail = f"fetch, decode, bookkeeping; {rounds} rounds of {budget.updates} updates of {budget.batch_size}"
    yield Bar("session", "percent on top of a bare loop", 100 * median(overheads), 10, False, detail)
    share = "percent of the session spent on selection (its forward pass over the buffer included)"
    yield Bar("session", share, 100 * median(selections))


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


_DIM = 512
_SLICE = 10  # updates timed where a policy works per mini-batch; the rest of the session is extrapolated


def policy_times(stored: int = 100_000, classes: int = 100, batch: int = 512) -> Iterator[Bar]:
    """Session times of all policies relative to uniform rehearsal, as in the paper's figure.

    Vectors of 512 numbers, a three-layer network with 512-d embeddings, one pass; a tenth of the samples is new.
    """
    rng = np.random.default_rng(0)
    labels = rng.integers(classes, size=stored)
    centres = rng.standard_normal((classes, _DIM), np.float32)
    buffer = Buffer()
    buffer.insert(centres[labels] + rng.standard_normal((stored, _DIM), np.float32), labels)
    buffer.since = int(stored * 0.9)
    learner = _learner(buffer, policies.create("uniform"))
    measured = Session(buffer, Budget(1, 1), learner.rng, learner.network)
    forward = seconds(lambda: measured.embeddings)
    names = ["uniform", *(name for name in policies.names() if name != "uniform")]
    times = {name: _time(buffer, policies.create(name), Budget(stored // batch, batch)) for name in names}
    training = times["uniform"][1]
    for name, (selecting, trained) in times.items():
        policy, whole = policies.get(name), selecting + trained
        detail = f"{policy.family}; {policy.cost}; selection {selecting:.1f} s of {whole:.1f} s"
        yield Bar("policies", f"{name}: session time / uniform", whole / sum(times["uniform"]), detail=detail)
    by_distance = ("grasp", "uniform_balanced", "mof", "hard_biased", "kmeans")
    by_score = ("max_loss", "min_margin", "min_confidence", "min_logit_distance", "min_rehearsal")
    for name in (*by_distance, *by_score):
        looks = bool({"embeddings", "distances", "logits"} & policies.get(name).needs)
        extra = 100 * (times[name][0] - looks * forward) / training
        what = "to a session" + (" beside its forward pass" if looks else "") if name in by_distance else ""
        yield Bar("policies", f"{name}: percent added {what or 'beside one forward pass'}", extra, 10, False)
    yield Bar("policies", "a forward pass over the buffer, percent of training", 100 * forward / training)


def _learner(buffer: Buffer, policy: Policy) -> Learner:
    network = vector_network(_DIM, hidden=1024, embedding=_DIM, generator=torch.Generator().manual_seed(0))
    learner = Learner(network, buffer, policy, Optimiser(lr=0.1))
    learner.add_classes(buffer.labels)
    return learner


def _time(buffer: Buffer, policy: Policy, budget: Budget) -> tuple[float, float]:
    """Seconds of selection and of training in a session; those of mini-batches are extrapolated from `_SLICE`."""
    rehearsal = Rehearsal(_learner(buffer, policy), budget)
    costs = rehearsal.session.costs
    rehearsal.step()  # includes the policy's start, and what is compiled or allocated once
    warm = (costs.selection_seconds, costs.training_seconds)
    for _ in range(_SLICE):
        rehearsal.step()
    select = (costs.selection_seconds - warm[0]) / _SLICE
    train = (costs.training_seconds - warm[1]) / _SLICE
    start = max(0.0, warm[0] - select)
    return start + select * budget.updates, train * budget.updates
