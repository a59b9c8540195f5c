"""The default learner: a head solved in closed form, rehearsal of the plastic part against it, and the head again.

A trained head follows the features slowly: after a few hundred updates it hides what rehearsal has improved below it.
Here it is never trained. It is the linear discriminant of the features, which follows from running sums (`Moments`),
so it knows a new class at once and fits the features after every session.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.buffer import Codes
from graspcl.checks import Array
from graspcl.learner.learner import Learner, learners
from graspcl.learner.moments import NEVER, Moments, Rows, discriminant_rows, solve
from graspcl.learner.optimiser import Optimiser
from graspcl.learner.rehearsal import Batch
from graspcl.model import LinearHead, Outputs
from graspcl.policy import Costs

Judged = tuple[Tensor, Tensor]  # rows of the head [n] and features [n, D]

_CHUNK = 512  # samples per forward pass
_JUDGES = 1024  # samples of each half at most on which shrinkage and temperature are chosen
_SHRINKAGES = (1e-3, 1e-2, 0.1, 0.3, 0.6, 0.9)
_PRIOR = 1.0  # strength of the regression that predicts how features have moved, relative to their variance
_TEMPERATURES = tuple(10 ** (step / 6) for step in range(-18, 7))


@learners.register("aligned")
class Aligned(Learner):
    """Rehearsal of the plastic part between two solutions of the head: the default learner.

    1. New samples enter the sums of their class at once. Predictions use the discriminant of all sums.
    2. A session rehearses the plastic part against fixed rows. They are cross-fitted: samples are in two halves, and
       each half trains against the rows of the other. Rows solved on the samples they train have almost no loss where
       a class has few of them, and nothing would be learned.
    3. After the session the sums are computed again, with the features as they are now. For samples that the buffer no
       longer holds they are predicted: a linear map from the features of the network as it came, whose sums are exact
       for all samples ever seen, to those of today. It is fitted on the stored samples.

    Shrinkage and temperature of the discriminant are those under which each half's rows make the other half's classes
    likeliest. So the logits are calibrated.

    Rows of a head that was trained before are not used: a class is known once it has a sample.

    Parameters are those of `Learner`; the optimiser is AdamW by default.

    >>> from graspcl import Buffer
    >>> from graspcl.model import vector_network
    >>> from graspcl.policy import Budget
    >>> learner = Aligned(vector_network(4, generator=torch.Generator().manual_seed(0)), Buffer(), "grasp")
    >>> learner.observe(torch.eye(4), [0, 0, 1, 1])
    >>> learner.predict(torch.eye(4)).tolist()
    [0, 0, 1, 1]
    >>> learner.rehearse(Budget(updates=3, batch_size=2)).coverage
    1.0
    """

    optimiser_by_default = Optimiser("adamw", 3e-4, weight_decay=0.01, layer_decay=1.0, schedule="linear")

    def setup(self) -> None:
        network = self.network
        self._new_head()
        # What the network computed when it came; its features of a sample never change.
        self._original = copy.deepcopy(nn.Sequential(network.plastic, network.neck)).eval().requires_grad_(False)
        self._halves = [self._no_moments(), self._no_moments()]  # of all samples that are stored or new
        self._gone = self._no_moments()  # predicted, of samples that are neither
        self._seen = self._no_moments()  # of all samples, in the original features; nothing where nothing can be gone
        self._crossed: list[Rows] = []  # during a session, the rows against which each half trains
        self._shrinkage = _SHRINKAGES[-1]
        self._stale = False  # whether the head misses samples

    def _new_head(self) -> None:
        width, generator = self.network.head.features, torch.Generator().manual_seed(0)
        head = LinearHead(width, len(self.classes), generator=generator)
        self.network.head = head.to(self.device).requires_grad_(False)

    def relearn(self, classes: Sequence[int]) -> None:
        """Know `classes` alone, from the samples that are stored now: call it after others were removed or relabelled.

        The head has rows of these classes only. All sums are computed again, so samples that the buffer lost before
        count no more. The plastic part does not change.
        """
        self._set_classes(classes)
        self._new_head()
        self._seen = self._no_moments()
        judged = self._measure_again()
        if self._forgets:
            for begin in range(0, len(self.buffer), _CHUNK):
                slots = np.arange(begin, min(begin + _CHUNK, len(self.buffer)))
                inputs, labels = self.buffer.fetch(slots, self.device)
                self._seen.add(self._originally(inputs), self.rows(labels))
        self._solve((self._shrinkage,), judged)

    def _no_moments(self) -> Moments:
        return Moments(self.network.head.features, device=self.device)

    @property
    def _forgets(self) -> bool:
        """Whether the buffer can lose samples."""
        return not self.buffer.unbounded

    @property
    def _has_forgotten(self) -> bool:
        """Whether the buffer has lost samples."""
        return self._forgets and bool(self._seen.counts.sum() > len(self.buffer))

    def learn_online(self, outputs: Outputs, targets: Tensor) -> None:
        births = self.buffer.seen - len(targets) + np.arange(len(targets))
        self._add(outputs.features, targets, births)
        self._stale = True

    def observe_codes(self, codes: Codes, labels: Any, ids: Any | None = None) -> None:
        super().observe_codes(codes, labels, ids)
        if self._forgets:
            targets = self.rows(torch.as_tensor(np.asarray(labels), dtype=torch.int64, device=self.device))
            for begin in range(0, len(targets), _CHUNK):
                part = slice(begin, begin + _CHUNK)
                self._seen.add(self._originally(self.buffer.decode(codes[part], self.device)), targets[part])

    def _add(self, features: Tensor, targets: Tensor, births: Array) -> None:
        half = torch.from_numpy(_half(births)).to(self.device)
        for number, moments in enumerate(self._halves):
            moments.add(features[half == number], targets[half == number])

    def _originally(self, inputs: Tensor) -> Tensor:
        with torch.no_grad(), self.network.execution.autocast():
            features: Tensor = self._original(inputs)
        return features.float()

    def outputs(self, samples: Codes, part: str, coded: bool = True) -> Tensor:
        if part == "logits" and self._stale:
            self._solve()
        return super().outputs(samples, part, coded)

    def begin_session(self) -> None:
        self._crossed = self._solve()

    def loss(self, batch: Batch) -> Tensor:
        half = torch.from_numpy(_half(self.buffer.births[batch.slots])).to(self.device)
        first, second = (F.linear(batch.outputs.features, *rows) for rows in self._crossed)
        return F.cross_entropy(torch.where(half[:, None] == 0, first, second), batch.targets)

    def end_session(self, costs: Costs) -> None:
        super().end_session(costs)
        self._crossed = []
        if costs.updates:
            # The shrinkage stays: the samples have been trained, and can no longer judge it.
            self._solve((self._shrinkage,), self._measure_again())
            costs.training_forward += len(self.buffer) * (1 + self._has_forgotten)
        elif self._stale:
            self._solve()

    def _measure_again(self) -> list[Judged]:
        """Compute the moments with the network as it is now; return the judges of each half."""
        buffer = self.buffer
        self._halves = [self._no_moments(), self._no_moments()]
        stored, moved = self._no_moments(), Movement(self.network.head.features, self.device)
        judges, judged = self._judges(), []
        for begin in range(0, len(buffer), _CHUNK):
            slots = np.arange(begin, min(begin + _CHUNK, len(buffer)))
            inputs, targets, features = self._features(slots)
            self._add(features, targets, buffer.births[slots])
            here = [torch.from_numpy(np.flatnonzero(np.isin(slots, half))).to(self.device) for half in judges]
            judged.append([(targets[rows], features[rows]) for rows in here])
            if self._has_forgotten:
                before = self._originally(inputs)
                stored.add(before, targets)
                moved.add(before, features)
        self._gone = moved.carry(self._seen - stored) if self._has_forgotten else self._no_moments()
        parts = [zip(*(chunk[half] for chunk in judged), strict=True) for half in (0, 1)]
        return [(torch.cat(targets), torch.cat(features)) for targets, features in parts]

    def _features(self, slots: Array) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs, the rows of the head and the features of stored samples."""
        inputs, labels = self.buffer.fetch(slots, self.device)
        with torch.no_grad():
            features = self.network.eval()(inputs).features
        return inputs, self.rows(labels), features

    def _judges(self) -> list[Array]:
        """Return the slots of some samples of each half, on which shrinkage and temperature are chosen."""
        halves = _half(self.buffer.births)
        return [_spread(np.flatnonzero(halves == number), _JUDGES) for number in (0, 1)]

    def _solve(self, shrinkages: Sequence[float] = _SHRINKAGES, judged: list[Judged] | None = None) -> list[Rows]:
        """Solve the head with all samples; return the rows against which each half trains."""
        if judged is None:
            judged = [self._features(slots)[1:] for slots in self._judges()]
        for moments in (*self._halves, self._gone):
            moments.grow(len(self.classes))
        first, second = self._halves
        others = [second + self._gone, first + self._gone]  # what half 0 and half 1 do not train
        # Choose the shrinkage and the temperature under which rows of the others make the judges likeliest.
        tried = {shrinkage: [discriminant_rows(moments, shrinkage) for moments in others] for shrinkage in shrinkages}
        found = {shrinkage: _calibrated(rows, judged, others) for shrinkage, rows in tried.items()}
        self._shrinkage = min(found, key=lambda shrinkage: found[shrinkage])
        temperature = found[self._shrinkage][1]
        weight, bias = _scaled(discriminant_rows(first + others[0], self._shrinkage), temperature)
        with torch.no_grad():
            self.network.head.weight.copy_(weight)
            self.network.head.bias.copy_(bias)
        self._stale = False
        crossed = []
        for rows, moments in zip(tried[self._shrinkage], others, strict=True):
            # A class without samples in the other half is an exception: it trains against the rows of all samples.
            known, (own, shift) = moments.counts > 0, _scaled(rows, temperature)
            crossed.append((torch.where(known[:, None], own, weight), torch.where(known, shift, bias)))
        return crossed

    def extra_state(self) -> dict[str, Any]:
        moments = {"first": self._halves[0], "second": self._halves[1], "gone": self._gone, "seen": self._seen}
        crossed = {str(half): {"weight": w.clone(), "bias": b.clone()} for half, (w, b) in enumerate(self._crossed)}
        original = {name: value.clone() for name, value in self._original.state_dict().items()}
        sums = {name: one.state_dict() for name, one in moments.items()}
        return {
            "original": original,
            "moments": sums,
            "crossed": crossed,
            "stale": self._stale,
            "shrinkage": self._shrinkage,
        }

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self._original.load_state_dict(state["original"])
        first, second, self._gone, self._seen = (self._no_moments() for _ in range(4))
        for name, one in {"first": first, "second": second, "gone": self._gone, "seen": self._seen}.items():
            one.load_state_dict(state["moments"][name])
        self._halves = [first, second]
        self._crossed = [
            (
                torch.as_tensor(rows["weight"]).to(self.device).clone(),
                torch.as_tensor(rows["bias"]).to(self.device).clone(),
            )
            for rows in state["crossed"].values()
        ]
        self._stale, self._shrinkage = bool(state["stale"]), float(state["shrinkage"])


