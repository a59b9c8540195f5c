"""Learners without rehearsal: the network stays as it is, and a linear head is solved from its features.

`ncm`, `slda` and `ranpac` store no sample, only running sums (`Moments`): exact in one pass, in any order. `probe`
(`learner/probe.py`) stores features and trains a logistic regression on them.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from graspcl.buffer import Buffer, Codes
from graspcl.buffer.columns import code_array, label_array
from graspcl.checks import Array, Count, Positive, Share, checked
from graspcl.errors import GraspError
from graspcl.learner.learner import Learner, learners
from graspcl.learner.moments import (
    Moments,
    Rows,
    discriminant_rows,
    likeliest_shrinkage,
    mean_rows,
    no_rows,
    ridge_rows,
    squared_error,
)
from graspcl.learner.optimiser import Optimiser
from graspcl.model import Execution, Outputs, SplitNetwork
from graspcl.policy import Budget, Costs, Policy

_CHUNK = 512  # samples per forward pass
_SHRINKAGES = (1e-4, 1e-3, 1e-2, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
_RIDGES = (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)


def held_out(order: Array) -> Array:
    """Return which samples are held out, about a fifth, by their places `order` [n] in the order of arrival.

    >>> held_out(np.arange(10)).nonzero()[0].tolist()
    [0, 3, 6]
    """
    return np.asarray((order * 2_654_435_761 >> 16) % 5 == 0)


class SolvedHead(Learner):
    """Base class: a frozen network and a linear head that `solve` computes from what `keep` stores of its features.

    Features are the inputs of the network's own head. Where latents are vectors, features are the latents: an encoder
    made them, while the layers behind it often start from random weights. Their width is known from the first sample.

    The head is solved when a prediction or the end of a session needs it, and its time is booked in the session.
    """

    rehearses = False

    def setup(self) -> None:
        self._rows = no_rows()
        self._stale = False  # whether something was learned since the head was solved
        self._seconds = 0.0  # spent on heads that were solved since the last session

    @abstractmethod
    def keep(self, features: torch.Tensor, labels: Array, ids: Any | None) -> None:
        """Keep what `solve` needs of new samples, given their features [n, D]; `buffer.seen` counts them."""

    @abstractmethod
    def solve(self) -> Rows:
        """Return the weights [K, D] and biases [K] of the head, for K classes."""

    def lift(self, features: torch.Tensor) -> torch.Tensor:
        """Return what the head takes, for features [n, D]; by default the same."""
        return features

    def observe_codes(self, codes: Codes, labels: Any, ids: Any | None = None) -> None:
        labels = label_array(labels)
        code_array(codes, len(labels), None, self._ragged)
        self.add_classes(labels)
        self.network.eval()
        for start in range(0, len(labels), _CHUNK):
            part = slice(start, start + _CHUNK)
            with torch.no_grad():
                features = self.read(self.buffer.decode(codes[part], self.device))
            self.keep(features, labels[part], None if ids is None else np.asarray(ids)[part])
            self._stale = True

    def read(self, inputs: torch.Tensor, outputs: Outputs | None = None) -> torch.Tensor:
        """Return the features [n, D] of inputs [n, …], whose `outputs` may be known."""
        if self._are_features(inputs):
            return inputs
        features: torch.Tensor = (self.network(inputs) if outputs is None else outputs).features
        return features

    def _are_features(self, inputs: torch.Tensor) -> bool:
        return inputs.ndim == 2 and inputs.is_floating_point() and not self.network.veridical

    def forward(self, inputs: torch.Tensor) -> Outputs:
        outputs = super().forward(inputs)
        if not len(self._solved()[0]):
            return outputs
        return outputs._replace(logits=self.logits_of(self.read(inputs, outputs)))

    def logits_of(self, features: torch.Tensor) -> torch.Tensor:
        weight, bias = self._solved()
        # In double precision and relative to the largest: logits of a discriminant are large, their differences small.
        logits = F.linear(self.lift(features).to(weight), weight, bias)
        return (logits - logits.amax(1, keepdim=True)).float().to(self.device)

    def _solved(self) -> Rows:
        if self._stale:
            start = time.perf_counter()
            self._rows, self._stale = self.solve(), False
            self._seconds += time.perf_counter() - start
        return self._rows

    def session_budget(self, budget: Budget) -> Budget:
        return Budget(0, budget.batch_size)

    def end_session(self, costs: Costs) -> None:
        super().end_session(costs)
        costs.training_seconds += self._seconds  # of heads that predictions before the session needed
        self._solved()  # the session books this time itself
        self._seconds = 0.0

    def extra_state(self) -> dict[str, Any]:
        weight, bias = self._rows
        return {"head": {"weight": weight.clone(), "bias": bias.clone(), "stale": self._stale}}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        head = state["head"]
        self._rows = (torch.as_tensor(head["weight"]).clone(), torch.as_tensor(head["bias"]).clone())
        self._stale = bool(head["stale"])


class FromMoments(SolvedHead):
    """Base class: keeps moments of features, those of held-out samples apart if a parameter is chosen on them.

    Of processes that learn together, each adds its share of new samples. Sums are added up when they are needed.
    """

    stores = False
    chooses = False  # whether a parameter is chosen on held-out samples; the head is solved with all samples

    def setup(self) -> None:
        super().setup()
        self._moments: list[Moments] = []  # of all samples, or of those to solve with and those held out
        self._shared = False  # whether other processes have samples that are not in these moments

    @property
    def stored_bytes(self) -> int:
        return sum(part.nbytes for part in self._moments)

    def no_moments(self, width: int) -> Moments:
        """Return moments of nothing, for inputs of the head of this width."""
        return Moments(width)

    def observe_codes(self, codes: Codes, labels: Any, ids: Any | None = None) -> None:
        if self.peers.number == 1 or not len(codes):
            super().observe_codes(codes, labels, ids)
            return
        labels, seen = label_array(labels), self.buffer.seen
        code_array(codes, len(labels), None, self._ragged)
        self.add_classes(labels)
        if not self._shared and not self.peers.first:
            for part in self._moments:
                part.zero_()
        own, self._shared, self._stale = self.peers.share(len(labels)), True, True
        with self.peers.apart():
            self.buffer.seen += own.start
            super().observe_codes(codes[own], labels[own])
            if not self._moments:  # not even one sample, which would show how wide features are
                self.keep(self.read(self.buffer.decode(codes[:1], self.device))[:0], labels[:0], None)
        self.buffer.seen = seen + len(labels)

    def _add_up(self) -> None:
        if self._shared:
            self._shared = False
            for part in self._moments:
                part.total(len(self.classes), self.peers.total)

    def keep(self, features: torch.Tensor, labels: Array, ids: Any | None) -> None:
        inputs = self.lift(features).cpu()
        targets = self.rows(torch.as_tensor(labels, dtype=torch.int64, device=self.device)).cpu()
        if not self._moments:
            self._moments = [self.no_moments(inputs.shape[1]) for _ in range(1 + self.chooses)]
        apart = torch.from_numpy(held_out(self.buffer.seen + np.arange(len(labels))) & self.chooses)
        self._moments[0].add(inputs[~apart], targets[~apart])
        self._moments[-1].add(inputs[apart], targets[apart])  # nothing, if none are held out
        self.buffer.seen += len(labels)

    def solve(self) -> Rows:
        self._add_up()
        for part in self._moments:
            part.grow(len(self.classes))
        return self.solve_with(*self._moments)

    @abstractmethod
    def solve_with(self, moments: Moments, apart: Moments | None = None) -> Rows:
        """Return the head for the moments of all samples, or for the sum of both parts."""

    def extra_state(self) -> dict[str, Any]:
        self._add_up()
        moments = {str(place): part.state_dict() for place, part in enumerate(self._moments)}
        return {**super().extra_state(), "moments": moments}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        saved = state["moments"]
        if saved and len(saved) != 1 + self.chooses:
            raise GraspError("the state belongs to a learner that chose its parameter, or to one that did not")
        super().load_extra_state(state)
        self._moments, self._shared = [Moments(0) for _ in saved], False
        for place, part in enumerate(self._moments):
            part.load_state_dict(saved[str(place)])


@learners.register("ncm")
class Ncm(FromMoments):
    """Nearest class mean: predict the class whose mean feature is nearest. No rehearsal, no stored samples.

    Parameters are those of `Learner`; policy and optimiser are not used.

    >>> from graspcl.model import vector_network
    >>> learner = Ncm(vector_network(2, generator=torch.Generator().manual_seed(0)), Buffer())
    >>> learner.observe(torch.tensor([[0.0, 0.0], [0.0, 2.0], [5.0, 1.0]]), [3, 3, 8])
    >>> learner.predict(torch.tensor([[1.0, 1.0], [4.0, 1.0]])).tolist()
    [3, 8]
    """

    def no_moments(self, width: int) -> Moments:
        return Moments(width, second=False)

    def solve_with(self, moments: Moments, apart: Moments | None = None) -> Rows:
        return mean_rows(moments)


@learners.register("slda")
@checked
class Slda(FromMoments):
    """Streaming linear discriminant analysis (Hayes & Kanan 2020). No rehearsal, no stored samples.

    All classes share the covariance within classes, and all are equally likely.

    Args, besides those of `Learner`; policy and optimiser are not used:
        shrinkage: share of a multiple of the identity in the covariance, 0..1. By default the one that makes held-out
            samples likeliest. The published value is 1e-4.

    >>> from graspcl.model import vector_network
    >>> learner = Slda(vector_network(2, generator=torch.Generator().manual_seed(0)), Buffer(), shrinkage=0.1)
    >>> learner.observe(torch.tensor([[0.0, 0.0], [0.0, 2.0], [5.0, 1.0]]), [3, 3, 8])
    >>> learner.predict(torch.tensor([[1.0, 1.0], [4.0, 1.0]])).tolist()
    [3, 8]
    """

    def __init__(
        self,
        network: SplitNetwork,
        buffer: Buffer,
        policy: Policy | str = "grasp",
        optimiser: Optimiser | None = None,
        rng: np.random.Generator | int = 0,
        device: torch.device | str | None = None,
        execution: Execution | None = None,
        shrinkage: Share | None = None,
    ) -> None:
        self.shrinkage, self.chooses = shrinkage, shrinkage is None
        super().__init__(network, buffer, policy, optimiser, rng, device, execution)

    def solve_with(self, moments: Moments, apart: Moments | None = None) -> Rows:
        if apart is None:
            return discriminant_rows(moments, self.shrinkage or 0.0)
        return discriminant_rows(moments + apart, likeliest_shrinkage(moments, apart, _SHRINKAGES))


@learners.register("ranpac")
@checked
class RanPac(FromMoments):
    """RanPAC (McDonnell et al. 2023), second phase: ridge regression on a random ReLU projection of features.

    No rehearsal, no stored samples. Where the regression is ill-conditioned, directions of noise are left out.

    Args, besides those of `Learner`; policy and optimiser are not used:
        dimensions: width of the projection. More are more accurate; memory grows with their square, and time with
            their cube. The published value is 10,000.
        ridge: strength of the penalty, relative to the mean variance of the projected features. By default the one
            with the smallest squared error on held-out samples.
        weighting: whether every "sample" weighs the same or every "class", for long tails. Weights of classes assume
            that all share the covariance within classes.
        layers: outputs of how many layers after the cut are features, side by side: the network's own, and those of
            the layers before, averaged over locations (as in F-OAL and LayUP). The layers must be a chain.

    >>> from graspcl.model import vector_network
    >>> learner = RanPac(vector_network(2, generator=torch.Generator().manual_seed(0)), Buffer(), dimensions=50)
    >>> learner.observe(torch.tensor([[0.0, 1.0], [0.0, 2.0], [5.0, 1.0], [4.0, 1.0]]), [3, 3, 8, 8])
    >>> learner.predict(torch.tensor([[0.0, 1.5], [4.5, 1.0]])).tolist()
    [3, 8]
    """

    def __init__(
        self,
        network: SplitNetwork,
        buffer: Buffer,
        policy: Policy | str = "grasp",
        optimiser: Optimiser | None = None,
        rng: np.random.Generator | int = 0,
        device: torch.device | str | None = None,
        execution: Execution | None = None,
        dimensions: Count = 2_000,
        ridge: Positive | None = None,
        weighting: Literal["sample", "class"] = "sample",
        layers: Count = 1,
    ) -> None:
        self.dimensions, self.ridge, self.weighting, self.layers = dimensions, ridge, weighting, layers
        self.chooses = ridge is None
        super().__init__(network, buffer, policy, optimiser, rng, device, execution)

    def setup(self) -> None:
        super().setup()
        chain = list(self.network.plastic) if isinstance(self.network.plastic, nn.Sequential) else []
        known = sum(_has_weights(part) for part in chain)
        if self.layers > 1 and self.network.veridical:
            raise GraspError(f"ranpac(layers={self.layers}) needs latent rehearsal: leave out layers, or store latents")
        if self.layers > max(1, known):
            raise GraspError(f"ranpac(layers={self.layers}): this network has a chain of {known} layers after the cut")
        self._seed = int(self.rng.integers(2**63))
        self._projection: torch.Tensor | None = None  # [dimensions, D], drawn from the seed

    def read(self, inputs: torch.Tensor, outputs: Outputs | None = None) -> torch.Tensor:
        if self.layers == 1:
            return super().read(inputs, outputs)
        network, found, values = self.network, [], inputs
        with network.execution.autocast():
            for part in cast(nn.Sequential, network.plastic):
                values = part(values)
                if _has_weights(part):
                    found.append(values.flatten(2).mean(2) if values.ndim > 2 else values)
            own = network.neck(values)
        return torch.cat([*found[-self.layers : -1], own], dim=1).float()

    def lift(self, features: torch.Tensor) -> torch.Tensor:
        if self._projection is None:
            generator = torch.Generator().manual_seed(self._seed)
            drawn = torch.randn(self.dimensions, features.shape[1], generator=generator)
            self._projection = drawn.to(self.device)
        return F.relu(F.linear(features, self._projection))

    def solve_with(self, moments: Moments, apart: Moments | None = None) -> Rows:
        parts = [part for part in (moments, apart) if part is not None]
        if self.weighting == "class":
            parts = [part.balanced() for part in parts]
        if apart is None:
            return ridge_rows(parts[0], self.ridge or 1.0)
        best = min(_RIDGES, key=lambda ridge: squared_error(parts[1], *ridge_rows(parts[0], ridge)))
        whole = moments + apart
        return ridge_rows(whole.balanced() if self.weighting == "class" else whole, best)

    def extra_state(self) -> dict[str, Any]:
        return {**super().extra_state(), "projection": str(self._seed)}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        super().load_extra_state(state)
        self._seed, self._projection = int(state["projection"]), None


def _has_weights(part: nn.Module) -> bool:
    return next(part.parameters(), None) is not None
