"""What every base initialisation by training shares: epochs over the base classes, and a state to go on from."""

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
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from graspcl.errors import GraspError
from graspcl.model import SplitNetwork
from graspcl.random import restore_rng, rng_state

Int64s = NDArray[np.int64]
Read = Callable[[Int64s], Tensor]
"""Images of samples: indices [n] -> uint8 [n, 3, H, W]."""
Part = Literal["all", "plastic"]


@dataclass(frozen=True)
class Settings:
    """What all kinds of training have; `part` is what learns: all, or only what stays plastic."""

    epochs: int = 50
    batch_size: int = 256
    lr: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 1e-5
    part: Part = "all"

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2:
            raise GraspError(
                f"epochs must be at least 1 and batch_size at least 2, not {self.epochs} and {self.batch_size}"
            )
        if not self.lr > 0:
            raise GraspError(f"lr must be above 0, not {self.lr}")
        if self.part not in ("all", "plastic"):
            raise GraspError(f"part must be 'all' or 'plastic', not {self.part!r}")


@dataclass(frozen=True)
class Epoch:
    """One epoch's mean loss; `accuracy` on the (mixed) training images, or how many `prototypes` were used."""

    loss: float
    lr: float
    seconds: float
    accuracy: float | None = None
    prototypes: int | None = None


S = TypeVar("S", bound=Settings)


class Trainer(ABC, Generic[S]):
    """Trains `network` on the samples at `indices`, whose images `read` gives, one epoch after the other.

    `run` goes to the end; between epochs the network's frozen part is frozen and all of it is in eval mode, and
    `state_dict` holds all that is needed to go on exactly: load it into a trainer made in the same way. `rng` is a
    generator or a seed; no other randomness enters. `log` has one `Epoch` for each that is done.
    """

    def __init__(
        self, network: SplitNetwork, read: Read, indices: ArrayLike, settings: S, rng: np.random.Generator | int
    ) -> None:
        self.network, self.read, self.settings = network, read, settings
        self.indices = np.asarray(indices, dtype=np.int64)
        if self.indices.ndim != 1 or len(self.indices) < 2:
            raise GraspError(f"base training needs one row of at least 2 samples, not shape {self.indices.shape}")
        self.rng = np.random.default_rng(rng)
        self.log: list[Epoch] = []
        self.device = next(network.parameters()).device
        self.scaler = network.execution.scaler()

    optimizer: torch.optim.Optimizer

    @property
    def done(self) -> bool:
        """Whether all epochs are done."""
        return len(self.log) >= self.settings.epochs

    def run(
        self,
        on_epoch: Callable[[Trainer[S]], None] | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> list[Epoch]:
        """Train to the last epoch. `on_epoch` is given this trainer, `on_batch` the number of samples just seen."""
        while not self.done:
            with learning(self.network, self.settings.part):
                self.log.append(self._epoch(on_batch or (lambda number: None)))
            if on_epoch is not None:
                on_epoch(self)
        return self.log

    def _epoch(self, on_batch: Callable[[int], None]) -> Epoch:
        begin, number = time.perf_counter(), len(self.indices)
        # No batch of one, of which BatchNorm has no variance: so one may have a sample more than batch_size.
        parts = max(1, min(math.ceil(number / self.settings.batch_size), number // 2))
        batches = np.array_split(self.rng.permutation(number), parts)
        losses: list[Tensor] = []
        counts: list[Tensor] = []
        for step, (rows, images) in enumerate(self._images(batches)):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate(len(self.log) + step / len(batches))
            loss, count = self.step(images.to(self.device), rows)
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            self.update()
            losses.append(loss.detach() * len(rows))
            counts.append(count)
            on_batch(len(rows))
        mean = float(torch.stack(losses).sum()) / number
        if not math.isfinite(mean):
            epoch, lr = len(self.log) + 1, self.settings.lr
            raise GraspError(f"the loss became {mean} in epoch {epoch}; lower the learning rate ({lr})")
        lr = float(self.optimizer.param_groups[0]["lr"])
        return Epoch(mean, lr, time.perf_counter() - begin, **self.summary(torch.stack(counts).sum(0)))

    def _images(self, batches: list[Int64s]) -> Iterator[tuple[Int64s, Tensor]]:
        """Each batch with its images; the next ones are read while a batch is learned."""
        with ThreadPoolExecutor(1) as pool:
            ahead = pool.submit(self.read, self.indices[batches[0]])
            for batch, after in zip(batches, [*batches[1:], None], strict=True):
                images = ahead.result()
                if after is not None:
                    ahead = pool.submit(self.read, self.indices[after])
                yield batch, images

    @abstractmethod
    def step(self, images: Tensor, rows: Int64s) -> tuple[Tensor, Tensor]:
        """The loss of a batch, images [n, 3, H, W] at positions `rows` [n] of `indices`, and what is counted in it."""

    @abstractmethod
    def summary(self, counts: Tensor) -> dict[str, Any]:
        """What the counts of all batches together say about an epoch."""

    @abstractmethod
    def rate(self, epoch: float) -> float:
        """The learning rate after so many epochs."""

    def update(self) -> None:
        """Follow the gradients."""
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def fingerprint(self) -> list[int]:
        """Numbers that change with the samples."""
        return [len(self.indices), zlib.crc32(self.indices.tobytes())]

    def state_dict(self) -> dict[str, Any]:
        """All that changes in training, as of the last finished epoch; the schedule follows from the epoch."""
        return {
            "kind": type(self).__name__,
            "settings": asdict(self.settings),
            "samples": self.fingerprint(),
            "log": [asdict(epoch) for epoch in self.log],
            "network": copy.deepcopy(self.network.state_dict()),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "scaler": self.scaler.state_dict(),
            "rng": rng_state(self.rng),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave; settings and samples must be the same."""
        own = {"kind": type(self).__name__, **plain(asdict(self.settings))}
        saved = {"kind": state["kind"], **plain(state["settings"])}
        if changed := [f"{key} was {saved.get(key)}, is {own[key]}" for key in own if saved.get(key) != own[key]]:
            raise GraspError(f"this base training was begun with other settings: {'; '.join(changed)}")
        if list(state["samples"]) != self.fingerprint():
            raise GraspError(
                f"this base training was begun on other samples or classes ({state['samples'][0]} samples)"
            )
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        if state["scaler"]:
            self.scaler.load_state_dict(dict(state["scaler"]))
        restore_rng(self.rng, state["rng"])
        self.log = [Epoch(**epoch) for epoch in state["log"]]


def plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with lists for tuples, as files have them."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}


@contextlib.contextmanager
def learning(network: SplitNetwork, part: Part = "all") -> Iterator[None]:
    """Within, all of `network` (or only what is plastic) has gradients and is in train mode.

    Afterwards gradients are as they were before, and all is in eval mode.

    >>> from graspcl.model import vector_network
    >>> net = vector_network(4, generator=torch.Generator().manual_seed(0))
    >>> with learning(net):
    ...     net.frozen.training
    True
    >>> net.frozen.training, net.plastic.training
    (False, False)
    """
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
