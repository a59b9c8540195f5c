"""Per-sample gradients as factors, for the policies that compare them: GSS, OCS and grad matching.

Inner products are computed without forming the gradients. The policies' parameter `gradients` selects the parameters:
"last_layer", the weight of the last layer without its bias, in closed form; or "full", all trainable parameters.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from graspcl.errors import GraspError

if TYPE_CHECKING:
    pass

Kind = Literal["last_layer", "full"]

_BLOCK = 2048  # rows of a product that are summed at once
BACKWARD = "gradients of the last layer's weight; of all trainable parameters if full, with as many backward passes"


class Gradients:
    """Gradients of the loss of n samples, each an outer product of `factors` [n, ·]: ⟨g_i, g_j⟩ = Π_f ⟨f_i, f_j⟩.

    The last layer's gradient under cross-entropy is (softmax - onehot) ⊗ h: two factors instead of K · D numbers. It is
    exact for the weight of a linear last layer; the bias is left out. For a cosine head, with σ [h, 1] / |[h, 1]| in
    place of h, it is the gradient with respect to the normalised rows. Full gradients are a single factor [n, P].

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

    def split(self, sizes: list[int]) -> list[Gradients]:
        """Return the first `sizes[0]` gradients, the next `sizes[1]`, and so on."""
        return [Gradients(*parts) for parts in zip(*(factor.split(sizes) for factor in self.factors), strict=True)]

    def dots(self, other: Gradients) -> torch.Tensor:
        """Return ⟨g_i, g'_j⟩ [n, m]."""
        return reduce(torch.mul, (a @ b.T for a, b in zip(self.factors, other.factors, strict=True)))

    def norms(self) -> torch.Tensor:
        """Return |g_i| [n]."""
        lengths: list[torch.Tensor] = [torch.linalg.vector_norm(factor, dim=1) for factor in self.factors]
        return reduce(torch.mul, lengths)

    def mean_dots(self, others: Gradients) -> torch.Tensor:
        """Return ⟨g_i, ḡ⟩ [n], where ḡ is the mean of `others`."""
        return torch.cat([self[i : i + _BLOCK].dots(others).mean(1) for i in range(0, len(self), _BLOCK)])

    def normalised(self, eps: float = 1e-8) -> Gradients:
        """Return g_i / (|g_i| + ε)."""
        return Gradients(self.factors[0] / (self.norms()[:, None] + eps), *self.factors[1:])

    def cosines(self, other: Gradients, eps: float = 1e-6) -> torch.Tensor:
        """Return cos(g_i, g'_j) [n, m]. A gradient of (almost) zero has cosine 0 with everything."""
        lengths = self.norms()[:, None].clamp_min(eps) * other.norms()[None, :].clamp_min(eps)
        return self.dots(other) / lengths

    def mean_cosines(self, others: Gradients, eps: float = 1e-6) -> torch.Tensor:
        """Return cos(g_i, ḡ) [n], where ḡ is the mean of `others`."""
        length = others.mean_dots(others).mean().clamp_min(0).sqrt()
        return self.mean_dots(others) / (self.norms().clamp_min(eps) * length.clamp_min(eps))


def last_layer_gradients(logits: torch.Tensor, rows: torch.Tensor, features: torch.Tensor) -> Gradients:
    """Return the last layer's gradients from logits [n, K], correct columns `rows` [n] and features [n, D]."""
    residual = torch.softmax(logits, dim=1)
    residual[torch.arange(len(rows), device=rows.device), rows] -= 1
    return Gradients(residual, features)


def full_gradients(network: nn.Module, inputs: torch.Tensor, rows: torch.Tensor) -> Gradients:
    """Return the gradients with respect to all P trainable parameters: n · P numbers, so ask for few samples."""
    weights = _trainable(network)
    # One after the other: vmap, which vectorises over samples, does not support channels-last and other layers.
    each = (_slopes(network, weights, x[None], row[None]) for x, row in zip(inputs, rows, strict=True))
    return Gradients(torch.stack([torch.cat([slope.reshape(-1) for slope in slopes]) for slopes in each]))


def losses_after_step(
    network: nn.Module, inputs: torch.Tensor, rows: torch.Tensor, lr: float, others: torch.Tensor, right: torch.Tensor
) -> torch.Tensor:
    """Return the losses [m] of `others` after a gradient step of rate `lr` on `inputs`. The network does not change."""
    weights = _trainable(network)
    slopes = _slopes(network, weights, inputs, rows)
    with torch.no_grad():
        moved = {name: value - lr * slope for (name, value), slope in zip(weights.items(), slopes, strict=True)}
        logits = torch.func.functional_call(network, moved, (others,)).logits
    return cross_entropy(logits, right, reduction="none")


def _trainable(network: nn.Module) -> dict[str, torch.Tensor]:
    """Trainable parameters by name, detached from the graph, so that nothing is added to their `.grad`."""
    found = {name: value.detach() for name, value in network.named_parameters() if value.requires_grad}
    if not found:
        raise GraspError("the network has no trainable parameter (none requires a gradient): there are no gradients")
    return {name: value.requires_grad_() for name, value in found.items()}


def _slopes(
    network: nn.Module, weights: dict[str, torch.Tensor], inputs: torch.Tensor, rows: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Gradient of the mean loss with respect to each of `weights`; zero for a weight that is not used."""
    with torch.enable_grad():
        loss = cross_entropy(torch.func.functional_call(network, weights, (inputs,)).logits, rows)
        return torch.autograd.grad(loss, list(weights.values()), allow_unused=True, materialize_grads=True)
