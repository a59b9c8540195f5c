"""Fine-tuning: no rehearsal, the lower end of the scale."""

from __future__ import annotations

from graspcl.learner.base import Learner, learners
from graspcl.policy import Costs


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
