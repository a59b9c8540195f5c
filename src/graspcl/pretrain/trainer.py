"""Pretraining: what happens to a network before the stream, and how it is resumed and stored.

A `Trainer` trains a network through one of the registered stages. `pretrain_once` stores checkpoints and the result,
so that the same training is done only once.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from graspcl.cache import beat
from graspcl.errors import GraspError
from graspcl.model import SplitNetwork
from graspcl.pretrain.stage import Part, Settings, stages
from graspcl.pretrain.weights import STATES, load_weights, read_header, save_weights
from graspcl.progress import Progress, Silent
from graspcl.random import restore_rng, rng_state
from graspcl.state import drop_unfinished, load_state, save_state

Int64s = NDArray[np.int64]
Read = Callable[[Int64s], Tensor]  # reads images: indices [n] -> uint8 [n, 3, H, W]


def make_trainer(
    network: SplitNetwork,
    method: str,
    read: Read,
    indices: ArrayLike,
    rows: ArrayLike | None = None,
    settings: Settings | None = None,
    rng: np.random.Generator | int = 0,
) -> Trainer[Any]:
    """Create the trainer of a network; its `run` trains it and returns the log of its epochs.

    Args:
        network: the network to train. Afterwards it is frozen as before and in eval mode.
        method: "supervised", "swav" or another name of `stages` that trains.
        read: returns images, uint8 [n, 3, H, W], for indices [n].
        indices: the samples to train on [n].
        rows: the head's row of each sample [n], for methods with labels. The head grows to them.
        settings: `SupervisedSettings` or `SwavSettings`; by default the method's.
        rng: a generator or a seed; nothing else is random.

    >>> from graspcl.model import CosineHead
    >>> from graspcl.pretrain import SupervisedSettings
    >>> head = CosineHead(12, generator=torch.Generator().manual_seed(0), scale=10.0)
    >>> net = SplitNetwork(torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), head)
    >>> images = torch.tensor([0, 255], dtype=torch.uint8).repeat(20)[:, None, None, None].expand(40, 3, 8, 8)
    >>> settings = SupervisedSettings(epochs=20, batch_size=8, mix=0.0)
    >>> trainer = make_trainer(net, "supervised", lambda indices: images[indices], range(40), [0, 1] * 20, settings)
    >>> trainer.run()[-1].accuracy
    1.0
    """
    expected = stages.get(method)
    if not issubclass(expected, Settings):
        raise GraspError(f"the stage {method!r} trains nothing")
    if settings is not None and not isinstance(settings, expected):
        raise GraspError(f"{method!r} takes {expected.__name__}, got {type(settings).__name__}")
    chosen = settings or expected()
    return chosen.trainer()(network, read, indices, rows, chosen, rng)


def pretrain_once(
    network: SplitNetwork,
    folder: Path,
    method: str,
    read: Read,
    indices: ArrayLike,
    rows: ArrayLike | None = None,
    settings: Settings | None = None,
    rng: np.random.Generator | int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Load the network pretrained in `folder`, or pretrain it there; the network ends up the same in both cases.

    Each epoch is checkpointed, and a stopped training resumes. The folder must belong to this training alone, and no
    other process may use it meanwhile. The other parameters are those of `make_trainer`.

    Returns:
        The method, and the log of its epochs.
    """
    progress = progress or Silent()
    file, checkpoint = folder / "network.safetensors", folder / "training.safetensors"
    if file.exists():
        try:
            log = dict(read_header(file)["settings"])
            load_weights(network, file)
            progress.note(f"pretraining: read from the cache ({file})")
            return log
        except GraspError as error:
            progress.note(f"{error}; pretraining is repeated")
    drop_unfinished(folder)
    # The file contains weights alone, so the states of generators are kept as they were.
    states = {name: value.clone() for name, value in network.state_dict().items() if name.endswith(STATES)}
    trainer = make_trainer(network, method, read, indices, rows, settings, rng)
    if checkpoint.exists():
        try:
            state = load_state(checkpoint)
            trainer.load_state_dict(state.get("trainer", state))  # where earlier versions stored it
            progress.note(f"pretraining resumes after epoch {len(trainer.log)} of {trainer.settings.epochs}")
        except GraspError as error:
            progress.note(f"{error}; pretraining starts again")

    def save(trainer: Trainer[Any]) -> None:
        try:
            save_state(checkpoint, trainer.state_dict())
        except GraspError as error:
            progress.note(f"{error}; if the training is stopped, this work is repeated")

    left = (trainer.settings.epochs - len(trainer.log)) * len(trainer.indices)
    with progress.task(f"pretraining ({method}, {trainer.settings.epochs} epochs)", left) as advance:

        def on_batch(number: int) -> None:
            advance(number)
            beat()

        trainer.run(save, on_batch)
    log = {"method": method, "epochs": [vars(epoch) for epoch in trainer.log]}
    try:
        file.unlink(missing_ok=True)  # a link would stay, and the file that it leads to be replaced
        save_weights(network, file, settings=log)
        checkpoint.unlink(missing_ok=True)  # not earlier: until now, the training could resume from it
    except (GraspError, OSError) as error:
        progress.note(f"the pretrained network could not be stored ({error}); the run continues")
    network.load_state_dict(states, strict=False)
    return log


