"""DER++: rehearsal that also preserves the network's earlier logits."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional as F

from graspcl.buffer import Buffer, Codes
from graspcl.buffer.columns import Columns
from graspcl.checks import NonNegative, checked
from graspcl.errors import GraspError
from graspcl.learner.learner import Learner, learners
from graspcl.learner.optimiser import Optimiser
from graspcl.learner.rehearsal import Batch
from graspcl.model import Execution, SplitNetwork
from graspcl.policy import Costs, Policy
from graspcl.policy.networks import evaluating


@learners.register("derpp")
@checked
class Derpp(Learner):
    """DER++ (Buzzega et al. 2020), offline as in section 4.2: loss = CE(new) + beta CE(old) + alpha MSE(old logits).

    A sample's logits are stored at the end of its first session, when it stops being new, and never change. They are a
    column of the buffer (`columns`), so their bytes count. Classes that came later get the lowest logit that was
    stored for the sample: a head that has all rows from the start, as in the original, learns such low logits for them.

    Args, besides those of `Learner`:
        alpha: weight of the squared difference to the earlier logits.
        beta: weight of the cross-entropy of old samples.
        teacher: compare with the logits of the network at the start of the session, and store none. This is the
            variant behind the paper's numbers.
        average: with "batch" every sample counts once: the loss is the mean over the batch of CE for new samples and
            beta CE + alpha MSE for old ones. "terms" makes each term a mean over its samples of the mini-batch, as in
            the original, which draws as many old samples as new ones; a batch without new samples then has plain
            cross-entropy. Where a policy draws few new samples, each of them weighs several times as much as an old
            one. By default "batch", and "terms" with a `teacher`.

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

    def __init__(
        self,
        network: SplitNetwork,
        buffer: Buffer,
        policy: Policy | str = "grasp",
        optimiser: Optimiser | None = None,
        rng: np.random.Generator | int = 0,
        device: torch.device | str | None = None,
        execution: Execution | None = None,
        alpha: NonNegative = 0.1,
        beta: NonNegative = 0.9,
        teacher: bool = False,
        average: Literal["terms", "batch"] | None = None,
    ) -> None:
        super().__init__(network, buffer, policy, optimiser, rng, device, execution)
        self.alpha, self.beta, self.teacher = alpha, beta, teacher
        self.average = average or ("terms" if teacher else "batch")
        self._teacher: dict[str, torch.Tensor] = {}  # weights, during a session
        self._teacher_passes = 0  # booked when the session ends
        if not teacher and not {"logits", "known"} <= self.buffer.columns.keys():
            raise GraspError(
                "DER++ stores logits: create the buffer with columns=Derpp.columns(classes) for the largest possible "
                "number of classes, or use the variant that stores none, teacher=True"
            )

    @classmethod
    def columns(cls, classes: int, **parameters: Any) -> Columns:
        return {} if parameters.get("teacher") else {"logits": ((classes,), np.float16), "known": ((), np.int32)}

    def observe_codes(self, codes: Codes, labels: Any, ids: Any | None = None) -> None:
        if not self.teacher:
            room = self.buffer.columns["logits"][0][0]
            needed = len({*self.classes, *np.asarray(labels).tolist()})
            if needed > room:
                hint = f"create the buffer with columns=Derpp.columns({needed}) or more"
                raise GraspError(f"DER++ has room for logits of {room} classes, but now there are {needed}; {hint}")
        super().observe_codes(codes, labels, ids)

    def begin_session(self) -> None:
        if self.teacher:
            self._teacher = {name: value.clone() for name, value in self.network.state_dict().items()}

    def loss(self, batch: Batch) -> torch.Tensor:
        new, losses = batch.new, batch.cross_entropies
        if self.average == "batch":
            total = torch.where(new, losses, self.beta * losses).mean()
            return total if new.all() else total + self.alpha * (~new).float().mean() * self._drift(batch, ~new)
        if not new.any():
            return losses.mean()
        total = losses[new].mean()
        if new.all():
            return total
        total = total + self.beta * losses[~new].mean()
        return total + self.alpha * self._drift(batch, ~new)

    def _drift(self, batch: Batch, old: torch.Tensor) -> torch.Tensor:
        """Return the mean squared difference to the earlier logits, over the samples `old` [n]."""
        logits = batch.logits[old]
        if self.teacher:
            self._teacher_passes += int(old.sum())
            with torch.no_grad(), evaluating(self.network):
                before = torch.func.functional_call(self.network, self._teacher, (batch.inputs[old],))
            return F.mse_loss(logits, before.logits)
        slots = batch.slots[old.numpy(force=True)]
        stored = torch.from_numpy(self.buffer["logits"][slots][:, : logits.shape[1]]).to(logits)
        known = torch.from_numpy(self.buffer["known"][slots]).to(self.device)[:, None]
        then = torch.arange(logits.shape[1], device=self.device) < known
        lowest = stored.where(then, torch.inf).amin(1, keepdim=True)
        counts = then | (known > 1)  # the lowest of a single class is its own
        drift = (logits - stored.where(then, lowest)).where(counts, 0)
        return drift.square().sum() / counts.sum().clamp_min(1)

    def end_session(self, costs: Costs) -> None:
        costs.training_forward += self._teacher_passes
        self._teacher, self._teacher_passes = {}, 0
        self.buffer.compress()  # first, so that no logits of evicted samples are computed
        if not self.teacher and len(new := np.flatnonzero(self.buffer.new)):
            costs.training_forward += len(new)
            self.network.eval()
            for part in np.array_split(new, math.ceil(len(new) / 512)):
                with torch.no_grad():
                    logits = self.network(self.buffer.fetch(part, self.device)[0]).logits
                self.buffer["logits"][part, : logits.shape[1]] = logits.clamp(-65504, 65504).numpy(force=True)
                self.buffer["known"][part] = logits.shape[1]
        super().end_session(costs)

    def extra_state(self) -> dict[str, Any]:
        return {"teacher": self._teacher, "taught": self._teacher_passes}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self._teacher_passes = int(state["taught"])
        self._teacher = {name: value.to(self.device).clone() for name, value in state["teacher"].items()}
