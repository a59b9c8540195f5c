"""The bars this project sets itself. Each function measures ratios (see `timing`) and yields them as bars."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy

from graspcl.bench.timing import ROUNDS, Bar, interleave, interleave_both
from graspcl.buffer import Buffer, rules
from graspcl.checks import Array
from graspcl.codec import OPQ
from graspcl.errors import require
from graspcl.experiment.checkpoints import Segments, Stored
from graspcl.learner import Aligned, Learner, Optimiser, Siesta
from graspcl.model import SplitNetwork, efficientnet_lite0, mobilenet_v3_large, vector_network
from graspcl.model.layers import SmallDepthwise
from graspcl.policy import Budget, Session, batches, policies, rehearse
from graspcl.policy.drawing import group_by_class, uniform_draws
from graspcl.policy.grasp import grasp_draws
from graspcl.policy.session import SampleOutputs
from graspcl.state import load_state, save_state


def selection(
    classes: int = 1000, per_class: int = 1281, budget: int = 1_281_024, timed: int = 3000, rounds: int = ROUNDS
) -> Iterator[Bar]:
    """GRASP's draws for one pass, against the published loop and uniform draws; then for ten times the classes.

    `timed` draws of the loop are measured, and the rest is extrapolated.
    """
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), per_class)
    distances = rng.beta(4, 8, len(labels))
    groups = group_by_class(labels)
    many, far = group_by_class(np.concatenate([labels + classes * i for i in range(10)])), np.tile(distances, 10)
    loop, uniform, grasp, tenfold = interleave(
        lambda: _published_loop(np.split(distances.copy(), classes), rng, timed),
        lambda: uniform_draws(groups, budget, rng),
        lambda: grasp_draws(distances, groups, budget, rng, 1e-7),
        lambda: grasp_draws(far, many, 10 * budget, rng, 1e-7),
        rounds=rounds,
    )
    yield Bar.of("selection", "the loop as published / grasp", loop * budget / timed / grasp, 300, at_least=True)
    yield Bar.of("selection", "grasp / uniform_balanced, with replacement", grasp / uniform, 10)
    yield Bar.of("selection", "grasp for ten times the samples / grasp", tenfold / grasp, 13)


def _published_loop(distances: list[Array], rng: np.random.Generator, draws: int) -> None:
    """Algorithm 1 as it is written, class by class."""
    for draw in range(draws):
        d_k = distances[draw % len(distances)]
        p = 1 / (d_k + 1e-7)
        m = rng.choice(len(d_k), p=p / p.sum())
        d_k[m] += d_k.max()


def insert(
    capacity: int = 959_665, insertions: int = 2_000_000, batch: int = 2048, rounds: int = ROUNDS
) -> Iterator[Bar]:
    """Insertions that evict, into a full buffer of the paper's size: codes of 1,568 bytes in 1,000 classes.

    Then the time per batch of each simple rule, in a buffer with a long history and in one that has just become full.
    """
    rng = np.random.default_rng(0)
    buffer = Buffer(capacity=capacity, rng=1)
    codes = rng.integers(256, size=(batch, 14, 14, 8), dtype=np.uint8)

    def store(batches: int = 1) -> None:
        for _ in range(batches):
            buffer.insert(codes, rng.integers(1000, size=batch))

    def copy() -> None:
        buffer["codes"][rng.integers(capacity, size=batch)] = codes

    store(-(-capacity // batch))
    young = np.divide(*interleave(store, copy, rounds=rounds, repeat=5))
    store(insertions // batch)
    old = np.divide(*interleave(store, copy, rounds=rounds, repeat=5))
    yield Bar.of("insert", "insert with eviction / copying the same bytes", old, 4)
    yield Bar.of("insert", f"insert after {insertions:,} insertions / at first", old / young, 1.3)
    few, write = interleave(*_inserting_few(codes[:32].reshape(32, -1), 2000), rounds=rounds, repeat=100)
    yield Bar.of("insert", "insert of 32 samples / writing their arrays to random rows", few / write, 6)
    for bound in (2000, None):
        vectors = rng.standard_normal((32, 256), np.float32)
        few, write = interleave(*_inserting_few(vectors, bound), rounds=rounds, repeat=100)
        what = f"insert of 32 vectors - writing their arrays, {'un' if bound is None else ''}bounded, in µs"
        yield Bar.of("insert", what, (few - write) * 1e4, 60)
    for rule in ("largest_class", "reservoir", "fifo", "ring"):
        late, early = interleave(_inserting(rule, 1500), _inserting(rule, 60), rounds=rounds, repeat=40)
        yield Bar.of("insert", f"{rule}: insert after a long history / when just filled", late / early, 1.3)


def _inserting_few(inputs: Array, capacity: int | None) -> tuple[Callable[[], None], Callable[[], None]]:
    """Insert a few samples into a buffer of 2,000, where overhead dominates; and write them with numpy alone."""
    rng, buffer = np.random.default_rng(0), Buffer(capacity, rng=1)
    labels = rng.integers(100, size=len(inputs))
    for _ in range(-(-2000 // len(inputs))):
        buffer.insert(inputs, labels)

    def write() -> None:
        slots = rng.integers(2000, size=len(inputs))
        for column, values in (("codes", inputs), ("labels", labels), ("ids", labels), ("births", labels)):
            buffer[column][slots] = values

    return lambda: buffer.insert(inputs, labels) and None, write


def _inserting(rule: str, history: int) -> Callable[[], None]:
    """A function that inserts a batch of 10 into a buffer of 500 that has seen `history` batches."""
    rng, codes = np.random.default_rng(0), np.zeros((10, 4), np.uint8)
    buffer = Buffer(500, maintenance=rules.create(rule))

    def store(batches: int = 1) -> None:
        for _ in range(batches):
            buffer.insert_codes(codes, rng.integers(20, size=10))

    store(history)
    return store


def decode(batch: int = 128, side: int = 14, channels: int = 80, rounds: int = ROUNDS) -> Iterator[Bar]:
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

    threads = faiss.omp_get_max_threads()
    try:
        faiss.omp_set_num_threads(1)
        theirs, ours = interleave(by_faiss, lambda: codec.decode(codes), rounds=rounds, repeat=5)
    finally:
        faiss.omp_set_num_threads(threads)
    yield Bar.of("decode", "faiss / decode", theirs / ours, 5, at_least=True)
    difference = float((codec.decode(codes) - by_faiss()).abs().max())
    yield Bar.of("decode", "largest difference to faiss, in units of 1e-4", [difference * 1e4], 1)


# -- sessions ---------------------------------------------------------------------------------------------------------


def session(updates: int = 100, stored: int = 4096, images: int = 64, rounds: int = ROUNDS) -> Iterator[Bar]:
    """Whole sessions of uniform rehearsal against the same updates written by hand, on samples held in memory."""
    budget, noise = Budget(updates, batch_size=32), torch.Generator().manual_seed(0)
    vectors, labels = torch.randn(stored, 256, generator=noise), torch.arange(stored) % 20
    buffer = Buffer()
    buffer.insert(vectors, labels)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 20))

    def by_rehearse() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for x, y in rehearse(buffer, "uniform", budget):
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def by_hand() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for slots in torch.randint(stored, (updates, 32), generator=noise):
            loss = cross_entropy(model(vectors[slots]), labels[slots])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    ours, bare = interleave(by_rehearse, by_hand, rounds=rounds)
    yield Bar.of("session", "rehearse / a loop by hand, MLP 256-512", ours / bare, 1.05)
    perceptron = vector_network(256, hidden=512, generator=torch.Generator().manual_seed(0))
    ours, bare = _siesta_and_by_hand(perceptron, Buffer(), vectors, labels, budget, rounds)
    yield Bar.of("session", "Siesta / a loop by hand, MLP 256-512", ours / bare, 1.1)
    latents = torch.randn(images, 80, 14, 14, generator=noise)
    codec = OPQ(iterations=1, samples=4096).fit(latents)
    network, few = mobilenet_v3_large(generator=torch.Generator().manual_seed(0)), Budget(max(4, updates // 12), 4)
    ours, bare = _siesta_and_by_hand(network, Buffer(codec=codec), latents, labels[:images], few, rounds)
    yield Bar.of("session", "Siesta / a loop by hand, MobileNetV3-Large on OPQ codes", ours / bare, 1.1)


def heads(stored: int = 4096, classes: int = 60, rounds: int = 3) -> Iterator[Bar]:
    """Sessions of one pass with the default learner, against the same updates without solving heads.

    The network is EfficientNet-Lite0 behind block 7, for photos of 64 x 64 pixels.
    """
    latents = torch.randn(stored, 80, 4, 4, generator=torch.Generator().manual_seed(0)).relu()
    budget = Budget(stored // 32, batch_size=32)

    def sessions(kind: type[Learner]) -> Callable[[], object]:
        network = efficientnet_lite0(7, dropout=0.0, generator=torch.Generator().manual_seed(0), pretrained=False)
        policy = policies.create("uniform_balanced", replace=False)
        learner = kind(network, Buffer(), policy, Aligned.optimiser_by_default)
        learner.observe_codes(latents, torch.arange(stored) % classes)
        return lambda: learner.rehearse(budget)

    ours, plain = interleave(sessions(Aligned), sessions(Learner), rounds=rounds)
    yield Bar.of("heads", "aligned / the same updates without solving heads", ours / plain, 1.15)


def filters(channels: int = 672, batch: int = 32, rounds: int = ROUNDS) -> Iterator[Bar]:
    """PyTorch's gradient of depthwise 5 x 5 filters, against that of `SmallDepthwise`, on maps of several sizes."""
    noise = torch.Generator().manual_seed(0)
    weight = torch.randn(channels, 1, 5, 5, generator=noise).requires_grad_()
    for size in (2, 4, 8):
        x = torch.randn(batch, channels, size, size, generator=noise).contiguous(memory_format=torch.channels_last)
        plain, ours = interleave(
            partial(_gradient, F.conv2d(x, weight, padding=2, groups=channels), weight),
            partial(_gradient, SmallDepthwise.apply(x, weight, (1, 1), (2, 2)), weight),  # type: ignore[no-untyped-call]
            rounds=rounds,
            repeat=5,
        )
        what = f"PyTorch's gradient of 5 x 5 filters / ours, {size} x {size} locations"
        yield Bar.of("filters", what, plain / ours, 1, at_least=True)


