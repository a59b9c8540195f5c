"""The adaptive budget: a session ends when it no longer helps samples that are kept apart (the paper's future work)."""

from __future__ import annotations

from typing import Any

import numpy as np

from graspcl.buffer import Buffer, Codes
from graspcl.buffer.protocol import Codec
from graspcl.experiment.config import StopConfig
from graspcl.learner import Learner
from graspcl.random import restore_rng, rng_state

Array = np.ndarray[Any, Any]

_MOST = 2_000  # samples kept apart


class HeldOut:
    """A share of what arrives, stored apart from the buffer and never rehearsed.

    `take` says which of n arriving samples stay for learning. A class's first sample always does.
    """

    def __init__(self, settings: StopConfig, codec: Codec | None, rng: np.random.Generator) -> None:
        self.settings, self.rng = settings, rng
        self.buffer = Buffer(_MOST, codec, rng=np.random.default_rng(rng.integers(2**63)))
        self._met: set[int] = set()

    def take(self, codes: Codes, labels: Array, indices: Array) -> Array:
        """Keep some of a chunk apart; returns the positions [m] of the others."""
        apart = self.rng.random(len(labels)) < self.settings.share
        arrived, first = np.unique(labels, return_index=True)
        apart[first[[int(label) not in self._met for label in arrived]]] = False
        self._met.update(arrived.tolist())
        if apart.any():
            self.buffer.insert_codes(codes[np.flatnonzero(apart)], labels[apart], indices[apart])
        return np.flatnonzero(~apart)

    def accuracy(self, learner: Learner) -> float:
        """Percent of the samples kept apart that the learner gets right; 0 if there are none."""
        if not len(self.buffer):
            return 0.0
        predicted = learner.predict_codes(self.buffer["codes"])
        return float(100 * (predicted == self.buffer.labels).mean())

    def state_dict(self) -> dict[str, Any]:
        """What is kept apart, and the generator that chooses."""
        return {"buffer": self.buffer.state_dict(), "rng": rng_state(self.rng), "met": sorted(self._met)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.buffer.load_state_dict(state["buffer"])
        restore_rng(self.rng, state["rng"])
        self._met = set(state["met"])


class Patience:
    """Counts looks without a better accuracy in one session.

    >>> patience = Patience(2)
    >>> [patience.lost(accuracy) for accuracy in (50.0, 60.0, 59.0, 60.0)]
    [False, False, False, True]
    """

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.best, self.since = -1.0, 0

    def lost(self, accuracy: float) -> bool:
        """Whether, after this look, enough of them have brought nothing."""
        self.since = 0 if accuracy > self.best else self.since + 1
        self.best = max(self.best, accuracy)
        return self.since >= self.looks
