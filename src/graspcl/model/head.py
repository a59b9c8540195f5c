"""Heads: one row per class, and more rows as classes arrive."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.checks import Count, Natural, checked
from graspcl.errors import GraspError
from graspcl.model.layers import Seeded, fork


@checked
class Head(Seeded, ABC):
    """Base class: rows [w_k, b_k] that turn h [N, features] into logits [N, classes].

    Args:
        features: width of the input.
        classes: the number of rows to start with.
        generator: seeds the head's own generator, which initialises the rows. Its state is saved, so that a resumed run
            grows the same rows.
    """

    def __init__(self, features: Count, classes: Natural = 0, *, generator: torch.Generator) -> None:
        super().__init__()
        self.features = features
        self.generator = fork(generator)
        self.weight = nn.Parameter(torch.empty(0, features))
        self.bias = nn.Parameter(torch.empty(0))
        self.grow(classes)

    @property
    def classes(self) -> int:
        return len(self.weight)

    @abstractmethod
    def inputs(self, h: Tensor) -> Tensor:
        """Return what the rows are multiplied with, [N, features + 1].

        The gradient of cross-entropy with respect to the rows is (softmax - onehot) ⊗ this.
        """

    def grow(self, classes: int) -> None:
        """Grow to at least `classes` rows; existing rows keep their values.

        This replaces the parameters `weight` and `bias`, so create optimisers afterwards.
        """
        new = classes - self.classes
        if new <= 0:
            return
        # Drawn on the CPU in float32, so that rows are the same on every device.
        bound = 1.0 / math.sqrt(self.features)
        weight = self._draw(torch.empty(new, self.features, dtype=torch.float32), bound).to(self.weight)
        bias = torch.empty(new, dtype=torch.float32).uniform_(-bound, bound, generator=self.generator).to(self.bias)
        self._replace(torch.cat([self.weight.detach(), weight]), torch.cat([self.bias.detach(), bias]))

    def reset(self) -> None:
        """Draw all rows again; a scale returns to its initial value."""
        classes = self.classes
        self._replace(self.weight[:0].detach(), self.bias[:0].detach())
        self.grow(classes)

    def set_rows(self, rows: Tensor, means: Tensor) -> None:
        """Set `rows` (int64 [n]) to those of classes with the means [n, features]: SIESTA's wake phase."""
        if means.shape != (len(rows), self.features):
            raise GraspError(f"means must have shape [{len(rows)}, {self.features}], got {list(means.shape)}")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self.classes:
            raise GraspError(f"rows must be in 0..{self.classes - 1}, got {rows.tolist()}; grow the head first")
        with torch.no_grad():
            rows = rows.to(self.weight.device)
            self.weight[rows] = means.to(self.weight)
            self.bias[rows] = self._bias_of(means.to(self.weight))

    def extra_repr(self) -> str:
        return f"features={self.features}, classes={self.classes}"

    @abstractmethod
    def _draw(self, weight: Tensor, bound: float) -> Tensor:
        """Initialise the weights [n, features] of new rows; `bound` is 1/sqrt(features)."""

    @abstractmethod
    def _bias_of(self, means: Tensor) -> Tensor:
        """Return the biases [n] of rows whose weights are class means [n, features]."""

    def _replace(self, weight: Tensor, bias: Tensor) -> None:
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        self.bias = nn.Parameter(bias, requires_grad=self.bias.requires_grad)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take the size of the saved head, so that a run resumes into a new network without classes."""
        saved = state_dict.get(f"{prefix}weight")
        if saved is not None and len(saved) != self.classes:
            self._replace(self.weight.new_empty(len(saved), self.features), self.bias.new_empty(len(saved)))
        super()._load_from_state_dict(state_dict, prefix, *args)


class CosineHead(Head):
    """Logits sigma * cos([h, 1], [w_k, b_k]) with one learned scale sigma. h [N, features] -> [N, classes].

    The bias is the weight of an extra input 1 and is normalised together with its row. New rows have weights
    N(0, 0.01²) and biases uniform within 1/sqrt(features), as in the reference.

    Args:
        features, classes, generator: see `Head`.
        scale: sigma's initial value. The reference uses 1 and thousands of updates. A few hundred updates need a larger
            one, since logits within ±1 cannot distinguish many classes.

    >>> head = CosineHead(4, classes=2, generator=torch.Generator().manual_seed(0))
    >>> head.grow(3)
    >>> head.set_rows(torch.tensor([2]), torch.ones(1, 4))
    >>> logits = head(torch.ones(5, 4))
    >>> logits.shape, round(logits[0, 2].item(), 4)
    (torch.Size([5, 3]), 1.0)
    """

    def __init__(self, features: int, classes: int = 0, *, generator: torch.Generator, scale: float = 1.0) -> None:
        super().__init__(features, classes, generator=generator)
        self.scale = scale
        self.sigma = nn.Parameter(torch.tensor(float(scale)))

    def forward(self, h: Tensor) -> Tensor:
        rows = F.normalize(torch.cat([self.weight, self.bias[:, None]], dim=1), dim=1, eps=1e-8)
        return F.linear(self.inputs(h), rows)

    def inputs(self, h: Tensor) -> Tensor:
        return self.sigma * F.normalize(F.pad(h, (0, 1), value=1.0), dim=1, eps=1e-8)

    def reset(self) -> None:
        super().reset()
        with torch.no_grad():
            self.sigma.fill_(self.scale)

    def _draw(self, weight: Tensor, bound: float) -> Tensor:
        return weight.normal_(0.0, 0.01, generator=self.generator)

    def _bias_of(self, means: Tensor) -> Tensor:
        return means.new_ones(len(means))  # the mean of the extra input


class LinearHead(Head):
    """Logits w_k · h + b_k, the usual last layer. h [N, features] -> [N, classes].

    New rows are uniform within 1/sqrt(features), as in torch's linear layer. A row set to a class mean m has the bias
    -|m|²/2, so that the largest logit belongs to the nearest mean.

    >>> head = LinearHead(2, classes=2, generator=torch.Generator().manual_seed(0))
    >>> head.set_rows(torch.tensor([0, 1]), torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    >>> head(torch.tensor([[1.5, 7.0], [2.5, 7.0]])).argmax(1)
    tensor([0, 1])
    """

    def forward(self, h: Tensor) -> Tensor:
        return F.linear(h, self.weight, self.bias)

    def inputs(self, h: Tensor) -> Tensor:
        return F.pad(h, (0, 1), value=1.0)

    def _draw(self, weight: Tensor, bound: float) -> Tensor:
        return weight.uniform_(-bound, bound, generator=self.generator)

    def _bias_of(self, means: Tensor) -> Tensor:
        return -means.square().sum(1) / 2
