"""The processes that learn together, called ranks, and the few ways in which they exchange arrays.

Every exchange is collective: all ranks call it, in the same order. What a rank sends is counted by part in `sent`, as
ring algorithms send it, so that it can be compared with the formulas of docs/scale.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from graspcl.cache import patience
from graspcl.checks import Array
from graspcl.errors import GraspError


def launched() -> bool:
    """Whether a launcher such as torchrun has started this process as one of several, or as the only one."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_first() -> bool:
    """Whether this process is rank 0, or was started alone: the one that prints and writes."""
    return not launched() or os.environ["RANK"] == "0"


@contextlib.contextmanager
def joined(timeout: float = 600.0, device: str = "auto") -> Iterator[Ranks]:
    """Join the ranks that torchrun has started, and leave them at the end.

    Args:
        timeout: seconds after which a rank that waits for another one fails. It must exceed the longest time between
            two exchanges, such as the difference between the ranks in preparing the data. A rank that waits for a file
            of the cache fails if the process that makes it shows no progress for as long.
        device: "cpu" exchanges by gloo. "auto" and "cuda" use NCCL where CUDA is available; each rank then works on
            the device with its local number.
    """
    if not launched():
        raise GraspError("there are no ranks to join: start the program with torchrun --nproc-per-node N")
    cuda = device != "cpu" and torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    # The first step of an optimiser would import this. Its defaults would be the group that is joined here, which could
    # then not be left: a thread of gloo would go on, and abort the process if it was busy when Python shut down.
    importlib.import_module("torch.distributed.nn.functional")
    limit = timedelta(seconds=timeout)
    try:
        found, rank, world = next(rendezvous("env://", timeout=limit))
        # A store may outlive a restart, and the ranks' former addresses with it.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"attempt {attempt}", found)  # type: ignore[attr-defined]
        dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=rank, world_size=world, timeout=limit)
    except RuntimeError as error:
        raise GraspError(f"the ranks could not meet: {_reason(error)}") from error
    with patience(timeout):
        yield Ranks()
    dist.destroy_process_group()  # after an error it could wait for ranks that are gone


