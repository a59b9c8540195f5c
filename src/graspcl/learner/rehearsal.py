"""One rehearsal session, top to bottom: plan, fetch, step, book costs.

`Rehearsal.__init__` lets the policy plan. `Rehearsal.step` asks it for a mini-batch, fetches the samples, updates the
plastic part and books what that cost. `Rehearsal.finish` ends the session and returns its `SessionLog`. A learner's
loss sees a `Batch`.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from graspcl.buffer.maintenance import UndoLog
from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.model import Outputs
from graspcl.policy import Budget, Costs, batches
from graspcl.policy.loader import Loader
from graspcl.policy.session import SampleOutputs, begin, check_stored, selecting
from graspcl.state import copied

if TYPE_CHECKING:
    from graspcl.learner.learner import Learner

_CHECK_EVERY = 50  # updates between checks of the loss; a check waits for the device


class Diverged(GraspError):
    """The loss of a session diverged; the learner is as it was before the session."""


class Batch(NamedTuple):
    """A mini-batch of n samples after the forward pass in train mode: what `Learner.loss` gets."""

    inputs: torch.Tensor  # [n, …], latents or raw inputs, as the network takes them
    targets: torch.Tensor  # [n], the correct columns of the logits
    slots: Array  # [n], where the samples are in the buffer
    outputs: Outputs  # embedding, features and logits
    new: torch.Tensor  # bool [n], which samples arrived since the last session
    progress: float = 0.0  # the share of the session's updates that were made before this one

    @property
    def logits(self) -> torch.Tensor:
        return self.outputs.logits  # [n, K]

    @property
    def present(self) -> torch.Tensor:
        """bool [K], which classes have a sample in the batch."""
        return torch.isin(torch.arange(self.logits.shape[1], device=self.targets.device), self.targets)

    @property
    def cross_entropies(self) -> torch.Tensor:
        return F.cross_entropy(self.logits, self.targets, reduction="none")  # [n]


@dataclass
class SessionLog:
    """What a session did and what it cost."""

    losses: Array  # [updates], the mean loss of each mini-batch
    rehearsed: Array  # [N], how often each stored sample was used
    picks: Array  # [updates, batch], the slots of each mini-batch
    labels: Array  # [N], of the samples in the slots during the session
    ids: Array  # [N], of the samples in the slots during the session
    costs: Costs
    stored: int
    buffer_bytes: int

    @property
    def coverage(self) -> float:
        """The share of the stored samples that was used at least once."""
        return float((self.rehearsed > 0).mean()) if len(self.rehearsed) else 0.0


class Rehearsal:
    """A running session: call `step()` until `done`, then `finish()`. It can be saved between any two steps.

    To resume from the `state_dict` of an interrupted session, first restore the learner as it was at that time.
    """

    def __init__(self, learner: Learner, budget: Budget, state: dict[str, Any] | None = None) -> None:
        self.learner, self.budget = learner, budget
        given = learner.buffer, budget, learner.rng, learner.network, learner.rows, learner.device
        self._loader = Loader(learner.buffer, learner.device)
        self.session = learner.open_session(*given, groups_by=learner.groups_by, loader=self._loader)
        self.updates = 0
        self._losses: list[torch.Tensor] = []
        self._picks: list[Array] = []
        self._stopped = False
        self._before = learner.knowledge()  # if the loss diverges, the learner returns to this
        # What an update sees of its samples is of use to some rules and policies alone.
        self._rule_before = UndoLog(learner.buffer) if learner.buffer.maintenance.columns else None
        self._informs_policy = learner.policy.listens
        check_stored(self.session)
        if state is None and budget.updates:
            learner.begin_session()
        optimiser = learner.session_optimiser()
        self._optimizer = optimiser.build(learner.network.plastic_parameters())
        self._scheduler = optimiser.scheduler(self._optimizer, budget.updates)
        self._scaler = learner.execution.scaler()
        if state is not None:
            self._load(state)
        else:
            self.session.lr = self._rate
            try:
                begin(learner.policy, self.session)
            except BaseException:
                self._undo()
                raise
        self._batches = batches(learner.policy, self.session, begun=self.updates)

    @property
    def done(self) -> bool:
        """True when the budget is spent or the session was stopped."""
        return self._stopped or self.updates >= self.budget.updates

    @property
    def loss(self) -> float:
        """The mean loss of the last ten updates, NaN before the first. Reading it waits for the device."""
        return float(torch.stack(self._losses[-10:]).mean()) if self._losses else float("nan")

    @property
    def _rate(self) -> float:
        return float(self._optimizer.param_groups[-1]["lr"])  # of the last layer, at the next update

    def step(self) -> None:
        """Select a mini-batch and update the plastic part on it."""
        try:
            self._step()
        except BaseException as error:
            self._loader.close()
            if isinstance(error, Exception):
                with self.learner.peers.apart():  # which may be in another exchange, without this error
                    self._check(closely=True)  # a policy may fail because the numbers diverged
            raise

    def _step(self) -> None:
        learner, costs = self.learner, self.session.costs
        # Select.
        self.session.lr = self._rate
        slots = next(self._batches)
        # Fetch.
        start = time.perf_counter()
        inputs, labels = self._loader.fetch(slots, learner.policy.upcoming(len(slots)))
        # Update.
        if not learner.network.training:
            learner.network.train()  # walks over all its modules
        new = torch.from_numpy(learner.buffer.births[slots] >= learner.buffer.since).to(learner.device)
        progress = self.updates / self.budget.updates
        batch = Batch(inputs, learner.rows(labels), slots, learner.network(inputs), new, progress)
        loss = learner.loss(batch)
        seen = self._seen(batch) if self._rule_before or self._informs_policy else None
        if seen is not None and self._rule_before:
            self._rule_before.keep(slots)
            learner.buffer.maintenance.trained(learner.buffer, slots, seen, batch.targets, learner.network.head)
        self._optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()
        if learner.after_backward is not None:
            learner.after_backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._scheduler.step()
        # Book.
        costs.training_seconds += time.perf_counter() - start
        self._picks.append(np.asarray(slots, np.int32))
        self._losses.append(loss.detach())
        self.updates += 1
        costs.updates = self.updates
        costs.training_forward += len(slots)
        costs.training_backward += len(slots)
        if seen is not None and self._informs_policy:
            with selecting(self.session):
                learner.policy.observe(slots, seen)
        if self.updates % _CHECK_EVERY == 0 or self.done:
            self._check(closely=self.done)

    def _seen(self, batch: Batch) -> SampleOutputs:
        """Return what the update saw of its samples, without gradients."""
        with torch.no_grad():
            embedding, features, logits = (part.detach() for part in batch.outputs)
            return SampleOutputs(embedding, features, logits, batch.cross_entropies, batch.targets)

    def stop(self) -> None:
        """End the session before its budget is spent."""
        self._stopped = True
        self._check(closely=True)

    def finish(self) -> SessionLog:
        """End the session: shrink the buffer to its capacity, mark all its samples as old, and return the log."""
        learner = self.learner
        learner.network.eval()
        self._loader.close()
        stored, nbytes = len(learner.buffer), learner.stored_bytes
        labels, ids = learner.buffer.labels.copy(), learner.buffer.ids.copy()
        start = time.perf_counter()
        learner.end_session(self.session.costs)
        self.session.costs.training_seconds += time.perf_counter() - start
        losses = torch.stack(self._losses).float().numpy(force=True) if self._losses else np.empty(0, np.float32)
        picks = self._stacked_picks()
        rehearsed = np.bincount(picks.reshape(-1), minlength=stored)
        return SessionLog(losses, rehearsed, picks, labels, ids, self.session.costs, stored, nbytes)

    def abandon(self) -> None:
        """Give up a session: the learner knows what it knew before, but the new samples become old."""
        self._loader.close()
        self._undo()
        self.learner.end_session(Costs())  # no update counts

    def _check(self, closely: bool) -> None:
        """Undo the session if its losses diverged; `closely` also tests the network after the last update."""
        if not self._losses:
            return
        learner, recent = self.learner, torch.stack(self._losses[-_CHECK_EVERY:])
        if not recent.isfinite().all():
            at = self.updates - len(recent) + int((~recent.isfinite()).nonzero()[0])
            what = f"the loss became {recent[~recent.isfinite()][0].item()} at update {at} of {self.budget.updates}"
        elif closely and not learner.outputs(learner.buffer.copied(self._picks[-1])[0], "logits").isfinite().all():
            what = f"the network's outputs became infinite by update {self.updates} of {self.budget.updates}"
        else:
            return
        self._undo()
        hint = f"lower the learning rate ({learner.optimiser.lr})"
        raise Diverged(f"{what}; {hint}. The learner is as it was before the session")

    def _undo(self) -> None:
        self.learner.restore(self._before)
        self.learner.network.eval()
        if self._rule_before:
            self._rule_before.undo()

    def state_dict(self, copy: bool = True) -> dict[str, Any]:
        """Return what the learner's own state does not contain of a running session.

        If it is not a `copy`, it is valid until the next step.
        """
        state = {
            "budget": asdict(self.budget),
            "updates": self.updates,
            "stopped": self._stopped,
            "losses": torch.stack(self._losses).cpu() if self._losses else torch.empty(0),
            "picks": self._stacked_picks(),
            "costs": asdict(self.session.costs),
            "optimizer": self._optimizer.state_dict(),
            "scheduler": self._scheduler.state_dict(),
            "scaler": self._scaler.state_dict(),
            "before": self._before,
            "rule_before": self._rule_before.state_dict() if self._rule_before else None,
        }
        return copied(state) if copy else state

    def _load(self, state: dict[str, Any]) -> None:
        if state["budget"] != asdict(self.budget):
            raise GraspError(f"the session was started with {Budget(**state['budget'])}, got {self.budget}")
        self.updates, self._stopped = int(state["updates"]), bool(state["stopped"])
        self._losses = list(torch.as_tensor(state["losses"]).to(self.learner.device))
        self._picks = list(np.array(state["picks"]))
        self.session.costs = Costs(**state["costs"])
        optimizer = copied(state["optimizer"])
        for saved, group in zip(optimizer["param_groups"], self._optimizer.param_groups, strict=True):
            if "fused" in group:  # how it is computed is this process's choice; earlier versions had another
                saved["fused"] = group["fused"]
        self._optimizer.load_state_dict(optimizer)
        self._scheduler.load_state_dict(copied(state["scheduler"]))
        if state["scaler"]:
            self._scaler.load_state_dict(dict(state["scaler"]))
        if "rng_before" in state:  # of earlier versions, which remembered the network and its generator alone
            self._before |= {"network": dict(state["before"]), "rng": state["rng_before"]}
        else:
            self._before = dict(state["before"])
            if self._rule_before:
                self._rule_before.load_state_dict(state["rule_before"])

    def _stacked_picks(self) -> Array:
        return np.stack(self._picks) if self._picks else np.empty((0, self.budget.batch_size), np.int32)
