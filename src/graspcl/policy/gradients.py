"""Per-sample gradients as factors, and the policies that compare them: GSS, OCS and grad matching.

Inner products are computed without the gradients themselves. The policies' parameter `gradients` says of which
parameters the gradients are: of the "last_layer", in closed form, or "full": of all that are trainable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from graspcl.checks import Array, Count
from graspcl.errors import GraspError
from graspcl.policy.drawing import best, candidates, draws_per_class, round_robin
from graspcl.policy.policy import IncomingPolicy, PlannedPolicy, Policy, policies

if TYPE_CHECKING:
    from graspcl.policy.session import Session

Kind = Literal["last_layer", "full"]

_BLOCK = 2048  # rows of a product that are summed at once
_GRAM = 4096  # the largest class whose products ⟨g_i, g_j⟩ are all kept in memory (64 MB)
_BACKWARD = "with full gradients as many backward ones"


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


@policies.register("gss")
@dataclass
class Gss(Policy):
    """Gradient-based sample selection, greedy: C_i = max_b cos(g_i, G_b), smallest C first.

    g_i are the gradients of `candidates_per_pick` · n random stored samples. G_b is the mean gradient of the b-th of
    `references` mini-batches of `reference_size` random stored samples. The published method decides what to store: a
    sample with a large C, whose direction the memory already has, tends to be evicted. Here the same score decides what
    to rehearse: the n candidates least similar to the buffer.
    """

    candidates_per_pick: Count = 5
    references: Count = 10
    reference_size: Count = 10
    gradients: Kind = "last_layer"

    needs = frozenset({"gradients"})
    family = "gradient"
    cost = f"candidates_per_pick · n + references · reference_size forward passes per mini-batch; {_BACKWARD}"
    source = "Aljundi et al. 2019"

    def select(self, session: Session, n: int) -> Array:
        stored = np.arange(len(session))
        slots = candidates(stored, self.candidates_per_pick * n, session.rng)
        drawn = [candidates(stored, self.reference_size, session.rng) for _ in range(self.references)]
        both = session.gradients(np.concatenate([slots, *drawn]), full=self.gradients == "full")
        g, *memory = both.split([len(slots), *map(len, drawn)])
        similarity = torch.stack([g.mean_cosines(reference) for reference in memory]).amax(0)
        return best(slots, -similarity, n)


@policies.register("ocs")
@dataclass
class Ocs(IncomingPolicy):
    """Online coreset selection: S(i) = cos(g_i, ḡ) - mean_j cos(g_i, g_j) + τ cos(g_i, g_ref), largest S first.

    g_i are the gradients of `candidates_per_pick` · k random old samples, ḡ is their mean, and j runs over all of them,
    including i. g_ref is the mean gradient of the incoming samples. The published method picks from the stream with the
    memory as reference; here it picks from the memory, with the stream as reference.
    """

    tau: float = 1000.0
    candidates_per_pick: Count = 5
    gradients: Kind = "last_layer"

    needs = frozenset({"new", "gradients"})
    family = "gradient"
    cost = f"⌈n/2⌉ + candidates_per_pick · ⌊n/2⌋ forward passes per mini-batch; {_BACKWARD}"
    source = "Yoon et al. 2022"

    def choose(self, session: Session, incoming: Array, old: Array, k: int) -> Array:
        slots = candidates(old, self.candidates_per_pick * k, session.rng)
        both = session.gradients(np.concatenate([slots, incoming]), full=self.gradients == "full")
        g, reference = both.split([len(slots), len(incoming)])
        similarity, diversity = g.mean_cosines(g), -g.cosines(g).mean(1)
        return best(slots, similarity + diversity + self.tau * g.mean_cosines(reference), k)


@policies.register("grad_matching")
@dataclass
class GradMatching(PlannedPolicy):
    """Per class, the t-th draw (t = 0, 1, …) is argmin_i | ḡ - (S + g_i) / (t + 1) | over the samples not yet drawn.

    g_i is the normalised gradient of sample i, g / (|g| + 1e-8). ḡ is the mean over the class and S the sum of the
    draws so far. When all of a class was drawn, the order repeats. Only ties, and which class comes first in a round,
    are random. The gradients of one class at a time are in memory.
    """

    gradients: Kind = "last_layer"

    needs = frozenset({"labels", "gradients"})
    balanced = True
    family = "gradient"
    cost = "one forward pass over the buffer per session; with full gradients also one backward"
    source = "Campbell & Broderick 2019; per class, without weights, as in Borsos et al. 2020 and Yoon et al. 2022"

    def plan(self, session: Session) -> Array:
        groups, rng, drawn = session.groups, session.rng, []
        each = draws_per_class(groups.number, session.budget.samples)
        for k, draws in zip(rng.permutation(groups.number), each, strict=True):
            if draws:
                members = rng.permutation(groups.each[k])
                g = session.gradients(members, full=self.gradients == "full").normalised()
                drawn.append(np.resize(members[matching_order(g, min(draws, len(g)))], draws))
        return round_robin(np.concatenate(drawn), groups.number)


def matching_order(g: Gradients, number: int) -> Array:
    """Return the indices of `number` gradients; each next one brings the mean so far nearest to the mean of all."""
    # (t + 1)² | ḡ - (S + g_i) / (t + 1) |² = |g_i|² + 2⟨S, g_i⟩ - 2 (t + 1) ⟨ḡ, g_i⟩ + terms that do not depend on i.
    gram = g.dots(g) if len(g) <= _GRAM else None
    means = (g.mean_dots(g) if gram is None else gram.mean(1)).double().numpy(force=True)
    lengths = g.norms().double().square().numpy(force=True)
    sums = np.zeros(len(g))
    order = np.empty(number, np.int64)
    for t in range(number):
        order[t] = i = int(np.argmin(lengths + 2 * sums - 2 * (t + 1) * means))
        lengths[i] = np.inf
        sums += (g.dots(g[i : i + 1])[:, 0] if gram is None else gram[i]).numpy(force=True)
    return order
