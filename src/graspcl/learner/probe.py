"""A probe: logistic regression on stored features, trained again in each session. What many people do today."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from graspcl.buffer import Buffer
from graspcl.checks import Array, Positive, checked
from graspcl.errors import GraspError
from graspcl.learner.closed_form import SolvedHead, held_out
from graspcl.learner.learner import learners
from graspcl.learner.logistic import logistic_rows
from graspcl.learner.moments import Rows, no_rows, without_samples
from graspcl.learner.optimiser import Optimiser
from graspcl.model import Execution, SplitNetwork
from graspcl.policy import Policy

_STRENGTHS = (100.0, 10.0, 1.0, 0.1)  # from the strongest, whose solution is where the next one starts
_CHOOSE_WITH = 5_000  # samples at most on which the strength is chosen


@learners.register("probe")
@checked
class Probe(SolvedHead):
    """Logistic regression on all stored features, trained again in each session. The network does not change.

    The buffer stores features in half precision instead of latents, so a capacity in bytes holds more of them.

    Args, besides those of `Learner`; policy and optimiser are not used:
        strength: of the L2 penalty, for features of mean square 1. By default the one with the smallest loss on a
            held-out fifth of the stored samples, of 5,000 at most. The final regression uses all of them.

    >>> from graspcl.model import vector_network
    >>> learner = Probe(vector_network(2, generator=torch.Generator().manual_seed(0)), Buffer("1KB"))
    >>> learner.observe(torch.tensor([[0.0, 0.0], [0.0, 2.0], [5.0, 1.0]]), [3, 3, 8])
    >>> learner.predict(torch.tensor([[1.0, 1.0], [4.0, 1.0]])).tolist()
    [3, 8]
    """

    stores_features = True

    def __init__(
        self,
        network: SplitNetwork,
        buffer: Buffer,
        policy: Policy | str = "grasp",
        optimiser: Optimiser | None = None,
        rng: np.random.Generator | int = 0,
        device: torch.device | str | None = None,
        execution: Execution | None = None,
        strength: Positive | None = None,
    ) -> None:
        if buffer.maintenance.columns:
            rule = type(buffer.maintenance).__name__
            raise GraspError(f"the probe stores features, from which {rule} cannot choose; use 'largest_class'")
        self.strength = strength
        super().__init__(network, buffer, policy, optimiser, rng, device, execution)

    def keep(self, features: torch.Tensor, labels: Array, ids: Any | None) -> None:
        values = features.clamp(-65504, 65504).half().cpu()
        codes = np.array([row.tobytes() for row in values.numpy()], object) if self._ragged else values
        self.buffer.insert_codes(codes, labels, ids, overflow=self.offline)

    @property
    def _stored(self) -> torch.Tensor:
        """The stored features, float32 [n, D]."""
        codes = self.buffer.copied(np.arange(len(self.buffer)))[0]
        if isinstance(codes, np.ndarray):  # objects
            rows = np.frombuffer(b"".join(codes), np.float16).reshape(len(codes), -1)
            return torch.from_numpy(rows.astype(np.float32))
        return codes.float()

    def solve(self) -> Rows:
        if not len(self.buffer):
            return no_rows()
        features, labels = self._stored, torch.from_numpy(self.buffer.labels.astype(np.int64))
        targets = self.rows(labels.to(self.device)).cpu()
        place = torch.from_numpy(np.argsort(self.buffer.births))  # slots have no order that lasts
        features, targets = features[place], targets[place]
        strength = self._best_strength(features, targets) if self.strength is None else self.strength
        return without_samples(logistic_rows(features, targets, len(self.classes), strength), targets)

    def _best_strength(self, features: torch.Tensor, targets: torch.Tensor) -> float:
        """Choose on held-out samples; evenly spaced ones if there are many."""
        chosen = torch.linspace(0, len(features) - 1, min(len(features), _CHOOSE_WITH)).round().long()
        features, targets = features[chosen], targets[chosen]
        apart = torch.from_numpy(held_out(np.arange(len(features))))
        if apart.all() or not apart.any():
            return 1.0
        start: Rows | None = None
        losses = {}
        for strength in _STRENGTHS:
            start = logistic_rows(features[~apart], targets[~apart], len(self.classes), strength, start, tolerance=1e-6)
            logits = features[apart].double() @ start[0].T + start[1]
            losses[strength] = float(torch.nn.functional.cross_entropy(logits, targets[apart]))
        return min(losses, key=losses.__getitem__)