def _half(births: Array) -> Array:
    """Return the half, 0 or 1, of samples with these places [n] in the order of arrival.

    Multiples of the golden ratio: halves are equally large, whatever the period in which classes arrive.
    """
    return (births.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(63)).astype(np.int64)


def _spread(slots: Array, number: int) -> Array:
    """Return `number` of the `slots`, at equal distances, or all of them."""
    return slots[np.linspace(0, len(slots) - 1, min(number, len(slots))).astype(np.int64)]


def _calibrated(rows: list[Rows], judged: list[Judged], others: list[Moments]) -> tuple[float, float]:
    """Return the least cross-entropy of judged samples under the rows of the other half, and the factor that gives it.

    Samples of a class that the other half does not have judge nothing.
    """
    logits, targets = [], []
    for (own, features), (weight, bias), moments in zip(judged, rows, others, strict=True):
        known = moments.counts[own] > 0
        logits.append(F.linear(features[known].double(), weight, bias))
        targets.append(own[known])
    if not sum(map(len, targets)):
        return math.inf, 1.0
    values, labels = torch.cat(logits), torch.cat(targets)
    return min((float(F.cross_entropy(factor * values, labels)), factor) for factor in _TEMPERATURES)


def _scaled(rows: Rows, factor: float) -> Rows:
    """Return rows whose logits are `factor` times as large, in float32.

    The mean row is subtracted first. That changes no probability, and less is lost to rounding.
    """
    weight, bias = rows
    known = bias > NEVER
    if known.any():
        weight = weight - weight[known].mean(0)
        bias = torch.where(known, factor * (bias - bias[known].mean()), NEVER)
    return (factor * weight).float(), bias.float()


