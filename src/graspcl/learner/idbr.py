"""IDBR: the replay baseline of continual text classification, with or without its regularisation."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.buffer import Buffer, Codes
from graspcl.buffer.columns import Columns
from graspcl.checks import Share, checked
from graspcl.errors import GraspError
from graspcl.learner.learner import Learner, learners
from graspcl.learner.optimiser import Optimiser
from graspcl.learner.rehearsal import Batch
from graspcl.model import Execution, LinearHead, SplitNetwork, build
from graspcl.padding import unpadded
from graspcl.policy import Costs, Policy
from graspcl.random import restore_rng, rng_state

_WIDTH = 128  # of the general and of the specific space
_REPLAY, _OTHERWISE = 5.0, 0.5  # weight of the feature term, in batches with old samples and without


@learners.register("idbr")
@checked
class Idbr(Learner):
    """IDBR (Huang et al. 2021) as in section 4.2: cross-entropy on new and stored samples, in sessions of fixed length.

    A task is a session. When it ends, a random share `store_ratio` of its new samples stays in the buffer,
    independently of the policy.

    Args, besides those of `Learner`:
        store_ratio: share of a task's samples that is stored.
        regularised: use the original method with its sub-networks, described below.
        balance: group used for class-balanced sampling and for prototypes, "class" or "task". The reference's text
            runs use "task".

    With `regularised`, two tanh layers split the head's input into a general and a specific space of 128 numbers each,
    and the head is a linear layer on both. Three terms join the cross-entropy:

    - The general space distinguishes a text from its copy with swapped halves. Each batch is doubled by such copies.
    - The specific space distinguishes the tasks seen so far, in batches with old samples.
    - Both spaces stay close to what they were before the session: ½ MSE(general) + ½ MSE(specific), times 5 in batches
      with old samples, 0.5 in others, and 0 in the first task.

    The task of a sample is a column of the buffer. Copies and earlier features are booked in addition to the budget.

    Differences to the reference: the policy decides which samples share a batch, and ε is the policy's. Sequences (or
    latents, where the frozen part made them) are cut at their middle, without an extra separator. All layers follow the
    given optimiser's rate and schedule. With `balance="task"`, prototypes are means of a task's stored
    samples, measured before each session.

    >>> from graspcl.model import vector_network
    >>> from graspcl.policy import Budget
    >>> learner = Idbr(vector_network(4, generator=torch.Generator().manual_seed(0)), Buffer(), "grasp")
    >>> learner.observe(torch.eye(4), [0, 0, 1, 1])
    >>> log = learner.rehearse(Budget(updates=3, batch_size=2))
    >>> log.stored, len(learner.buffer)
    (4, 2)
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
        store_ratio: Share = 0.5,
        regularised: bool = False,
        balance: Literal["class", "task"] = "class",
    ) -> None:
        super().__init__(network, buffer, policy, optimiser, rng, device, execution)
        self.store_ratio, self.regularised = store_ratio, regularised
        self._storing = self.rng.spawn(1)[0]  # chooses what stays, whatever the policy draws
        self.groups_by = "task" if balance == "task" else None
        self.tasks = 0  # finished
        self._features_before = torch.empty(0)  # during a session, of each stored sample before it [N, 2 · 128]
        self._extra_forward, self._copies = 0, 0  # passes in addition to the budget, booked at the end
        self._stores_tasks = regularised or balance == "task"
        if self._stores_tasks and "task" not in self.buffer.columns:
            raise GraspError("this IDBR stores each sample's task: create the buffer with columns=Idbr.columns(…)")
        if regularised:  # the two spaces go after the network's neck, and a new linear head on them
            head = self.network.head
            self.network.neck = nn.Sequential(self.network.neck, _Spaces(head.features, head.generator))
            self.network.head = LinearHead(2 * _WIDTH, head.classes, generator=head.generator)
            self.network.to(self.device)

    @classmethod
    def columns(cls, classes: int, **parameters: Any) -> Columns:
        stores_tasks = parameters.get("regularised", False) or parameters.get("balance") == "task"
        return {"task": ((), np.int32)} if stores_tasks else {}

    @classmethod
    def head_width(cls, network: SplitNetwork, **parameters: Any) -> int:
        return 2 * _WIDTH if parameters.get("regularised") else super().head_width(network)

    def observe_codes(self, codes: Codes, labels: Any, ids: Any | None = None) -> None:
        before = self.buffer.seen
        super().observe_codes(codes, labels, ids)
        if self._stores_tasks:
            self.buffer["task"][self.buffer.births >= before] = self.tasks

    def begin_session(self) -> None:
        if not self.regularised:
            return
        self._spaces.task.grow(self.tasks + 1)
        if self.tasks:
            self._features_before = self.outputs(self.buffer.copied(np.arange(len(self.buffer)))[0], "features")
            self._extra_forward = len(self.buffer)

    def loss(self, batch: Batch) -> Tensor:
        if not self.regularised:
            return super().loss(batch)
        copies, n = self.network(swap_halves(batch.inputs)), len(batch.targets)
        self._copies += n
        general, specific = torch.cat([batch.outputs.features, copies.features]).chunk(2, dim=1)
        logits, swapped = torch.cat([batch.logits, copies.logits]), torch.arange(2 * n, device=self.device) >= n
        loss = F.cross_entropy(logits, batch.targets.repeat(2))
        loss = loss + F.cross_entropy(self._spaces.order(general), swapped.long())
        if not self.tasks:
            return loss
        replay = not bool(batch.new.all())
        if replay:
            task = torch.from_numpy(self.buffer["task"][batch.slots]).to(self.device, torch.int64)
            loss = loss + F.cross_entropy(self._spaces.task(specific), task.repeat(2))
        before = self._features_before[torch.from_numpy(np.asarray(batch.slots, np.int64)).to(self.device)]
        # Both spaces have the same width, so the mean over all features is half the sum of both means.
        return loss + (_REPLAY if replay else _OTHERWISE) * F.mse_loss(batch.outputs.features, before)

    def end_session(self, costs: Costs) -> None:
        costs.training_forward += self._extra_forward + self._copies
        costs.training_backward += self._copies
        self._features_before, self._extra_forward, self._copies = torch.empty(0), 0, 0
        new = np.flatnonzero(self.buffer.new)
        stay = math.ceil(round(self.store_ratio * len(new), 6))  # rounded, so that 0.07 · 100 is 7
        self.buffer.remove(self._storing.permutation(new)[stay:])
        super().end_session(costs)
        self.tasks += 1

    @property
    def _spaces(self) -> Any:
        return self.network.neck[-1]  # type: ignore[index]

    def extra_state(self) -> dict[str, Any]:
        passes, storing = [self._extra_forward, self._copies], rng_state(self._storing)
        return {"tasks": self.tasks, "old": self._features_before, "passes": passes, "storing": storing}

    def adapted(self, state: dict[str, Any]) -> dict[str, Any]:
        return {"storing": rng_state(self._storing), **state}  # the policy's generator chose what stays

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self.tasks, (self._extra_forward, self._copies) = int(state["tasks"]), map(int, state["passes"])
        self._features_before = torch.as_tensor(state["old"]).to(self.device).clone()
        restore_rng(self._storing, state["storing"])


