"""The session: the only thing a policy sees of the buffer, the network and the budget."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.policy.base import QUANTITIES, Policy, policies
from graspcl.policy.budget import Budget
from graspcl.policy.drawing import Groups
from graspcl.random import generator

Array = np.ndarray[Any, Any]


@dataclass
class Costs:
    """What a session cost. Passes are counted in samples, so that 1 means one sample through the plastic part."""

    updates: int = 0
    selection_seconds: float = 0.0
    selection_forward: int = 0
    selection_backward: int = 0
    training_seconds: float = 0.0
    training_forward: int = 0
    training_backward: int = 0


@dataclass
class Session:
    """One rehearsal session over a buffer.

    `network` maps inputs [n, …] to an object with `.embedding` [n, D] and `.logits` [n, K], or just to embeddings.
    Each quantity is computed at most once, when first asked for: in chunks, without gradients, in eval mode, leaving
    the network's mode and every random generator as they were. `since` tells new samples from old: those that were
    offered to the buffer at that count or later are new. `rows` maps labels to columns of the logits.
    """

    buffer: Buffer
    budget: Budget
    rng: np.random.Generator
    network: Callable[[torch.Tensor], Any] | None = None
    since: int = 0
    rows: Callable[[torch.Tensor], torch.Tensor] | None = None
    device: torch.device | str = "cpu"
    chunk: int = 512
    needs: frozenset[str] = QUANTITIES
    costs: Costs = field(default_factory=Costs)

    @property
    def labels(self) -> Array:
        """Class of each stored sample [N]; sample i lies in slot i."""
        return self.buffer.labels

    @property
    def label_tensor(self) -> torch.Tensor:
        """`labels` as int64 on the session's device."""
        return torch.from_numpy(self.labels).to(self.device, torch.int64)

    @cached_property
    def groups(self) -> Groups:
        """Slots by class."""
        return Groups(*self.buffer.index.grouped())

    @property
    def new(self) -> Array:
        """Which samples arrived since the last session [N], bool."""
        self._allow("new")
        return self.buffer.births >= self.since

    @property
    def embeddings(self) -> torch.Tensor:
        """Penultimate embedding of each stored sample under the network as it is now [N, D]."""
        self._allow("embeddings")
        return self._outputs["embeddings"]

    @property
    def logits(self) -> torch.Tensor:
        """Logits of each stored sample [N, K]."""
        self._allow("logits")
        return self._outputs["logits"]

    @cached_property
    def losses(self) -> torch.Tensor:
        """Cross-entropy of each stored sample [N]."""
        self._allow("losses")
        labels = self.label_tensor if self.rows is None else self.rows(self.label_tensor)
        return torch.nn.functional.cross_entropy(self._outputs["logits"], labels, reduction="none")

    def _allow(self, quantity: str) -> None:
        if quantity not in self.needs:
            raise GraspError(f"the policy reads session.{quantity} without naming it in `needs` = {set(self.needs)}")

    @cached_property
    def _outputs(self) -> dict[str, torch.Tensor]:
        if self.network is None:
            raise GraspError("this policy needs embeddings or logits of the stored samples: give the session a network")
        wanted = (["embeddings"] if "embeddings" in self.needs else []) + (
            ["logits"] if {"logits", "losses"} & self.needs else []
        )
        parts: dict[str, list[torch.Tensor]] = {name: [] for name in wanted}
        with evaluating(self.network), torch.no_grad():
            for begin in range(0, len(self.buffer), self.chunk):
                slots = torch.arange(begin, min(begin + self.chunk, len(self.buffer)))
                outputs = self.network(self.buffer.fetch(slots, self.device)[0])
                for name in wanted:
                    parts[name].append(_part(outputs, name))
        self.costs.selection_forward += len(self.buffer)
        return {name: torch.cat(chunks) for name, chunks in parts.items()}


def _part(outputs: Any, name: str) -> torch.Tensor:
    if isinstance(outputs, torch.Tensor):
        if name == "embeddings":
            return outputs
        raise GraspError("this policy needs logits: the session's network must return .embedding and .logits")
    found: torch.Tensor = outputs.embedding if name == "embeddings" else outputs.logits
    return found


def batches(policy: Policy, session: Session, begun: int | None = None) -> Iterator[Array]:
    """The mini-batches of a session, as slots [batch_size] each; the time a policy takes is booked to selection.

    `begun` is the number of mini-batches already taken when an interrupted session goes on with a restored policy.
    """
    session.needs = policy.needs | {"labels"}
    if not len(session.buffer) and session.budget.samples:
        raise GraspError("the buffer is empty: there is nothing to rehearse")
    if begun is None:
        with selecting(session):
            policy.begin(session)
    n = session.budget.batch_size
    for _ in range(begun or 0, session.budget.updates):
        with selecting(session):
            slots = np.asarray(policy.select(session, n))
        _check_slots(policy, slots, n, len(session.buffer))
        yield slots.astype(np.int64)


def _check_slots(policy: Policy, slots: Array, n: int, stored: int) -> None:
    wanted = f"policy {policy.called!r} must return {n} slots in 0 … {stored - 1}"
    if slots.dtype.kind not in "iu" or slots.shape != (n,):
        raise GraspError(f"{wanted}, not {slots.dtype} of shape {slots.shape}")
    if slots.min() < 0 or slots.max() >= stored:
        raise GraspError(f"{wanted}, not {slots.min()} … {slots.max()}")


def rehearse(
    buffer: Buffer,
    policy: Policy | str,
    budget: Budget,
    embed: Callable[[torch.Tensor], Any] | None = None,
    rng: np.random.Generator | int | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Mini-batches (inputs, labels) for a training loop of your own.

    `embed` is the part of your network up to the penultimate layer (or a network as `Session` takes it); policies that
    look at embeddings call it once, before the first mini-batch, in eval mode. Without an `rng` the draws follow from
    how many samples the buffer has been offered: new draws for every session, the same ones in a repeated run.

    >>> buffer = Buffer(capacity=100)
    >>> _ = buffer.insert(torch.eye(4), labels=[0, 0, 1, 1])
    >>> for inputs, labels in rehearse(buffer, "grasp", Budget(updates=2, batch_size=2), embed=torch.nn.Identity()):
    ...     print(labels.tolist())
    [0, 1]
    [0, 1]
    """
    chosen = policies.create(policy) if isinstance(policy, str) else policy
    draws = generator(buffer.seen, "policy") if rng is None else np.random.default_rng(rng)
    session = Session(buffer, budget, draws, embed, device=device)
    for slots in batches(chosen, session):
        yield buffer.fetch(slots, device)


@contextlib.contextmanager
def selecting(session: Session) -> Iterator[None]:
    """Book the seconds within to the session's selection."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        session.costs.selection_seconds += time.perf_counter() - begin


@contextlib.contextmanager
def evaluating(network: Any) -> Iterator[None]:
    """Eval mode within; afterwards every module is in the mode it was in.

    `network` is a module or a method of one; any other function has to see to the modes of what it calls.
    """
    owner = getattr(network, "__self__", network)
    modules = list(owner.modules()) if isinstance(owner, torch.nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
