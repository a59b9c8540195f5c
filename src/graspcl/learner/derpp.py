"""DER++: rehearsal that also holds on to what the network used to say."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from graspcl.buffer import Codes
from graspcl.buffer.columns import Columns
from graspcl.checks import Array
from graspcl.errors import GraspError, expect
from graspcl.learner.learner import Learner, learners
from graspcl.learner.rehearsal import Batch
from graspcl.policy import Costs
from graspcl.policy.session import evaluating


@learners.register("derpp")
class Derpp(Learner):
    """DER++ (Buzzega et al. 2020), offline as in section 4.2: loss = CE(new) + beta CE(old) + alpha MSE(old logits).

    Each term is a mean over its samples of the mini-batch; without new samples in it the loss is plain cross-entropy.
    The logits that an old sample is held to are stored with it when it stops being new, at the end of its first
    session, and never change; of classes that came later they say nothing. They are a column of the buffer
    (`columns`), so their bytes count. With `teacher` (the variant behind the paper's numbers) none are stored: old
    samples are held to what the network said of them at the begin of the session.

    >>> from graspcl.buffer import Buffer
    >>> from graspcl.model import vector_network
    >>> from graspcl.policy import Budget
    >>> network = vector_network(4, generator=torch.Generator().manual_seed(0))
    >>> learner = Derpp(network, Buffer(capacity=100, columns=Derpp.columns(classes=2)), "grasp")
    >>> learner.observe(torch.eye(4), [0, 0, 1, 1])
    >>> log = learner.rehearse(Budget(updates=3, batch_size=2))
    >>> learner.buffer["known"].tolist()
    [2, 2, 2, 2]
    """

    offline = True

    def __init__(self, *args: Any, alpha: float = 0.1, beta: float = 0.9, teacher: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        expect("alpha", alpha, float)
        expect("beta", beta, float)
        expect("teacher", teacher, bool)
        if alpha < 0 or beta < 0:
            raise GraspError(f"alpha and beta weigh terms of a loss: 0 or more, not {alpha} and {beta}")
        self.alpha, self.beta, self.teacher = alpha, beta, teacher
        self._teacher: dict[str, torch.Tensor] = {}  # weights, during a session
        self._taught_samples = 0  # passes through the teacher, booked when the session ends
        if not teacher and not {"logits", "known"} <= self.buffer.columns.keys():
            raise GraspError(
                "DER++ stores logits with the samples: make the buffer with columns=Derpp.columns(classes), where "
                "classes is how many there can be; or take the variant without, teacher=True"
            )

    @classmethod
    def columns(cls, classes: int, **parameters: Any) -> Columns:
        if parameters.get("teacher", False):
            return {}
        return {"logits": ((classes,), np.float16), "known": ((), np.int32)}

    def observe_codes(self, codes: Codes, labels: Any, ids: Any | None = None) -> None:
        if not self.teacher:
            room = self.buffer.columns["logits"][0][0]
            needed = len({*self.classes, *np.asarray(labels).tolist()})
            if needed > room:
                raise GraspError(
                    f"DER++ has room for the logits of {room} classes, and these samples make it {needed}; make the "
                    f"buffer with columns=Derpp.columns({needed}) or more"
                )
        super().observe_codes(codes, labels, ids)

    def begin_session(self) -> None:
        if self.teacher:
            self._teacher = {name: value.clone() for name, value in self.network.state_dict().items()}

    def loss(self, batch: Batch) -> torch.Tensor:
        new = torch.from_numpy(self.buffer.new[batch.slots]).to(self.device)
        losses = batch.cross_entropies
        if not new.any():
            return losses.mean()
        total = losses[new].mean()
        if new.all():
            return total
        total = total + self.beta * losses[~new].mean()
        return total + self.alpha * self._drift(batch, ~new)

    def _drift(self, batch: Batch, old: torch.Tensor) -> torch.Tensor:
        """Mean squared difference of the logits to those held on to, over the samples `old` [n]."""
        if self.teacher:
            self._taught_samples += int(old.sum())
            return F.mse_loss(batch.outputs.logits[old], self._taught(batch.inputs[old]))
        logits = batch.outputs.logits[old]
        slots = batch.slots[old.numpy(force=True)]
        stored = torch.from_numpy(self.buffer["logits"][slots][:, : logits.shape[1]]).to(logits)
        known = torch.from_numpy(self.buffer["known"][slots]).to(self.device)
        counts = torch.arange(logits.shape[1], device=self.device) < known[:, None]
        return ((logits - stored).square() * counts).sum() / counts.sum().clamp_min(1)

    def _taught(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.no_grad(), evaluating(self.network):
            outputs = torch.func.functional_call(self.network, self._teacher, (inputs,))
        logits: torch.Tensor = outputs.logits
        return logits

    def end_session(self, costs: Costs) -> None:
        costs.training_forward += self._taught_samples
        self._teacher, self._taught_samples = {}, 0
        self.buffer.compress()  # first: logits of what is not kept would be in vain
        if not self.teacher:
            self._store_logits(np.flatnonzero(self.buffer.new))
            costs.training_forward += int(self.buffer.new.sum())
        super().end_session(costs)

    def _store_logits(self, slots: Array) -> None:
        self.network.eval()
        for part in np.array_split(slots, -(-len(slots) // 512) or 1):
            if not len(part):
                continue
            with torch.no_grad():
                logits = self.network(self.buffer.fetch(part, self.device)[0]).logits
            self.buffer["logits"][part, : logits.shape[1]] = logits.clamp(-65504, 65504).numpy(force=True)
            self.buffer["known"][part] = logits.shape[1]

    def state_dict(self) -> dict[str, Any]:
        teacher = {name: value.clone() for name, value in self._teacher.items()}
        return {**super().state_dict(), "teacher": teacher, "taught": self._taught_samples}

    @property
    def state_keys(self) -> set[str]:
        return {*super().state_keys, "teacher", "taught"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._taught_samples = int(state["taught"])
        self._teacher = {name: value.to(self.device).clone() for name, value in state["teacher"].items()}
