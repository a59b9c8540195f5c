"""IDBR: the replay baseline of continual text classification, and with its regularisation."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.buffer import Codes
from graspcl.buffer.columns import Columns
from graspcl.errors import GraspError, expect, nearest
from graspcl.learner.learner import Learner, learners
from graspcl.learner.rehearsal import Batch
from graspcl.model import LinearHead, build
from graspcl.padding import unpadded
from graspcl.policy import Costs

_WIDTH = 128  # of the general and of the specific space
_REPLAY, _OTHERWISE = 5.0, 0.5  # how strongly features are held, in batches with old samples and without


@learners.register("idbr")
class Idbr(Learner):
    """IDBR (Huang et al. 2021) as in section 4.2: a network is updated on new and stored samples, by plain
    cross-entropy, in sessions of a fixed length. A task is a session: when it ends, a random share `store_ratio` of its
    new samples stays in the buffer. `balance` is what balanced policies balance and prototypes are of: each class, or,
    as in the reference's text runs, each task.

    With `regularised` it is the original with its sub-networks. Two tanh layers split what the head sees into a general
    and a specific space of 128 numbers each; the head is a linear one on both. The general space also tells a text from
    its copy with swapped halves (each batch is doubled by those), the specific one tells the tasks seen so far apart
    (in batches with old samples), and both are held to what they were before the session: ½ MSE(general) +
    ½ MSE(specific), times 5 in batches with old samples, 0.5 in others, and 0 in the first task. The task of a sample
    is a column of the buffer (`columns`). Unlike the reference: which samples share a batch is the policy's choice;
    sequences are cut at their middle, not at random, and without a separator of their own; latents are swapped where
    the frozen part made latents; all layers have the learning rate and schedule of the given optimiser (the reference
    warms up for 1,000 steps); with `balance` "task" prototypes are means of what is stored of a task, measured anew
    before each session, not of all its samples once; ε is the policy's. Swapped copies and the features before the
    session are booked beside the budget.

    >>> from graspcl.buffer import Buffer
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
        *args: Any,
        store_ratio: float = 0.5,
        regularised: bool = False,
        balance: Literal["class", "task"] = "class",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if balance not in ("class", "task"):
            raise GraspError(f"balance {balance!r} is unknown; {nearest(str(balance), ('class', 'task'))}")
        self.groups_by = "task" if balance == "task" else None
        expect("store_ratio", store_ratio, float)
        expect("regularised", regularised, bool)
        if not 0 <= store_ratio <= 1:
            raise GraspError(f"store_ratio is a share of a task's samples, 0..1, not {store_ratio}")
        self.store_ratio, self.regularised = store_ratio, regularised
        self.tasks = 0  # that have ended
        self._old = torch.empty(0)  # during a session, features of each stored sample before it [N, 2 · 128]
        self._looks, self._copies = 0, 0  # forward passes beside the budget, and swapped copies, booked at the end
        self._tells_tasks = regularised or balance == "task"
        if self._tells_tasks and "task" not in self.buffer.columns:
            raise GraspError("this IDBR tells tasks apart: make the buffer with Idbr.columns(…) as columns")
        if regularised:
            _disentangle(self.network).to(self.device)

    @classmethod
    def columns(cls, classes: int, **parameters: Any) -> Columns:
        tells_tasks = parameters.get("regularised", False) or parameters.get("balance") == "task"
        return {"task": ((), np.int32)} if tells_tasks else {}

    def observe_codes(self, codes: Codes, labels: Any, ids: Any | None = None) -> None:
        before = self.buffer.seen
        super().observe_codes(codes, labels, ids)
        if self._tells_tasks:
            self.buffer["task"][self.buffer.births >= before] = self.tasks

    def begin_session(self) -> None:
        if not self.regularised:
            return
        self._spaces.task.grow(self.tasks + 1)
        if self.tasks:
            self._old, self._looks = self.outputs(self.buffer["codes"], "features"), len(self.buffer)

    def loss(self, batch: Batch) -> Tensor:
        if not self.regularised:
            return super().loss(batch)
        copies = self.network(swap_halves(batch.inputs))
        self._copies += len(batch.rows)
        general, specific = torch.cat([batch.outputs.features, copies.features]).chunk(2, dim=1)
        rows, logits = batch.rows.repeat(2), torch.cat([batch.outputs.logits, copies.logits])
        swapped = torch.arange(len(rows), device=self.device) >= len(batch.rows)
        loss = F.cross_entropy(logits, rows) + F.cross_entropy(self._spaces.order(general), swapped.long())
        if not self.tasks:
            return loss
        replay = bool((~self.buffer.new[batch.slots]).any())
        if replay:
            task = torch.from_numpy(self.buffer["task"][batch.slots]).to(self.device, torch.int64)
            loss = loss + F.cross_entropy(self._spaces.task(specific), task.repeat(2))
        old = self._old[torch.from_numpy(np.asarray(batch.slots, np.int64)).to(self.device)]
        # Both spaces are of one width: the mean over all features is half the mean over each.
        return loss + (_REPLAY if replay else _OTHERWISE) * F.mse_loss(batch.outputs.features, old)

    def end_session(self, costs: Costs) -> None:
        costs.training_forward += self._looks + self._copies
        costs.training_backward += self._copies
        self._old, self._looks, self._copies = torch.empty(0), 0, 0
        new = np.flatnonzero(self.buffer.new)
        stay = math.ceil(round(self.store_ratio * len(new), 6))  # 0.07 · 100 is 7
        self.buffer.remove(self.rng.permutation(new)[stay:])
        super().end_session(costs)
        self.tasks += 1

    @property
    def _spaces(self) -> Any:
        return self.network.neck[-1]  # type: ignore[index]

    def state_dict(self) -> dict[str, Any]:
        passes = [self._looks, self._copies]
        return {**super().state_dict(), "tasks": self.tasks, "old": self._old.clone(), "passes": passes}

    @property
    def state_keys(self) -> set[str]:
        return {*super().state_keys, "tasks", "old", "passes"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.tasks, (self._looks, self._copies) = int(state["tasks"]), map(int, state["passes"])
        self._old = torch.as_tensor(state["old"]).to(self.device).clone()


def swap_halves(inputs: Tensor) -> Tensor:
    """Sequences [n, L], or of vectors [n, D, L], whose halves have changed places.

    The first token (of BERT: [CLS]) stays, and so does padding: what is repeated up to the end of a sequence.

    >>> swap_halves(torch.tensor([[9, 1, 2, 3, 4, 0, 0], [9, 1, 2, 3, 4, 5, 8]])).tolist()
    [[9, 3, 4, 1, 2, 0, 0], [9, 3, 4, 5, 1, 2, 8]]
    """
    x = inputs[:, None] if inputs.ndim == 2 else inputs.flatten(2)
    place = torch.arange(x.shape[2], device=x.device)
    tokens = (unpadded(x)[:, None] - 1).clamp_min(1)  # beside the first
    source = 1 + (place - 1 + tokens // 2) % tokens
    source = torch.where((place > 0) & (place <= tokens), source, place).clamp_max(x.shape[2] - 1)
    return x.gather(2, source[:, None].expand_as(x)).reshape(inputs.shape)


class _Spaces(nn.Module):
    """General and specific features, side by side: [n, features] -> [n, 2 · 128]; and what is asked of each."""

    def __init__(self, features: int, generator: torch.Generator) -> None:
        super().__init__()
        self.general = build(lambda: nn.Linear(features, _WIDTH), generator)
        self.specific = build(lambda: nn.Linear(features, _WIDTH), generator)
        self.order = build(lambda: nn.Linear(_WIDTH, 2), generator)  # of the general space: are the halves swapped?
        self.task = LinearHead(_WIDTH, generator=generator)  # of the specific space: which task is it of?

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([self.general(features), self.specific(features)], dim=1).tanh()


def _disentangle(network: Any) -> Any:
    """`network` itself, with the two spaces after its neck and a linear head on them; its rows are drawn anew."""
    head = network.head
    network.neck = nn.Sequential(network.neck, _Spaces(head.features, head.generator))
    network.head = LinearHead(2 * _WIDTH, head.classes, generator=head.generator)
    return network