class Movement:
    """How features have moved: the linear map from earlier to present features, from samples that have both.

    It is a ridge regression of the difference, so that features stay where they were as far as nothing is known.
    """

    def __init__(self, width: int, device: torch.device, prior: float = _PRIOR) -> None:
        self.prior = prior
        self._pairs = torch.zeros(2 * width + 1, 2 * width + 1, dtype=torch.float64, device=device)

    def add(self, before: Tensor, now: Tensor) -> None:
        """Add samples by their features [n, D], earlier and present."""
        both = torch.cat([before, now, before.new_ones(len(before), 1)], dim=1).double()
        self._pairs.addmm_(both.T, both)

    def carry(self, moments: Moments) -> Moments:
        """Return what moments of earlier features are in present features."""
        width, number = moments.sums.shape[1], self._pairs[-1, -1]
        means, second = self._pairs[-1, :-1] / number, self._pairs[:-1, :-1] / number
        covariance = second - torch.outer(means, means)
        old, new = slice(0, width), slice(width, None)
        shrunk = covariance[old, old].clone()
        shrunk.diagonal().add_(self.prior * shrunk.diagonal().mean())
        move = solve(shrunk, covariance[old, new] - covariance[old, old]).T + torch.eye(width).to(shrunk)
        shift = means[new] - move @ means[old]
        mixed = move @ covariance[old, new]
        rest = covariance[new, new] - mixed - mixed.T + move @ covariance[old, old] @ move.T  # what the map misses
        counts, total = moments.counts, moments.sums.sum(0)
        carried = Moments(width, device=counts.device, second=False)
        carried.counts, carried.sums = counts.clone(), moments.sums @ move.T + torch.outer(counts, shift)
        cross = torch.outer(move @ total, shift)
        carried.second = move @ moments.second @ move.T + cross + cross.T
        carried.second += counts.sum() * (torch.outer(shift, shift) + rest)
        carried.second = (carried.second + carried.second.T) / 2  # exactly symmetric, as it is saved
        return carried
