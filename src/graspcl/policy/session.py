"""One rehearsal session: its budget, what a policy sees of it, its mini-batches, and a training loop of your own."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from graspcl.buffer import Buffer
from graspcl.checks import Array, Count, Updates, checked
from graspcl.errors import GraspError
from graspcl.policy.drawing import Groups, group_by_class, weighted_draws
from graspcl.policy.gradients import Gradients, full_gradients, last_layer_gradients, losses_after_step
from graspcl.policy.loader import Loader
from graspcl.policy.networks import Joined, Network, evaluating
from graspcl.policy.policy import QUANTITIES, PlannedPolicy, Policy, checked_slots, policies
from graspcl.policy.prototype import prototype_distances

Transform = Callable[[torch.Tensor], torch.Tensor]
Value = TypeVar("Value")

_FROM_EMBEDDINGS, _FROM_LOGITS = {"embeddings", "distances"}, {"logits", "losses"}


@checked
@dataclass(frozen=True)
class Budget:
    """`updates` mini-batches of `batch_size` samples: U = n · b samples in all (section 3, "Rehearsal Phase").

    >>> Budget(updates=1251, batch_size=512).samples
    640512
    """

    updates: Updates
    batch_size: Count

    @property
    def samples(self) -> int:
        """U, the number of samples used for gradient updates."""
        return self.updates * self.batch_size

    @classmethod
    def passes(cls, passes: float, stored: int, batch_size: int) -> Budget:
        """Return the budget of about `passes` times the `stored` samples, in whole mini-batches."""
        return cls(max(1, round(passes * stored / batch_size)) if passes and stored else 0, batch_size)


@dataclass
class Costs:
    """What a session cost. Passes are counted in samples: 1 is one sample through the plastic part."""

    updates: int = 0
    selection_seconds: float = 0.0
    selection_forward: int = 0
    selection_backward: int = 0
    training_seconds: float = 0.0
    training_forward: int = 0
    training_backward: int = 0


class SampleOutputs(NamedTuple):
    """Network outputs of n samples."""

    embedding: torch.Tensor  # [n, D]; D = 0 if the network gives none
    features: torch.Tensor  # [n, D'], the head's input
    logits: torch.Tensor  # [n, K]
    losses: torch.Tensor  # [n]
    rows: torch.Tensor  # [n], correct columns of the logits


def _read_only(values: Array) -> Array:
    view = values.view()
    view.flags.writeable = False
    return view


def _halved(values: torch.Tensor) -> torch.Tensor:
    """In half precision, to save memory: finite numbers are clamped to its range, infinity stays what it is."""
    return torch.where(values.isinf(), values, values.clamp(-65504, 65504)).half()


class _Quantity(Generic[Value]):
    """A read-only attribute of a session, for policies that declare `needs`."""

    def __init__(self, needs: str, read: Callable[[Session], Value]) -> None:
        self.needs, self.read = needs, read

    def __get__(self, session: Session, owner: type) -> Value:
        session._allow(self.needs)
        return self.read(session)

    def __set__(self, session: Session, value: Any) -> None:
        raise AttributeError("a session is read-only")


class Session:
    """All that a policy sees of one rehearsal session. Read-only: arrays cannot be written to.

    Quantities of all samples are computed at most once, when first read: in chunks, in eval mode, without gradients.
    The network's mode and every random generator stay as they were. A policy can read only what it declares in `needs`.

    Args:
        buffer: the stored samples. Sample i lies in slot i.
        rng: the only source of chance for a policy.
        network: maps inputs [n, …] to an object with `.embedding` [n, D] and `.logits` [n, K], or to embeddings.
        rows: maps labels [n] to columns of the logits; the identity by default.
        needs: the quantities that can be read; all by default. `batches` sets the policy's own.
        lr: learning rate of the next update, for policies that look one step ahead.
        groups_by: column of the buffer, such as the task, used instead of the class for balance and prototypes.
        loader: what also fetches the mini-batches, so that samples the policy looked at are not decoded again.

    >>> buffer = Buffer()
    >>> _ = buffer.insert(torch.eye(3), labels=[0, 0, 1])
    >>> session = Session(buffer, Budget(2, 2), np.random.default_rng(0), torch.nn.Identity(), needs={"distances"})
    >>> len(session), session.budget.samples, session.distances.round(2).tolist()
    (3, 4, [0.29, 0.29, 0.0])
    """

    race: Callable[[float], Array] | None = None  # GRASP's plan for an ε, where samples lie on several ranks

    def __init__(
        self,
        buffer: Buffer,
        budget: Budget,
        rng: np.random.Generator,
        network: Network | None = None,
        rows: Transform | None = None,
        device: torch.device | str = "cpu",
        *,
        chunk: int = 512,
        needs: Set[str] = QUANTITIES.keys(),
        lr: float = 0.1,
        groups_by: str | None = None,
        loader: Loader | None = None,
    ) -> None:
        self.budget, self.rng, self.device, self.chunk, self.lr = budget, rng, device, chunk, lr
        self.costs, self._buffer, self._groups_by = Costs(), buffer, groups_by
        self._loader = loader or Loader(buffer, device)
        self._network: Network = network if network is not None else lambda inputs: None
        self._rows_of: Transform = rows or (lambda labels: labels)
        self._policy, self._needs, self._balanced = "this policy", needs, True
        self._started = False  # True once training has begun: whole-buffer values would mix two networks

    def __len__(self) -> int:
        return len(self._buffer)

    # -- of all stored samples ---------------------------------------------------------------------------------------

    labels = _Quantity("labels", lambda s: _read_only(s._buffer.labels))  # class [N]
    ids = _Quantity("ids", lambda s: _read_only(s._buffer.ids))  # the user's number [N]
    births = _Quantity("births", lambda s: _read_only(s._buffer.births))  # arrival number, unique to a sample [N]
    new = _Quantity("new", lambda s: _read_only(s._buffer.new))  # whether it arrived since the last session [N], bool
    groups = _Quantity("labels", lambda s: s._groups)  # slots grouped by class, or by the column `groups_by`
    old_groups = _Quantity("new", lambda s: s._old_groups)  # slots of each of these groups that are not new
    group_of = _Quantity("labels", lambda s: _read_only(s._group_of))  # class, or value of the column `groups_by` [N]
    rows = _Quantity("labels", lambda s: s._label_rows())  # column of the logits [N]
    # When the session starts:
    embeddings = _Quantity("embeddings", lambda s: s._outputs["embeddings"])  # penultimate layer [N, D], float16
    distances = _Quantity("distances", lambda s: s._distances)  # cosine distance to the class prototype [N]
    logits = _Quantity("logits", lambda s: s._outputs["logits"])  # [N, K]
    losses = _Quantity("losses", lambda s: cross_entropy(s._outputs["logits"], s._label_rows(), reduction="none"))

    def embed(self, slots: Array) -> torch.Tensor:
        """Return the embeddings [n, D], float16, of the samples in `slots` [n] when the session starts."""
        self._allow("embeddings")
        return self._measure(slots)["embeddings"]

    # -- of chosen samples, under the current network ----------------------------------------------------------------

    def forward(self, slots: Array, transform: Transform | None = None) -> SampleOutputs:
        """Return the outputs of the samples in `slots` [n], or of what `transform` makes of their inputs."""
        self._allow("forward")
        return self._forward(slots, transform)

    def gradients(self, slots: Array, full: bool = False) -> Gradients:
        """Return the loss gradient of each sample in `slots` [n]: of the last layer, or with `full` of all parameters.

        A head that transforms its input before the product with its rows defines `inputs(features)`, the result.
        """
        self._allow("gradients")
        if full:
            with evaluating(self._network):
                found = full_gradients(self._module, *self._fetch(slots))
            self.costs.selection_forward += len(slots)
            self.costs.selection_backward += len(slots)
            return found
        outputs = self._forward(slots)
        if not outputs.features.shape[1]:
            raise GraspError("gradients of the last layer need embeddings: give embed=, or set gradients='full'")
        scaled = getattr(getattr(self._network, "head", None), "inputs", None)
        inputs = outputs.features if scaled is None else scaled(outputs.features).detach()
        return last_layer_gradients(outputs.logits, outputs.rows, inputs)

    def losses_after_step(self, incoming: Array, slots: Array) -> torch.Tensor:
        """Return the losses [n] of `slots` [n] after a plain gradient step of rate `lr` on `incoming`."""
        self._allow("virtual_step")
        with evaluating(self._network):
            inputs, rows = (part.split([len(incoming), len(slots)]) for part in self._fetch(np.append(incoming, slots)))
            losses = losses_after_step(self._module, inputs[0], rows[0], self.lr, inputs[1], rows[1])
        self.costs.selection_forward += len(incoming) + len(slots)
        self.costs.selection_backward += len(incoming)
        return losses

    def draw(self, weights: Array) -> Array:
        """Draw the whole budget with replacement and probability proportional to `weights` [N] ≥ 0.

        For a balanced policy, draws go round-robin over the classes and weights count within a class.
        """
        if np.shape(weights) != (len(self),):
            raise GraspError(f"draw takes one weight per stored sample, {len(self)}, got shape {np.shape(weights)}")
        if wrong := int((~(np.isfinite(weights) & (np.asarray(weights) >= 0))).sum()):
            raise GraspError(f"draw takes finite weights of at least 0, but {wrong} of {len(self)} are not")
        groups = self._groups if self._balanced else Groups(np.arange(len(self)), np.array([0, len(self)]))
        return weighted_draws(np.asarray(weights), groups, self.budget.samples, self.rng)

    def _serve(self, policy: Policy, started: bool) -> None:
        """Offer exactly what `policy` declares."""
        self._policy = f"policy {policy.display_name!r}"
        if unknown := sorted(policy.needs - QUANTITIES.keys()):
            raise GraspError(f"{self._policy} needs {unknown[0]!r}; a session offers {', '.join(QUANTITIES)}")
        self._needs, self._balanced, self._started = policy.needs, policy.balanced, started
        if started:  # nothing can read what was measured at the start any more
            for measured in ("_outputs", "_distances"):
                vars(self).pop(measured, None)
            self._loader.forget()

    def _allow(self, quantity: str) -> None:
        if quantity not in self._needs:
            known = sorted(self._needs)
            raise GraspError(
                f"{self._policy} reads session.{quantity} but does not name {quantity!r} in `needs`, {known}"
            )
        if self._started and quantity in _FROM_EMBEDDINGS | _FROM_LOGITS:
            raise GraspError(f"session.{quantity} is measured when a session starts: read it in begin(), keep a copy")

    @cached_property
    def _groups(self) -> Groups:
        grouped = self._groups_by is not None
        return group_by_class(self._group_of.astype(np.int64)) if grouped else Groups(*self._buffer.index.grouped())

    @property
    def _group_of(self) -> Array:
        return self._buffer.labels if self._groups_by is None else self._buffer[self._groups_by]

    @cached_property
    def _old_groups(self) -> list[Array]:
        old = ~self._buffer.new
        return [run[old[run]] for run in self._groups.each]

    @cached_property
    def _distances(self) -> Array:
        found = prototype_distances(self._outputs["embeddings"], torch.from_numpy(self._group_of))
        return _read_only(found.numpy(force=True))

    @cached_property
    def _outputs(self) -> dict[str, torch.Tensor]:
        return self._measure(np.arange(len(self)))

    def _measure(self, slots: Array) -> dict[str, torch.Tensor]:
        """What the policy needs of the network's outputs for `slots` [n]."""
        found: dict[str, torch.Tensor] = {}
        with evaluating(self._network), torch.no_grad():
            for begin in range(0, len(slots), self.chunk):
                end = min(begin + self.chunk, len(slots))
                outputs = self._network(self._buffer.fetch(slots[begin:end], self.device)[0])
                parts = {}
                if _FROM_EMBEDDINGS & self._needs:
                    parts["embeddings"] = _halved(self._part(outputs, "embedding"))
                if _FROM_LOGITS & self._needs:
                    parts["logits"] = self._part(outputs, "logits")
                for name, part in parts.items():
                    if name not in found:
                        found[name] = part.new_empty((len(slots), *part.shape[1:]))
                    found[name][begin:end] = part
        self.costs.selection_forward += len(slots)
        return found

    def _forward(self, slots: Array, transform: Transform | None = None) -> SampleOutputs:
        parts = []
        with evaluating(self._network), torch.no_grad():
            for inputs, rows in self._chunks(slots):
                outputs = self._network(transform(inputs) if transform else inputs)
                logits, embedding = self._part(outputs, "logits"), self._part(outputs, "embedding")
                parts.append((embedding, getattr(outputs, "features", embedding), logits, rows))
        self.costs.selection_forward += len(slots)
        embedding, features, logits, rows = (torch.cat(part) for part in zip(*parts, strict=True))
        return SampleOutputs(embedding, features, logits, cross_entropy(logits, rows, reduction="none"), rows)

    def _part(self, outputs: Any, what: str) -> torch.Tensor:
        """Return `embedding` or `logits` of a network's outputs. Outputs that are a plain tensor are the embedding."""
        found = getattr(outputs, what, outputs if what == "embedding" else None)
        needed = what == "logits" or _FROM_EMBEDDINGS & self._needs
        if found is None or (needed and found.ndim == 2 and not found.shape[1]):
            raise self._missing(what)
        return found  # type: ignore[no-any-return]

    def _missing(self, what: str) -> GraspError:
        argument = "logits: give model=" if what == "logits" else "embeddings: give embed="
        hint = "or give the session a network, a module that returns .embedding and .logits"
        return GraspError(f"{self._policy} reads {argument}, a function of inputs; {hint}")

    def _chunks(self, slots: Array) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Inputs and rows of `slots`, chunk by chunk; for a mini-batch, 16 chunks are fetched, and kept, together."""
        size = 16 * self.chunk if self._started else self.chunk
        for part in np.split(np.asarray(slots), range(size, len(slots), size)):
            yield from zip(*(values.split(self.chunk) for values in self._fetch(part)), strict=True)

    def _fetch(self, slots: Array) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = self._loader.look(slots)
        return inputs, self._rows_of(labels)

    def _label_rows(self) -> torch.Tensor:
        return self._rows_of(torch.from_numpy(self._buffer.labels).to(self.device, torch.int64))

    @property
    def _module(self) -> torch.nn.Module:
        if not isinstance(self._network, torch.nn.Module):
            raise self._missing("logits")
        return self._network


def batches(policy: Policy, session: Session, begun: int | None = None) -> Iterator[Array]:
    """Yield the mini-batches of a session as slots [batch_size]; to resume it, give the number taken as `begun`."""
    if begun is None:
        begin(policy, session)
    session._serve(policy, started=True)
    n = session.budget.batch_size
    if type(policy).select is PlannedPolicy.select:  # the next part of a plan, which was checked as a whole
        for _ in range(begun or 0, session.budget.updates):
            yield policy.select(session, n)
        return
    for _ in range(begun or 0, session.budget.updates):
        with selecting(session):
            slots = policy.select(session, n)
        yield checked_slots(policy, "return", slots, n, len(session))


def begin(policy: Policy, session: Session) -> None:
    session._serve(policy, started=False)
    check_stored(session)
    if session.budget.samples:
        policy.warm_up()
        with selecting(session):
            policy.begin(session)


def check_stored(session: Session) -> None:
    if not len(session) and session.budget.samples:
        raise GraspError("the buffer is empty: there is nothing to rehearse")


@contextlib.contextmanager
def selecting(session: Session) -> Iterator[None]:
    """Book the time within as selection."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        session.costs.selection_seconds += time.perf_counter() - begin


