"""How a session updates the plastic part: optimiser, layer-wise rates and schedule (Appendix B)."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from graspcl.buffer import Buffer
from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.model import Outputs
from graspcl.policy import Budget, Costs, Session, batches
from graspcl.policy.session import SampleOutputs, begin, check_stored, selecting
from graspcl.random import restore_rng, rng_state

if TYPE_CHECKING:
    from graspcl.learner.learner import Learner

Named = Sequence[tuple[str, nn.Parameter]]


@dataclass(frozen=True)
class Optimiser:
    """Settings of a session's optimiser; the defaults are the paper's for latent rehearsal on ImageNet.

    `lr` is the peak rate of the last layer; each earlier layer has `layer_decay` times the rate of the one after it,
    over the whole OneCycle schedule. `momentum` is used as given: the schedule does not cycle it.
    """

    name: Literal["sgd", "adamw"] = "sgd"
    lr: float = 1.6
    momentum: float = 0.9
    weight_decay: float = 1e-5
    layer_decay: float = 0.99
    schedule: Literal["onecycle", "constant"] = "onecycle"

    def __post_init__(self) -> None:
        if not self.lr > 0 or not 0 < self.layer_decay <= 1:
            raise GraspError(f"lr must be above 0 and layer_decay in (0, 1], not {self.lr} and {self.layer_decay}")
        if not 0 <= self.momentum < 1 or not self.weight_decay >= 0:
            raise GraspError(
                f"momentum lies in [0, 1) and weight_decay is not negative, not {self.momentum}, {self.weight_decay}"
            )

    def build(self, parameters: Named) -> torch.optim.Optimizer:
        """The optimiser over `parameters`, given from first to last layer."""
        layers = _layers(parameters)
        groups = [
            {"params": layer, "lr": self.lr * self.layer_decay ** (len(layers) - 1 - depth)}
            for depth, layer in enumerate(layers)
        ]
        if self.name == "adamw":
            return torch.optim.AdamW(groups, weight_decay=self.weight_decay)
        return torch.optim.SGD(groups, momentum=self.momentum, weight_decay=self.weight_decay)

    def scheduler(self, optimizer: torch.optim.Optimizer, updates: int) -> torch.optim.lr_scheduler.LRScheduler:
        """The schedule of one session of `updates` steps."""
        # OneCycle has no shape below four steps: too few to rise and fall.
        if self.schedule == "constant" or updates < 4:
            return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        # A list, not a number: a single max_lr would give every layer the same rates.
        rates = [group["lr"] for group in optimizer.param_groups]
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rates, total_steps=updates, cycle_momentum=False)


def _layers(parameters: Named) -> list[list[nn.Parameter]]:
    """Parameters of one module (a weight and its bias) form one layer."""
    layers: dict[str, list[nn.Parameter]] = {}
    for name, parameter in parameters:
        layers.setdefault(name.rpartition(".")[0], []).append(parameter)
    return list(layers.values())


Fetched = tuple[torch.Tensor, torch.Tensor]


class Loader:
    """Fetches from a buffer that does not change meanwhile; in the background where decoding takes long (images).

    >>> buffer = Buffer()
    >>> _ = buffer.insert(torch.eye(3), [0, 1, 2])
    >>> loader = Loader(buffer, "cpu")
    >>> loader.prepare(np.array([2]))
    >>> loader.fetch(np.array([2]))
    (tensor([[0., 0., 1.]]), tensor([2]))
    """

    def __init__(self, buffer: Buffer, device: torch.device | str) -> None:
        self._buffer, self._device = buffer, device
        self._ahead: tuple[Array, Future[Fetched]] | None = None
        slow = buffer.codec is not None and buffer.codec.ragged
        self._thread = ThreadPoolExecutor(1, "graspcl-loader") if slow else None

    def prepare(self, slots: Array | None) -> None:
        """Begin to fetch `slots` [n], which will be asked for next; None or nothing is known of them."""
        if self._thread is not None and slots is not None and len(slots):
            self._ahead = slots, self._thread.submit(self._buffer.fetch, slots, self._device)

    def close(self) -> None:
        """Let go of the background thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def fetch(self, slots: Array) -> Fetched:
        """Inputs [n, …] and labels [n] of `slots` [n]."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and np.array_equal(ahead[0], slots):
            return ahead[1].result()
        return self._buffer.fetch(slots, self._device)


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
            learner.buffer, budget, learner.rng, learner.network, learner.rows, learner.device,
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
