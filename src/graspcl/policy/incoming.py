"""Half new, half old: what policies share that choose old samples for the sake of incoming ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from graspcl.errors import GraspError
from graspcl.policy.base import Policy
from graspcl.policy.session import Session

Array = np.ndarray[Any, Any]


class IncomingPolicy(Policy):
    """Mini-batches of n - ⌊n/2⌋ incoming and ⌊n/2⌋ chosen old samples, so that no policy spends more than another.

    The incoming ones are drawn uniformly from what arrived since the last session; for them a new policy defines
    `choose(session, incoming, old, k)`. In a session without old samples, or without new ones, there is nothing to
    choose for: the missing half, too, is drawn uniformly from what there is.
    """

    needs = frozenset({"labels", "new"})
    family = "incoming"

    def choose(self, session: Session, incoming: Array, old: Array, k: int) -> Array:
        """`k` ≥ 1 slots out of `old` (all slots that are not new) to go with those in `incoming`.

        There may be fewer than `k`: they are then repeated, as `best` does it.
        """
        raise GraspError(f"policy {type(self).__name__} must define choose(session, incoming, old, k)")

    def select(self, session: Session, n: int) -> Array:
        arrived = session.new
        new, old = np.flatnonzero(arrived), np.flatnonzero(~arrived)
        k = n // 2
        if not (len(new) and len(old) and k):
            return evenly(new if len(new) else old, n, session.rng)
        incoming = evenly(new, n - k, session.rng)
        return np.concatenate([incoming, self.choose(session, incoming, old, k)])


def candidates(slots: Array, number: int, rng: np.random.Generator) -> Array:
    """`number` of `slots`, uniformly without replacement; all of them if there are no more. In random order."""
    return rng.choice(slots, min(number, len(slots)), replace=False)


def evenly(slots: Array, number: int, rng: np.random.Generator) -> Array:
    """`number` slots drawn uniformly: none comes once more before all have come.

    >>> sorted(evenly(np.array([4, 7]), 4, np.random.default_rng(0)).tolist())
    [4, 4, 7, 7]
    """
    whole, rest = divmod(number, len(slots))
    return np.append(np.tile(slots, whole), rng.choice(slots, rest, replace=False))


def best(slots: Array, scores: torch.Tensor, k: int) -> Array:
    """The `k` of `slots` [n] whose `scores` [n] are largest, largest first; if n < k, they are repeated in that order.

    Of equals the earlier one wins: give the slots in random order, as `candidates` does.

    >>> best(np.array([4, 7, 9]), torch.tensor([0.5, 2.0, 1.0]), 5).tolist()
    [7, 9, 4, 7, 9]
    """
    ranked = torch.argsort(scores, descending=True, stable=True).numpy(force=True)
    return slots[np.resize(ranked, k)]
