"""Whether two policies differ, how certain a mean over seeds is, and how many updates one policy saves."""

from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike

from graspcl.checks import Array, Range, aligned, checked, numbers
from graspcl.errors import GraspError

Confidence = Annotated[float, Range(0, 1, above=True, below=True)]


@dataclass(frozen=True)
class McNemar:
    """McNemar's test of two models on the same samples."""

    only_a: int  # number of samples that only a predicts correctly
    only_b: int
    p: float  # exact two-sided probability of a split at least as uneven if both were equally good


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
    """Interval of the mean difference over seeds, and `p` of the two-sided paired t-test that it is zero."""

    p: float


def mcnemar(right_a: ArrayLike, right_b: ArrayLike) -> McNemar:
    """Run McNemar's exact test. `right_a` and `right_b` [n] are true where a model predicts a sample correctly.

    It is a binomial test of the samples that only one predicts correctly. Without such samples p is 1.

    >>> mcnemar([True, True, True, True, True], [True, False, False, False, False])
    McNemar(only_a=4, only_b=0, p=0.125)
    """
    a, b = aligned(right_a=right_a, right_b=right_b)
    for name, array in (("right_a", a), ("right_b", b)):
        if array.dtype != bool and len(array):  # numpy makes an empty list an array of floats
            raise GraspError(f"{name} must be true or false per sample (predictions == labels), got {array.dtype}")
    a, b = a.astype(bool), b.astype(bool)
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    if not only_a + only_b:
        return McNemar(0, 0, 1.0)
    from scipy.stats import binomtest

    return McNemar(only_a, only_b, float(binomtest(only_a, only_a + only_b).pvalue))


@checked
def interval(values: ArrayLike, confidence: Confidence = 0.95) -> Interval:
    """Return the mean of values [n] over seeds and its confidence interval by Student's t (n − 1 degrees of freedom).

    With one seed, std, low and high are NaN.

    >>> found = interval([60.0, 62.0, 64.0])
    >>> found.mean, found.std, round(found.low, 2), round(found.high, 2), found.n
    (62.0, 2.0, 57.03, 66.97, 3)
    """
    values = numbers("values", values, empty=False)
    n, mean = len(values), float(values.mean())
    if n == 1:
        return Interval(mean, float("nan"), float("nan"), float("nan"), 1)
    from scipy.stats import t

    std = float(values.std(ddof=1))
    half = float(t.ppf((1 + confidence) / 2, n - 1)) * std / n**0.5
    return Interval(mean, std, mean - half, mean + half, n)


def paired_interval(a: ArrayLike, b: ArrayLike, confidence: float = 0.95) -> PairedInterval:
    """Return the interval of a − b, where a and b [n] are values of two policies with the same seeds in the same order.

    p is NaN with one seed. If all differences are equal it is the limit: 1 if they are zero, else 0.

    >>> found = paired_interval([61.0, 63.0, 66.0], [60.0, 61.0, 63.0])
    >>> found.mean, found.std, round(found.low, 2), round(found.high, 2), round(found.p, 4)
    (2.0, 1.0, -0.48, 4.48, 0.0742)
    """
    a, b = aligned(a=numbers("a", a, empty=False), b=numbers("b", b))
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
    """Return the smallest number of updates at which a policy's accuracy reaches `target`; NaN if it never does.

    `updates` [n] and `accuracies` [n] are those of its runs, in any order, each number of updates once. The accuracy is
    interpolated linearly. If the run with the fewest updates already reaches the target, its number is returned, an
    upper bound.

    >>> updates_to_reach([100, 200, 300], [50.0, 60.0, 64.0], target=55.0)
    150.0
    """
    spent, reached = _sweep(updates, accuracies)
    goal = float(numbers("target", target, dimensions=0))
    there = reached >= goal
    end = int(there.argmax())  # the first
    if end == 0:
        return float(spent[0] if there[0] else "nan")
    share = (goal - reached[end - 1]) / (reached[end] - reached[end - 1])
    return float((1 - share) * spent[end - 1] + share * spent[end])


def saved_updates(
    updates_a: ArrayLike, accuracies_a: ArrayLike, updates_b: ArrayLike, accuracies_b: ArrayLike
) -> float:
    """Return the share of b's updates that a saves when it reaches b's best accuracy: 0.4 for "40 % fewer updates".

    This is 1 − u_a / u_b, where u_a and u_b are the fewest updates (`updates_to_reach`) to the best accuracy A of b. It
    is negative if a needs more updates than b, and NaN if a never reaches A or b needs no update for it. It is a lower
    bound if a reaches A with the fewest updates it was run with.

    >>> saved_updates([100, 200], [50.0, 60.0], [100, 200, 300], [40.0, 50.0, 58.0])
    0.4
    """
    best = float(_sweep(updates_b, accuracies_b)[1].max())
    needed_a = updates_to_reach(updates_a, accuracies_a, best)
    needed_b = updates_to_reach(updates_b, accuracies_b, best)
    return 1 - needed_a / needed_b if needed_b else float("nan")


def _sweep(updates: ArrayLike, accuracies: ArrayLike) -> tuple[Array, Array]:
    """A compute sweep, sorted by the number of updates."""
    updates, accuracies = numbers("updates", updates, empty=False), numbers("accuracies", accuracies)
    aligned(updates=updates, accuracies=accuracies)
    if updates.min() < 0:
        raise GraspError(f"updates must be 0 or more, got {updates.min():g}")
    found, order, times = np.unique(updates, return_index=True, return_counts=True)
    if times.max() > 1:
        raise GraspError(f"updates has {found[times > 1][0]:g} more than once; take the mean over its runs first")
    return found, accuracies[order]
