"""Baselines: GDumb, training without rehearsal, and ER-ACE."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from graspcl.buffer import Buffer
from graspcl.checks import checked
from graspcl.errors import GraspError
from graspcl.learner.learner import Learner, learners
from graspcl.learner.optimiser import Optimiser
from graspcl.learner.rehearsal import Batch
from graspcl.model import Execution, SplitNetwork
from graspcl.policy import Costs, Policy


@learners.register("gdumb")
@checked
class GDumb(Learner):
    """GDumb (Prabhu et al. 2020): keep a balanced buffer, and train a fresh network on it in each session.

    Its published sampler is the maintenance rule `gdumb`; any rule works.

    Args, besides those of `Learner`:
        reset: start each session from the weights the network was created with, and from new rows of the head.
            With random weights that is training from scratch. False keeps the network from session to session, the
            variant behind the paper's numbers.

    >>> from graspcl.model import vector_network
    >>> from graspcl.policy import Budget
    >>> network = vector_network(4, generator=torch.Generator().manual_seed(0))
    >>> learner = GDumb(network, Buffer(capacity=2, maintenance="gdumb"), "uniform_balanced")
    >>> learner.observe(torch.eye(4), [0, 0, 0, 1])
    >>> log = learner.rehearse(Budget(updates=3, batch_size=2))
    >>> sorted(learner.buffer.labels.tolist())
    [0, 1]
    """

    offline = True

    def __init__(
        self,
        network: SplitNetwork,
        buffer: Buffer,
        policy: Policy | str = "grasp",
        optimiser: Optimiser | None = None,
        rng: np.random.Generator | int = 0,
        device: torch.device | str | None = None,
        execution: Execution | None = None,
        reset: bool = True,
    ) -> None:
        super().__init__(network, buffer, policy, optimiser, rng, device, execution)
        self.reset = reset
        # Without the head, whose rows are drawn again, and without generators, whose draws must not repeat.
        self._initial = {
            name: value.clone()
            for name, value in self.network.state_dict().items()
            if reset and not name.startswith("head.") and not name.endswith("_extra_state")
        }

    def begin_session(self) -> None:
        if self.reset:
            self.network.load_state_dict(self._initial, strict=False)
            self.network.head.reset()

    def extra_state(self) -> dict[str, Any]:
        return {"made": self._initial}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        if self._initial.keys() != state["made"].keys():
            raise GraspError("the state belongs to a learner with another `reset`, or to another network")
        self._initial = {name: value.to(self.device).clone() for name, value in state["made"].items()}


@learners.register("finetune")
class Finetune(Learner):
    """Train on new samples alone and then forget them: what a network loses without rehearsal.

    The buffer stores all samples since the last session and is emptied after it. The policy selects among them.
    Parameters are those of `Learner`.

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


@learners.register("er_ace")
class ErAce(Learner):
    """ER-ACE (Caccia et al. 2022): rehearsal with an asymmetric cross-entropy, which disturbs old classes less.

    New samples compete only with the classes in their mini-batch, old samples with all classes. The published method
    draws old samples uniformly. Parameters are those of `Learner`.

    >>> from graspcl.model import vector_network
    >>> from graspcl.policy import Budget
    >>> learner = ErAce(vector_network(4, generator=torch.Generator().manual_seed(0)), Buffer(), "uniform")
    >>> learner.observe(torch.eye(4), [0, 0, 1, 1])
    >>> learner.rehearse(Budget(updates=3, batch_size=2)).costs.updates
    3
    """

    offline = True

    def loss(self, batch: Batch) -> torch.Tensor:
        absent = batch.new[:, None] & ~batch.present
        return F.cross_entropy(batch.logits.masked_fill(absent, -torch.inf), batch.targets)
