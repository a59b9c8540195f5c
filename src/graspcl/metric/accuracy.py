"""Accuracy over the sessions of a run: the matrix first, everything else from it (section 4.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.metric.checks import alike, shaped


@dataclass(frozen=True)
class Accuracies:
    """The accuracy matrix of a run of T sessions, in percent.

    `matrix[t, i]` (t = 0 … T, i = 0 … T) is the accuracy after session t on the test samples of classes that arrived
    in session i; t = 0 is after base initialisation, i = 0 are the base classes; NaN where no class came, and where
    i > t unless classes were predicted ahead of their arrival. `weights[i]` is the number of those test samples.
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

    def forgetting(self) -> float:
        """Mean over the groups i < T of max over t < T of matrix[t, i], minus matrix[T, i] (Chaudhry et al., 2018).

        How far each group has fallen from its best by the end; negative where the end is the best. Base classes are a
        group like any other. NaN if there is no group from before the last session.
        """
        end = self.sessions
        # fmax prefers numbers to NaN, so NaN stays only where a group was never measured.
        best = np.fmax.reduce(self.matrix[:end, :end], axis=0, initial=np.nan)
        return _mean(best - self.matrix[end, :end])

    def backward_transfer(self) -> float:
        """Mean over the groups i < T of matrix[T, i] − matrix[i, i] (Lopez-Paz and Ranzato, 2017).

        What the later sessions did to a group since the one that brought it; negative if they made it worse. NaN if
        there is no group from before the last session.
        """
        end = self.sessions
        return _mean(self.matrix[end, :end] - np.diagonal(self.matrix)[:end])

    def forward_transfer(self, untrained: ArrayLike = 0.0) -> float:
        """Mean over the groups i ≥ 1 of matrix[i − 1, i] − untrained[i] (Lopez-Paz and Ranzato, 2017).

        How well a group is known just before its session, above what an untrained model reaches on it (`untrained`,
        percent: one number, or one per group [T + 1], the first of which is not used). NaN without entries above the
        diagonal, as in class-incremental streams, where no class is predicted before it came.
        """
        floor = np.asarray(untrained, dtype=np.float64)
        if floor.shape not in ((), (len(self.matrix),)):
            raise GraspError(f"untrained must be one number or {len(self.matrix)} of them, not shape {floor.shape}")
        return _mean(np.diagonal(self.matrix, offset=1) - (floor[1:] if floor.ndim else floor))

    def summary(self) -> dict[str, float]:
        """μ_N, μ_O and μ_A, the means over sessions, α, the final accuracy on all classes, and what was forgotten."""
        means = {"mu_new": self.new, "mu_old": self.old, "mu_all": self.all}
        return {
            **{name: _mean(values) for name, values in means.items()},
            "alpha": self.all[-1] if self.all else float("nan"),
            "forgetting": self.forgetting(),
            "backward_transfer": self.backward_transfer(),
        }


def accuracies(
    predictions: Sequence[Array], labels: Array, arrival: Mapping[int, int] | Array, *, ahead: bool = False
) -> Accuracies:
    """The accuracy matrix from predictions [n_test] after base initialisation and after each session.

    Entries of samples whose class had not arrived by then are ignored. `arrival` maps a class to its
    session, or tells the session of each sample [n_test].
    With `ahead`, predictions of classes yet to come are counted too, as where all classes are known from the start;
    a group that was not predicted at all (only −1) stays NaN.

    >>> labels, arrival = np.array([0, 0, 1, 1]), {0: 0, 1: 1}
    >>> result = accuracies([np.array([0, 0, -1, -1]), np.array([0, 1, 1, 1])], labels, arrival)
    >>> result.new, result.old, result.all
    ([100.0], [50.0], [75.0])
    >>> result.summary()["forgetting"]
    50.0
    """
    if isinstance(arrival, Mapping):
        classes, place = np.unique(labels, return_inverse=True)
        arrival = np.array([arrival[int(label)] for label in classes], np.int64)[place]
    came = np.asarray(arrival, np.int64)
    size = len(predictions)
    weights = np.bincount(came, minlength=size)
    matrix = np.full((size, size), np.nan)
    for t, predicted in enumerate(predictions):
        right = np.bincount(came, weights=predicted == labels, minlength=size)[:size]
        known = np.arange(size) <= t
        if ahead:
            known |= np.bincount(came, weights=predicted != -1, minlength=size)[:size] > 0
        known &= weights[:size] > 0
        matrix[t, known] = 100 * right[known] / weights[:size][known]
    return Accuracies(matrix, weights[:size])


