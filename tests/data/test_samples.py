"""The checks that every source of samples inherits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from graspcl.data import Samples
from graspcl.errors import GraspError


class Numbers(Samples[list[str]]):
    def read(self, indices: ArrayLike) -> list[str]:
        return [str(index) for index in self.check(indices)]


def numbers(**changes: Any) -> Numbers:
    plain: dict[str, Any] = {"name": "numbers", "version": "1", "classes": ["a", "b"]}
    plain |= {"labels": [0, 0, 1], "ids": [5, 6, 7], "train": [0], "test": [2]}
    return Numbers(**(plain | changes))


def test_arrays_are_int64_and_read_only() -> None:
    samples = numbers()
    for array in (samples.labels, samples.ids, samples.train, samples.test):
        assert array.dtype == np.int64
        with pytest.raises(ValueError):
            array[0] = 1


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"ids": [5, 6]}, "3 labels but 2 ids"),
        ({"ids": [5, 5, 7]}, "has duplicate ids"),
        ({"labels": [0, 0, 2]}, r"labels outside 0\.\.1"),
        ({"test": [3]}, r"outside 0\.\.2"),
        ({"test": [0]}, "twice in its splits"),
    ],
)
def test_inconsistent_samples_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(GraspError, match=message):
        numbers(**changes)


@pytest.mark.parametrize("indices", [[3], [-1], [True, False, True], [[0], [1]], [0.0, 1.0]])
def test_wrong_indices_are_refused(indices: ArrayLike) -> None:
    with pytest.raises(GraspError, match="numbers: indices must"):
        numbers().read(indices)


def test_indices_of_any_integer_kind() -> None:
    torch = pytest.importorskip("torch")
    for indices in ([2, 0], (2, 0), np.array([2, 0], dtype=np.uint8), torch.tensor([2, 0])):
        assert numbers().read(indices) == ["2", "0"]
    assert numbers().read([]) == []


def test_fingerprint_covers_everything() -> None:
    variants: list[dict[str, Any]] = [
        {},
        {"name": "n"},
        {"version": "2"},
        {"classes": ["a", "c"]},
        {"labels": [0, 1, 1]},
        {"ids": [5, 6, 8]},
        {"train": [1]},
        {"train": [0, 1]},
        {"train": [], "test": [0, 2]},
        {"options": {"seed": 1}},
    ]
    assert len({numbers(**changes).fingerprint() for changes in variants}) == len(variants)
    assert numbers().fingerprint() == numbers().fingerprint()
    assert len(numbers().fingerprint()) == 16