def _gradient(output: torch.Tensor, weight: torch.Tensor) -> None:
    torch.autograd.grad(output.sum(), weight, retain_graph=True)


def _siesta_and_by_hand(
    network: SplitNetwork, buffer: Buffer, latents: torch.Tensor, labels: torch.Tensor, budget: Budget, rounds: int
) -> Array:
    """CPU seconds [2, rounds] of SIESTA's sessions and of a loop with the same network, optimiser and schedule."""
    learner = Siesta(network, buffer, "uniform", Optimiser(lr=0.01))
    codes = buffer.encode(latents)
    learner.observe_codes(codes, labels)
    stored, rows = torch.as_tensor(codes), learner.rows(labels)
    rates = [group["lr"] for group in learner.optimiser.build(network.plastic_parameters()).param_groups]
    noise = torch.Generator().manual_seed(0)

    def by_hand() -> None:
        optimizer = learner.optimiser.build(network.plastic_parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=rates, total_steps=budget.updates, cycle_momentum=False
        )
        network.train()
        for slots in torch.randint(len(stored), (budget.updates, budget.batch_size), generator=noise):
            inputs = stored[slots] if buffer.codec is None else buffer.codec.decode(stored[slots])
            loss = cross_entropy(network(inputs).logits, rows[slots])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()

    return interleave(lambda: learner.rehearse(budget), by_hand, rounds=rounds)


