"""Accuracy over the sessions of a run: the accuracy matrix and everything derived from it (section 4.3)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from graspcl.checks import Array, Count, aligned, checked
from graspcl.errors import GraspError


@dataclass(frozen=True)
class Accuracies:
    """The accuracy matrix of a run of T sessions, in percent.

    `matrix[t, i]` is the accuracy after session t on the test samples of classes that arrived in session i. t = 0 is
    after base initialisation, and i = 0 are the base classes. An entry is NaN where no class arrived, and where i > t
    unless classes were predicted before their arrival.
    """

    matrix: Array  # [T + 1, T + 1]
    weights: Array  # number of test samples [T + 1]

    @property
    def sessions(self) -> int:
        """T, the number of rehearsal sessions."""
        return len(self.matrix) - 1

    def at(self, session: int, arrived: slice) -> float:
        """Return the accuracy after a session on all test samples of classes that arrived in a range of sessions."""
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
        """Return the mean over groups i < T of max_{t < T} matrix[t, i] - matrix[T, i] (Chaudhry et al., 2018).

        Negative if the end is the best. Base classes are one of the groups. NaN without a group before session T.
        """
        end = self.sessions
        # fmax ignores NaN unless all are NaN, that is, unless a group was never measured.
        best = np.fmax.reduce(self.matrix[:end, :end], axis=0, initial=np.nan)
        return _mean(best - self.matrix[end, :end])

    def backward_transfer(self) -> float:
        """Return the mean over groups i < T of matrix[T, i] − matrix[i, i] (Lopez-Paz and Ranzato, 2017).

        Negative if later sessions made a group worse. NaN without a group before session T.
        """
        end = self.sessions
        return _mean(self.matrix[end, :end] - np.diagonal(self.matrix)[:end])

    def forward_transfer(self, untrained: ArrayLike = 0.0) -> float:
        """Return the mean over groups i ≥ 1 of matrix[i − 1, i] − untrained[i] (Lopez-Paz and Ranzato, 2017).

        `untrained` is the accuracy of an untrained model in percent: one number, or one per group [T + 1]. NaN without
        entries above the diagonal, as in class-incremental streams, where no class is predicted before it arrives.
        """
        floor = np.asarray(untrained, dtype=np.float64)
        if floor.shape not in ((), (len(self.matrix),)):
            raise GraspError(f"untrained must be one number or {len(self.matrix)} of them, got shape {floor.shape}")
        return _mean(np.diagonal(self.matrix, offset=1) - (floor[1:] if floor.ndim else floor))

    def summary(self) -> dict[str, float]:
        """Return μ_N, μ_O and μ_A (means over sessions), α (final accuracy on all classes), and forgetting."""
        return {
            "mu_new": _mean(self.new),
            "mu_old": _mean(self.old),
            "mu_all": _mean(self.all),
            "alpha": self.all[-1] if self.all else float("nan"),
            "forgetting": self.forgetting(),
            "backward_transfer": self.backward_transfer(),
        }


def accuracies(
    predictions: Sequence[Array], labels: Array, arrival: Mapping[int, int] | Array, *, ahead: bool = False
) -> Accuracies:
    """Return the accuracy matrix from predictions [n_test] after base initialisation and after each session.

    Args:
        predictions: predicted labels [n_test], once after base initialisation and once after each session.
        labels: true labels [n_test].
        arrival: maps a class to its session, or gives the session of each sample [n_test].
        ahead: count predictions of classes before their arrival too. A group without predictions (only −1) is NaN.

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
    weights = np.bincount(came, minlength=size)[:size]
    matrix = np.full((size, size), np.nan)
    for t, predicted in enumerate(predictions):
        right = np.bincount(came, weights=predicted == labels, minlength=size)[:size]
        known = np.arange(size) <= t
        if ahead:
            known |= np.bincount(came, weights=predicted != -1, minlength=size)[:size] > 0
        known &= weights > 0
        matrix[t, known] = 100 * right[known] / weights[known]
    return Accuracies(matrix, weights)


@checked
def top_k(scores: ArrayLike, rows: ArrayLike, k: Count) -> float:
    """Return the percentage of samples whose class is among the k with the highest scores; NaN without samples.

    `scores` [n, classes] may mask a class by −∞; `rows` [n] is the column of each sample's class. For equal scores the
    earlier column comes first, as with argmax, so that k = 1 is the plain accuracy.

    >>> top_k([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]], [1, 0], k=2)
    50.0
    """
    scores = np.asarray(scores)
    if scores.ndim != 2:
        raise GraspError(f"scores must have 2 dimensions, got shape {scores.shape}")
    _, rows = aligned(scores=np.arange(len(scores)), rows=rows)
    if np.isnan(scores).any():
        raise GraspError("scores must not be NaN")
    if not len(rows):
        return float("nan")
    columns = np.arange(scores.shape[1])
    if not np.issubdtype(rows.dtype, np.integer) or not np.isin(rows, columns).all():
        raise GraspError(f"rows must be the columns of scores, whole numbers from 0 to {len(columns) - 1}")
    own = np.take_along_axis(scores, rows[:, None], axis=1)
    before = (scores > own) | ((scores == own) & (columns < rows[:, None]))
    return float(100 * (before.sum(axis=1) < k).mean())


def by_group(predictions: ArrayLike, labels: ArrayLike, groups: Mapping[str, Iterable[int]]) -> dict[str, float]:
    """Return the accuracy in percent on each named group of classes; NaN for a group without samples.

    >>> by_group([0, 1, 1, 1, 2], [0, 0, 1, 1, 0], {"animals": [0, 1], "plants": [2]})
    {'animals': 60.0, 'plants': nan}
    """
    predictions, labels = aligned(predictions=predictions, labels=labels)
    right = predictions == labels
    members = {name: np.isin(labels, list(classes)) for name, classes in groups.items()}
    return {name: float(100 * right[of].mean()) if of.any() else float("nan") for name, of in members.items()}


def head_and_tail(
    predictions: ArrayLike, labels: ArrayLike, counts: Mapping[int, int], threshold: int = 100
) -> tuple[float, float]:
    """Return α_H and α_T: accuracy in percent on classes with more than `threshold` training samples, and on others.

    `counts` is the number of training samples of every class among the labels [n]; 0 if there were none. With equally
    many test samples per class, as in Places-LT, these are also means over classes.

    >>> head_and_tail([0, 0, 0, 1], [0, 0, 1, 1], {0: 101, 1: 100})
    (100.0, 50.0)
    """
    if missing := sorted(set(np.unique(np.asarray(labels)).tolist()) - set(counts)):
        raise GraspError(f"counts lacks {len(missing)} of the classes, first {missing[0]}; give 0 for one without any")
    head = [label for label, count in counts.items() if count > threshold]
    found = by_group(predictions, labels, {"head": head, "tail": counts.keys() - head})
    return found["head"], found["tail"]


def _mean(values: Iterable[float]) -> float:
    kept = [value for value in values if not np.isnan(value)]
    return float(np.mean(kept)) if kept else float("nan")