class Ranks:
    """The ranks of the process group, which must have been joined (`joined`, or torch's `init_process_group`).

    `rank` is this one, of `world` in all.
    """

    def __init__(self) -> None:
        if not dist.is_initialized():
            raise GraspError("join the ranks first: `with graspcl.distributed.joined() as ranks`")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        cuda = dist.get_backend() == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
        self.sent: Counter[str] = Counter()  # bytes that this rank has sent, by part
        self.seconds = 0.0  # spent in exchanges, waiting for other ranks included
        self.separate = False  # True within `apart`
        self._lost = ""  # what went wrong, after an exchange has failed

    def share(self, number: int) -> list[int]:
        """Return how many of `number` rows each rank takes: equal within one, in order of the ranks."""
        base, extra = divmod(number, self.world)
        return [base + (rank < extra) for rank in range(self.world)]

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Let this rank compute by itself: nothing within may wait for the others."""
        before, self.separate = self.separate, True
        try:
            yield
        finally:
            self.separate = before

    # -- exchanges -----------------------------------------------------------------------------------------------------

    def gather(self, rows: torch.Tensor, counts: Sequence[int], part: str) -> torch.Tensor:
        """Return the rows of all ranks [Σ counts, …], rank after rank; rank r gives `counts[r]` rows."""
        most = max(counts)
        if self.world == 1 or not most:
            return rows
        padded = rows.new_zeros(most, *rows.shape[1:], device=self.device)
        padded[: len(rows)] = rows
        found = [torch.empty_like(padded) for _ in range(self.world)]
        with self._exchange():
            dist.all_gather(found, padded)
        self.sent[part] += (self.world - 1) * padded.nbytes
        return torch.cat([one[:count] for one, count in zip(found, counts, strict=True)]).to(rows.device)

    def add(self, values: torch.Tensor, part: str) -> torch.Tensor:
        """Return the sum of `values` over the ranks."""
        return self._reduce(values, dist.ReduceOp.SUM, part)

    def maximum(self, values: torch.Tensor, part: str) -> torch.Tensor:
        """Return the largest `values` of all ranks, element by element."""
        return self._reduce(values, dist.ReduceOp.MAX, part)

    def _reduce(self, values: torch.Tensor, how: Any, part: str) -> torch.Tensor:
        if self.world == 1:
            return values
        found = values.to(self.device, copy=True)
        with self._exchange():
            dist.all_reduce(found, how)
        self.sent[part] += 2 * (self.world - 1) * found.nbytes // self.world
        return found.to(values.device)

    def deal(self, rows: torch.Tensor, counts: Sequence[int], part: str) -> torch.Tensor:
        """Send the first `counts[0]` rows to rank 0, the next to rank 1, and so on; return what the others send here.

        Received rows are in the order of their senders.
        """
        if self.world == 1:
            return rows
        given = torch.tensor(counts, dtype=torch.int64, device=self.device)
        taken = torch.empty_like(given)
        with self._exchange():
            dist.all_to_all_single(taken, given)
            found = rows.new_empty(int(taken.sum()), *rows.shape[1:], device=self.device)
            dist.all_to_all_single(found, rows.to(self.device).contiguous(), taken.tolist(), list(counts))
        row_bytes = rows.nbytes // max(1, len(rows))
        self.sent[part] += given.nbytes + row_bytes * (len(rows) - counts[self.rank])
        return found.to(rows.device)

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Book the seconds. Turn torch's error about a lost rank into a readable one; nothing is sent afterwards."""
        if self._lost:
            raise GraspError(self._lost)
        if self.separate:
            raise GraspError("an exchange was started within Ranks.apart, where the other ranks do not take part")
        begin = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            what = f"one has died, or has not answered within the time-out ({_reason(error)})"
            self._lost = f"rank {self.rank} of {self.world} has lost the others: {what}"
            raise GraspError(self._lost) from error
        finally:
            self.seconds += time.perf_counter() - begin

    def any(self, *flags: bool) -> list[bool]:
        """Return which of the `flags` are true on some rank."""
        return self.maximum(torch.tensor(flags, dtype=torch.int32), "agreements").bool().tolist()

    def largest(self, number: int) -> int:
        """Return the largest `number` of all ranks."""
        return int(self.maximum(torch.tensor([number]), "agreements")[0])

    def texts(self, own: list[str], part: str) -> list[str]:
        """Return the texts of all ranks, rank after rank, each once."""
        given = torch.from_numpy(np.frombuffer(json.dumps(own).encode(), np.uint8).copy())
        sizes = self.gather(torch.tensor([len(given)]), [1] * self.world, part).tolist()
        found = self.gather(given, sizes, part).numpy().tobytes()
        ends = np.cumsum(sizes).tolist()
        lists = [json.loads(found[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
        return list(dict.fromkeys(text for texts in lists for text in texts))

    def agree(self, digests: dict[str, str], hint: str) -> None:
        """Raise an error on every rank if they differ in one of `digests`, 16 hexadecimal digits each, by name."""
        own = torch.from_numpy(np.array([int(text[:15], 16) for text in digests.values()], np.int64))
        largest, smallest = self.maximum(torch.stack([own, -own]), "agreements")
        differ = np.flatnonzero((largest != -smallest).numpy())
        if len(differ):
            what = " and ".join([*digests][place] for place in differ)
            raise GraspError(f"the ranks differ in {what}: {hint}")


def _reason(error: Exception) -> str:
    """Return what an error says, without the place in gloo's source and its advice to its developers."""
    said = str(error).partition("\n")[0].partition(". This is typically")[0]
    return re.sub(r"^\[[^\]]*\.cc:\d+\] ", "", said)


def positions(holders: Array, world: int) -> tuple[Array, list[int]]:
    """Return where the rows of `Ranks.gather` belong, and how many each rank gives, if rank `holders[i]` has row i.

    >>> order, counts = positions(np.array([1, 0, 1]), world=2)
    >>> order.tolist(), counts
    ([1, 0, 2], [1, 2])
    """
    return np.argsort(holders, kind="stable"), np.bincount(holders, minlength=world).tolist()


def text_digest(value: Any) -> str:
    """Return 16 hexadecimal digits of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