# -- states -----------------------------------------------------------------------------------------------------------


def state(small: int = 128, large: int = 65_536, rounds: int = ROUNDS) -> Iterator[Bar]:
    """Loading a state into a new learner, and a run's checkpoint with its codes in segments: verified and unverified.

    The bar is on the seconds that a user waits for a state that is read from the disk, as after a restart. What is in
    memory already, because it was just written or read, is copied in little more time than it is verified in: that is
    shown without a bar. A thread verifies while another one copies, so CPU seconds would not say how long it takes.
    """
    for stored in (small, large):
        learner = _learner(_vectors(stored), "uniform")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "state"
            learner.save(file)

            def load(verify: bool, file: Path = file) -> None:  # as Learner.load
                state = load_state(file, verify=verify, copy=True)
                _learner(Buffer(), "uniform").load_state_dict(state, copy=False)

            what = f"a new learner from a state of {file.stat().st_size / 1e6:.0f} MB, verified / not"
            yield from _verifying(what, Path(folder), lambda: load(True), lambda: load(False), rounds=rounds)
    with tempfile.TemporaryDirectory() as folder:
        file, segments, state = Path(folder) / "state", Segments(Path(folder)), learner.state_dict()
        columns = state["buffer"]["columns"]
        births, codes = columns["births"], columns.pop("codes")
        written = segments.write(Stored(births, codes))
        segments.settle()
        save_state(file, state)

        def resume(verify: bool) -> None:  # as a run
            state = load_state(file, verify=verify)
            columns = state["buffer"]["columns"]
            state["buffer"]["columns"] = {"codes": segments.open(written, columns["births"], verify=verify), **columns}
            _learner(Buffer(), "uniform").load_state_dict(state)

        what = f"a checkpoint with {codes.nbytes / 1e6:.0f} MB of codes in segments, verified / not"
        yield from _verifying(what, Path(folder), lambda: resume(True), lambda: resume(False), rounds=rounds)