@dataclass(frozen=True)
class Epoch:
    """The log of one epoch: mean loss, and `accuracy` on (mixed) training images or the number of `prototypes` used."""

    loss: float
    lr: float
    seconds: float
    accuracy: float | None = None
    prototypes: int | None = None


S = TypeVar("S", bound=Settings)


class Trainer(ABC, Generic[S]):
    """Base class of all methods: trains a network one epoch after the other. Parameters are those of `make_trainer`.

    Between epochs the frozen part is frozen and the network is in eval mode. `log` has one `Epoch` for each finished
    one. `state_dict` contains all that is needed to resume exactly, in a trainer created in the same way.
    """

    optimizer: torch.optim.Optimizer

    def __init__(
        self,
        network: SplitNetwork,
        read: Read,
        indices: ArrayLike,
        rows: ArrayLike | None,
        settings: S,
        rng: np.random.Generator | int = 0,
    ) -> None:
        self.network, self.read, self.settings = network, read, settings
        self.indices = np.asarray(indices, dtype=np.int64)
        if self.indices.ndim != 1 or len(self.indices) < 2:
            raise GraspError(f"pretraining needs a list of at least 2 samples, got shape {self.indices.shape}")
        self.rng = np.random.default_rng(rng)
        self.log: list[Epoch] = []
        self.device = network.device
        self.scaler = network.execution.scaler()
        self.setup(rows)

    @abstractmethod
    def setup(self, rows: ArrayLike | None) -> None:
        """Create the optimiser, and whatever else the method needs."""

    @abstractmethod
    def step(self, images: Tensor, positions: Int64s) -> tuple[Tensor, Tensor]:
        """Return the loss of a batch, images [n, 3, H, W] of `indices[positions]`, and counts that `summary` gets."""

    @abstractmethod
    def summary(self, counts: Tensor) -> dict[str, Any]:
        """Return fields of an `Epoch`, from the summed counts of its batches."""

    def update(self) -> None:
        """Apply the gradients."""
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def run(
        self, on_epoch: Callable[[Trainer[S]], None] | None = None, on_batch: Callable[[int], None] | None = None
    ) -> list[Epoch]:
        """Train to the last epoch. `on_epoch` gets this trainer, `on_batch` the number of samples of a batch."""
        while len(self.log) < self.settings.epochs:
            with learning(self.network, self.settings.part):
                self.log.append(self._epoch(on_batch or (lambda number: None)))
            if on_epoch is not None:
                on_epoch(self)
        return self.log

    def _epoch(self, on_batch: Callable[[int], None]) -> Epoch:
        start, number = time.perf_counter(), len(self.indices)
        # BatchNorm has no variance over one sample, so a batch may have one sample more than batch_size.
        parts = max(1, min(math.ceil(number / self.settings.batch_size), number // 2))
        batches = np.array_split(self.rng.permutation(number), parts)
        losses, counts = [], []
        for step, (positions, images) in enumerate(self._images(batches)):
            lr = self.settings.rate(len(self.log) + step / len(batches))
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            loss, count = self.step(images.to(self.device), positions)
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            self.update()
            losses.append(loss.detach() * len(positions))
            counts.append(count)
            on_batch(len(positions))
        mean = float(torch.stack(losses).sum()) / number
        if not math.isfinite(mean):
            epoch, peak = len(self.log) + 1, self.settings.lr
            raise GraspError(f"the loss became {mean} in epoch {epoch}; lower the learning rate ({peak})")
        return Epoch(mean, lr, time.perf_counter() - start, **self.summary(torch.stack(counts).sum(0)))

    def _images(self, batches: list[Int64s]) -> Iterator[tuple[Int64s, Tensor]]:
        """Yield each batch with its images; the next images are read while a batch trains."""
        with ThreadPoolExecutor(1) as pool:
            ahead = pool.submit(self.read, self.indices[batches[0]])
            for batch, after in zip(batches, [*batches[1:], None], strict=True):
                images = ahead.result()
                if after is not None:
                    ahead = pool.submit(self.read, self.indices[after])
                yield batch, images

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Yield the parameters that learn."""
        if self.settings.part == "all":
            return self.network.parameters()
        return (parameter for _, parameter in self.network.plastic_parameters())

    def fingerprint(self) -> list[int]:
        """Return numbers that identify the samples."""
        return [len(self.indices), zlib.crc32(self.indices.tobytes())]

    def _identity(self) -> dict[str, Any]:
        settings = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self.settings).items()}
        return {"kind": type(self).__name__, "settings": settings, "samples": self.fingerprint()}

    def state_dict(self) -> dict[str, Any]:
        """Return all that changes in training, as of the last finished epoch."""
        return {
            **self._identity(),
            "log": [asdict(epoch) for epoch in self.log],
            "network": copy.deepcopy(self.network.state_dict()),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "scaler": self.scaler.state_dict(),
            "rng": rng_state(self.rng),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state of `state_dict`; settings and samples must be the same."""
        if not self._identity().keys() <= state.keys():
            raise GraspError("this is not a checkpoint of pretraining")
        own, saved = ({"kind": each["kind"], **each["settings"]} for each in (self._identity(), state))
        if changed := [f"{key} was {saved.get(key)}, is {own[key]}" for key in own if saved.get(key) != own[key]]:
            raise GraspError(f"this pretraining was started with other settings: {'; '.join(changed)}")
        if list(state["samples"]) != self.fingerprint():
            number = state["samples"][0]
            raise GraspError(f"this pretraining was started on other samples or classes ({number} samples)")
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        if state["scaler"]:
            self.scaler.load_state_dict(dict(state["scaler"]))
        restore_rng(self.rng, state["rng"])
        self.log = [Epoch(**epoch) for epoch in state["log"]]


@contextlib.contextmanager
def learning(network: SplitNetwork, part: Part = "all") -> Iterator[None]:
    """Put all of `network`, or its plastic part, into train mode with gradients; restore it afterwards in eval mode."""
    before = {parameter: parameter.requires_grad for parameter in network.parameters()}
    network.train()
    if part == "all":
        network.requires_grad_(True)
        network.frozen.train()
    try:
        yield
    finally:
        for parameter, flag in before.items():
            parameter.requires_grad_(flag)
            parameter.grad = None  # else a copy of the network would stay in memory
        network.eval()
