"""A rehearsal session on several ranks: what a policy sees is the same on all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from graspcl.cache import digest_of
from graspcl.distributed.ranks import Ranks, text_digest
from graspcl.policy import Policy, Session
from graspcl.random import rng_state

_HINT = "give every rank the same settings and seeds, and let every rank observe the same samples in the same order"


class SharedSession(Session):
    """A session of which every rank has a copy. Before the first update, all must have planned the same."""

    def __init__(self, ranks: Ranks, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ranks = ranks

    def _serve(self, policy: Policy, started: bool) -> None:
        super()._serve(policy, started)
        if started:
            plan = policy.upcoming(self.budget.samples)
            stored = {"births": self._buffer.births, "labels": self._buffer.labels, "ids": self._buffer.ids}
            digests = {
                "what they store": digest_of(stored),
                "what they draw": digest_of({"plan": np.empty(0, np.int64) if plan is None else plan}),
                "their random generators": text_digest(rng_state(self.rng)),
            }
            self.ranks.agree(digests, _HINT)
