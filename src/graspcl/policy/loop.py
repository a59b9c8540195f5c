"""Rehearsal in a training loop of your own: `for batch in rehearse(buffer, "grasp", budget, embed=embed)`."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from graspcl.buffer import Buffer
from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.policy.policy import Policy, policies
from graspcl.policy.session import Budget, Network, SampleOutputs, Session, batches, evaluating


class MiniBatch:
    """Inputs `x` [n, …] and labels `y` [n] to train on; `x, y = batch` works too. `slots` [n] tell where they lie."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, slots: Array, policy: Policy) -> None:
        self.x, self.y, self.slots = x, y, slots
        self._policy, self._reported = policy, False

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter((self.x, self.y))

    def report(self, logits: torch.Tensor) -> None:
        """Tell the policy what the model says of this mini-batch: `logits` [n, K], where column k is class k."""
        if logits.ndim != 2 or len(logits) != len(self.y):
            raise GraspError(f"report takes logits of shape ({len(self.y)}, classes), got {tuple(logits.shape)}")
        logits, unknown = logits.detach(), logits.new_empty(len(logits), 0)
        losses = cross_entropy(logits, self.y, reduction="none")
        self._policy.observe(self.slots, SampleOutputs(unknown, unknown, logits, losses, self.y))
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
        buffer, policy, budget: the stored samples, a policy or its name, number and size of the mini-batches.
        model: maps inputs to logits, where column k belongs to class k. Needed by policies that read logits.
        embed: maps inputs to embeddings, up to the penultimate layer. Needed by policies that read embeddings.
        lr: the learning rate of your optimizer, for policies that look one step ahead (`mir`).
        rng: a generator or a seed for the draws; by default the buffer's generator seeds them.
        device: where inputs are decoded.

    `model` and `embed` are modules, methods of one, or functions. Modules are evaluated in eval mode. Either may also
    return an object with `.embedding` and `.logits`. An error names what a policy needs and was not given.

    >>> buffer = Buffer(capacity=100)
    >>> _ = buffer.insert(torch.eye(4), labels=[0, 0, 1, 1])
    >>> for x, y in rehearse(buffer, "grasp", Budget(updates=2, batch_size=2), embed=torch.nn.Identity()):
    ...     print(y.tolist())
    [0, 1]
    [0, 1]
    """
    chosen = policies.create(policy) if isinstance(policy, str) else policy
    draws = np.random.default_rng(buffer.draw_seed() if rng is None else rng)
    network = embed if model is None else _Joined(model, embed)
    if "new" in chosen.needs and budget.samples and len(set(buffer.new.tolist())) == 1:
        raise GraspError(
            f"policy {chosen.display_name!r} needs new and old samples, but all {len(buffer)} stored samples are "
            f"{'new' if buffer.new[0] else 'old'}. buffer.settle() makes all stored samples old; rehearse() calls it "
            "after its last mini-batch. Samples inserted afterwards are new"
        )
    return _reporting(chosen, Session(buffer, budget, draws, network, device=device, lr=lr), buffer)


def _reporting(policy: Policy, session: Session, buffer: Buffer) -> Iterator[MiniBatch]:
    for slots in batches(policy, session):
        batch = MiniBatch(*buffer.fetch(slots, session.device), slots, policy)
        yield batch
        if "feedback" in policy.needs and not batch._reported:
            raise GraspError(
                f"policy {policy.display_name!r} needs feedback: call batch.report(logits) before the next mini-batch"
            )
    buffer.settle()


class _Joined(torch.nn.Module):
    """A model and an embedding function as one network with `.embedding` and `.logits`."""

    def __init__(self, model: Network, embed: Network | None) -> None:
        super().__init__()
        owner = getattr(model, "__self__", model)
        self.owner = owner if isinstance(owner, torch.nn.Module) else None
        # In a tuple, so that they are no submodules: `embed` may share layers with the model, and functional_call
        # must find each parameter once.
        self.functions: tuple[Any, Any] = model, embed

    @property
    def head(self) -> Any:
        return getattr(self.owner, "head", None)

    def forward(self, inputs: torch.Tensor) -> Any:
        model, embed = self.functions
        outputs = model(inputs)
        if embed is None and not isinstance(outputs, torch.Tensor):
            return outputs
        logits: torch.Tensor = getattr(outputs, "logits", outputs)
        if embed is None:
            return SimpleNamespace(embedding=logits.new_empty(len(logits), 0), logits=logits)
        with evaluating(embed):
            embedded = embed(inputs)
        return SimpleNamespace(embedding=getattr(embedded, "embedding", embedded), logits=logits)
