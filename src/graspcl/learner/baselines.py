"""Learners that begin a session with a fresh network: GDumb, and joint training on everything seen."""

from __future__ import annotations

from typing import Any

import torch

from graspcl.errors import GraspError, expect
from graspcl.learner.learner import Learner, learners
from graspcl.policy import Budget, Costs


class Restarting(Learner):
    """With `reset`, a session begins with the weights that the network had when the learner was made.

    For a network of random weights that is training from scratch. The head's rows are drawn anew, for all classes.
    """

    offline = True

    def __init__(self, *args: Any, reset: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        expect("reset", reset, bool)
        self.reset = reset
        self._made = self._weights() if reset else {}

    def _weights(self) -> dict[str, torch.Tensor]:
        """All but the head, and but the state of random generators, which go on."""
        return {
            name: value.clone()
            for name, value in self.network.state_dict().items()
            if not name.startswith("head.") and not name.endswith("_extra_state")
        }

    def begin_session(self) -> None:
        if not self.reset:
            return
        self.network.load_state_dict(self._made, strict=False)
        self.network.head.reset()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "made": {name: value.clone() for name, value in self._made.items()}}

    @property
    def state_keys(self) -> set[str]:
        return {*super().state_keys, "made"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._made.keys() != state.get("made", {}).keys():
            raise GraspError("the state is of a learner with another `reset`, or of another network")
        super().load_state_dict(state)
        self._made = {name: value.to(self.device).clone() for name, value in state["made"].items()}


@learners.register("gdumb")
class GDumb(Restarting):
    """GDumb (Prabhu et al. 2020): keep a balanced buffer, and when asked, train a fresh network on it alone.

    Its sampler is the maintenance rule `gdumb`; any rule works. `reset=False` keeps the network from session to
    session, the variant behind the paper's numbers.

    >>> from graspcl.buffer import Buffer
    >>> from graspcl.model import vector_network
    >>> network = vector_network(4, generator=torch.Generator().manual_seed(0))
    >>> learner = GDumb(network, Buffer(capacity=2, maintenance="gdumb"), "uniform_balanced")
    >>> learner.observe(torch.eye(4), [0, 0, 0, 1])
    >>> log = learner.rehearse(Budget(updates=3, batch_size=2))
    >>> sorted(learner.buffer.labels.tolist())
    [0, 1]
    """


@learners.register("offline")
class Offline(Restarting):
    """Joint training on everything seen: the upper end of the scale, for comparison.

    It stores every sample, and a session makes at least `passes` passes over them, whatever the budget; so it is not
    compared at equal updates or equal bytes.

    >>> from graspcl.buffer import Buffer
    >>> from graspcl.model import vector_network
    >>> network = vector_network(4, generator=torch.Generator().manual_seed(0))
    >>> learner = Offline(network, Buffer(), "uniform", passes=4)
    >>> learner.observe(torch.eye(4), [0, 0, 1, 1])
    >>> learner.rehearse(Budget(updates=1, batch_size=2)).costs.updates
    8
    """

    unbounded = True

    def __init__(self, *args: Any, passes: float = 10.0, reset: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, reset=reset, **kwargs)
        expect("passes", passes, float)
        self.passes = passes
        if not self.buffer.unbounded:
            raise GraspError("offline training keeps everything it has seen: its buffer takes no capacity")

    def session_budget(self, budget: Budget) -> Budget:
        whole = Budget.passes(self.passes, len(self.buffer), budget.batch_size)
        return whole if 0 < budget.updates < whole.updates else budget


@learners.register("finetune")
class Finetune(Learner):
    """Trains on new samples alone and then forgets them; what a network loses without rehearsal.

    The buffer holds what arrived since the last session, all of it, and is emptied afterwards. The policy chooses the
    order among new samples.

    >>> import torch
    >>> from graspcl.buffer import Buffer
    >>> from graspcl.model import vector_network
    >>> from graspcl.policy import Budget
    >>> learner = Finetune(vector_network(4, generator=torch.Generator().manual_seed(0)), Buffer(), "uniform")
    >>> learner.observe(torch.eye(4), [0, 0, 1, 1])
    >>> log = learner.rehearse(Budget(updates=3, batch_size=2))
    >>> len(learner.buffer), learner.classes
    (0, [0, 1])
    """

    offline = True

    def end_session(self, costs: Costs) -> None:
        super().end_session(costs)
        self.buffer.clear()
