"""CLIB: samples whose rehearsal lowered the loss come again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.policy.policy import Policy, policies
from graspcl.policy.session import Session


@policies.register("clib")
@dataclass
class Clib(Policy):
    """I ← γ I + (1 - γ) (l before - l after), l a sample's loss before and after the update it was rehearsed in.

    I begins as the mean of the measured samples of its class, or 0. Of `candidates_per_pick` · n uniform candidates a
    mini-batch takes n without replacement: with p ~ exp(standardised I) ("proportional"), or the largest I ("top").
    Losses are those of eval mode; I stays with a sample from session to session.
    """

    decay: float = 0.9
    mode: Literal["proportional", "top"] = "proportional"
    candidates_per_pick: int = 5

    needs = frozenset({"labels", "forward"})
    balanced = False
    family = "importance"
    cost = "two forward passes per rehearsed sample, one for those of the last mini-batch"
    source = "Koh et al. 2022"

    def __post_init__(self) -> None:
        if self.mode not in ("proportional", "top"):
            raise GraspError(f"clib's mode is 'proportional' or 'top', not {self.mode!r}")
        if not 0 <= self.decay < 1 or self.candidates_per_pick < 1:
            raise GraspError(
                "clib takes 0 <= decay < 1 and candidates_per_pick >= 1, "
                f"not {self.decay} and {self.candidates_per_pick}"
            )
        self._births, self._known, self._importance = np.empty(0, np.int64), np.empty(0, bool), np.empty(0)

    def begin(self, session: Session) -> None:
        """Find what is known of the samples that are still stored; births tell them apart wherever they lie now."""
        births = session.buffer.births.copy()
        known, importance = np.zeros(len(births), bool), np.zeros(len(births))
        _, old, now = np.intersect1d(self._births, births, assume_unique=True, return_indices=True)
        known[now], importance[now] = self._known[old], self._importance[old]
        _, self._class = np.unique(session.labels, return_inverse=True)
        self._births, self._known, self._importance = births, known, importance
        self._totals = np.bincount(self._class, importance)  # of the measured samples of each class; others are 0
        self._counts = np.bincount(self._class, known)
        self._slots, self._before = np.empty(0, np.int64), np.empty(0)

    def select(self, session: Session, n: int) -> Array:
        if len(self._slots):
            self._measure(self._before - session.forward(self._slots).losses.double().numpy(force=True))
        stored = len(session.labels)
        whole = np.tile(np.arange(stored), n // stored)  # a mini-batch larger than the buffer holds all of it
        self._slots = np.append(whole, self._choose(stored, n % stored, session.rng))
        self._before = session.forward(self._slots).losses.double().numpy(force=True)
        return self._slots

    def importance(self, slots: Array) -> Array:
        """I of the samples in `slots` [n], measured or guessed from their class."""
        mine = self._class[slots]
        guess = self._totals[mine] / np.maximum(self._counts[mine], 1)
        return np.where(self._known[slots], self._importance[slots], guess)

    def _measure(self, gains: Array) -> None:
        """Average what the last mini-batch gained into its samples' importance, and keep the class totals."""
        slots, first = np.unique(self._slots, return_index=True)
        updated = self.decay * self.importance(slots) + (1 - self.decay) * gains[first]
        np.add.at(self._totals, self._class[slots], updated - self._importance[slots])
        np.add.at(self._counts, self._class[slots], ~self._known[slots])
        self._importance[slots], self._known[slots] = updated, True

    def _choose(self, stored: int, n: int, rng: np.random.Generator) -> Array:
        candidates = rng.choice(stored, min(stored, n * self.candidates_per_pick), replace=False)
        keys = self.importance(candidates)
        if self.mode == "proportional" and n:
            # The n largest of log p + Gumbel noise are n draws without replacement with these p.
            keys = (keys - keys.mean()) / (keys.std() or 1.0)
            keys = keys + rng.gumbel(size=len(keys))
        return candidates[np.argsort(-keys, kind="stable")[:n]]