def swap_halves(inputs: Tensor) -> Tensor:
    """Swap the halves of sequences [n, L], or of sequences of vectors [n, D, L].

    The first token (BERT's [CLS]) stays in place, and so does padding: what is repeated up to the end of a sequence.

    >>> swap_halves(torch.tensor([[9, 1, 2, 3, 4, 0, 0], [9, 1, 2, 3, 4, 5, 8]])).tolist()
    [[9, 3, 4, 1, 2, 0, 0], [9, 3, 4, 5, 1, 2, 8]]
    """
    x = inputs[:, None] if inputs.ndim == 2 else inputs.flatten(2)
    place = torch.arange(x.shape[2], device=x.device)
    tokens = (unpadded(x)[:, None] - 1).clamp_min(1)  # without the first
    source = 1 + (place - 1 + tokens // 2) % tokens
    source = torch.where((place > 0) & (place <= tokens), source, place).clamp_max(x.shape[2] - 1)
    return x.gather(2, source[:, None].expand_as(x)).reshape(inputs.shape)


class _Spaces(nn.Module):
    """General and specific features side by side, [n, features] -> [n, 2 · 128], with a classifier for each."""

    def __init__(self, features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.general = build(lambda: nn.Linear(features, _WIDTH), generator)
        self.specific = build(lambda: nn.Linear(features, _WIDTH), generator)
        self.order = build(lambda: nn.Linear(_WIDTH, 2), generator)  # on the general space: are the halves swapped?
        self.task = LinearHead(_WIDTH, generator=generator)  # on the specific space: which task?

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([self.general(features), self.specific(features)], dim=1).tanh()