# -- in a training loop of your own -----------------------------------------------------------------------------------


class MiniBatch:
    """Inputs `x` [n, …] and labels `y` [n] to train on; `x, y = batch` works. `slots` [n]: places in the buffer."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, slots: Array, policy: Policy) -> None:
        self.x, self.y, self.slots, self._policy, self._reported = x, y, slots, policy, False

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter((self.x, self.y))

    def report(self, logits: torch.Tensor, embeddings: torch.Tensor | None = None) -> None:
        """Report the outputs of this mini-batch to the policy.

        Args:
            logits: [n, K], where column k is class k.
            embeddings: [n, D], for policies that remember distances; not needed by others.
        """
        z = logits.new_empty(len(self.y), 0) if embeddings is None else embeddings.detach()
        for name, part, width in (("logits", logits, "classes"), ("embeddings", z, "dimensions")):
            if part.ndim != 2 or len(part) != len(self.y):
                raise GraspError(f"report takes {name} of shape ({len(self.y)}, {width}), got {tuple(part.shape)}")
        logits = logits.detach()
        losses = cross_entropy(logits, self.y, reduction="none")
        self._policy.observe(self.slots, SampleOutputs(z, z, logits, losses, self.y))
        self._reported = True


def rehearse(
    buffer: Buffer,
    policy: Policy | str,
    budget: Budget,
    *,
    model: Network | None = None,
    embed: Network | None = None,
    lr: float = 0.1,
    rng: np.random.Generator | int | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[MiniBatch]:
    """Yield the mini-batches of one rehearsal session, for a training loop of your own.

    After the last mini-batch all stored samples count as old (`buffer.settle()`).

    Args:
        model: maps inputs to logits, where column k belongs to class k. Needed by policies that read logits.
        embed: maps inputs to embeddings, up to the penultimate layer. Needed by policies that read embeddings.
        lr: the learning rate of your optimizer, for policies that look one step ahead (`mir`).
        rng: a generator or a seed for the draws; by default the buffer's generator seeds them.
        device: where inputs are decoded.

    `model` and `embed` are modules (run in eval mode), methods of one, or functions. Either may also return an object
    with `.embedding` and `.logits`.

    >>> buffer = Buffer(capacity=100)
    >>> _ = buffer.insert(torch.eye(4), labels=[0, 0, 1, 1])
    >>> for x, y in rehearse(buffer, "grasp", Budget(updates=1, batch_size=2), embed=torch.nn.Identity()):
    ...     print(y.tolist())
    [0, 1]
    """
    if not isinstance(budget, Budget):
        raise GraspError(f"budget must be a Budget(updates=…, batch_size=…), got {budget!r}")
    chosen = policies.create(policy) if isinstance(policy, str) else policy
    draws = np.random.default_rng(buffer.draw_seed() if rng is None else rng)
    network = embed if model is None else Joined(model, embed)
    if "new" in chosen.needs and budget.samples and len(buffer):
        said = f"policy {chosen.display_name!r} needs new and old samples, but all {len(buffer)} stored samples are"
        if not buffer.new.any():
            raise GraspError(f"{said} old; insert new samples before rehearse()")
        if buffer.new.all():  # as in the first session of a stream: legitimate, but never silent
            warnings.warn(f"{said} new, so draws are uniform; buffer.settle() makes stored samples old", stacklevel=2)
    return _reporting(chosen, Session(buffer, budget, draws, network, device=device, lr=lr), buffer)


def _reporting(policy: Policy, session: Session, buffer: Buffer) -> Iterator[MiniBatch]:
    for slots in batches(policy, session):
        batch = MiniBatch(*session._loader.fetch(slots), slots, policy)
        yield batch
        if "feedback" in policy.needs and not batch._reported:
            raise GraspError(f"policy {policy.display_name!r} needs feedback: call batch.report(logits) every time")
    buffer.settle()