def _verifying(what: str, folder: Path, *calls: Callable[[], object], rounds: int) -> Iterator[Bar]:
    """The time on the clock of the first of two calls relative to the second: files from the disk, and from memory."""
    (verified, plain) = interleave_both(*calls, rounds=rounds, before=lambda: _leave_memory(folder))[1]
    yield Bar.of("state", f"{what}, from the disk", verified / plain, 1.1)
    (verified, plain) = interleave_both(*calls, rounds=rounds, repeat=3)[1]
    yield Bar.of("state", f"{what}, from memory", verified / plain)


def _leave_memory(folder: Path) -> None:
    """Let the system drop its copies of all files of a folder, where it takes such advice."""
    for path in folder.rglob("*"):
        if path.is_file() and hasattr(os, "posix_fadvise"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# -- policies ---------------------------------------------------------------------------------------------------------

_DIM, _BATCH = 512, 32
_BARRED = (
    *("uniform_balanced", "grasp", "mof", "hard_biased", "kmeans"),
    *("max_loss", "min_margin", "min_confidence", "min_logit_distance", "min_rehearsal"),
)


def policy_times(stored: int = 8192, few: int = 512, rounds: int = ROUNDS) -> Iterator[Bar]:
    """What policies cost: their own work as a part of training, then whole sessions relative to uniform rehearsal.

    A session is one pass over vectors of 512 numbers in 16 classes with a three-layer network; a tenth is new. For
    its own work, a policy gets outputs that cost nothing, since the forward pass costs the same for all that need one.
    """
    buffer = _vectors(stored)
    learner, budget = _learner(buffer, "uniform"), Budget(stored // 512, 512)
    optimizer = learner.optimiser.build(learner.network.plastic_parameters())
    inputs, labels = buffer.fetch(np.arange(512))

    def train() -> None:
        loss = cross_entropy(learner.network(inputs).logits, learner.rows(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    training, *selecting = interleave(train, *(_selecting(name, buffer, budget) for name in _BARRED), rounds=rounds)
    for name, spent in zip(_BARRED, selecting, strict=True):
        what = f"{name}: its own work, percent of training"
        yield Bar.of("policies", what, 100 * spent / (training * budget.updates), 10)

    names = ["uniform", *(name for name in policies.names() if name != "uniform")]
    uniform, *others = interleave(*(_rehearsing(name, few) for name in names), rounds=rounds)
    for name, spent in zip(names[1:], others, strict=True):
        yield Bar.of("policies", f"{name}: a session / uniform", spent / uniform)


def _vectors(stored: int) -> Buffer:
    rng, buffer = np.random.default_rng(0), Buffer()
    labels = rng.permutation(np.arange(stored) % 16)
    centres = rng.standard_normal((16, _DIM), np.float32)
    buffer.insert(centres[labels] + rng.standard_normal((stored, _DIM), np.float32), labels)
    return buffer


def _learner(buffer: Buffer, policy: str) -> Learner:
    network = vector_network(_DIM, hidden=1024, embedding=_DIM, generator=torch.Generator().manual_seed(0))
    learner = Learner(network, buffer, policy, Optimiser(lr=0.01))
    learner.add_classes(buffer.labels)
    return learner


def _selecting(name: str, buffer: Buffer, budget: Budget) -> Callable[[], None]:
    """A function that selects all mini-batches of a session, for a network whose outputs are its inputs."""

    def outputs(inputs: torch.Tensor) -> Any:
        return SimpleNamespace(embedding=inputs, logits=inputs[:, :16])

    inputs, rows = buffer.fetch(np.arange(budget.batch_size))
    trained = SampleOutputs(inputs, inputs, inputs[:, :16], cross_entropy(inputs[:, :16], rows, reduction="none"), rows)

    def select() -> None:
        policy = policies.create(name)
        for slots in batches(policy, Session(buffer, budget, np.random.default_rng(0), outputs)):
            policy.observe(slots, trained)

    return select


def _rehearsing(name: str, stored: int) -> Callable[[], None]:
    """A function that runs a session of one pass; a tenth of the samples is new each time."""
    learner = _learner(_vectors(stored), name)

    def run() -> None:
        learner.buffer.since = int(stored * 0.9)
        learner.rehearse(Budget(stored // _BATCH, _BATCH))

    return run
