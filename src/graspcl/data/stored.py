"""Images that lie encoded somewhere: decoded when they are read, or handed on as they are stored."""

from __future__ import annotations

import contextlib
import hashlib
import os
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from graspcl.data.base import Codes, Int64s, Samples
from graspcl.data.trees import Tree
from graspcl.errors import GraspError
from graspcl.images import Pixels, decode_images, decode_some

if TYPE_CHECKING:
    import torch


class StoredImages(Samples["torch.Tensor"]):
    """Images that are read to RGB at `_pixels` x `_pixels`, cut as `whole` says; a subclass says where each is
    stored and what it is called.
    """

    _pixels: int

    @abstractmethod
    def _stored(self, index: int) -> bytes | Path:
        """The image's path, or its bytes, or an error if they cannot be had."""

    @abstractmethod
    def _called(self, index: int) -> str:
        """What messages call the image."""

    def read(self, indices: ArrayLike) -> torch.Tensor:
        """Images at `indices` [n], as RGB uint8 [n, 3, pixels, pixels] in channels-last memory."""
        return _tensor(decode_images(**self._to_decode(indices)))

    def read_some(self, indices: ArrayLike) -> tuple[torch.Tensor, Int64s, list[str]]:
        """Those images at `indices` [n] that can be read, which ones they are, and what is wrong with the others."""
        images, kept, problems = decode_some(**self._to_decode(indices))
        return _tensor(images), kept, problems

    def encoded(self, indices: ArrayLike) -> list[bytes]:
        """The images at `indices` [n] as they are stored, byte for byte."""
        return [self._bytes(index) for index in self.check(indices).tolist()]

    def encoded_some(self, indices: ArrayLike) -> tuple[Codes, Int64s, list[str]]:
        """Those images at `indices` [n] that can be opened: the path of an image that is a file by itself, else its
        bytes. Then which ones they are, and what is wrong with the others.
        """
        found: dict[int, bytes | str] = {}
        problems = []
        for place, index in enumerate(self.check(indices).tolist()):
            try:
                found[place] = self._opened(index)
            except GraspError as error:
                problems.append(str(error))
        codes = np.empty(len(found), object)
        codes[:] = list(found.values())
        return codes, np.array(list(found), np.int64), problems

    def path(self, index: int) -> Path | None:
        """Where the image at `index` lies; None if it is no file by itself."""
        self.check([index])
        return None

    def _to_decode(self, indices: ArrayLike) -> dict[str, Any]:
        rows = self.check(indices).tolist()
        return {
            "sources": [partial(self._stored, row) for row in rows],
            "pixels": self._pixels,
            "names": [self._called(row) for row in rows],
            "whole": self.whole,
        }

    def _bytes(self, index: int) -> bytes:
        stored = self._stored(index)
        if isinstance(stored, bytes):
            return stored
        try:
            return stored.read_bytes()
        except OSError as error:
            raise GraspError(f"{self._called(index)} cannot be read: {error.strerror}") from error

    def _opened(self, index: int) -> bytes | str:
        stored = self._stored(index)
        if isinstance(stored, bytes):
            return stored
        try:
            with open(stored, "rb"):
                return os.path.abspath(stored)
        except OSError as error:
            raise GraspError(f"{self._called(index)} cannot be read: {error.strerror}") from error


class ImageFiles(StoredImages):
    """Images that are files of trees; `_files` has the tree and the name in it of each."""

    _files: list[tuple[Tree, str]]

    def path(self, index: int) -> Path | None:
        """Where the image at `index` lies; None if it is a member of a zip file."""
        tree, name = self._files[int(self.check([index])[0])]
        return tree.path(name)

    def _stored(self, index: int) -> bytes | Path:
        tree, name = self._files[index]
        return tree.path(name) or tree.read(name)

    def _called(self, index: int) -> str:
        tree, name = self._files[index]
        return tree.where(name)


def few(names: Sequence[str]) -> str:
    """The first five names, and how many more there are.

    >>> few(["a", "b", "c", "d", "e", "f", "g"])
    'a, b, c, d, e and 2 more'
    """
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def name_hash(name: str) -> int:
    """63 bits that depend on the name alone: the id of an image file.

    >>> name_hash("cat/1.png") == name_hash("cat/1.png") != name_hash("cat/2.png")
    True
    """
    return int.from_bytes(hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=8).digest(), "little") >> 1


def files_digest(sizes: Iterable[int], files: Sequence[tuple[Tree, str]]) -> str:
    """12 hex digits that change with the files: their version.

    It sees all sizes, and the contents of 32 files among them: those without compression may all be of one size.
    """
    digest = hashlib.sha256("\n".join(map(str, sizes)).encode())
    for at in np.unique(np.linspace(0, len(files) - 1, 32).astype(int)) if len(files) else ():
        tree, name = files[at]
        with contextlib.suppress(GraspError):  # a damaged one is found where it is read
            digest.update(tree.read(name))
    return digest.hexdigest()[:12]


def _tensor(images: Pixels) -> torch.Tensor:
    import torch

    return torch.from_numpy(images).permute(0, 3, 1, 2)
