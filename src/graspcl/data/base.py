"""What every source of samples offers: labels and splits as arrays, contents by index only."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from graspcl.errors import GraspError, MissingExtra

Batch = TypeVar("Batch", covariant=True)
Int64s = NDArray[np.int64]
Codes = np.ndarray[Any, np.dtype[np.object_]]


@dataclass(eq=False, repr=False)
class Samples(ABC, Generic[Batch]):
    """N labelled samples and their split; `read` returns a batch of texts (`list[str]`) or images (uint8 [n, 3, H, W]).

    `labels` [N] are positions in `classes`, `ids` [N] stay the same from one load to the next, `train` and `test` are
    disjoint arrays of indices in 0..N-1. `options` are the choices that led to these samples, `problems` says what was
    left out on the way. Arrays are read-only.

    >>> class Words(Samples[list[str]]):
    ...     def read(self, indices):
    ...         return [["ant", "bee", "cod"][i] for i in self.check(indices)]
    >>> words = Words("words", "1", ["insect", "fish"], labels=[0, 0, 1], ids=[7, 8, 9], train=[0, 2], test=[1])
    >>> words.read(words.train), words
    (['ant', 'cod'], <Words 1: 2 classes, 2 train, 1 test>)
    """

    name: str
    version: str
    classes: list[str]
    labels: Int64s
    ids: Int64s
    train: Int64s
    test: Int64s
    options: Mapping[str, object] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    whole = False  # images: all of the shorter side is kept, as by the codec 'encoded' with `whole`

    def __post_init__(self) -> None:
        for column in ("labels", "ids", "train", "test"):
            array = np.array(getattr(self, column), dtype=np.int64)
            array.setflags(write=False)
            setattr(self, column, array)
        self.classes, self.problems = list(self.classes), list(self.problems)
        self._validate()

    @abstractmethod
    def read(self, indices: ArrayLike) -> Batch:
        """The contents of the samples at `indices` [n], in that order; an error at the first that cannot be read."""

    def read_some(self, indices: ArrayLike) -> tuple[Batch, Int64s, list[str]]:
        """The contents of those samples at `indices` [n] that can be read, which positions of `indices` they are,
        ascending, and for each of the others what `read` says of it.
        """
        rows = self.check(indices)
        try:
            return self.read(rows), np.arange(len(rows)), []
        except MissingExtra:  # nothing can be read
            raise
        except GraspError:
            faults = [self._fault(row) for row in rows]
        kept = np.array([place for place, fault in enumerate(faults) if fault is None], np.int64)
        return self.read(rows[kept]), kept, [fault for fault in faults if fault is not None]

    def encoded(self, indices: ArrayLike) -> list[bytes]:
        """The image files at `indices` [n], byte for byte; only sources of images have them."""
        self._refuse_files()

    def encoded_some(self, indices: ArrayLike) -> tuple[Codes, Int64s, list[str]]:
        """Those images at `indices` [n] that can be opened, as the codec 'encoded' stores them: the path of an image
        that is a file by itself, else its bytes. Then, as from `read_some`, which ones they are and what is wrong
        with the others. They are not decoded, so some may still prove unreadable.
        """
        self._refuse_files()

    def path(self, index: int) -> Path | None:
        """Where the image at `index` lies; None if it is no file by itself."""
        self._refuse_files()

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        sizes = f"{len(self.classes)} classes, {len(self.train)} train, {len(self.test)} test"
        return f"<{type(self).__name__} {self.version}: {sizes}>"

    def check(self, indices: ArrayLike) -> Int64s:
        """`indices` [n] as int64, or an error that says what is wrong with them: no masks, no counting from the end."""
        array = np.asarray(indices)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise GraspError(
                f"{self.name}: indices must be one row of whole numbers, not {array.dtype} of shape {array.shape}"
            )
        if array.size and (array.min() < 0 or array.max() >= len(self)):
            raise GraspError(
                f"{self.name}: indices must lie in 0..{len(self) - 1}, but reach from {array.min()} to {array.max()}"
            )
        return array.astype(np.int64)

    def fingerprint(self) -> str:
        """16 hex digits that change with name, version, options, classes, labels, ids or splits: a key for caches."""
        head = json.dumps([self.name, self.version, self.classes, dict(self.options)], sort_keys=True)
        digest = hashlib.sha256(head.encode())
        for array in (self.labels, self.ids, self.train, self.test):
            digest.update(len(array).to_bytes(8, "little") + array.astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def _fault(self, row: int) -> str | None:
        try:
            self.read([row])
        except GraspError as error:
            return str(error)
        return None

    def _refuse_files(self) -> NoReturn:
        raise GraspError(f"{self.name} has no image files; only sources of images do")

    def _validate(self) -> None:
        rows, split = len(self.labels), np.concatenate([self.train, self.test])
        faults = {
            f"has {rows} labels but {len(self.ids)} ids": rows != len(self.ids),
            "has ids that occur twice": len(np.unique(self.ids)) != len(self.ids),
            f"has labels outside 0..{len(self.classes) - 1}": _outside(self.labels, len(self.classes)),
            f"has a split that points outside 0..{rows - 1}": _outside(split, rows),
            "has samples that occur twice in its splits": len(np.unique(split)) != len(split),
        }
        for fault, found in faults.items():
            if found:
                raise GraspError(f"{self.name} {fault}")


def _outside(values: Int64s, size: int) -> bool:
    return bool(((values < 0) | (values >= size)).any())
