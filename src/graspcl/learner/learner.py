"""What a learner knows of samples that a maintenance rule may ask for, as values of the buffer's columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn import functional as F

from graspcl.buffer import Buffer, Codes, Maintenance
from graspcl.buffer.checks import Columns, code_array, finite_tensor, label_array
from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.learner.rehearsal import Batch, Optimiser, Rehearsal, SessionLog, run
from graspcl.model import Execution, ImageInput, SplitNetwork
from graspcl.policy import Budget, Costs, Policy, policies
from graspcl.random import restore_rng, rng_state
from graspcl.registry import Registry

_VECTORS = {"embedding", "gradient"}
_NUMBERS = {"uncertainty", "importance", "similarity"}


def column_shapes(rule: Maintenance, network: SplitNetwork) -> Columns:
    """The columns that a buffer with `rule` must be made with, for a learner with `network`.

    >>> from graspcl.buffer import Herding
    >>> from graspcl.model import vector_network
    >>> column_shapes(Herding(), vector_network(4, embedding=16, generator=torch.Generator()))
    {'embedding': ((16,), <class 'numpy.float32'>)}
    """
    if unknown := sorted(rule.columns - _VECTORS - _NUMBERS):
        raise GraspError(f"learners do not know the column {unknown[0]!r} that {type(rule).__name__} needs")
    vector = (network.head.features,)
    return {name: (vector if name in _VECTORS else (), np.float32) for name in sorted(rule.columns)}


def describe(learner: Learner, codes: Codes, labels: Any) -> dict[str, torch.Tensor]:
    """Values for new samples of the columns that the buffer's rule asks for, in eval mode; computed only if asked for.

    embedding: of the network, as it is now. uncertainty: 1 - the largest softmax probability (1 before any class is
    known). gradient: of the loss with respect to what the head sees (the last layer's own is classes times as long);
    a sample of a class that has no row yet is pushed away from the known ones only.
    """
    buffer = learner.buffer
    wanted = buffer.maintenance.columns - buffer.maintenance.fills
    if not wanted or not len(codes):
        return {}
    known: dict[str, torch.Tensor] = {}
    if "embedding" in wanted:
        known["embedding"] = learner.outputs(codes, "embedding")
    if "uncertainty" in wanted:
        logits = learner.outputs(codes, "logits")
        known["uncertainty"] = 1 - F.pad(logits.softmax(1), (0, 1)).amax(1)
    if "gradient" in wanted:
        known["gradient"] = _gradient(learner, learner.outputs(codes, "features"), labels)
    return known


def _gradient(learner: Learner, features: torch.Tensor, labels: np.ndarray[Any, Any]) -> torch.Tensor:
    if not learner.classes:
        return torch.zeros_like(features)
    row_of = {label: row for row, label in enumerate(learner.classes)}
    target = torch.tensor([row_of.get(label, -1) for label in labels.tolist()], device=features.device)
    features = features.clone().requires_grad_()
    with torch.enable_grad():
        logits = learner.network.head(features)
        right = logits.gather(1, target.clamp(min=0)[:, None])[:, 0]
        loss = logits.logsumexp(1) - right * (target >= 0)  # cross-entropy, where there is a row to be right
        (gradient,) = torch.autograd.grad(loss.sum(), features)
    return gradient


_GIVEN = ("network", "buffer", "policy", "optimiser", "rng", "device", "execution")
learners: Registry[Learner] = Registry("learner", "graspcl.learner", given=_GIVEN)

_CHUNK = 512


class Learner:
    """A split network, a buffer and a policy that together keep learning.

    Labels are arbitrary integers; the head's rows stand in the order in which classes first arrived (`classes`). Rows
    that the network's head has already, from base initialisation, are those of labels 0 … k-1.
    Every old sample the learner uses comes out of its buffer. `rng` (a generator or a seed) is the policy's.
    `execution` says how the network is executed where that is more than the `device`, by default the CPU.
    """

    name: ClassVar[str] = ""
    unbounded: ClassVar[bool] = False  # it keeps all it has seen: its buffer takes no capacity
    groups_by: str | None = None  # a column of the buffer that policies balance by, in place of the class
    offline: ClassVar[bool] = False  # new samples may exceed the buffer's capacity until the session ends

    def __init__(
        self,
        network: SplitNetwork,
        buffer: Buffer,
        policy: Policy | str = "grasp",
        optimiser: Optimiser | None = None,
        rng: np.random.Generator | int = 0,
        device: torch.device | str | None = None,
        execution: Execution | None = None,
    ) -> None:
        if buffer.codec is not None and buffer.codec.ragged and not network.veridical:
            raise GraspError(
                f"the buffer stores raw images (codec {type(buffer.codec).__name__}), but the network rehearses "
                "latents: give veridical(network)"
            )
        if device is not None and execution is not None:
            raise GraspError("give a learner a device or an execution (which names one), not both")
        self.execution = (execution or Execution(device=str(device or "cpu"))).resolve()
        self.network = network.execute(self.execution).eval()
        self.buffer = buffer
        self.policy = policies.create(policy) if isinstance(policy, str) else policy
        self.optimiser = optimiser or Optimiser()
        self.rng = np.random.default_rng(rng)
        self.device = torch.device(self.execution.device)
        self.classes = list(range(network.head.classes))  # of a head that was trained before: labels 0 … k-1
        self._map_classes()

    @classmethod
    def columns(cls, classes: int, **parameters: Any) -> Columns:
        """Columns that the buffer of such a learner must be made with, if it is to learn up to `classes` classes."""
        return {}

    # -- online ----------------------------------------------------------------------------------------------------

    def observe(self, inputs: Any, labels: Any, ids: Any | None = None) -> None:
        """A chunk of the stream, raw inputs [n, …] and labels [n]: encode and learn from it at once.

        Inputs are a tensor; or, where the buffer stores images as they came, the bytes or paths of n image files.
        """
        self.observe_codes(self.encode(inputs), labels, ids)

    def observe_codes(self, codes: Codes, labels: Any, ids: Any | None = None) -> None:
        """As `observe`, for inputs that went through the frozen part and the codec already (`encode`)."""
        # The buffer would refuse these too, but only after the network had failed.
        labels = label_array(labels)
        code_array(codes, len(labels), self.buffer["codes"] if len(self.buffer) else None, self._ragged)
        known, looked = describe(self, codes, labels), self.look(codes)
        self.buffer.insert_codes(codes, labels, ids, known, overflow=self.offline)
        self.meet(labels)
        self.learn_online(looked, torch.as_tensor(labels, dtype=torch.int64, device=self.device))

    def look(self, codes: Codes) -> Any:
        """What `learn_online` wants to know of new samples, before they are stored; by default nothing.

        Image files are decoded even so: one that cannot be read is refused here, not found in a session to come.
        """
        if self._ragged:
            for begin in range(0, len(codes), _CHUNK):
                self.buffer.decode(codes[begin : begin + _CHUNK])

    def learn_online(self, looked: Any, labels: torch.Tensor) -> None:
        """What a learner does with new samples beside storing them; by default nothing."""

    @property
    def _ragged(self) -> bool:
        return self.buffer.codec is not None and self.buffer.codec.ragged

    def encode(self, inputs: Any) -> Codes:
        """Raw inputs [n, …] to codes [n, …] as they are stored."""
        if self._ragged:
            return self.buffer.encode(inputs)
        if not isinstance(inputs, torch.Tensor):
            if len(inputs) and isinstance(inputs[0], str):
                raise GraspError("texts are encoded first: graspcl.model.Tokenizer(max_tokens=…).encode(texts)")
            inputs = finite_tensor(inputs)
        self._refuse_unit_range(inputs)
        return self.buffer.encode(self.network.encode(inputs.to(self.device)))

    def _refuse_unit_range(self, inputs: torch.Tensor) -> None:
        """Images of floats in 0..1 would look black to a network that takes 0..255, and nothing would be learned."""
        takes_bytes = any(isinstance(part, ImageInput) for part in self.network.modules())
        if takes_bytes and inputs.is_floating_point() and inputs.numel() and 0 < float(inputs.max()) <= 1:
            raise GraspError("the images lie in 0..1, but the network takes 0..255: multiply them by 255")

    # -- offline ---------------------------------------------------------------------------------------------------

    def rehearse(self, budget: Budget, on_step: Callable[[Rehearsal], None] | None = None) -> SessionLog:
        """One rehearsal session: exactly `budget.updates` updates chosen by the policy."""
        return run(Rehearsal(self, self.session_budget(budget)), on_step)

    def session_budget(self, budget: Budget) -> Budget:
        """What a session spends when it is given `budget`; by default that."""
        return budget

    def begin_session(self) -> None:
        """Before the first selection of a session; by default nothing."""

    def loss(self, batch: Batch) -> torch.Tensor:
        """What an update lowers, a number; by default the mean of the samples' cross-entropies."""
        return batch.cross_entropies.mean()

    def end_session(self, costs: Costs) -> None:
        """After a session: the buffer returns to its capacity, and what it holds is old. Passes are booked to costs."""
        self.buffer.compress()
        self.buffer.settle()

    # -- use -------------------------------------------------------------------------------------------------------

    def predict(self, inputs: Any) -> Array:
        """Labels [n] of raw inputs [n, …]."""
        return self.predict_codes(self.encode(inputs))

    def predict_codes(self, codes: Codes) -> Array:
        """Labels [n] of encoded inputs [n, …]."""
        if not self.classes:
            raise GraspError("nothing can be predicted yet: no class has been observed")
        rows = self.outputs(codes, "logits").argmax(1).numpy(force=True)
        return np.asarray(self.classes).take(rows)

    def outputs(self, codes: Codes, part: str) -> torch.Tensor:
        """One part of the network's `Outputs` for codes [n, …], in eval mode, without gradients, in chunks."""
        self.network.eval()
        with torch.no_grad():
            chunks = [
                getattr(self.network(self.buffer.decode(codes[begin : begin + _CHUNK], self.device)), part)
                for begin in range(0, max(1, len(codes)), _CHUNK)
            ]
        return torch.cat(chunks)

    def rows(self, labels: torch.Tensor) -> torch.Tensor:
        """The head's rows of `labels` [n]."""
        return self._row_of[labels]

    def meet(self, labels: Array) -> None:
        """Give classes not seen before a row in the head, in the order of arrival."""
        known = set(self.classes)
        arrived, first = np.unique(labels, return_index=True)
        self.classes += [int(label) for label in arrived[np.argsort(first)] if int(label) not in known]
        if len(self.classes) > len(known):
            self.network.head.grow(len(self.classes))
            self._map_classes()

    def name_rows(self, labels: Any) -> None:
        """Say of which labels [k] the head's rows are, where base initialisation made them for others than 0 … k-1."""
        labels = [int(label) for label in labels]
        if len(labels) != self.network.head.classes or len(set(labels)) < len(labels):
            raise GraspError(f"{self.network.head.classes} rows of the head cannot be of the labels {labels}")
        self.classes = labels
        self._map_classes()

    def _map_classes(self) -> None:
        row_of = np.full(max(self.classes, default=-1) + 1, -1)
        row_of[self.classes] = np.arange(len(self.classes))
        self._row_of = torch.from_numpy(row_of).to(self.device)

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides what the learner knows and will do, between two sessions."""
        return {
            "network": {name: value.clone() for name, value in self.network.state_dict().items()},
            "classes": list(self.classes),
            "buffer": self.buffer.state_dict(),
            "policy": self.policy.state_dict(),
            "rng": rng_state(self.rng),
        }

    @property
    def state_keys(self) -> set[str]:
        """What `state_dict` has."""
        return {"network", "classes", "buffer", "policy", "rng"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave, into a learner made with the same settings."""
        state = dict(state)
        since = state.pop("since", None)  # where states of earlier versions keep it
        if (own := self.state_keys) != state.keys():
            raise GraspError(
                f"this is not the state of a learner {self.name or type(self).__name__!r} with these settings: "
                f"it differs in {', '.join(sorted(own ^ state.keys()))}"
            )
        self.network.load_state_dict(state["network"])
        self.classes = list(state["classes"])
        self._map_classes()
        self.buffer.load_state_dict(state["buffer"])
        self.buffer.since = self.buffer.since if since is None else int(since)
        self.policy.load_state_dict(state["policy"])
        restore_rng(self.rng, state["rng"])
