"""The learner: a split network, a buffer and a policy that keep learning together.

The walk of a new sample, in `Learner.observe`: the network's frozen part encodes it and the codec packs it. One forward
pass gives what the maintenance rule and the learner itself want to know. The buffer stores it, and the learner may
learn from it at once (`learn_online`). Training happens later, in sessions (`rehearse`, see `learner/rehearsal.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from graspcl.buffer import Buffer, Codes, Maintenance
from graspcl.buffer.columns import Columns, code_array, finite_tensor, label_array
from graspcl.checks import Array, checked
from graspcl.errors import GraspError
from graspcl.learner.optimiser import Optimiser
from graspcl.learner.peers import Peers
from graspcl.learner.rehearsal import Batch, Rehearsal, SessionLog
from graspcl.model import Execution, ImageInput, Outputs, SplitNetwork
from graspcl.policy import Budget, Costs, Policy, Session, policies
from graspcl.random import restore_rng, rng_state
from graspcl.registry import Registry
from graspcl.state import copied, load_state, save_state

learners: Registry[Learner] = Registry(
    "learner", "graspcl.learner", given=("network", "buffer", "policy", "optimiser", "rng", "device", "execution")
)

_CHUNK = 512  # samples per forward pass


@checked
class Learner:
    """Base class of all learners; by itself it stores samples and rehearses them with cross-entropy.

    Labels are arbitrary integers. The head's rows follow the order in which classes first arrived (`classes`). Rows
    that the head already has, from pretraining, belong to labels 0 … k-1 (`set_head_labels` changes that).

    A subclass overrides what differs: `learn_online`, `begin_session`, `loss`, `end_session`, `session_budget`,
    `forward`. What it remembers beyond that is created in `setup`, saved by `extra_state` and restored by
    `load_extra_state`.

    Args:
        network: the split network; it is moved to the device.
        buffer: where samples are stored. Every old sample the learner uses comes out of it.
        policy: selects the samples of each mini-batch; a policy or its name.
        optimiser: settings of the updates; by default the paper's for latent rehearsal on ImageNet.
        rng: the policy's random generator, or its seed.
        device: where the network runs; by default where it is.
        execution: device, precision and compilation together, in place of `device`.

    >>> from graspcl.model import vector_network
    >>> learner = Learner(vector_network(4, generator=torch.Generator().manual_seed(0)), Buffer(), "uniform")
    >>> learner.observe(torch.eye(4), [7, 7, 3, 3])
    >>> learner.rehearse(Budget(updates=3, batch_size=2)).costs.updates, learner.classes
    (3, [7, 3])
    """

    name: ClassVar[str] = ""
    rehearses: ClassVar[bool] = True  # whether it makes updates on samples that a policy selects
    stores: ClassVar[bool] = True  # whether its buffer holds samples
    stores_features: ClassVar[bool] = False  # whether these are features, not what the network is called with
    unbounded: ClassVar[bool] = False  # stores everything, so its buffer takes no capacity
    optimiser_by_default: ClassVar[Optimiser] = Optimiser()
    offline: bool = False  # new samples may exceed the buffer's capacity until the session ends
    coded: bool = False  # raw inputs are predicted through the codec, as stored samples are seen, not as they are
    groups_by: str | None = None  # the buffer's column used for balanced sampling, instead of the class
    open_session: Callable[..., Session] = Session  # what a policy sees of a session
    after_backward: Callable[[], None] | None = None  # called between the backward pass and the update on it
    peers: Peers = Peers()  # the processes that learn together

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
        if not isinstance(network, SplitNetwork):
            raise GraspError(f"network must be a SplitNetwork (see SplitNetwork.cut), got {type(network).__name__}")
        if not isinstance(optimiser, Optimiser | None):
            raise GraspError(f"optimiser must be a graspcl.learner.Optimiser, got {type(optimiser).__name__}")
        if buffer.codec is not None and buffer.codec.ragged and not network.veridical:
            stored = f"raw images (codec {type(buffer.codec).__name__})"
            raise GraspError(f"the buffer stores {stored}, but the network rehearses latents; pass veridical(network)")
        if device is not None and execution is not None:
            raise GraspError("pass a device or an execution (which names a device), not both")
        self.execution = (execution or Execution(device=str(device or network.device))).resolve()
        self.device = torch.device(self.execution.device)
        self.network = network.execute(self.execution).eval()
        self.buffer = buffer
        self.policy = policies.create(policy) if isinstance(policy, str) else policy
        self.optimiser = optimiser or self.optimiser_by_default
        self.rng = np.random.default_rng(rng)
        self._set_classes(range(network.head.classes))
        self.setup()

    def setup(self) -> None:
        """Create what a subclass remembers; runs at the end of `__init__`."""

    @classmethod
    def columns(cls, classes: int, **parameters: Any) -> Columns:
        """Return the columns that this learner's buffer must have, to learn up to `classes` classes."""
        return {}

    @classmethod
    def head_width(cls, network: SplitNetwork, **parameters: Any) -> int:
        """Return the width of the head's input for a learner with `network` and these parameters."""
        return network.head.features

    def observe(self, inputs: Any, labels: Any, ids: Any | None = None) -> None:
        """Encode, store and learn from a chunk of the stream.

        Args:
            inputs: raw inputs [n, …]; for a buffer of image files, the bytes or paths of n files.
            labels: integers [n].
            ids: integers [n] that identify the samples; by default they are numbered in order of arrival.
        """
        self.observe_codes(self.encode(inputs), labels, ids)

    def observe_codes(self, codes: Codes, labels: Any, ids: Any | None = None) -> None:
        """Like `observe`, for codes [n, …] from `encode`."""
        # The buffer would refuse these too, but only after the network had failed.
        labels = label_array(labels)
        code_array(codes, len(labels), self.buffer["codes"] if len(self.buffer) else None, self._ragged)
        outputs, values = self._outputs_of_new(codes), {}
        if outputs is not None and len(labels):  # what the maintenance rule stores; classes without a row have row -1
            row_of = {label: row for row, label in enumerate(self.classes)}
            targets = torch.tensor([row_of.get(label, -1) for label in labels.tolist()], device=self.device)
            values = self.buffer.maintenance.values(outputs, targets, self.network.head)
        placed = self.buffer.insert_codes(codes, labels, ids, values, overflow=self.offline)
        self.add_classes(labels)
        if outputs is not None:
            self._show_policy(placed.slots, labels, outputs)
            self.learn_online(outputs, self.rows(torch.as_tensor(labels, dtype=torch.int64, device=self.device)))

    def learn_online(self, outputs: Outputs, targets: torch.Tensor) -> None:
        """Learn from new samples at once, given their `outputs` and their rows of the head [n]; by default not."""

    def _show_policy(self, slots: Array, labels: Array, outputs: Outputs) -> None:
        """Let a policy with a memory see new samples; `slots` [n] are -1 for those that were not kept."""
        # Other groups than classes are known later.
        if "memory" in self.policy.needs and self.policy.listens and self.groups_by is None:
            kept = np.flatnonzero(slots >= 0)
            shown = Outputs(*(part[torch.from_numpy(kept).to(part.device)] for part in outputs))
            self.policy.observe_new(slots[kept], self.buffer.births[slots[kept]], labels[kept], shown)

    def _outputs_of_new(self, codes: Codes) -> Outputs | None:
        """Return the outputs of new samples from one forward pass, or None if nothing needs them."""
        rule = self.buffer.maintenance
        if type(self).learn_online is not Learner.learn_online or (rule.wanted and len(codes)):
            return Outputs(*(torch.cat(part) for part in zip(*self._forward(codes), strict=True)))
        if self._ragged:  # an unreadable image must be refused now, not in a later session
            for start in range(0, len(codes), _CHUNK):
                self.buffer.decode(codes[start : start + _CHUNK])
        return None

    @property
    def _ragged(self) -> bool:
        return self.buffer.codec is not None and self.buffer.codec.ragged

    def encode(self, inputs: Any) -> Codes:
        """Return the codes [n, …] under which raw inputs [n, …] are stored."""
        return self.buffer.encode(inputs if self._ragged else self.latents(inputs))

    def latents(self, inputs: Any) -> torch.Tensor:
        """Return what the plastic part reads of raw inputs [n, …], before the codec."""
        if not isinstance(inputs, torch.Tensor):
            if isinstance(inputs, list | tuple) and inputs and isinstance(inputs[0], str):
                raise GraspError("encode texts first: graspcl.model.Tokenizer(max_tokens=…).encode(texts)")
            inputs = finite_tensor(inputs)
        # Images in 0..1 look black to a network that takes 0..255, and nothing would be learned.
        takes_bytes = any(isinstance(part, ImageInput) for part in self.network.modules())
        if takes_bytes and inputs.is_floating_point() and inputs.numel() and 0 < float(inputs.max()) <= 1:
            raise GraspError("the images are in 0..1, but the network takes 0..255; multiply them by 255")
        with _fitting(inputs):
            return finite_tensor(self.network.encode(inputs.to(self.device)))

    def rehearse(self, budget: Budget, on_step: Callable[[Rehearsal], None] | None = None) -> SessionLog:
        """Run one rehearsal session of `budget` and return its log; `on_step` is called after every update."""
        session = Rehearsal(self, self.session_budget(budget))
        while not session.done:
            session.step()
            if on_step is not None:
                on_step(session)
        return session.finish()

    def session_budget(self, budget: Budget) -> Budget:
        """Return what a session spends when given `budget`; by default the same."""
        return budget

    @property
    def stored_bytes(self) -> int:
        """What the learner keeps of the samples it has seen, in bytes."""
        return self.buffer.nbytes

    def begin_session(self) -> None:
        """Prepare for a session, before the first selection."""

    def session_optimiser(self) -> Optimiser:
        """Return the settings of a session's updates, asked for after `begin_session`; by default the optimiser."""
        return self.optimiser

    def loss(self, batch: Batch) -> torch.Tensor:
        """Return the loss that an update minimises; by default the mean cross-entropy."""
        return batch.cross_entropies.mean()

    def end_session(self, costs: Costs) -> None:
        """Shrink the buffer to its capacity and mark its samples as old; book extra passes in `costs`."""
        self.buffer.compress()
        self.buffer.settle()

    def predict(self, inputs: Any) -> Array:
        """Return the predicted labels [n] of raw inputs [n, …]."""
        return self._likeliest(self.logits(inputs))

    def predict_codes(self, codes: Codes) -> Array:
        """Return the predicted labels [n] of codes [n, …]."""
        return self._likeliest(self.outputs(codes, "logits"))

    def logits(self, inputs: Any) -> torch.Tensor:
        """Return the logits [n, classes] of raw inputs [n, …], in eval mode.

        Latents pass through the codec only if the learner is `coded`. For a buffer of image files, `inputs` may also be
        decoded images.
        """
        coded = self.coded
        if self._ragged:
            coded = not isinstance(inputs, torch.Tensor)
        return self.outputs(self.encode(inputs) if coded else self.latents(inputs), "logits", coded)

    def _likeliest(self, logits: torch.Tensor) -> Array:
        if not self.classes:
            raise GraspError("no class has been observed yet, so nothing can be predicted; call observe first")
        return np.asarray(self.classes).take(logits.argmax(1).numpy(force=True))

    def outputs(self, samples: Codes, part: str, coded: bool = True) -> torch.Tensor:
        """Return one part of `Outputs`, in eval mode and without gradients.

        Args:
            samples: codes [n, …], or latents from `latents`, also in half precision.
            part: "embedding", "features" or "logits".
            coded: whether `samples` are codes.
        """
        return torch.cat([getattr(outputs, part) for outputs in self._forward(samples, coded)])

    def logits_of(self, features: torch.Tensor) -> torch.Tensor:
        """Return the logits [n, classes] of features [n, D] that the network computed as it is now."""
        with torch.no_grad():
            logits: torch.Tensor = self.network.head(features.to(self.device))
        return logits

    def forward(self, inputs: torch.Tensor) -> Outputs:
        """Return the outputs that predictions use, for inputs [n, …] of the network: those of the network by default.

        It runs in eval mode and without gradients. A learner with logits of its own overrides it. Training calls the
        network itself.
        """
        outputs: Outputs = self.network(inputs)
        return outputs

    def _forward(self, samples: Codes, coded: bool = True) -> Iterator[Outputs]:
        self.network.eval()
        for start in range(0, max(1, len(samples)), _CHUNK):
            part = samples[start : start + _CHUNK]
            inputs = self.buffer.decode(part, self.device) if coded else self._uncoded(part)
            with torch.no_grad(), _fitting(inputs):
                outputs = self.forward(inputs)
                if outputs.logits.ndim != 2:
                    raise RuntimeError(f"its logits would be {list(outputs.logits.shape)}")
            yield outputs

    def _uncoded(self, latents: Codes) -> torch.Tensor:
        x = torch.as_tensor(latents).to(self.device)
        return x.float() if x.dtype == torch.float16 else x  # as they are cached

    def rows(self, labels: torch.Tensor) -> torch.Tensor:
        """Return the head's rows [n] of observed `labels` [n]."""
        return self._row_of[labels]

    def add_classes(self, labels: Array) -> None:
        """Give each class that is new in `labels` [n] a row of the head, in order of arrival."""
        classes = list(dict.fromkeys([*self.classes, *labels.tolist()]))
        if len(classes) > len(self.classes):
            self.network.head.grow(len(classes))
            self._set_classes(classes)

    def set_head_labels(self, labels: Any) -> None:
        """Set which label each existing row of the head belongs to, where pretraining used others than 0 … k-1."""
        labels = [int(label) for label in labels]
        if len(labels) != self.network.head.classes or len(set(labels)) < len(labels):
            raise GraspError(f"expected {self.network.head.classes} distinct labels, one per head row, got {labels}")
        self._set_classes(labels)

    def _set_classes(self, labels: Any) -> None:
        self.classes = list(labels)
        row_of = np.full(max(self.classes, default=-1) + 1, -1)
        row_of[self.classes] = np.arange(len(self.classes))
        self._row_of = torch.from_numpy(row_of).to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that determines what the learner knows and does next, between two sessions."""
        return {**self.knowledge(), "buffer": self.buffer.state_dict()}

    def knowledge(self, copy: bool = True) -> dict[str, Any]:
        """Return the state without the buffer. If it is not a `copy`, it is valid until training continues."""
        state = {
            "network": self.network.state_dict(),
            "classes": list(self.classes),
            "policy": self.policy.state_dict(),
            "rng": rng_state(self.rng),
            **self.extra_state(),
        }
        return copied(state) if copy else state

    def load_state_dict(self, state: dict[str, Any], copy: bool = True) -> None:
        """Restore a state from `state_dict`, into a learner made with the same settings.

        Without `copy`, what the buffer stores is not copied: nobody else may use these arrays.
        """
        state = self.adapted(state)
        since = state.get("since")  # where earlier versions stored it
        expected = {"network", "classes", "buffer", "policy", "rng", *self.extra_state()}
        if expected != (found := state.keys() - {"since"}):
            name, keys = self.name or type(self).__name__, ", ".join(sorted(expected ^ found))
            raise GraspError(f"the state does not fit a learner {name!r} with these settings: it differs in {keys}")
        before = self.knowledge()
        self.restore(state)
        try:
            self.buffer.load_state_dict(state["buffer"], copy)
        except GraspError:
            self.restore(before)
            raise
        self.buffer.since = self.buffer.since if since is None else int(since)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore `knowledge`; the buffer does not change."""
        self.load_extra_state(state)
        self.network.load_state_dict(state["network"])
        self._set_classes(state["classes"])
        self.policy.load_state_dict(state["policy"])
        restore_rng(self.rng, state["rng"])

    def adapted(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a state of an earlier version with what it lacks, as it was then, and without what is not used now."""
        return state

    def extra_state(self) -> dict[str, Any]:
        """Return what a subclass remembers beyond the base class; its keys become keys of `state_dict`.

        Arrays and tensors may be the learner's own: who keeps them copies them.
        """
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Restore `extra_state` from the whole state; runs before anything else is restored, so it may refuse."""

    def save(self, path: str | Path) -> None:
        """Write the learner's state to a file, atomically."""
        save_state(Path(os.path.realpath(path)), self.state_dict())

    def load(self, path: str | Path) -> None:
        """Restore a state written by `save`, into a learner made with the same settings."""
        self.load_state_dict(load_state(Path(path), copy=True), copy=False)


def column_shapes(
    rule: Maintenance, network: SplitNetwork, learner: type[Learner] = Learner, **parameters: Any
) -> Columns:
    """Return the columns that a buffer with `rule` needs, for a `learner` with `network` and these parameters."""
    return rule.columns_for(network.embedding_width, learner.head_width(network, **parameters))


@contextmanager
def _fitting(inputs: torch.Tensor) -> Iterator[None]:
    """Turn torch's error about inputs of a wrong width or type into a readable one."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise GraspError(f"the network cannot take inputs {list(inputs.shape)} of {inputs.dtype}: {reason}") from error
