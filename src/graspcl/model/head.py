"""Heads: one row per class, and more rows as classes arrive."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.errors import GraspError
from graspcl.model.layers import fork


class Head(nn.Module, ABC):
    """Rows [w_k, b_k] that turn h [N, features] into logits [N, classes]; how, a head's own class says.

    `generator` seeds the head's own one, which initialises the rows; its state travels in `state_dict`, so that a
    resumed run grows the same rows.
    """

    def __init__(self, features: int, classes: int = 0, *, generator: torch.Generator) -> None:
        super().__init__()
        if features < 1 or classes < 0:
            raise GraspError(f"a head needs at least 1 feature and 0 classes, not {features} and {classes}")
        self.features = features
        self.generator = fork(generator)
        self.weight = nn.Parameter(torch.empty(0, features))
        self.bias = nn.Parameter(torch.empty(0))
        self.grow(classes)

    @property
    def classes(self) -> int:
        """The number of rows."""
        return len(self.weight)

    @abstractmethod
    def inputs(self, h: Tensor) -> Tensor:
        """What the rows are multiplied with [N, features + 1].

        The gradient of cross-entropy with respect to the rows is (softmax - onehot) ⊗ this.
        """

    def grow(self, classes: int) -> None:
        """Have at least `classes` rows; old rows keep their values bit for bit.

        Growing replaces the parameters `weight` and `bias`, so optimisers are made after it.
        """
        new = classes - self.classes
        if new <= 0:
            return
        # Drawn on the CPU in float32 whatever the head's device and type: the same rows everywhere.
        weight = self._draw(torch.empty(new, self.features, dtype=torch.float32))
        bound = 1.0 / math.sqrt(self.features)
        bias = torch.empty(new, dtype=torch.float32).uniform_(-bound, bound, generator=self.generator)
        self._replace(
            torch.cat([self.weight.detach(), weight.to(self.weight)]),
            torch.cat([self.bias.detach(), bias.to(self.bias)]),
        )

    def reset(self) -> None:
        """Draw all rows anew."""
        classes = self.classes
        self._replace(self.weight[:0].detach(), self.bias[:0].detach())
        self.grow(classes)

    def set_rows(self, rows: Tensor, means: Tensor) -> None:
        """Make `rows` (int64 [n]) those of classes with the means [n, features]: SIESTA's wake phase."""
        if means.shape != (len(rows), self.features):
            raise GraspError(f"means must be [{len(rows)}, {self.features}], not {list(means.shape)}")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < self.classes:
            raise GraspError(f"rows must lie in 0..{self.classes - 1}, not {rows.tolist()}; grow the head first")
        with torch.no_grad():
            rows = rows.to(self.weight.device)
            self.weight[rows] = means.to(self.weight)
            self.bias[rows] = self._bias_of(means.to(self.weight))

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())

    def extra_repr(self) -> str:
        return f"features={self.features}, classes={self.classes}"

    @abstractmethod
    def _draw(self, weight: Tensor) -> Tensor:
        """Fill the weights [n, features] of new rows."""

    @abstractmethod
    def _bias_of(self, means: Tensor) -> Tensor:
        """Biases [n] of rows whose weights are class means [n, features]."""

    def _replace(self, weight: Tensor, bias: Tensor) -> None:
        self.weight = nn.Parameter(weight, requires_grad=self.weight.requires_grad)
        self.bias = nn.Parameter(bias, requires_grad=self.bias.requires_grad)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take the size of the saved head, so that a run resumes into a fresh network of no classes."""
        saved = state_dict.get(f"{prefix}weight")
        if saved is not None and len(saved) != self.classes:
            self._replace(self.weight.new_empty(len(saved), self.features), self.bias.new_empty(len(saved)))
        super()._load_from_state_dict(state_dict, prefix, *args)


class CosineHead(Head):
    """Logits sigma * cos([h, 1], [w_k, b_k]) with one learned scale sigma. h [N, features] -> [N, classes].

    The bias is the weight of an extra input 1 and is normalised together with its row. New rows have weights
    N(0, 0.01²) and biases uniform within 1/sqrt(features), as in the reference. `scale` is sigma's first value: 1 in
    the reference, whose thousands of updates let it grow; a budget of a few hundred wants a larger one, since logits
    within ±1 cannot tell many classes apart.

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
        """What the normalised rows are multiplied with [N, features + 1]: sigma [h, 1] / |[h, 1]|.

        The gradient of cross-entropy with respect to those rows is (softmax - onehot) ⊗ this.
        """
        return self.sigma * F.normalize(F.pad(h, (0, 1), value=1.0), dim=1, eps=1e-8)

    def reset(self) -> None:
        """Draw all rows anew; the scale is what it was at first."""
        super().reset()
        with torch.no_grad():
            self.sigma.fill_(self.scale)

    def _draw(self, weight: Tensor) -> Tensor:
        return weight.normal_(0.0, 0.01, generator=self.generator)

    def _bias_of(self, means: Tensor) -> Tensor:
        return means.new_ones(len(means))  # the mean of the extra input


class LinearHead(Head):
    """Logits w_k · h + b_k, the usual last layer. h [N, features] -> [N, classes].

    New rows are uniform within 1/sqrt(features), as in torch's own linear layer. A row that is made of a class mean m
    has the bias -|m|²/2: the largest logit is then that of the nearest mean.

    >>> head = LinearHead(2, classes=2, generator=torch.Generator().manual_seed(0))
    >>> head.set_rows(torch.tensor([0, 1]), torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
    >>> head(torch.tensor([[1.5, 7.0], [2.5, 7.0]])).argmax(1)
    tensor([0, 1])
    """

    def forward(self, h: Tensor) -> Tensor:
        return F.linear(h, self.weight, self.bias)

    def inputs(self, h: Tensor) -> Tensor:
        """What the rows are multiplied with [N, features + 1]: [h, 1]."""
        return F.pad(h, (0, 1), value=1.0)

    def _draw(self, weight: Tensor) -> Tensor:
        bound = 1.0 / math.sqrt(self.features)
        return weight.uniform_(-bound, bound, generator=self.generator)

    def _bias_of(self, means: Tensor) -> Tensor:
        return -means.square().sum(1) / 2
