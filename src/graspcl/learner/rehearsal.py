"""One rehearsal session of a learner, update by update."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from graspcl.errors import GraspError
from graspcl.learner.loader import Loader
from graspcl.model import Outputs
from graspcl.policy import Budget, Costs, Session, batches
from graspcl.policy.batches import begin, check_stored, selecting
from graspcl.policy.session import SampleOutputs
from graspcl.random import restore_rng, rng_state

if TYPE_CHECKING:
    from graspcl.learner.base import Learner

Array = np.ndarray[Any, Any]

_CHECK_EVERY = 50  # updates between looks at the loss; a look waits for the device


class Diverged(GraspError):
    """The loss of a session ran away; the network is as it was before the session."""


class Batch(NamedTuple):
    """A mini-batch of n samples that went through the network in training mode.

    `rows` [n] are the right columns of the logits, `slots` [n] where the samples lie in the buffer.
    """

    inputs: torch.Tensor
    rows: torch.Tensor
    slots: Array
    outputs: Outputs

    @property
    def cross_entropies(self) -> torch.Tensor:
        """Of each sample [n]."""
        return torch.nn.functional.cross_entropy(self.outputs.logits, self.rows, reduction="none")


@dataclass
class SessionLog:
    """What a session did and cost.

    `losses` [updates] is the mean loss of each mini-batch; `rehearsed` [N] how often each stored sample was shown;
    `picks` [updates, batch] the slots of each mini-batch, `labels` and `ids` [N] what lay in the slots meanwhile.
    """

    losses: Array
    rehearsed: Array
    picks: Array
    labels: Array
    ids: Array
    costs: Costs
    stored: int
    buffer_bytes: int

    @property
    def coverage(self) -> float:
        """Share of the stored samples shown at least once."""
        return float((self.rehearsed > 0).mean()) if len(self.rehearsed) else 0.0


class Rehearsal:
    """A session under way: `step()` until `done`, then `finish()`. Its state can be saved between any two steps."""

    def __init__(self, learner: Learner, budget: Budget, state: dict[str, Any] | None = None) -> None:
        """Begin a session; or, with the `state` of an interrupted one and the learner restored as of then, go on."""
        self.learner, self.budget = learner, budget
        self.session = Session(
            learner.buffer, budget, learner.rng, learner.network, learner.since, learner.rows, learner.device,
            groups_by=learner.groups_by,
        )  # fmt: skip
        self.updates = 0
        self._losses: list[torch.Tensor] = []
        self._picks: list[Array] = []
        self._stopped = False
        # If the loss runs away, the learner goes back to what it knew before the session.
        self._before = {name: value.clone() for name, value in learner.network.state_dict().items()}
        self._rng_before = rng_state(learner.rng)
        check_stored(self.session)
        if state is None and budget.updates:
            learner.begin_session()
        self._optimizer = learner.optimiser.build(learner.network.plastic_parameters())
        self._scheduler = learner.optimiser.scheduler(self._optimizer, budget.updates)
        self._scaler = learner.execution.scaler()
        if state is None:
            self._begin()
        else:
            self._load(state)
        self._loader = Loader(learner.buffer, learner.device)
        self._batches = batches(learner.policy, self.session, begun=self.updates)

    def _begin(self) -> None:
        try:
            begin(self.learner.policy, self.session)
        except BaseException:
            self._undo()
            raise

    @property
    def done(self) -> bool:
        """Whether the budget is spent, or the session was stopped."""
        return self._stopped or self.updates >= self.budget.updates

    @property
    def loss(self) -> float:
        """The mean of the last ten updates, NaN before the first; to ask is to wait for the device."""
        return float(torch.stack(self._losses[-10:]).mean()) if self._losses else float("nan")

    def stop(self) -> None:
        """End the session before its budget is spent."""
        self._stopped = True
        self._check(closely=True)

    def abandon(self) -> None:
        """Give the session up after its loss diverged: nothing was learned, but what arrived has arrived."""
        self._loader.close()
        self.learner.end_session(self.session.costs)

    def step(self) -> None:
        """Select a mini-batch and update the plastic part on it."""
        try:
            self._step()
        except Exception:
            self._loader.close()
            self._check(closely=True)  # what a policy stumbles over may be numbers that ran away
            raise
        except BaseException:
            self._loader.close()
            raise

    def _step(self) -> None:
        learner, costs = self.learner, self.session.costs
        self.session.lr = float(self._optimizer.param_groups[-1]["lr"])
        slots = next(self._batches)
        begin = time.perf_counter()
        inputs, labels = self._loader.fetch(slots)
        self._loader.prepare(learner.policy.upcoming(len(slots)))
        learner.network.train()
        batch = Batch(inputs, learner.rows(labels), slots, learner.network(inputs))
        loss = learner.loss(batch)
        self._optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._scheduler.step()
        costs.training_seconds += time.perf_counter() - begin
        self._picks.append(np.asarray(slots, np.int32))
        self._losses.append(loss.detach())
        self.updates += 1
        costs.updates = self.updates
        costs.training_forward += len(slots)
        costs.training_backward += len(slots)
        with selecting(self.session):
            learner.policy.observe(slots, _feedback(batch))
        if self.updates % _CHECK_EVERY == 0 or self.done:
            self._check(closely=self.done)

    def finish(self) -> SessionLog:
        """End the session: the learner's buffer is compressed and all its samples count as old from now on."""
        learner = self.learner
        learner.network.eval()
        self._loader.close()
        stored, nbytes = len(learner.buffer), learner.buffer.nbytes
        labels, ids = learner.buffer.labels.copy(), learner.buffer.ids.copy()
        begin = time.perf_counter()
        learner.end_session(self.session.costs)
        self.session.costs.training_seconds += time.perf_counter() - begin
        losses = torch.stack(self._losses).float().numpy(force=True) if self._losses else np.empty(0, np.float32)
        picks = self._stacked()
        rehearsed = np.bincount(picks.reshape(-1), minlength=stored)
        return SessionLog(losses, rehearsed, picks, labels, ids, self.session.costs, stored, nbytes)

    def _stacked(self) -> Array:
        return np.stack(self._picks) if self._picks else np.empty((0, self.budget.batch_size), np.int32)

    def state_dict(self) -> dict[str, Any]:
        """What the learner's own state does not hold of a session under way."""
        return {
            "budget": asdict(self.budget),
            "updates": self.updates,
            "stopped": self._stopped,
            "losses": torch.stack(self._losses).cpu() if self._losses else torch.empty(0),
            "picks": self._stacked(),
            "costs": asdict(self.session.costs),
            "optimizer": copy.deepcopy(self._optimizer.state_dict()),
            "scheduler": copy.deepcopy(self._scheduler.state_dict()),
            "scaler": self._scaler.state_dict(),
            "before": self._before,
            "rng_before": self._rng_before,
        }

    def _load(self, state: dict[str, Any]) -> None:
        if state["budget"] != asdict(self.budget):
            raise GraspError(f"the session was begun with {Budget(**state['budget'])}, not {self.budget}")
        self.updates, self._stopped = int(state["updates"]), bool(state["stopped"])
        self._losses = list(torch.as_tensor(state["losses"]).to(self.learner.device))
        self._picks = list(np.array(state["picks"]))
        self.session.costs = Costs(**state["costs"])
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self._scheduler.load_state_dict(copy.deepcopy(state["scheduler"]))
        if state["scaler"]:
            self._scaler.load_state_dict(dict(state["scaler"]))
        self._before, self._rng_before = dict(state["before"]), state["rng_before"]

    def _check(self, closely: bool) -> None:
        """Undo the session if its losses ran away; or, seen `closely`, the network after the last of them."""
        if not self._losses:
            return
        recent = torch.stack(self._losses[-_CHECK_EVERY:])
        if not recent.isfinite().all():
            at = self.updates - len(recent) + int((~recent.isfinite()).nonzero()[0])
            what = f"the loss became {recent[~recent.isfinite()][0].item()} at update {at} of {self.budget.updates}"
        elif closely and not self._sound():
            what = f"the network's outputs became infinite by update {self.updates} of {self.budget.updates}"
        else:
            return
        self._undo()
        raise Diverged(
            f"{what}; lower the learning rate ({self.learner.optimiser.lr}). "
            "The network is as it was before the session"
        )

    def _sound(self) -> bool:
        """Whether the network still gives numbers; of the last update no loss tells."""
        logits = self.learner.outputs(self.learner.buffer["codes"][self._picks[-1]], "logits")
        return bool(logits.isfinite().all())

    def _undo(self) -> None:
        self.learner.network.load_state_dict(self._before)
        self.learner.network.eval()
        restore_rng(self.learner.rng, self._rng_before)


def _feedback(batch: Batch) -> SampleOutputs:
    with torch.no_grad():
        embedding, features, logits = (part.detach() for part in batch.outputs)
        return SampleOutputs(embedding, features, logits, batch.cross_entropies, batch.rows)


def run(rehearsal: Rehearsal, on_step: Callable[[Rehearsal], None] | None = None) -> SessionLog:
    """Step a session to its end."""
    while not rehearsal.done:
        rehearsal.step()
        if on_step is not None:
            on_step(rehearsal)
    return rehearsal.finish()
