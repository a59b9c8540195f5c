"""From a policy to mini-batches: for a learner's session, or for a training loop of one's own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.policy.base import Policy, policies
from graspcl.policy.budget import Budget
from graspcl.policy.session import Session

Array = np.ndarray[Any, Any]


def batches(policy: Policy, session: Session, begun: int | None = None) -> Iterator[Array]:
    """The mini-batches of a session, as slots [batch_size] each; the time a policy takes is booked to selection.

    `begun` is the number of mini-batches already taken when an interrupted session goes on with a restored policy.
    """
    if begun is None:
        begin(policy, session)
    session.needs, session.begun = policy.needs | {"labels"}, True
    n = session.budget.batch_size
    for _ in range(begun or 0, session.budget.updates):
        with selecting(session):
            slots = np.asarray(policy.select(session, n))
        _check_slots(policy, slots, n, len(session.buffer))
        yield slots.astype(np.int64)


def begin(policy: Policy, session: Session) -> None:
    """What comes before the first mini-batch."""
    session.needs = policy.needs | {"labels"}
    check_stored(session)
    policy.warm_up()
    with selecting(session):
        policy.begin(session)


def check_stored(session: Session) -> None:
    """Refuse to rehearse from nothing."""
    if not len(session.buffer) and session.budget.samples:
        raise GraspError("the buffer is empty: there is nothing to rehearse")


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
    look at embeddings call it once, before the first mini-batch. A module, or a method of one, is put into eval mode
    for that; any other function has to see to it. Without an `rng` the buffer's generator seeds the draws.

    >>> buffer = Buffer(capacity=100)
    >>> _ = buffer.insert(torch.eye(4), labels=[0, 0, 1, 1])
    >>> for inputs, labels in rehearse(buffer, "grasp", Budget(updates=2, batch_size=2), embed=torch.nn.Identity()):
    ...     print(labels.tolist())
    [0, 1]
    [0, 1]
    """
    chosen = policies.create(policy) if isinstance(policy, str) else policy
    draws = np.random.default_rng(buffer.draw_seed() if rng is None else rng)
    session = Session(buffer, budget, draws, embed, device=device)
    return (buffer.fetch(slots, device) for slots in batches(chosen, session))


@contextlib.contextmanager
def selecting(session: Session) -> Iterator[None]:
    """Book the seconds within to the session's selection."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        session.costs.selection_seconds += time.perf_counter() - begin
