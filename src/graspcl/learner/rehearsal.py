"""One rehearsal session, top to bottom: plan, fetch, step, book costs.

`Rehearsal.__init__` lets the policy plan. `Rehearsal.step` asks it for a mini-batch, fetches the samples, updates the
plastic part and books what that cost. `Rehearsal.finish` ends the session and returns its `SessionLog`. Around it:
`Batch` (what a learner's loss sees) and `Loader` (fetching ahead).
"""

from __future__ import annotations

import copy
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from graspcl.buffer import Buffer
from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.model import Outputs
from graspcl.policy import Budget, Costs, Session, batches
from graspcl.policy.session import SampleOutputs, begin, check_stored, selecting
from graspcl.random import restore_rng, rng_state

if TYPE_CHECKING:
    from graspcl.learner.learner import Learner

_CHECK_EVERY = 50  # updates between checks of the loss; a check waits for the device


class Diverged(GraspError):
    """The loss of a session diverged; the network is as it was before the session."""


class Batch(NamedTuple):
    """A mini-batch of n samples after the forward pass in train mode: what `Learner.loss` gets."""

    inputs: torch.Tensor  # [n, …], latents or raw inputs, as the network takes them
    targets: torch.Tensor  # [n], the correct columns of the logits
    slots: Array  # [n], where the samples are in the buffer
    outputs: Outputs  # embedding, features and logits
    new: torch.Tensor  # bool [n], which samples arrived since the last session

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
        self.session = Session(*given, groups_by=learner.groups_by)
        self.updates = 0
        self._losses: list[torch.Tensor] = []
        self._picks: list[Array] = []
        self._stopped = False
        # If the loss diverges, the learner returns to this.
        self._before = {name: value.clone() for name, value in learner.network.state_dict().items()}
        self._rng_before = rng_state(learner.rng)
        self._rule_before = learner.buffer.maintenance.knowledge(learner.buffer)
        self._policy_before = learner.policy.state_dict()
        check_stored(self.session)
        if state is None and budget.updates:
            learner.begin_session()
        self._optimizer = learner.optimiser.build(learner.network.plastic_parameters())
        self._scheduler = learner.optimiser.scheduler(self._optimizer, budget.updates)
        self._scaler = learner.execution.scaler()
        if state is not None:
            self._load(state)
        else:
            try:
                begin(learner.policy, self.session)
            except BaseException:
                self._undo()
                raise
        self._loader = Loader(learner.buffer, learner.device)
        self._batches = batches(learner.policy, self.session, begun=self.updates)

    @property
    def done(self) -> bool:
        """True when the budget is spent or the session was stopped."""
        return self._stopped or self.updates >= self.budget.updates

    @property
    def loss(self) -> float:
        """The mean loss of the last ten updates, NaN before the first. Reading it waits for the device."""
        return float(torch.stack(self._losses[-10:]).mean()) if self._losses else float("nan")

    def step(self) -> None:
        """Select a mini-batch and update the plastic part on it."""
        try:
            self._step()
        except BaseException as error:
            self._loader.close()
            if isinstance(error, Exception):
                self._check(closely=True)  # a policy may fail because the numbers diverged
            raise

    def _step(self) -> None:
        learner, costs = self.learner, self.session.costs
        # Select.
        self.session.lr = float(self._optimizer.param_groups[-1]["lr"])
        slots = next(self._batches)
        # Fetch.
        start = time.perf_counter()
        inputs, labels = self._loader.fetch(slots, learner.policy.upcoming(len(slots)))
        # Update.
        learner.network.train()
        new = torch.from_numpy(learner.buffer.new[slots]).to(learner.device)
        batch = Batch(inputs, learner.rows(labels), slots, learner.network(inputs), new)
        loss = learner.loss(batch)
        embedding, features, logits, losses = (part.detach() for part in (*batch.outputs, batch.cross_entropies))
        seen = SampleOutputs(embedding, features, logits, losses, batch.targets)
        if (rule := learner.buffer.maintenance).columns:
            rule.trained(learner.buffer, slots, seen, batch.targets, learner.network.head)
        self._optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(loss).backward()
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
        with selecting(self.session):
            learner.policy.observe(slots, seen)
        if self.updates % _CHECK_EVERY == 0 or self.done:
            self._check(closely=self.done)

    def stop(self) -> None:
        """End the session before its budget is spent."""
        self._stopped = True
        self._check(closely=True)

    def finish(self) -> SessionLog:
        """End the session: shrink the buffer to its capacity, mark all its samples as old, and return the log."""
        learner = self.learner
        learner.network.eval()
        self._loader.close()
        stored, nbytes = len(learner.buffer), learner.buffer.nbytes
        labels, ids = learner.buffer.labels.copy(), learner.buffer.ids.copy()
        start = time.perf_counter()
        learner.end_session(self.session.costs)
        self.session.costs.training_seconds += time.perf_counter() - start
        losses = torch.stack(self._losses).float().numpy(force=True) if self._losses else np.empty(0, np.float32)
        picks = self._stacked_picks()
        rehearsed = np.bincount(picks.reshape(-1), minlength=stored)
        return SessionLog(losses, rehearsed, picks, labels, ids, self.session.costs, stored, nbytes)

    def abandon(self) -> None:
        """Give up a diverged session: nothing was learned, but its new samples become old."""
        self._loader.close()
        self.learner.end_session(self.session.costs)

    def _check(self, closely: bool) -> None:
        """Undo the session if its losses diverged; `closely` also tests the network after the last update."""
        if not self._losses:
            return
        learner, recent = self.learner, torch.stack(self._losses[-_CHECK_EVERY:])
        if not recent.isfinite().all():
            at = self.updates - len(recent) + int((~recent.isfinite()).nonzero()[0])
            what = f"the loss became {recent[~recent.isfinite()][0].item()} at update {at} of {self.budget.updates}"
        elif closely and not learner.outputs(learner.buffer["codes"][self._picks[-1]], "logits").isfinite().all():
            what = f"the network's outputs became infinite by update {self.updates} of {self.budget.updates}"
        else:
            return
        self._undo()
        hint = f"lower the learning rate ({learner.optimiser.lr})"
        raise Diverged(f"{what}; {hint}. The network is as it was before the session")

    def _undo(self) -> None:
        self.learner.network.load_state_dict(self._before)
        self.learner.network.eval()
        restore_rng(self.learner.rng, self._rng_before)
        self.learner.buffer.maintenance.restore(self.learner.buffer, self._rule_before)
        self.learner.policy.load_state_dict(self._policy_before)

    def state_dict(self) -> dict[str, Any]:
        """Return what the learner's own state does not contain of a running session."""
        return {
            "budget": asdict(self.budget),
            "updates": self.updates,
            "stopped": self._stopped,
            "losses": torch.stack(self._losses).cpu() if self._losses else torch.empty(0),
            "picks": self._stacked_picks(),
            "costs": asdict(self.session.costs),
            "optimizer": copy.deepcopy(self._optimizer.state_dict()),
            "scheduler": copy.deepcopy(self._scheduler.state_dict()),
            "scaler": self._scaler.state_dict(),
            "before": self._before,
            "rng_before": self._rng_before,
            "rule_before": self._rule_before,
            "policy_before": self._policy_before,
        }

    def _load(self, state: dict[str, Any]) -> None:
        if state["budget"] != asdict(self.budget):
            raise GraspError(f"the session was started with {Budget(**state['budget'])}, got {self.budget}")
        self.updates, self._stopped = int(state["updates"]), bool(state["stopped"])
        self._losses = list(torch.as_tensor(state["losses"]).to(self.learner.device))
        self._picks = list(np.array(state["picks"]))
        self.session.costs = Costs(**state["costs"])
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self._scheduler.load_state_dict(copy.deepcopy(state["scheduler"]))
        if state["scaler"]:
            self._scaler.load_state_dict(dict(state["scaler"]))
        self._before, self._rng_before = dict(state["before"]), state["rng_before"]
        if "rule_before" in state:  # earlier versions have none
            self._rule_before, self._policy_before = state["rule_before"], state["policy_before"]

    def _stacked_picks(self) -> Array:
        return np.stack(self._picks) if self._picks else np.empty((0, self.budget.batch_size), np.int32)


class Loader:
    """Fetch samples from a buffer that does not change; image files are decoded ahead, in a background thread."""

    def __init__(self, buffer: Buffer, device: torch.device | str) -> None:
        self._buffer, self._device = buffer, device
        self._ahead: tuple[Array, Future[tuple[torch.Tensor, torch.Tensor]]] | None = None
        slow = buffer.codec is not None and buffer.codec.ragged
        self._thread = ThreadPoolExecutor(1, "graspcl-loader") if slow else None

    def fetch(self, slots: Array, upcoming: Array | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs [n, …] and labels [n] of `slots` [n]; start to fetch those `upcoming` next, if known."""
        ahead, self._ahead = self._ahead, None
        expected = ahead is not None and np.array_equal(ahead[0], slots)
        found = ahead[1].result() if ahead and expected else self._buffer.fetch(slots, self._device)
        if self._thread is not None and upcoming is not None and len(upcoming):
            self._ahead = upcoming, self._thread.submit(self._buffer.fetch, upcoming, self._device)
        return found

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
