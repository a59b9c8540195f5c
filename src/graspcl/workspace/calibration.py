"""How certain predictions are: a temperature, the threshold of "unknown", and how well both do on held-out samples."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from graspcl.checks import Array

_FEWEST = 20  # held-out samples below which nothing is calibrated
_TEMPERATURES = np.geomspace(0.1, 10, 121)
_FALSE_ALARMS = 0.05  # share of held-out samples that the threshold calls unknown
_LEFT_OUT = 50  # classes at most that are left out to measure the AUROC
_BINS = 15  # of the expected calibration error
_REMEMBERED = 1000  # scores of held-out samples to compare later ones with


@dataclass(frozen=True)
class Calibration:
    """What is chosen on held-out samples.

    Attributes:
        temperature: logits are divided by it before the softmax.
        threshold: a sample whose score is below it is unknown; -inf calls nothing unknown.
        auroc: probability that a sample of a learned class scores higher than one of a class left out. It is the mean
            over classes, each left out of the head in turn; None if it cannot be measured. The features were trained
            with the class, so it is an upper bound of what to expect for a new class.
        samples: number of held-out samples.
        scores: of these samples, sorted; 1,000 at most.
    """

    temperature: float = 1.0
    threshold: float = float("-inf")
    auroc: float | None = None
    samples: int = 0
    scores: list[float] = field(default_factory=list)

    def as_plain(self) -> dict[str, Any]:
        """Return values for JSON, which has no infinity."""
        found = asdict(self)
        return {**found, "threshold": None if np.isinf(self.threshold) else self.threshold}

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> Calibration:
        """Return what `as_plain` described."""
        threshold = values["threshold"]
        return cls(**{**values, "threshold": float("-inf") if threshold is None else threshold})

    @property
    def marks(self) -> bool:
        """Whether there were enough held-out samples to tell what is unknown."""
        return self.threshold > float("-inf")

    def probabilities(self, logits: Tensor) -> Array:
        """Return calibrated probabilities [n, classes], in double precision: they tie only if logits do."""
        return (logits.double() / self.temperature).softmax(1).numpy(force=True)

    def unknown(self, logits: Tensor) -> Array:
        """Return which samples look like no learned class [n]."""
        return score(logits) < self.threshold


def score(logits: Tensor) -> Array:
    """Return how much samples look like any learned class [n]: the logarithm of the sum of exp(logits).

    >>> bool(score(torch.tensor([[4.0, 0.0]]))[0] > score(torch.tensor([[1.0, 1.0]]))[0])
    True
    """
    return logits.double().logsumexp(1).numpy(force=True)


def novelty(known: Tensor, new: Tensor) -> float | None:
    """Return the AUROC of classes before they are learned: of held-out samples against samples of new classes.

    Args:
        known: logits [n, classes] of held-out samples.
        new: logits [m, classes] of samples of classes that the head does not know.
    """
    return auroc(score(known), score(new)) if min(len(known), len(new)) >= _FEWEST else None


def calibrate(logits: Tensor, targets: Tensor) -> Calibration:
    """Choose temperature and threshold on held-out samples: `logits` [n, classes] and their correct columns [n]."""
    if len(logits) < _FEWEST:
        return Calibration(samples=len(logits))
    values = logits.double()
    # As if there were one more sample, of any class: where all held-out samples are right, no probability is 1.
    doubt = 1 / (len(logits) + 1)
    losses = [float(F.cross_entropy(values / t, targets, label_smoothing=doubt)) for t in _TEMPERATURES]
    scores = np.sort(score(logits))
    shown = scores[np.linspace(0, len(scores) - 1, min(len(scores), _REMEMBERED)).astype(int)]
    return Calibration(
        temperature=float(_TEMPERATURES[int(np.argmin(losses))]),
        threshold=float(scores[int(_FALSE_ALARMS * len(scores))]),
        auroc=left_out_auroc(logits, targets),
        samples=len(logits),
        scores=[round(float(one), 4) for one in shown],
    )


def left_out_auroc(logits: Tensor, targets: Tensor) -> float | None:
    """Return how well scores tell samples of one class, left out of the head, from all others: the mean over classes.

    The rows of a discriminant have mean zero (`Aligned`). So a head that does not know a class has the logits of the
    others, minus their mean: without that, a sample of the class would have low logits because the class was known.
    Of many classes, 50 are left out in turn.

    >>> certain = 9.0 * torch.eye(3).repeat(2, 1)
    >>> left_out_auroc(certain, torch.tensor([0, 1, 2, 0, 1, 2]))
    1.0
    """
    found, classes, own = [], logits.shape[1], targets.unique()
    some = own[torch.linspace(0, len(own) - 1, min(len(own), _LEFT_OUT)).long()]
    for left_out in some.tolist() if classes > 2 else ():
        others = logits[:, torch.arange(classes) != left_out]
        rest = score(others - others.mean(1, keepdim=True))
        foreign = (targets == left_out).numpy()
        if not foreign.all():
            found.append(auroc(rest[~foreign], rest[foreign]))
    return float(np.mean(found)) if found else None


def auroc(known: Array, unknown: Array) -> float:
    """Return the probability that a score of `known` [n] exceeds one of `unknown` [m]; ties count half.

    >>> auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    ranks = np.searchsorted(np.sort(unknown), known, side="left") + np.searchsorted(np.sort(unknown), known, "right")
    return float(ranks.mean() / (2 * len(unknown)))


def calibration_error(confidence: Array, right: Array) -> float:
    """Return the expected calibration error, 0..1: by how much confidence and accuracy differ, in 15 equal bins.

    Args:
        confidence: the largest probability of each sample [n].
        right: whether its class is the correct one [n].

    >>> calibration_error(np.array([0.8, 0.8]), np.array([True, False]))
    0.30000000000000004
    """
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(bins, confidence - right, _BINS)
    return float(np.abs(gaps).sum() / max(1, len(right)))
