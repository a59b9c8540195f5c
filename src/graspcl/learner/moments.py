"""Class means, covariance and ridge regression from running sums: exact in one pass, in any order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from graspcl.checks import Positive, Share, checked

_BLOCK = 256  # columns of a second moment that are computed at a time
_LEAST = 1e-10  # share of the largest eigenvalue below which a direction counts as noise
_LITTLE = 1e-3  # share of the scatter between classes that counts as scatter within them, if that has less
_PRIOR = 1.0  # strength of the regression that predicts how features have moved, relative to their variance
NEVER = -1e30  # the bias of a class without samples, so that it is not predicted

Rows = tuple[torch.Tensor, torch.Tensor]  # weights [K, D] and biases [K] of a linear head, float64
Judged = tuple[torch.Tensor, torch.Tensor]  # rows of the head [n] and features [n, D] of samples

_TEMPERATURES = tuple(10 ** (step / 6) for step in range(-18, 7))


class Moments:
    """Counts n_k [K], sums s_k [K, D] and the second moment G = Σ h hᵀ [D, D] of features, in float64.

    They determine the class means, the covariance within classes and every ridge regression. Samples can be added in
    any order, and moments of two parts of the data can be added. With `second=False` there are counts and sums alone,
    enough for class means.

    >>> moments = Moments(2).add(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 0]))
    >>> moments.means.tolist(), moments.within.tolist()
    ([[2.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]])
    """

    def __init__(
        self, features: int, classes: int = 0, device: torch.device | str = "cpu", second: bool = True
    ) -> None:
        self.counts = torch.zeros(classes, dtype=torch.float64, device=device)
        self.sums = torch.zeros(classes, features, dtype=torch.float64, device=device)
        self.second = torch.zeros(second * features, second * features, dtype=torch.float64, device=device)

    def add(self, h: torch.Tensor, targets: torch.Tensor) -> Moments:
        """Add features h [n, D] of the classes `targets` [n]; returns the moments themselves."""
        if len(h):
            self.grow(int(targets.max()) + 1)
            h = h.double()
            self.counts += torch.bincount(targets, minlength=len(self.counts))
            self.sums.index_add_(0, targets, h)
            if len(self.second):
                self.second += _gram(h)
        return self

    def grow(self, classes: int) -> None:
        """Make room for at least `classes` classes."""
        if (missing := classes - len(self.counts)) > 0:
            self.counts = torch.cat([self.counts, self.counts.new_zeros(missing)])
            self.sums = torch.cat([self.sums, self.sums.new_zeros(missing, self.sums.shape[1])])

    def zero_(self) -> None:
        """Forget all samples."""
        for part in (self.counts, self.sums, self.second):
            part.zero_()

    def __add__(self, other: Moments) -> Moments:
        classes, device = max(len(self.counts), len(other.counts)), self.sums.device
        total = Moments(self.sums.shape[1], classes, device, bool(len(self.second)))
        for part in (self, other):
            total.counts[: len(part.counts)] += part.counts
            total.sums[: len(part.sums)] += part.sums
            total.second += part.second
        return total

    def __sub__(self, other: Moments) -> Moments:
        """Return the moments without those of some of the same samples."""
        rest = self + Moments(self.sums.shape[1], device=self.sums.device, second=bool(len(self.second)))
        known = len(other.counts)
        rest.grow(known)
        rest.counts[:known] -= other.counts
        rest.sums[:known] -= other.sums
        rest.second -= other.second
        return rest

    def total(self, classes: int, add: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Add up the moments that several processes have of up to `classes` classes; `add` adds up one tensor."""
        self.grow(classes)
        self.counts, self.sums = add(self.counts), add(self.sums)
        if len(self.second):
            second = add(self.second)
            self.second = (second + second.T) / 2  # exactly symmetric, as it is saved, in whatever order it was added

    @property
    def means(self) -> torch.Tensor:
        """The class means [K, D]; zero for a class without samples."""
        return self.sums / self.counts.clamp_min(1)[:, None]

    @property
    def within(self) -> torch.Tensor:
        """The covariance of samples around the means of their classes [D, D]."""
        scatter = self.second - self.sums.T @ self.means
        return scatter / self.counts.sum().clamp_min(1)

    def balanced(self) -> Moments:
        """Return the moments in which every class weighs the same, if all share the covariance within classes."""
        number, means, there = self.counts.sum(), self.means, self.counts > 0
        found = Moments(self.sums.shape[1], device=self.sums.device, second=False)
        found.counts = there * (number / there.sum().clamp_min(1))
        found.sums = means * found.counts[:, None]
        found.second = number * self.within + found.sums.T @ means
        return found

    @property
    def nbytes(self) -> int:
        """What the sums take, in bytes."""
        return self.counts.nbytes + self.sums.nbytes + self.second.nbytes

    def state_dict(self) -> dict[str, Any]:
        """Return the sums; of the symmetric second moment its upper triangle, and nothing of one without samples."""
        width = len(self.second) if self.counts.any() else 0
        rows, columns = torch.triu_indices(width, width, device=self.second.device)
        upper = self.second[:width, :width][rows, columns]
        return {"counts": self.counts.clone(), "sums": self.sums.clone(), "second": upper, "width": len(self.second)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        device, width = self.sums.device, int(state["width"])
        self.counts, self.sums, upper = (
            torch.as_tensor(state[name]).to(device).clone() for name in ("counts", "sums", "second")
        )
        self.second = torch.zeros(width, width, dtype=torch.float64, device=device)
        if len(upper):
            rows, columns = torch.triu_indices(width, width, device=device)
            self.second[rows, columns] = upper
            self.second[columns, rows] = upper


def _gram(h: torch.Tensor) -> torch.Tensor:
    """Return Σ h hᵀ [D, D], exactly symmetric, as it is saved. Blocks below the diagonal are not computed twice."""
    gram = h.new_empty(h.shape[1], h.shape[1])
    for begin in range(0, len(gram), _BLOCK):
        block = slice(begin, begin + _BLOCK)
        part = h[:, block].T @ h[:, begin:]
        gram[block, begin:], gram[begin:, block] = part, part.T
    return (gram + gram.T) / 2


class Movement:
    """How features have moved: the linear map from earlier to present features, from samples that have both.

    It is a ridge regression of the difference, so that features stay where they were as far as nothing is known.
    """

    def __init__(self, width: int, device: torch.device, prior: float = _PRIOR) -> None:
        self.prior = prior
        self._pairs = torch.zeros(2 * width + 1, 2 * width + 1, dtype=torch.float64, device=device)

    def add(self, before: torch.Tensor, now: torch.Tensor) -> None:
        """Add samples by their features [n, D], earlier and present."""
        both = torch.cat([before, now, before.new_ones(len(before), 1)], dim=1).double()
        self._pairs.addmm_(both.T, both)

    def total(self, add: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Add up the samples that several processes have added; `add` adds up one tensor."""
        self._pairs = add(self._pairs)

    def carry(self, moments: Moments) -> Moments:
        """Return what moments of earlier features are in present features."""
        width, number = moments.sums.shape[1], self._pairs[-1, -1]
        means, covariance = self._pairs[-1, :-1] / number, self._pairs[:-1, :-1] / number
        covariance.addr_(means, means, alpha=-1)  # in place: it is the largest of all
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


def no_rows() -> Rows:
    """Return a head without classes."""
    return torch.zeros(0, 0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)


def without_samples(rows: Rows, targets: torch.Tensor) -> Rows:
    """Return the rows of a head that never predicts a class without a sample in `targets` [n]."""
    weight, bias = rows
    there = torch.bincount(targets, minlength=len(bias)) > 0
    return weight, torch.where(there, bias, NEVER)


def scaled_rows(rows: Rows, factor: float) -> Rows:
    """Return rows whose logits are `factor` times as large, in float32.

    The mean row is subtracted first. That changes no probability, and less is lost to rounding.
    """
    weight, bias = rows
    known = bias > NEVER
    if known.any():
        weight = weight - weight[known].mean(0)
        bias = torch.where(known, factor * (bias - bias[known].mean()), NEVER)
    return (factor * weight).float(), bias.float()


def averaged(first: Rows, second: Rows, weight: float, features: torch.Tensor, known: torch.Tensor) -> Rows:
    """Return the mean of two heads, after both are scaled until their logits for `features` [n, D] are equally large.

    The second has this `weight`, the first the rest. They become as large as the geometric mean of what they were: the
    one may be too sure of itself, and the other not sure enough. Classes that the second does not know keep their row
    of the first; `known` [K] tells.
    """
    features = features.double()

    def size(rows: Rows) -> float:
        logits = F.linear(features, rows[0].double(), rows[1].double())[:, known]
        return float(logits.var(1, unbiased=False).mean().sqrt())

    sizes = size(first), size(second)
    if not min(sizes) > 0:  # a single class
        return first
    middle = (sizes[0] * sizes[1]) ** 0.5
    scaled = scaled_rows(first, middle / sizes[0]), scaled_rows(second, middle / sizes[1])
    share = weight * known.float()
    return torch.lerp(scaled[0][0], scaled[1][0], share[:, None]), torch.lerp(scaled[0][1], scaled[1][1], share)


def mean_rows(moments: Moments) -> Rows:
    """Return weights and biases whose largest logit belongs to the nearest class mean."""
    means = moments.means
    return means, torch.where(moments.counts > 0, -means.square().sum(1) / 2, NEVER)


@checked
def discriminant_rows(moments: Moments, shrinkage: Share, within: torch.Tensor | None = None) -> Rows:
    """Return weights [K, D] and biases [K] of linear discriminant analysis with equal priors.

    `within` is the moments' own, for callers that need it for several shrinkages.

    w_k = Λ μ_k and b_k = -½ μ_kᵀ Λ μ_k, where Λ is the inverse of the covariance within classes. The covariance is
    shrunk: (1 - shrinkage) Σ + shrinkage · mean(diag Σ) · I.
    """
    covariance, means = moments.within if within is None else within, moments.means
    # Where every class has one sample there is no scatter within classes; a little of the scatter of all replaces it.
    mean = moments.sums.sum(0) / moments.counts.sum().clamp_min(1)
    between = ((means - mean).square() * moments.counts[:, None]).sum() / moments.counts.sum().clamp_min(1)
    level = torch.maximum(covariance.diagonal().mean(), _LITTLE * between / len(mean))
    level = torch.where(level > 0, level, 1.0)
    covariance = covariance * (1 - shrinkage)
    covariance.diagonal().add_(shrinkage * level)
    weight = solve(covariance, means.T).T
    bias = -(means * weight).sum(1) / 2
    return weight, torch.where(moments.counts > 0, bias, NEVER)


def likeliest_shrinkage(moments: Moments, held_out: Moments, choices: Sequence[float]) -> float:
    """Return the shrinkage under which normal classes with a common covariance make `held_out` likeliest.

    The means and the covariance are those of `moments`. No samples are needed: the scatter of held-out samples around
    the means follows from their own moments.
    """
    means = moments.means
    known = len(held_out.counts)
    means = torch.where(moments.counts[:known, None] > 0, means[:known], held_out.means)
    mixed = held_out.sums.T @ means
    scatter = held_out.second - mixed - mixed.T + means.T @ (held_out.counts[:, None] * means)
    values, vectors = torch.linalg.eigh(moments.within)
    spread = ((vectors.T @ scatter) * vectors.T).sum(1) / held_out.counts.sum().clamp_min(1)  # along each eigenvector
    values = values.clamp_min(0)
    level = values.mean().clamp_min(torch.finfo(torch.float64).tiny)

    def surprise(shrinkage: float) -> float:
        shrunk = (1 - shrinkage) * values + shrinkage * level
        return float(shrunk.log().sum() + (spread / shrunk).sum())

    return min(choices, key=surprise)


def lowest(height: Callable[[int], float], number: int, start: int) -> int:
    """Return where the values `height` [number] have a minimum, going downhill from `start`.

    >>> lowest([5.0, 3.0, 2.0, 4.0].__getitem__, 4, start=0)
    2
    """
    place = start
    while (best := min(range(max(0, place - 1), min(number, place + 2)), key=height)) != place:
        place = best
    return place


def calibrated(judgements: list[tuple[Rows, Judged, Moments]]) -> tuple[float, float]:
    """Return the least cross-entropy of judged samples under rows of the other half, and the factor that gives it.

    The moments are those of the other half. Samples of a class that it does not have judge nothing.
    """
    logits, targets = [], []
    for (weight, bias), (own, features), moments in judgements:
        known = moments.counts[own] > 0
        logits.append(F.linear(features[known].double(), weight, bias))
        targets.append(own[known])
    if not sum(map(len, targets)):
        return math.inf, 1.0
    values, labels = torch.cat(logits), torch.cat(targets)
    return min((float(F.cross_entropy(factor * values, labels)), factor) for factor in _TEMPERATURES)


@checked
def ridge_rows(moments: Moments, ridge: Positive) -> Rows:
    """Return weights [K, D] and biases [K] of the ridge regression of one-hot labels on features.

    They minimise Σ ‖W h + b - y‖² + ridge · mean(diag S) · ‖W‖², where S is the centred second moment. The bias has no
    penalty.
    """
    number = moments.counts.sum().clamp_min(1)
    mean, share = moments.sums.sum(0) / number, moments.counts / number
    centred = moments.second - number * torch.outer(mean, mean)
    cross = moments.sums - moments.counts[:, None] * mean
    level = centred.diagonal().mean().clamp_min(torch.finfo(torch.float64).tiny)
    centred.diagonal().add_(ridge * level)
    weight = solve(centred, cross.T).T
    return weight, torch.where(moments.counts > 0, share - weight @ mean, NEVER)


def squared_error(moments: Moments, weight: torch.Tensor, bias: torch.Tensor) -> float:
    """Return the mean of ‖W h + b - y‖² over the samples in `moments`, without the samples.

    >>> moments = Moments(1).add(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]))
    >>> squared_error(moments, torch.tensor([[0.0], [1.0]]).double(), torch.zeros(2).double())
    1.5
    """
    known = len(moments.counts)
    total, number = moments.sums.sum(0), moments.counts.sum().clamp_min(1)
    bias = torch.where(bias > NEVER, bias, 0)  # a class without samples predicts 0
    predicted = ((weight @ moments.second) * weight).sum() + 2 * bias @ (weight @ total) + number * bias.square().sum()
    agreed = (weight[:known] * moments.sums).sum() + bias[:known] @ moments.counts
    return float((predicted - 2 * agreed + number) / number)


def solve(matrix: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Solve A x = right for a symmetric, positive semidefinite A [D, D]; noise directions are left out.

    Where A is ill-conditioned, for example because there are fewer samples than features, its eigenvectors with an
    eigenvalue of almost zero are left out.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if not failed and factor.diagonal().square().min() > _LEAST * matrix.diagonal().max():
        return torch.cholesky_solve(right, factor)
    values, vectors = torch.linalg.eigh(matrix)
    inverse = torch.where(values > _LEAST * values[-1], 1 / values, 0)
    found: torch.Tensor = vectors @ (inverse[:, None] * (vectors.T @ right))
    return found
