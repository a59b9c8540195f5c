"""Held-out samples: which samples are held out, how a change affects them, and whether a class falls beyond chance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from graspcl.checks import Array
from graspcl.data.splits import rank_in_class

SHARE = 0.1  # of each class that is held out
_FEWEST = 5  # samples from which on a class has held-out ones
_MOST = 50  # held-out samples of a class
TOLERANCE = 5.0  # points by which a class may fall, whatever chance says
LEVEL = 0.05  # probability of refusing a change that only chance makes look worse
GUARDED = math.ceil(-math.log2(LEVEL))  # held-out samples from which on the fall of a class can be beyond chance


def hold_out(ids: Array, labels: Array, seen: dict[int, int], held: dict[int, int]) -> Array:
    """Return which new samples are held out, as a mask [n]: in each class those with the smallest ids.

    A tenth of each class is held out, at least one of five samples and at most 50. What was held out before stays so,
    and a sample that was trained is never held out.

    Args:
        ids: hashes of the contents [n], so the choice does not depend on names or order.
        labels: the classes [n].
        seen: number of samples of each class before, held out or not.
        held: number of held-out samples of each class before.

    >>> hold_out(np.array([8, 3, 5, 9, 7]), np.zeros(5, int), {}, {}).tolist()
    [False, True, False, False, False]
    """
    wanted = np.zeros(len(labels), np.int64)
    for label, new in zip(*np.unique(labels, return_counts=True), strict=True):
        number = seen.get(int(label), 0) + int(new)
        target = min(_MOST, max(1, round(SHARE * number))) if number >= _FEWEST else 0
        wanted[labels == label] = target - held.get(int(label), 0)
    return np.asarray(rank_in_class(labels, ids) < wanted)


class Tally(NamedTuple):
    """How many held-out samples of a class are predicted correctly."""

    right: int
    number: int

    @property
    def points(self) -> float:
        """The accuracy in percent; NaN without samples."""
        return 100 * self.right / self.number if self.number else float("nan")

    def __str__(self) -> str:
        return f"{self.points:.0f} % ({self.right} of {self.number})" if self.number else "–"


def tallies(right: Array, labels: Array) -> dict[int, Tally]:
    """Return the tally of each class, for `right` [n], whether a sample is predicted correctly.

    >>> tallies(np.array([True, False, True]), np.array([4, 4, 7]))
    {4: Tally(right=1, number=2), 7: Tally(right=1, number=1)}
    """
    classes, place = np.unique(labels, return_inverse=True)
    numbers, rights = np.bincount(place), np.bincount(place[right], minlength=len(classes))
    return {
        label: Tally(*both) for label, *both in zip(classes.tolist(), rights.tolist(), numbers.tolist(), strict=True)
    }


@dataclass(frozen=True)
class Change:
    """What a change did to the held-out samples of one class that existed before it."""

    before: Tally
    after: Tally
    lost: int  # samples that only the version before predicts correctly
    gained: int

    @property
    def points(self) -> float:
        """The points of accuracy that were gained, or lost if negative."""
        return self.after.points - self.before.points

    @property
    def chance(self) -> float:
        """Probability of losing at least that many of the samples that changed, if a gain were as likely as a loss.

        It is the one-sided exact test of McNemar.
        """
        changed = self.lost + self.gained
        return float(sum(math.comb(changed, lost) for lost in range(self.lost, changed + 1)) / 2**changed)


def changes(before: Array, after: Array, labels: Array) -> dict[int, Change]:
    """Compare predictions of the same samples: `before` and `after` [n] tell which are correct.

    >>> changes(np.array([True, True]), np.array([False, True]), np.array([3, 3]))[3].points
    -50.0
    """
    old, new = tallies(before, labels), tallies(after, labels)
    lost, gained = tallies(before & ~after, labels), tallies(after & ~before, labels)
    return {label: Change(old[label], new[label], lost[label].right, gained[label].right) for label in old}


def fallen(found: dict[int, Change], tolerance: float = TOLERANCE, level: float = LEVEL) -> list[int]:
    """Return the classes that fall by more than `tolerance` points, and further than chance explains.

    There is one test per class. They are corrected for their number as Tarone does: a class counts as a test only if so
    many of its samples changed that it could be significant at all.

    >>> worse = Change(Tally(10, 10), Tally(0, 10), lost=10, gained=0)
    >>> same = Change(Tally(9, 10), Tally(8, 10), lost=1, gained=0)
    >>> fallen({0: worse, **{label: same for label in range(1, 100)}})
    [0]
    """
    least = np.array([0.5 ** (one.lost + one.gained) for one in found.values()])  # the smallest p that is possible
    tests = next((k for k in range(1, len(least) + 1) if (least <= level / k).sum() <= k), 1)
    return [label for label, one in found.items() if one.points < -tolerance and one.chance <= level / tests]
