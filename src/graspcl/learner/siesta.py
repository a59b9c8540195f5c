"""SIESTA: a cheap online update of the output layer while awake, rehearsal of the plastic part while asleep."""

from __future__ import annotations

from typing import Any

import torch

from graspcl.buffer import Codes
from graspcl.learner.learner import Learner, learners
from graspcl.policy import Costs


@learners.register("siesta")
class Siesta(Learner):
    """SIESTA (section 4.2). Awake, a new class's output row is the running mean of what the head sees of it; asleep,
    the plastic part and the head are trained on rehearsed samples.

    The means are of the head's input (the embedding after its activation), in float64, over all samples that arrived
    since the last session; once a class has been rehearsed its row is the optimiser's and no longer overwritten.

    >>> from graspcl.buffer import Buffer
    >>> from graspcl.model import vector_network
    >>> from graspcl.policy import Budget
    >>> learner = Siesta(vector_network(4, generator=torch.Generator().manual_seed(0)), Buffer(), "grasp")
    >>> learner.observe(torch.eye(4), [0, 0, 1, 1])
    >>> learner.rehearse(Budget(updates=3, batch_size=2)).coverage
    1.0
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        features = self.network.head.features
        self._sums = torch.zeros(0, features, dtype=torch.float64, device=self.device)
        self._counts = torch.zeros(0, dtype=torch.float64, device=self.device)
        self._awake = torch.zeros(0, dtype=torch.bool, device=self.device)  # rows the wake phase still owns
        self._grow(len(self.classes))
        self._awake[:] = False  # what base initialisation has trained is not overwritten

    def look(self, codes: Codes) -> torch.Tensor:
        return self.outputs(codes, "features").double()

    def learn_online(self, looked: torch.Tensor, labels: torch.Tensor) -> None:
        rows = self.rows(labels)
        self._grow(len(self.classes))
        self._sums.index_add_(0, rows, looked)
        self._counts.index_add_(0, rows, torch.ones_like(rows, dtype=torch.float64))
        fresh = torch.unique(rows)
        fresh = fresh[self._awake[fresh]]
        self.network.head.set_rows(fresh, (self._sums[fresh] / self._counts[fresh, None]).float())

    def end_session(self, costs: Costs) -> None:
        super().end_session(costs)
        self._awake[:] = False

    def _grow(self, rows: int) -> None:
        missing = rows - len(self._counts)
        if missing > 0:
            self._sums = torch.cat([self._sums, self._sums.new_zeros(missing, self._sums.shape[1])])
            self._counts = torch.cat([self._counts, self._counts.new_zeros(missing)])
            self._awake = torch.cat([self._awake, self._awake.new_ones(missing)])

    def state_dict(self) -> dict[str, Any]:
        means = {"sums": self._sums.clone(), "counts": self._counts.clone(), "awake": self._awake.clone()}
        return {**super().state_dict(), "means": means}

    @property
    def state_keys(self) -> set[str]:
        return {*super().state_keys, "means"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        means = state["means"]
        self._sums, self._counts, self._awake = (
            torch.as_tensor(means[name]).to(self.device).clone() for name in ("sums", "counts", "awake")
        )
