"""Accuracy over the sessions of a run: the matrix first, everything else from it (section 4.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Accuracies:
    """The accuracy matrix of a run of T sessions, in percent.

    `matrix[t, i]` (t = 0 … T, i = 0 … T) is the accuracy after session t on the test samples of classes that arrived
    in session i; t = 0 is after base initialisation, i = 0 are the base classes; NaN where i > t or no class came.
    `weights[i]` is the number of those test samples.
    """

    matrix: Array
    weights: Array

    @property
    def sessions(self) -> int:
        """T, the number of rehearsal sessions."""
        return len(self.matrix) - 1

    def at(self, session: int, arrived: slice) -> float:
        """Accuracy after a session on all test samples of classes that arrived in a range of sessions."""
        row, weight = self.matrix[session, arrived], self.weights[arrived]
        there = ~np.isnan(row)
        return float(np.average(row[there], weights=weight[there])) if weight[there].sum() else float("nan")

    @property
    def new(self) -> list[float]:
        """After each session, on the classes it brought."""
        return [self.at(t, slice(t, t + 1)) for t in range(1, self.sessions + 1)]

    @property
    def old(self) -> list[float]:
        """After each session, on all classes before it."""
        return [self.at(t, slice(0, t)) for t in range(1, self.sessions + 1)]

    @property
    def all(self) -> list[float]:
        """After each session, on all classes so far: α_t."""
        return [self.at(t, slice(0, t + 1)) for t in range(1, self.sessions + 1)]

    def summary(self) -> dict[str, float]:
        """μ_N, μ_O and μ_A, the means over sessions, and α, the final accuracy on all classes."""
        means = {"mu_new": self.new, "mu_old": self.old, "mu_all": self.all}
        return {
            **{name: _mean(values) for name, values in means.items()},
            "alpha": self.all[-1] if self.all else float("nan"),
        }


def accuracies(predictions: Sequence[Array], labels: Array, arrival: Mapping[int, int]) -> Accuracies:
    """The accuracy matrix from predictions [n_test] after base initialisation and after each session.

    Entries of samples whose class had not arrived by then are ignored. `arrival` maps a class to its session.

    >>> labels, arrival = np.array([0, 0, 1, 1]), {0: 0, 1: 1}
    >>> result = accuracies([np.array([0, 0, -1, -1]), np.array([0, 1, 1, 1])], labels, arrival)
    >>> result.summary()
    {'mu_new': 100.0, 'mu_old': 50.0, 'mu_all': 75.0, 'alpha': 75.0}
    """
    came = np.array([arrival[int(label)] for label in np.unique(labels)])[np.unique(labels, return_inverse=True)[1]]
    size = len(predictions)
    weights = np.bincount(came, minlength=size)
    matrix = np.full((size, size), np.nan)
    for t, predicted in enumerate(predictions):
        right = np.bincount(came, weights=predicted == labels, minlength=size)[:size]
        known = (np.arange(size) <= t) & (weights[:size] > 0)
        matrix[t, known] = 100 * right[known] / weights[:size][known]
    return Accuracies(matrix, weights[:size])


def _mean(values: list[float]) -> float:
    kept = [value for value in values if not np.isnan(value)]
    return float(np.mean(kept)) if kept else float("nan")
