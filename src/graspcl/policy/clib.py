"""CLIB: samples whose rehearsal lowered the loss come again."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from graspcl.checks import Array, Count, Range
from graspcl.policy.drawing import candidates, whole_passes
from graspcl.policy.policy import Policy, policies
from graspcl.policy.session import Session


@policies.register("clib")
@dataclass
class Clib(Policy):
    """I ← γ I + (1 - γ) (l before - l after), where l is a sample's loss before and after an update on it.

    The importance I starts as the mean of the measured samples of the class, or 0, and stays with a sample across
    sessions. Of `candidates_per_pick` · n uniform candidates, a mini-batch takes n without replacement: with
    p ~ exp(standardised I) ("proportional"), or the largest I ("top"). Losses are those of eval mode.

    Follows: the paper (a sample's loss decrease); the program of Koh et al. (decay) measures that of the memory.
    """

    decay: Annotated[float, Range(0, 1, below=True)] = 0.9
    mode: Literal["proportional", "top"] = "proportional"
    candidates_per_pick: Count = 5

    needs = frozenset({"labels", "births", "forward"})
    family = "importance"
    cost = "two forward passes per rehearsed sample, one for those of the last mini-batch"
    source = "Koh et al. 2022"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._births, self._known, self._importance = np.empty(0, np.int64), np.empty(0, bool), np.empty(0)

    def begin(self, session: Session) -> None:
        """Look up what is known of the samples that are still stored. Births identify them in any slot."""
        births = session.births.copy()
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
        slots = np.arange(len(session))
        whole, rest = whole_passes(slots, n)
        self._slots = np.append(whole, self._choose(slots, rest, session.rng))
        self._before = session.forward(self._slots).losses.double().numpy(force=True)
        return self._slots

    def importance(self, slots: Array) -> Array:
        """Return I of the samples in `slots` [n], measured or estimated from their class."""
        mine = self._class[slots]
        guess = self._totals[mine] / np.maximum(self._counts[mine], 1)
        return np.where(self._known[slots], self._importance[slots], guess)

    def _measure(self, gains: Array) -> None:
        """Average the gains of the last mini-batch into its samples' importance and update the class totals."""
        slots, first = np.unique(self._slots, return_index=True)
        updated = self.decay * self.importance(slots) + (1 - self.decay) * gains[first]
        np.add.at(self._totals, self._class[slots], updated - self._importance[slots])
        np.add.at(self._counts, self._class[slots], ~self._known[slots])
        self._importance[slots], self._known[slots] = updated, True

    def _choose(self, slots: Array, n: int, rng: np.random.Generator) -> Array:
        drawn = candidates(slots, n * self.candidates_per_pick, rng)
        keys = self.importance(drawn)
        if self.mode == "proportional" and n:
            # The n largest of log p + Gumbel noise are n draws without replacement with these p.
            keys = (keys - keys.mean()) / (keys.std() or 1.0) + rng.gumbel(size=len(keys))
        return drawn[np.argsort(-keys, kind="stable")[:n]]
