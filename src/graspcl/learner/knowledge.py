"""What a learner knows of samples that a maintenance rule may ask for, as values of the buffer's columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional as F

from graspcl.buffer import Codes, Maintenance, checks
from graspcl.errors import GraspError
from graspcl.model import SplitNetwork

if TYPE_CHECKING:
    from graspcl.learner.base import Learner

_VECTORS = {"embedding", "gradient"}
_NUMBERS = {"uncertainty", "importance", "similarity"}


def column_shapes(rule: Maintenance, network: SplitNetwork) -> checks.Columns:
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