def top_k(scores: ArrayLike, rows: ArrayLike, k: int) -> float:
    """Percent of samples whose class is among the k with the highest scores; NaN without samples.

    `scores` [n, classes]; `rows` [n] is the column of each sample's class. Of equal scores the earlier column comes
    first, as with argmax, so that k = 1 is the plain accuracy. With k of all classes or more it is 100.

    >>> top_k([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]], [1, 0], k=2)
    50.0
    """
    scores, rows = np.asarray(scores), np.asarray(rows)
    shaped("scores", scores, dimensions=2)
    shaped("rows", rows)
    alike(scores=scores, rows=rows)
    if k < 1:
        raise GraspError(f"k must be 1 or more, not {k}")
    if np.isnan(scores).any():  # −∞ is fair: it masks a class
        raise GraspError("scores must not be NaN")
    if not len(rows):
        return float("nan")
    classes = scores.shape[1]
    if not np.issubdtype(rows.dtype, np.integer) or rows.min() < 0 or rows.max() >= classes:
        raise GraspError(f"rows must be the columns of scores, whole numbers from 0 to {classes - 1}")
    own = np.take_along_axis(scores, rows[:, None], axis=1)
    before = (scores > own) | ((scores == own) & (np.arange(classes) < rows[:, None]))
    return float(100 * (before.sum(axis=1) < k).mean())


def by_group(predictions: ArrayLike, labels: ArrayLike, groups: Mapping[str, Iterable[int]]) -> dict[str, float]:
    """Accuracy in percent on the samples of each named group of classes; NaN where a group has none.

    >>> by_group([0, 1, 1, 1, 2], [0, 0, 1, 1, 0], {"animals": [0, 1], "plants": [2]})
    {'animals': 60.0, 'plants': nan}
    """
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    for name, array in (("predictions", predictions), ("labels", labels)):
        shaped(name, array)
    alike(predictions=predictions, labels=labels)
    right = predictions == labels
    members = {name: np.isin(labels, list(classes)) for name, classes in groups.items()}
    return {name: float(100 * right[of].mean()) if of.any() else float("nan") for name, of in members.items()}


def head_and_tail(
    predictions: ArrayLike, labels: ArrayLike, counts: Mapping[int, int], threshold: int = 100
) -> tuple[float, float]:
    """α_H and α_T: accuracy on classes with more than `threshold` training samples, and on the others.

    `counts` has the number of training samples of every class among the labels, 0 where there were none. Percent of
    test samples; on a test set with equally many per class, as that of Places-LT, also the mean over classes.

    >>> head_and_tail([0, 0, 0, 1], [0, 0, 1, 1], {0: 101, 1: 100})
    (100.0, 50.0)
    """
    missing = sorted({int(label) for label in np.unique(np.asarray(labels))} - set(counts))
    if missing:
        raise GraspError(
            f"counts lacks {len(missing)} of the classes, first {missing[0]}; give 0 for one never trained"
        )
    head = [label for label, count in counts.items() if count > threshold]
    tail = [label for label, count in counts.items() if count <= threshold]
    found = by_group(predictions, labels, {"head": head, "tail": tail})
    return found["head"], found["tail"]


def _mean(values: Iterable[float]) -> float:
    kept = [value for value in values if not np.isnan(value)]
    return float(np.mean(kept)) if kept else float("nan")
