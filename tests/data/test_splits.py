"""Subsets: which classes and samples they contain, and what they keep of their source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from picture_files import pack, write

from graspcl.data import ImageFolder, Samples, Subset
from graspcl.data.splits import held_out
from graspcl.errors import GraspError

SIZES = {"ant": (6, 2), "bat": (3, 1), "cow": (1, 0), "dog": (9, 5)}  # to train on, to test on


class Names(Samples[list[str]]):
    def read(self, indices: ArrayLike) -> list[str]:
        return [f"{self.classes[self.labels[row]]} {self.ids[row]}" for row in self.check(indices)]


def names(**changes: Any) -> Names:
    """Splits that are mixed and not in order, and a sample of each class in neither."""
    rng = np.random.default_rng(3)
    labels = rng.permutation(np.repeat(np.arange(4), [sum(sizes) + 1 for sizes in SIZES.values()]))
    rows = {label: rng.permutation(np.flatnonzero(labels == label)) for label in range(4)}
    train = rng.permutation(np.concatenate([rows[k][:n] for k, (n, _) in enumerate(SIZES.values())]))
    test = rng.permutation(np.concatenate([rows[k][n : n + m] for k, (n, m) in enumerate(SIZES.values())]))
    given: dict[str, Any] = {"name": "names", "version": "7", "classes": list(SIZES), "labels": labels}
    given |= {"ids": 1000 + np.arange(len(labels)), "train": train, "test": test, "options": {"pixels": 8}}
    return Names(**(given | changes))


def subset(seed: int = 0, source: Samples[Any] | None = None, **choice: Any) -> Subset[Any]:
    return Subset(source or names(), rng=np.random.default_rng(seed), **choice)


def counts(samples: Samples[Any], split: str) -> list[int]:
    return np.bincount(samples.labels[getattr(samples, split)], minlength=len(samples.classes)).tolist()


def ids(samples: Samples[Any], split: str) -> list[int]:
    return samples.ids[getattr(samples, split)].tolist()


def test_by_default_all_samples_are_kept() -> None:
    source, some = names(), subset()
    assert some.classes == source.classes and len(some) == len(source.train) + len(source.test)
    for split in ("train", "test"):
        assert ids(some, split) == ids(source, split)  # in the order of the source
        assert some.read(getattr(some, split)) == source.read(getattr(source, split))


def test_classes_get_new_labels_in_their_old_order() -> None:
    some = subset(classes=[3, 0])
    assert some.classes == ["ant", "dog"]
    assert counts(some, "train") == [6, 9] and counts(some, "test") == [2, 5]
    assert {text.split()[0] for text in some.read(some.train[some.labels[some.train] == 1])} == {"dog"}
    assert subset(classes=np.array([0, 3])).fingerprint() == some.fingerprint()


def test_the_number_of_samples_per_class_is_limited() -> None:
    some = subset(per_class=4, test_per_class=1)
    assert counts(some, "train") == [4, 3, 1, 4] and counts(some, "test") == [1, 1, 0, 1]
    assert counts(subset(per_class=100), "train") == [6, 3, 1, 9]
    assert counts(subset(test_per_class=0), "test") == [0, 0, 0, 0]


@given(st.sets(st.integers(0, 3), min_size=1), st.integers(1, 8), st.integers(0, 6), st.integers(0, 5))
def test_every_choice_is_a_part_of_the_source(classes: set[int], per_class: int, tested: int, seed: int) -> None:
    source = names()
    some = subset(seed, classes=sorted(classes), per_class=per_class, test_per_class=tested)
    kept = [size for label, size in enumerate(SIZES.values()) if label in classes]
    assert counts(some, "train") == [min(size, per_class) for size, _ in kept]
    assert counts(some, "test") == [min(size, tested) for _, size in kept]
    assert len(some.train) + len(some.test) == len(some)
    for split in ("train", "test"):
        assert set(ids(some, split)) <= set(ids(source, split))
    name_of = dict(zip(source.ids.tolist(), source.labels.tolist(), strict=True))
    everything = some.read(range(len(some)))
    assert everything == [f"{source.classes[name_of[number]]} {number}" for number in some.ids.tolist()]


def test_a_choice_depends_on_the_generator_alone() -> None:
    base = subset(per_class=4, test_per_class=3)
    assert subset(per_class=4, test_per_class=3).fingerprint() == base.fingerprint()
    assert ids(subset(1, per_class=4, test_per_class=3), "train") != ids(base, "train")
    assert ids(subset(per_class=2, test_per_class=3), "test") == ids(base, "test")
    assert set(ids(subset(per_class=2), "train")) < set(ids(base, "train"))
    dogs = subset(classes=[3], per_class=4, test_per_class=3)
    assert ids(dogs, "train") == [number for number in ids(base, "train") if number in set(dogs.ids.tolist())]


def test_every_sample_is_drawn_as_often_as_the_others() -> None:
    source = names()
    dogs = source.train[source.labels[source.train] == 3]
    rng, drawn = np.random.default_rng(0), np.zeros(len(source), int)
    for _ in range(2000):
        some = Subset(source, classes=[3], per_class=3, rng=rng)
        drawn[some.ids[some.train] - 1000] += 1
    expected = 2000 * 3 / 9
    assert drawn.sum() == 6000 and abs(drawn[dogs] - expected).max() < 5 * np.sqrt(expected * 2 / 3)


def test_a_subset_keeps_name_version_options_and_problems() -> None:
    source = names(problems=["an empty folder"])
    some = subset(source=source, classes=[1, 3], per_class=2)
    assert (some.name, some.version, some.problems) == ("names", "7", ["an empty folder"])
    choice = {"classes": [1, 3], "per_class": 2, "test_per_class": None}
    assert some.options == {"pixels": 8, "subset": [choice]}
    again = subset(source=some, classes=[1])
    assert again.classes == ["dog"] and again.options["subset"] == [
        choice,
        {**choice, "classes": [1], "per_class": None},
    ]
    assert again.read(again.train) == [text for text in some.read(some.train) if text.startswith("dog")]


def test_the_fingerprint_follows_the_choice() -> None:
    choices: list[dict[str, Any]] = [{}, {"classes": [0]}, {"classes": [1]}, {"per_class": 2}, {"test_per_class": 1}]
    prints = {subset(**choice).fingerprint() for choice in choices} | {names().fingerprint()}
    assert len(prints) == 6


@pytest.mark.parametrize(
    "choice, message",
    [
        ({"classes": [0, 4]}, r"names: classes must be different labels in 0\.\.3, got \[0, 4\]"),
        ({"classes": [-1]}, r"different labels in 0\.\.3, got \[-1\]"),
        ({"classes": [1, 1]}, "must be different labels"),
        ({"classes": []}, "must be different labels"),
        ({"classes": ["dog"]}, "must be different labels"),
        ({"classes": [True, False, True, True]}, "must be different labels"),
        ({"per_class": 0}, "per_class must be a whole number of at least 1 or none, got 0"),
        ({"test_per_class": -1}, "test_per_class must be a whole number of at least 0 or none, got -1"),
    ],
)
def test_impossible_choices_are_refused(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(GraspError, match=message):
        subset(**choice)


def test_a_class_without_samples_to_train_on_is_refused() -> None:
    source = names()
    bare = names(train=source.train[source.labels[source.train] != 1])
    with pytest.raises(GraspError, match="names has classes without training samples: bat"):
        subset(source=bare)
    assert subset(source=bare, classes=[0, 2, 3]).classes == ["ant", "cow", "dog"]


@pytest.mark.parametrize("zipped", [False, True])
def test_images_are_those_of_the_source(tmp_path: Path, zipped: bool) -> None:
    folder = write(tmp_path / "pets", [f"{name}/{number}.png" for name in SIZES for number in range(5)])
    (folder / "dog" / "2.png").write_bytes(b"text")
    images = ImageFolder(pack(folder, tmp_path / "pets.zip") if zipped else folder, pixels=8, test_share=0.2)
    some = subset(source=images, classes=[1, 3])
    everything = np.arange(len(some))
    inner = np.flatnonzero(np.isin(images.labels, [1, 3]))
    assert some.samples is images and some.ids.tolist() == images.ids[inner].tolist()
    batch, kept, problems = some.read_some(everything)
    assert len(kept) == 9 and len(problems) == 1 and "dog/2.png" in problems[0]
    assert bool((batch == images.read(inner[kept])).all()) and bool((some.read(kept) == batch).all())
    codes, opened, _ = some.encoded_some(everything)
    assert codes.tolist() == images.encoded_some(inner)[0].tolist() and opened.tolist() == everything.tolist()
    for ask in (some.read, some.read_some, some.encoded_some):
        with pytest.raises(GraspError, match=r"must lie in 0\.\.9"):
            ask([10])


@pytest.mark.parametrize(
    ("size", "share", "number"), [(16, 0.1, 2), (14, 0.1, 1), (4, 0.1, 1), (16, 0.0, 0), (2, 0.9, 1)]
)
def test_a_share_of_a_class_is_rounded_to_the_nearest_number(size: int, share: float, number: int) -> None:
    labels, keys = np.repeat([0, 1], [size, 30]), np.arange(size + 30)[::-1].copy()
    chosen = held_out(labels, keys, share)
    assert chosen[:size].sum() == number and chosen[size - number : size].all()  # those with the smallest keys
