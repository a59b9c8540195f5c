"""Whether two policies differ, how sure a mean over seeds is, and what updates one policy saves over another."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.metric.checks import alike, filled, numbers, shaped


@dataclass(frozen=True)
class McNemar:
    """McNemar's test of two models on the same samples.

    `only_a` and `only_b` are the numbers of samples that only one of them has right, `p` is the exact two-sided
    probability of a split at least as uneven if both were equally good.
    """

    only_a: int
    only_b: int
    p: float


@dataclass(frozen=True)
class Interval:
    """Mean over n seeds, sample standard deviation (ddof = 1), and confidence interval of the mean."""

    mean: float
    std: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class PairedInterval(Interval):
    """Interval of the mean difference over seeds, and the p of the two-sided paired t-test that it is zero."""

    p: float


def mcnemar(right_a: ArrayLike, right_b: ArrayLike) -> McNemar:
    """McNemar's exact test; `right_a` and `right_b` [n] say of each sample whether a model predicts it rightly.

    The samples that only one has right are flips of a fair coin if both are equally good (binomial test). p is 1
    where there are none.

    >>> mcnemar([True, True, True, True, True], [True, False, False, False, False])
    McNemar(only_a=4, only_b=0, p=0.125)
    """
    a, b = _truths("right_a", right_a), _truths("right_b", right_b)
    alike(right_a=a, right_b=b)
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    if not only_a + only_b:
        return McNemar(0, 0, 1.0)
    from scipy.stats import binomtest

    return McNemar(only_a, only_b, float(binomtest(only_a, only_a + only_b).pvalue))


def interval(values: ArrayLike, confidence: float = 0.95) -> Interval:
    """Mean of values [n] over seeds and its confidence interval by Student's t with n − 1 degrees of freedom.

    With one seed there is no spread to measure: std, low and high are NaN.

    >>> found = interval([60.0, 62.0, 64.0])
    >>> found.mean, found.std, round(found.low, 2), round(found.high, 2), found.n
    (62.0, 2.0, 57.03, 66.97, 3)
    """
    values = numbers("values", values)
    filled("values", values)
    if not 0 < confidence < 1:
        raise GraspError(f"confidence must lie between 0 and 1, not {confidence}")
    n, mean = len(values), float(values.mean())
    if n == 1:
        return Interval(mean, float("nan"), float("nan"), float("nan"), 1)
    from scipy.stats import t

    std = float(values.std(ddof=1))
    half = float(t.ppf((1 + confidence) / 2, n - 1)) * std / n**0.5
    return Interval(mean, std, mean - half, mean + half, n)


def paired_interval(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> PairedInterval:
    """Interval of a − b, where a and b [n] are values of two policies with the same seeds in the same order.

    p is NaN with one seed. Without any spread it is the limit: 1 if all differences are zero, else 0.

    >>> found = paired_interval([61.0, 63.0, 66.0], [60.0, 61.0, 63.0])
    >>> found.mean, found.std, round(found.low, 2), round(found.high, 2), round(found.p, 4)
    (2.0, 1.0, -0.48, 4.48, 0.0742)
    """
    a, b = numbers("a", a), numbers("b", b)
    alike(a=a, b=b)
    filled("a", a)
    found = interval(a - b, confidence)
    if found.n == 1:
        p = float("nan")
    elif found.std == 0:
        p = float(found.mean == 0)
    else:
        from scipy.stats import t

        p = float(2 * t.sf(abs(found.mean) / (found.std / found.n**0.5), found.n - 1))
    return PairedInterval(**asdict(found), p=p)


def updates_to_reach(updates: ArrayLike, accuracies: ArrayLike, target: float) -> float:
    """The smallest number of updates at which a policy's accuracy reaches `target`; NaN if it never does.

    `accuracies` [n] were measured in runs with `updates` [n], in any order, one per number of updates; between them
    the accuracy is taken to be linear. If the run with the fewest updates is there already, its number is returned,
    an upper bound.

    >>> updates_to_reach([100, 200, 300], [50.0, 60.0, 64.0], target=55.0)
    150.0
    """
    spent, reached = _sweep(updates, accuracies)
    goal = float(numbers("target", target, dimensions=0))
    there = reached >= goal
    if not there.any():
        return float("nan")
    end = int(there.argmax())  # the first
    if end == 0:
        return float(spent[0])
    share = (goal - reached[end - 1]) / (reached[end] - reached[end - 1])
    return float((1 - share) * spent[end - 1] + share * spent[end])


def saved_updates(
    updates_a: ArrayLike, accuracies_a: ArrayLike, updates_b: ArrayLike, accuracies_b: ArrayLike
) -> float:
    """The share of b's updates that a saves when it reaches b's best accuracy: 0.4 for "40 % fewer updates".

    With A the highest accuracy of b, and u_a, u_b the fewest updates with which a and b reach it (`updates_to_reach`),
    this is 1 − u_a / u_b. It is negative if a needs more updates than b, and NaN if a never reaches A or if b needs no
    update for it. If a is at A with the fewest updates it was run with, it is a lower bound.

    >>> saved_updates([100, 200], [50.0, 60.0], [100, 200, 300], [40.0, 50.0, 58.0])
    0.4
    """
    best = float(_sweep(updates_b, accuracies_b)[1].max())
    needed_a = updates_to_reach(updates_a, accuracies_a, best)
    needed_b = updates_to_reach(updates_b, accuracies_b, best)
    return 1 - needed_a / needed_b if needed_b else float("nan")


def _truths(name: str, values: ArrayLike) -> Array:
    array = np.asarray(values)
    shaped(name, array)
    if array.dtype != bool and len(array):  # an empty list is of floats
        raise GraspError(f"{name} must be true or false per sample (predictions == labels), not {array.dtype}")
    return array.astype(bool)


def _sweep(updates: ArrayLike, accuracies: ArrayLike) -> tuple[Array, Array]:
    """A compute sweep by rising number of updates."""
    updates, accuracies = numbers("updates", updates), numbers("accuracies", accuracies)
    alike(updates=updates, accuracies=accuracies)
    filled("updates", updates)
    if updates.min() < 0:
        raise GraspError(f"updates must be 0 or more, not {updates.min():g}")
    order = np.argsort(updates)
    updates = updates[order]
    again = updates[1:][np.diff(updates) == 0]
    if len(again):
        raise GraspError(f"updates has {again[0]:g} more than once; take the mean over its runs first")
    return updates, accuracies[order]
