"""What a rehearsal session may spend."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from graspcl.buffer import Buffer
from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.policy.drawing import Groups, group_by_class
from graspcl.policy.gradients import Gradients, full_gradients, last_layer_gradients, losses_after_step
from graspcl.policy.policy import QUANTITIES, Policy, policies


@dataclass(frozen=True)
class Budget:
    """`updates` mini-batches of `batch_size` samples: U = n · b samples in all (section 3, "Rehearsal Phase").

    >>> Budget(updates=1251, batch_size=512).samples
    640512
    """

    updates: int
    batch_size: int

    def __post_init__(self) -> None:
        if not (isinstance(self.updates, int) and isinstance(self.batch_size, int)):
            raise GraspError(f"a budget counts in whole numbers, not {self.updates!r} and {self.batch_size!r}")
        if self.updates < 0 or self.batch_size < 1:
            raise GraspError(f"a budget has updates >= 0 and batch_size >= 1, not {self.updates} and {self.batch_size}")

    @property
    def samples(self) -> int:
        """U, the number of samples used for gradient updates."""
        return self.updates * self.batch_size

    @classmethod
    def passes(cls, passes: float, stored: int, batch_size: int) -> Budget:
        """About `passes` times the number of stored samples, in whole mini-batches.

        >>> Budget.passes(1.0, stored=1000, batch_size=64)
        Budget(updates=16, batch_size=64)
        """
        return cls(max(1, round(passes * stored / batch_size)) if passes and stored else 0, batch_size)


@dataclass
class Costs:
    """What a session cost. Passes are counted in samples, so that 1 means one sample through the plastic part."""

    updates: int = 0
    selection_seconds: float = 0.0
    selection_forward: int = 0
    selection_backward: int = 0
    training_seconds: float = 0.0
    training_forward: int = 0
    training_backward: int = 0


class SampleOutputs(NamedTuple):
    """What the network says of n samples: embedding [n, D], features [n, D'] (what the head sees), logits [n, K],
    losses [n], and rows [n], the columns of the logits that are right."""

    embedding: torch.Tensor
    features: torch.Tensor
    logits: torch.Tensor
    losses: torch.Tensor
    rows: torch.Tensor


@dataclass
class Session:
    """One rehearsal session over a buffer.

    `network` maps inputs [n, …] to an object with `.embedding` [n, D] and `.logits` [n, K], or just to embeddings.
    Each quantity is computed at most once, when first asked for: in chunks, without gradients, in eval mode, leaving
    the network's mode and every random generator as they were. `buffer.new` tells new samples
    from old. `rows` maps labels to columns of the logits.
    """

    buffer: Buffer
    budget: Budget
    rng: np.random.Generator
    network: Callable[[torch.Tensor], Any] | None = None
    rows: Callable[[torch.Tensor], torch.Tensor] | None = None
    device: torch.device | str = "cpu"
    chunk: int = 512
    needs: frozenset[str] = QUANTITIES
    costs: Costs = field(default_factory=Costs)
    begun: bool = False  # from here on quantities of all samples would be those of another network than at the begin
    lr: float = 0.1  # the learning rate of the coming update, for policies that look one step ahead
    groups_by: str | None = None  # a column of the buffer, such as the task, in place of the class

    @property
    def labels(self) -> Array:
        """Class of each stored sample [N]; sample i lies in slot i."""
        return self.buffer.labels

    @property
    def label_tensor(self) -> torch.Tensor:
        """`labels` as int64 on the session's device."""
        return torch.from_numpy(self.labels).to(self.device, torch.int64)

    @property
    def group_tensor(self) -> torch.Tensor:
        """What balanced policies balance and prototypes are of [N]: the class of each sample, or its task."""
        if self.groups_by is None:
            return self.label_tensor
        return torch.from_numpy(self.buffer[self.groups_by].astype(np.int64)).to(self.device)

    @cached_property
    def groups(self) -> Groups:
        """Slots by class, or by what stands in its place."""
        if self.groups_by is None:
            return Groups(*self.buffer.index.grouped())
        return group_by_class(self.buffer[self.groups_by].astype(np.int64))

    @property
    def new(self) -> Array:
        """Which samples arrived since the last session [N], bool."""
        self._allow("new")
        return self.buffer.new

    @property
    def embeddings(self) -> torch.Tensor:
        """Penultimate embedding of each stored sample under the network as it is now [N, D].

        In half precision: at the size of a whole buffer memory matters more than the fourth digit.
        """
        self._allow("embeddings")
        return self._outputs["embeddings"]

    @property
    def logits(self) -> torch.Tensor:
        """Logits of each stored sample [N, K]."""
        self._allow("logits")
        return self._outputs["logits"]

    @cached_property
    def losses(self) -> torch.Tensor:
        """Cross-entropy of each stored sample [N]."""
        self._allow("losses")
        rows = self.rows_of(self.label_tensor)
        return torch.nn.functional.cross_entropy(self._outputs["logits"], rows, reduction="none")

    # -- of chosen samples, under the network as it is now -----------------------------------------------------------

    def forward(self, slots: Array, transform: Callable[[torch.Tensor], torch.Tensor] | None = None) -> SampleOutputs:
        """Outputs of the samples in `slots` [n], or of what `transform` makes of their inputs."""
        self._allow("forward")
        return self._forward(slots, transform)

    def _forward(self, slots: Array, transform: Callable[[torch.Tensor], torch.Tensor] | None = None) -> SampleOutputs:
        parts = []
        with evaluating(self.network), torch.no_grad():
            for chunk in torch.split(torch.as_tensor(slots), self.chunk):
                inputs, labels = self.buffer.fetch(chunk, self.device)
                outputs = self._network(transform(inputs) if transform else inputs)
                features = getattr(outputs, "features", outputs.embedding)
                parts.append((outputs.embedding, features, outputs.logits, self.rows_of(labels)))
        self.costs.selection_forward += len(slots)
        embedding, features, logits, rows = (torch.cat(part) for part in zip(*parts, strict=True))
        losses = torch.nn.functional.cross_entropy(logits, rows, reduction="none")
        return SampleOutputs(embedding, features, logits, losses, rows)

    def gradients(self, slots: Array, full: bool = False) -> Gradients:
        """Gradients of the loss of each sample in `slots`: of the last layer in closed form, or of all that learns.

        A head that does more than multiply its input with its rows says by `inputs(features)` what it multiplies.
        """
        self._allow("gradients")
        if not full:
            outputs = self._forward(slots)
            scaled = getattr(getattr(self._network, "head", None), "inputs", None)
            inputs = outputs.features if scaled is None else scaled(outputs.features).detach()
            return last_layer_gradients(outputs.logits, outputs.rows, inputs)
        inputs, labels = self._fetch(slots)
        with evaluating(self.network):
            found = full_gradients(self._network, inputs, self.rows_of(labels))
        self.costs.selection_forward += len(slots)
        self.costs.selection_backward += len(slots)
        return found

    def losses_after_step(self, incoming: Array, slots: Array) -> torch.Tensor:
        """Losses of the samples in `slots` [n] if the network took a plain step (rate `lr`) on those in `incoming`."""
        self._allow("virtual_step")
        inputs, labels = self._fetch(incoming)
        others, other_labels = self._fetch(slots)
        rows, other_rows = self.rows_of(labels), self.rows_of(other_labels)
        with evaluating(self.network):
            losses = losses_after_step(self._network, inputs, rows, self.lr, others, other_rows)
        self.costs.selection_forward += len(incoming) + len(slots)
        self.costs.selection_backward += len(incoming)
        return losses

    def rows_of(self, labels: torch.Tensor) -> torch.Tensor:
        """Columns of the logits that belong to `labels` [n]."""
        return labels if self.rows is None else self.rows(labels)

    def _fetch(self, slots: Array) -> tuple[torch.Tensor, torch.Tensor]:
        return self.buffer.fetch(slots, self.device)

    @property
    def _network(self) -> torch.nn.Module:
        if not isinstance(self.network, torch.nn.Module):
            raise GraspError(
                "this policy looks at logits or gradients: give a torch module that returns .embedding and .logits"
            )
        return self.network

    def _allow(self, quantity: str) -> None:
        if quantity not in self.needs:
            raise GraspError(f"the policy reads session.{quantity} without naming it in `needs` = {set(self.needs)}")
        if self.begun and quantity in ("embeddings", "logits", "losses"):
            raise GraspError(
                f"session.{quantity} is measured when a session begins: read it in begin(), keep what you need"
            )

    @cached_property
    def _outputs(self) -> dict[str, torch.Tensor]:
        if self.network is None:
            raise GraspError(
                "this policy looks at the stored samples' embeddings or logits: give `embed=`, or the session a network"
            )
        wanted = (["embeddings"] if "embeddings" in self.needs else []) + (
            ["logits"] if {"logits", "losses"} & self.needs else []
        )
        found: dict[str, torch.Tensor] = {}
        with evaluating(self.network), torch.no_grad():
            for begin in range(0, len(self.buffer), self.chunk):
                end = min(begin + self.chunk, len(self.buffer))
                outputs = self.network(self.buffer.fetch(torch.arange(begin, end), self.device)[0])
                for name in wanted:
                    part = _part(outputs, name)
                    if name not in found:
                        found[name] = part.new_empty((len(self.buffer), *part.shape[1:]))
                    found[name][begin:end] = part
        self.costs.selection_forward += len(self.buffer)
        return found


def _part(outputs: Any, name: str) -> torch.Tensor:
    if name == "embeddings":
        embedding: torch.Tensor = outputs if isinstance(outputs, torch.Tensor) else outputs.embedding
        return embedding.clamp(-65504, 65504).half()  # half precision's range
    if isinstance(outputs, torch.Tensor):
        raise GraspError("this policy needs logits: the session's network must return .embedding and .logits")
    logits: torch.Tensor = outputs.logits
    return logits


@contextlib.contextmanager
def evaluating(network: Any) -> Iterator[None]:
    """Eval mode within; afterwards every module is in the mode it was in.

    `network` is a module or a method of one; any other function has to see to the modes of what it calls.
    """
    owner = getattr(network, "__self__", network)
    modules = list(owner.modules()) if isinstance(owner, torch.nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def batches(policy: Policy, session: Session, begun: int | None = None) -> Iterator[Array]:
    """The mini-batches of a session, as slots [batch_size] each; the time a policy takes is booked to selection.

    `begun` is the number of mini-batches already taken when an interrupted session goes on with a restored policy.
    """
    if begun is None:
        begin(policy, session)
    session.needs, session.begun = policy.needs | {"labels"}, True
    n = session.budget.batch_size
    for _ in range(begun or 0, session.budget.updates):
        with selecting(session):
            slots = np.asarray(policy.select(session, n))
        _check_slots(policy, slots, n, len(session.buffer))
        yield slots.astype(np.int64)


def begin(policy: Policy, session: Session) -> None:
    """What comes before the first mini-batch."""
    session.needs = policy.needs | {"labels"}
    check_stored(session)
    policy.warm_up()
    with selecting(session):
        policy.begin(session)


def check_stored(session: Session) -> None:
    """Refuse to rehearse from nothing."""
    if not len(session.buffer) and session.budget.samples:
        raise GraspError("the buffer is empty: there is nothing to rehearse")


def _check_slots(policy: Policy, slots: Array, n: int, stored: int) -> None:
    wanted = f"policy {policy.called!r} must return {n} slots in 0 … {stored - 1}"
    if slots.dtype.kind not in "iu" or slots.shape != (n,):
        raise GraspError(f"{wanted}, not {slots.dtype} of shape {slots.shape}")
    if slots.min() < 0 or slots.max() >= stored:
        raise GraspError(f"{wanted}, not {slots.min()} … {slots.max()}")


def rehearse(
    buffer: Buffer,
    policy: Policy | str,
    budget: Budget,
    embed: Callable[[torch.Tensor], Any] | None = None,
    rng: np.random.Generator | int | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Mini-batches (inputs, labels) for a training loop of your own.

    `embed` is the part of your network up to the penultimate layer (or a network as `Session` takes it); policies that
    look at embeddings call it once, before the first mini-batch. A module, or a method of one, is put into eval mode
    for that; any other function has to see to it. Without an `rng` the buffer's generator seeds the draws.

    >>> buffer = Buffer(capacity=100)
    >>> _ = buffer.insert(torch.eye(4), labels=[0, 0, 1, 1])
    >>> for inputs, labels in rehearse(buffer, "grasp", Budget(updates=2, batch_size=2), embed=torch.nn.Identity()):
    ...     print(labels.tolist())
    [0, 1]
    [0, 1]
    """
    chosen = policies.create(policy) if isinstance(policy, str) else policy
    draws = np.random.default_rng(buffer.draw_seed() if rng is None else rng)
    session = Session(buffer, budget, draws, embed, device=device)
    return (buffer.fetch(slots, device) for slots in batches(chosen, session))


@contextlib.contextmanager
def selecting(session: Session) -> Iterator[None]:
    """Book the seconds within to the session's selection."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        session.costs.selection_seconds += time.perf_counter() - begin
