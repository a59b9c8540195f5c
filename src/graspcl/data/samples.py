"""The contract of a data source: labels and splits are arrays, contents are read by index."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from graspcl.errors import GraspError, MissingExtra

Batch = TypeVar("Batch", covariant=True)
Int64s = NDArray[np.int64]
Codes = np.ndarray[Any, np.dtype[np.object_]]


@dataclass(eq=False, repr=False)
class Samples(ABC, Generic[Batch]):
    """N labelled samples, split for training and testing. A subclass implements `read`.

    A batch is a list of texts (`list[str]`), images (uint8 [n, 3, H, W]) or vectors (float32 [n, D]). All arrays are
    read-only.

    Args:
        name: name of the data set.
        version: changes whenever the contents change.
        classes: class names.
        labels: position of each sample's class in `classes`, [N].
        ids: a number per sample that stays the same each time the data are loaded, [N].
        train: indices of the training samples, in 0..N-1.
        test: indices of the test samples, disjoint from `train`.
        options: the choices that led to these samples; part of the fingerprint.
        problems: messages about everything that was left out.

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
    options: Mapping[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    whole = False  # images: keep the whole shorter side, like the codec 'encoded' with `whole`
    own_test = True  # whether the data came with test samples; else some were held out

    def __post_init__(self) -> None:
        for column in ("labels", "ids", "train", "test"):
            given = np.asarray(getattr(self, column))
            if given.dtype.kind == "O" or (given.dtype.kind == "u" and (given > np.iinfo(np.int64).max).any()):
                raise GraspError(f"{self.name}: {column} must be whole numbers below 2^63")
            array = np.array(given, dtype=np.int64)
            array.setflags(write=False)
            setattr(self, column, array)
        self.classes, self.problems = list(self.classes), list(self.problems)
        rows, split = len(self.labels), np.concatenate([self.train, self.test])
        faults = {
            f"has {rows} labels but {len(self.ids)} ids": rows != len(self.ids),
            "has duplicate ids": len(np.unique(self.ids)) != len(self.ids),
            f"has labels outside 0..{len(self.classes) - 1}": _outside(self.labels, len(self.classes)),
            f"has a split with indices outside 0..{rows - 1}": _outside(split, rows),
            "has samples that occur twice in its splits": len(np.unique(split)) != len(split),
        }
        for fault, found in faults.items():
            if found:
                raise GraspError(f"{self.name} {fault}")

    @abstractmethod
    def read(self, indices: ArrayLike) -> Batch:
        """Return the contents of the samples at `indices` [n], in that order.

        Raises:
            GraspError: a sample cannot be read; the message names the first one.
        """

    def read_some(self, indices: ArrayLike) -> tuple[Batch, Int64s, list[str]]:
        """Read the samples at `indices` [n] and skip those that cannot be read.

        Returns:
            The contents of the readable samples, their positions in `indices` (ascending), and for every other sample
            the message that `read` would raise.
        """
        rows = self.check(indices)
        try:
            return self.read(rows), np.arange(len(rows)), []
        except MissingExtra:  # nothing can be read
            raise
        except GraspError:
            problems: dict[int, str] = {}
        for place, row in enumerate(rows):
            try:
                self.read([row])
            except GraspError as error:
                problems[place] = str(error)
        kept = np.delete(np.arange(len(rows)), list(problems))
        return self.read(rows[kept]), kept, list(problems.values())

    def encoded_some(self, indices: ArrayLike) -> tuple[Codes, Int64s, list[str]]:
        """Return the image files at `indices` [n] as the codec 'encoded' stores them, and skip missing files.

        An image is its path, or its bytes if it is not a file of its own. Images are not decoded, so some of them may
        still turn out to be unreadable. Positions and messages follow, as from `read_some`.
        """
        raise GraspError(f"{self.name} has no image files; only sources of images do")

    def title(self, index: int) -> str:
        """Return the name of a sample for messages."""
        return f"sample {index + 1} of {self.name}"

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        sizes = f"{len(self.classes)} classes, {len(self.train)} train, {len(self.test)} test"
        return f"<{type(self).__name__} {self.version}: {sizes}>"

    def check(self, indices: ArrayLike) -> Int64s:
        """Return `indices` [n] as int64, or raise an error: masks and negative indices are refused."""
        array = np.asarray(indices)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            found = f"{array.dtype} of shape {array.shape}"
            raise GraspError(f"{self.name}: indices must be a one-dimensional array of whole numbers, got {found}")
        if _outside(array, len(self)):
            found = f"values from {array.min()} to {array.max()}"
            raise GraspError(f"{self.name}: indices must lie in 0..{len(self) - 1}, got {found}")
        return array.astype(np.int64)

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with name, version, options, classes, labels, ids or splits."""
        head = json.dumps([self.name, self.version, self.classes, dict(self.options)], sort_keys=True)
        digest = hashlib.sha256(head.encode())
        for array in (self.labels, self.ids, self.train, self.test):
            digest.update(len(array).to_bytes(8, "little") + array.astype("<i8").tobytes())
        return digest.hexdigest()[:16]


def hash_id(text: str) -> int:
    """Return a 63-bit hash of a text or file name, used as the id of a sample."""
    return int.from_bytes(hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).digest(), "little") >> 1


def few(names: Sequence[str]) -> str:
    """List the first five names and count the others, for a message: "a, b, c, d, e and 2 more"."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def labels_of(names: Sequence[str], classes: Sequence[str], where: str, kind: str) -> Int64s:
    """Return the label of each class name, [n]. Refuse names that are not in `classes`, those of the training data."""
    if unknown := sorted(set(names) - set(classes)):
        remedy = "add them to the training data, or remove them from the test data"
        raise GraspError(f"{where} has classes without training {kind}: {few(unknown)}; {remedy}")
    label_of = {name: label for label, name in enumerate(classes)}
    return np.array([label_of[name] for name in names], np.int64)


def _outside(values: Int64s, size: int) -> bool:
    return bool(((values < 0) | (values >= size)).any())
