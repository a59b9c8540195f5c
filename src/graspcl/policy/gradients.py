"""Per-sample gradients as factors, so that their inner products never need the gradients themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Gradients:
    """Gradients of the loss of n samples, each an outer product of `factors` [n, ·]: ⟨g_i, g_j⟩ = Π_f ⟨f_i, f_j⟩.

    The last layer's gradient under cross-entropy is (softmax - onehot) ⊗ h: two factors instead of K · D numbers. It is
    exact for a linear last layer; for a cosine head it is the gradient with respect to the normalised rows, up to the
    length of h. Gradients of the whole plastic network are a single factor.

    >>> g = Gradients(torch.tensor([[1.0, -1.0], [0.0, 2.0]]), torch.tensor([[1.0], [3.0]]))
    >>> g.dots(g).tolist(), g.norms().tolist()
    ([[2.0, -6.0], [-6.0, 36.0]], [1.4142135381698608, 6.0])
    """

    def __init__(self, *factors: torch.Tensor) -> None:
        self.factors = factors

    def __len__(self) -> int:
        return len(self.factors[0])

    def __getitem__(self, which: Any) -> Gradients:
        return Gradients(*(factor[which] for factor in self.factors))

    def dots(self, other: Gradients) -> torch.Tensor:
        """⟨g_i, g'_j⟩ [n, m]."""
        product: torch.Tensor = self.factors[0] @ other.factors[0].T
        for mine, theirs in zip(self.factors[1:], other.factors[1:], strict=True):
            product = product * (mine @ theirs.T)
        return product

    def norms(self) -> torch.Tensor:
        """|g_i| [n]."""
        product: torch.Tensor = torch.linalg.vector_norm(self.factors[0], dim=1)
        for factor in self.factors[1:]:
            product = product * torch.linalg.vector_norm(factor, dim=1)
        return product

    def cosines(self, other: Gradients, eps: float = 1e-6) -> torch.Tensor:
        """cos(g_i, g'_j) [n, m]; a gradient of (almost) nothing has cosine 0 with everything."""
        lengths = self.norms()[:, None].clamp_min(eps) * other.norms()[None, :].clamp_min(eps)
        return self.dots(other) / lengths

    def mean_cosines(self, others: Gradients, eps: float = 1e-6) -> torch.Tensor:
        """cos(g_i, ḡ) [n], ḡ the mean of `others`."""
        length = others.dots(others).mean().clamp_min(0).sqrt()
        return self.dots(others).mean(1) / (self.norms().clamp_min(eps) * length.clamp_min(eps))


def last_layer_gradients(logits: torch.Tensor, rows: torch.Tensor, features: torch.Tensor) -> Gradients:
    """Gradients of cross-entropy with respect to the last layer: logits [n, K], rows [n] (the right ones), h [n, D]."""
    residual = torch.softmax(logits, dim=1)
    residual[torch.arange(len(rows), device=rows.device), rows] -= 1
    return Gradients(residual, features)


def full_gradients(network: nn.Module, inputs: torch.Tensor, rows: torch.Tensor) -> Gradients:
    """Gradients of cross-entropy with respect to everything in `network` that learns, one sample at a time."""
    weights = {name: value.detach() for name, value in network.named_parameters() if value.requires_grad}

    def loss(parameters: dict[str, torch.Tensor], one: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        logits = torch.func.functional_call(network, parameters, (one[None],)).logits
        return torch.nn.functional.cross_entropy(logits, row[None])

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, inputs, rows)
    return Gradients(torch.cat([part.reshape(len(inputs), -1) for part in each.values()], dim=1))


def losses_after_step(
    network: nn.Module,
    inputs: torch.Tensor,
    rows: torch.Tensor,
    lr: float,
    others: torch.Tensor,
    other_rows: torch.Tensor,
) -> torch.Tensor:
    """Losses [m] of `others` after one plain gradient step of rate `lr` on `inputs`; the network stays as it is."""
    weights = {
        name: value.detach().requires_grad_() for name, value in network.named_parameters() if value.requires_grad
    }
    with torch.enable_grad():
        logits = torch.func.functional_call(network, weights, (inputs,)).logits
        loss = torch.nn.functional.cross_entropy(logits, rows)
        slopes = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    with torch.no_grad():
        moved = {
            name: value if slope is None else value - lr * slope
            for (name, value), slope in zip(weights.items(), slopes, strict=True)
        }
        logits = torch.func.functional_call(network, moved, (others,)).logits
    return torch.nn.functional.cross_entropy(logits, other_rows, reduction="none")
