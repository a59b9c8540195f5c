"""Joint training on everything seen, tuned on held-out samples: the upper bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from graspcl.buffer import Buffer
from graspcl.checks import Array, NonNegative, checked
from graspcl.errors import GraspError
from graspcl.learner.baselines import GDumb
from graspcl.learner.learner import learners
from graspcl.learner.moments import Moments, Rows, discriminant_rows, ridge_rows
from graspcl.learner.optimiser import Optimiser
from graspcl.model import Execution, Outputs, SplitNetwork
from graspcl.policy import Budget, Costs, Policy

_FACTORS = (0.3, 1.0, 3.0)  # by which the rate is multiplied
_SOLVERS: dict[str, Callable[[Moments, float], Rows]] = {
    "ridge": ridge_rows,
    "discriminant": discriminant_rows,
}  # closed-form heads
_STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1)  # of the ridge, or of the shrinkage
_HELD_OUT = 10  # one sample in this many of each class
_CHUNK = 512  # samples per forward pass
_NEVER = -1e30  # the logit of a class that arrived after the head was solved


class Choice(NamedTuple):
    """What a tuned session uses, and the share of held-out samples that it predicted correctly."""

    factor: float = 1.0  # by which the optimiser's rate is multiplied
    head: str = "trained"  # or the name of a closed-form head
    strength: float = 0.0
    accuracy: float = -1.0


@learners.register("offline")
@checked
class Offline(GDumb):
    """Joint training on everything seen: the upper bound, for comparison.

    It stores every sample. A session makes at least `passes` passes over them, whatever the budget, so do not compare
    it at equal updates or equal bytes.

    A tuned session first trains on nine tenths of the samples, with 0.3, 1 and 3 times the optimiser's rate. It tests
    the trained head and closed-form heads on the rest, and keeps the best rate and head. Then it trains on everything.
    Closed-form heads see the trained features and those of the initial network side by side.

    Args, besides those of `Learner`:
        reset: as for `GDumb`.
        passes: the least number of passes over all samples in each session.
        tuned: choose rate and head on held-out samples. False uses the rate that is given and the trained head.
        trial_passes: passes over the nine tenths with each rate; by default as many as `passes`.

    >>> from graspcl.model import vector_network
    >>> network = vector_network(4, generator=torch.Generator().manual_seed(0))
    >>> learner = Offline(network, Buffer(), "uniform", passes=4)
    >>> learner.observe(torch.eye(4), [0, 0, 1, 1])
    >>> learner.rehearse(Budget(updates=1, batch_size=2)).costs.updates
    8
    """

    unbounded = True

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
        passes: NonNegative = 10.0,
        tuned: bool = True,
        trial_passes: NonNegative | None = None,
    ) -> None:
        super().__init__(network, buffer, policy, optimiser, rng, device, execution, reset)
        self.passes, self.tuned = passes, tuned
        self.trial_passes = passes if trial_passes is None else trial_passes
        self.choice = Choice()  # of the last tuned session
        self._rows: tuple[torch.Tensor, torch.Tensor] | None = None  # weights and biases of a closed-form head
        self._batch_size, self._tried = 1, 0  # tried: samples that trials were trained on, booked when the session ends
        if not self.buffer.unbounded:
            raise GraspError("offline training stores everything it has seen; create its buffer without a capacity")

    def session_budget(self, budget: Budget) -> Budget:
        self._batch_size = budget.batch_size
        whole = Budget.passes(self.passes, len(self.buffer), budget.batch_size)
        return whole if 0 < budget.updates < whole.updates else budget

    def begin_session(self) -> None:
        super().begin_session()
        self._rows = None  # it belongs to the features of the last session
        if self.tuned:
            if self.reset:
                self._start_at_means()
            self._choose()

    def session_optimiser(self) -> Optimiser:
        return replace(self.optimiser, lr=self.optimiser.lr * self.choice.factor)

    def end_session(self, costs: Costs) -> None:
        super().end_session(costs)
        costs.training_forward += self._tried
        costs.training_backward += self._tried
        self._tried = 0
        if self.tuned and costs.updates and self.choice.head != "trained":
            features, _, targets = self._everything()
            weight, bias = _SOLVERS[self.choice.head](self._moments(features, targets), self.choice.strength)
            self._rows = weight.float(), bias.float()

    def forward(self, inputs: torch.Tensor) -> Outputs:
        outputs = super().forward(inputs)
        if self._rows is None:
            return outputs
        logits = F.linear(self._side_by_side(inputs, outputs), *self._rows)
        return outputs._replace(logits=F.pad(logits, (0, len(self.classes) - logits.shape[1]), value=_NEVER))

    # -- choosing ------------------------------------------------------------------------------------------------------

    def _start_at_means(self) -> None:
        """Set the rows of the head to the class means."""
        features, _, targets = self._everything()
        moments = self._moments(features[:, : self.network.head.features], targets)
        present = torch.nonzero(moments.counts)[:, 0]
        self.network.head.set_rows(present, moments.means[present].float())

    def _choose(self) -> None:
        """Try rates and heads on held-out samples. The network is unchanged afterwards."""
        held = torch.from_numpy(self._held_out()).to(self.device)
        self.choice = Choice()
        if not held.any():
            return
        before = {name: value.clone() for name, value in self.network.state_dict().items()}
        for factor in _FACTORS:
            optimiser = replace(self.optimiser, lr=self.optimiser.lr * factor)
            self._train(np.flatnonzero(~held.numpy(force=True)), optimiser)
            features, logits, targets = self._everything()
            if torch.isfinite(features).all():
                heads = {("trained", 0.0): logits[held]}
                moments = self._moments(features[~held], targets[~held])
                for head, solver in _SOLVERS.items():
                    for strength in _STRENGTHS:
                        weight, bias = solver(moments, strength)
                        heads[head, strength] = F.linear(features[held], weight.float(), bias.float())
                for (head, strength), found in heads.items():
                    accuracy = float((found.argmax(1) == targets[held]).double().mean())
                    if accuracy > self.choice.accuracy:
                        self.choice = Choice(factor, head, strength, accuracy)
            self.network.load_state_dict(before)

    def _held_out(self) -> Array:
        """Return which samples are held out [N]: a tenth of each class, and one of a class with fewer than ten."""
        shuffled = self.rng.permutation(len(self.buffer))
        order = shuffled[np.argsort(self.buffer.labels[shuffled], kind="stable")]
        _, first, place, counts = np.unique(
            self.buffer.labels[order], return_index=True, return_inverse=True, return_counts=True
        )
        wanted = np.where(counts > 1, np.maximum(1, counts // _HELD_OUT), 0)
        held = np.empty(len(order), bool)
        held[order] = np.arange(len(order)) - first[place] < wanted[place]
        return held

    def _train(self, slots: Array, optimiser: Optimiser) -> None:
        """Train the network on `slots` [n] for `trial_passes` passes."""
        updates = Budget.passes(self.trial_passes, len(slots), self._batch_size).updates
        optimizer = optimiser.build(self.network.plastic_parameters())
        scheduler, scaler = optimiser.scheduler(optimizer, updates), self.execution.scaler()
        self.network.train()
        order = slots[:0]
        for _ in range(updates):
            if len(order) < self._batch_size:
                order = np.concatenate([order, self.rng.permutation(slots)])
            part, order = order[: self._batch_size], order[self._batch_size :]
            inputs, labels = self.buffer.fetch(part, self.device)
            loss = F.cross_entropy(self.network(inputs).logits, self.rows(labels))
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            if self.after_backward is not None:
                self.after_backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            self._tried += len(part)
        self.network.eval()

    @torch.no_grad()
    def _everything(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the features [N, D], logits [N, K] and targets [N] of all stored samples."""
        self.network.eval()
        found = []
        for start in range(0, len(self.buffer), _CHUNK):
            slots = np.arange(start, min(start + _CHUNK, len(self.buffer)))
            inputs, labels = self.buffer.fetch(slots, self.device)
            outputs: Outputs = self.network(inputs)
            found.append((self._side_by_side(inputs, outputs), outputs.logits, self.rows(labels)))
        features, logits, targets = (torch.cat(part) for part in zip(*found, strict=True))
        return features, logits, targets

    def _moments(self, features: torch.Tensor, targets: torch.Tensor) -> Moments:
        return Moments(features.shape[1], len(self.classes), self.device).add(features, targets)

    def _side_by_side(self, inputs: torch.Tensor, outputs: Outputs) -> torch.Tensor:
        """Return the head's inputs, beside those of the network as it was made if that is known."""
        if not self._initial:
            return outputs.features
        initial: Outputs = torch.func.functional_call(self.network, self._initial, (inputs,))
        return torch.cat([outputs.features, initial.features], dim=1)

    # -- state ---------------------------------------------------------------------------------------------------------

    def extra_state(self) -> dict[str, Any]:
        rows = {} if self._rows is None else dict(zip(("weight", "bias"), self._rows, strict=True))
        solved = {name: value.clone() for name, value in rows.items()}
        return {**super().extra_state(), "choice": self.choice._asdict(), "solved": solved, "tried": self._tried}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        super().load_extra_state(state)
        self.choice, self._tried = Choice(**state["choice"]), int(state["tried"])
        solved = [state["solved"][name].to(self.device).clone() for name in ("weight", "bias") if state["solved"]]
        self._rows = (solved[0], solved[1]) if solved else None

    def adapted(self, state: dict[str, Any]) -> dict[str, Any]:
        return {"choice": Choice()._asdict(), "solved": {}, "tried": 0, **state}  # nothing was chosen or solved
