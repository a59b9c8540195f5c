"""SIESTA: a cheap online update of the output layer, and rehearsal of the plastic part in sessions."""

from __future__ import annotations

from typing import Any

import torch

from graspcl.learner.learner import Learner, learners
from graspcl.model import Outputs
from graspcl.policy import Costs


@learners.register("siesta")
class Siesta(Learner):
    """SIESTA (section 4.2).

    Online (the wake phase), a new class's output row is the running mean of the head's inputs for that class. In a
    session (the sleep phase), the plastic part and the head are trained on rehearsed samples. The means are in float64,
    over all samples of the class. After the first session with an update, online updates no longer change the rows of
    its classes.

    Parameters are those of `Learner`.

    >>> from graspcl import Buffer
    >>> from graspcl.model import vector_network
    >>> from graspcl.policy import Budget
    >>> learner = Siesta(vector_network(4, generator=torch.Generator().manual_seed(0)), Buffer(), "grasp")
    >>> learner.observe(torch.eye(4), [0, 0, 1, 1])
    >>> learner.rehearse(Budget(updates=3, batch_size=2)).coverage
    1.0
    """

    def setup(self) -> None:
        rows, features = len(self.classes), self.network.head.features
        self._sums = torch.zeros(rows, features, dtype=torch.float64, device=self.device)
        self._counts = torch.zeros(rows, dtype=torch.float64, device=self.device)
        self._awake = torch.zeros(rows, dtype=torch.bool, device=self.device)  # rows that online updates may set

    def learn_online(self, outputs: Outputs, targets: torch.Tensor) -> None:
        if (missing := len(self.classes) - len(self._counts)) > 0:
            self._sums = torch.cat([self._sums, self._sums.new_zeros(missing, self._sums.shape[1])])
            self._counts = torch.cat([self._counts, self._counts.new_zeros(missing)])
            self._awake = torch.cat([self._awake, self._awake.new_ones(missing)])
        self._sums.index_add_(0, targets, outputs.features.double())
        self._counts.index_add_(0, targets, torch.ones_like(targets, dtype=torch.float64))
        fresh = torch.unique(targets)
        fresh = fresh[self._awake[fresh]]
        self.network.head.set_rows(fresh, (self._sums[fresh] / self._counts[fresh, None]).float())

    def end_session(self, costs: Costs) -> None:
        super().end_session(costs)
        if costs.updates:  # a session that trained nothing leaves the means what they are
            self._awake[:] = False

    def extra_state(self) -> dict[str, Any]:
        return {"means": {"sums": self._sums.clone(), "counts": self._counts.clone(), "awake": self._awake.clone()}}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self._sums, self._counts, self._awake = (
            torch.as_tensor(state["means"][name]).to(self.device).clone() for name in ("sums", "counts", "awake")
        )
