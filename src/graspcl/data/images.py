"""Images in class folders: split or not, unpacked or in zip files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from graspcl.data.base import Int64s, Samples
from graspcl.data.trees import FolderTree, Tree, ZipTree
from graspcl.errors import GraspError, require
from graspcl.images import decode_images

if TYPE_CHECKING:
    import torch

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})
_TESTS = ("val", "valid", "validation", "test")  # in this order: a folder `test` often has no labels
_MAPPING = "val_annotations.txt"  # Tiny-ImageNet's own


class ImageFolder(Samples["torch.Tensor"]):
    """Images at `path`, RGB at `pixels` x `pixels`, of one of these forms:

    - a folder with `train/CLASS/…` and `val/CLASS/…` (or `valid`, `validation`, `test`; `test_split` names another);
    - the same with `train.zip` and `val.zip` in place of the folders, read without unpacking;
    - class folders without a split, in a folder or in one zip file: then `test_share` of each class, chosen by a hash
      of the file names, is for testing, at least one image but never the last.

    Images of `val` may lie without class folders if a text file says which class each is of: one "name class" a line,
    the class by its name or its number in sorted order. That is `val_mapping`, or `val_annotations.txt` beside them.
    Files in deeper folders belong to the class of the first. Classes are sorted by name, `ids` are hashes of the
    files' names within `path`, and `version` is a hash of their sizes. `graspcl.images` says how images are cut.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
    ...         (Path(folder) / name).parent.mkdir(exist_ok=True)
    ...         Image.new("RGB", (40, 30)).save(Path(folder) / name)
    ...     images = ImageFolder(folder, pixels=16)
    ...     images.classes, len(images.train), images.read(images.test).shape
    (['cat', 'dog'], 2, torch.Size([2, 3, 16, 16]))
    """

    def __init__(
        self,
        path: str | Path,
        pixels: int = 224,
        *,
        val_mapping: str | Path | None = None,
        test_share: float = 0.1,
        test_split: str | None = None,
    ) -> None:
        if pixels < 1:
            raise GraspError(f"{path}: pixels must be at least 1, not {pixels}")
        if not 0 <= test_share < 1:
            raise GraspError(f"{path}: test_share must be at least 0 and below 1, not {test_share}")
        require("PIL.Image", "images")  # now, not after minutes of work
        tree = _unwrapped(_open(Path(path)))
        train, test = _splits(tree, test_split)
        options: dict[str, object] = {"pixels": pixels}
        classes, names, labels = _class_folders(train)
        self._files: list[tuple[Tree, str]] = [(train, name) for name in names]
        if test is None:
            split = _held_out(labels, names, test_share)
            options["test_share"] = test_share
        else:
            more, of = _test_images(test, classes, _mapping(tree, test, val_mapping))
            split = np.repeat([False, True], [len(names), len(more)])
            labels = np.concatenate([labels, of])
            self._files += [(test, name) for name in more]
        self._pixels = pixels
        super().__init__(
            name=tree.title,
            version=_digest(str(part.sizes[name]) for part, name in self._files),
            classes=classes,
            labels=labels,
            ids=np.array([_hash(name if part is tree else f"{part.title}/{name}") for part, name in self._files]),
            train=np.flatnonzero(~split),
            test=np.flatnonzero(split),
            options=options,
        )

    def read(self, indices: ArrayLike) -> torch.Tensor:
        """Images at `indices` [n], as RGB uint8 [n, 3, pixels, pixels] in channels-last memory."""
        import torch

        files = [self._files[index] for index in self.check(indices)]
        sources = [tree.path(name) or tree.read(name) for tree, name in files]
        images = decode_images(sources, self._pixels, names=[tree.where(name) for tree, name in files])
        return torch.from_numpy(images).permute(0, 3, 1, 2)

    def encoded(self, indices: ArrayLike) -> list[bytes]:
        """The images at `indices` [n] as they are stored, byte for byte."""
        return [tree.read(name) for tree, name in (self._files[index] for index in self.check(indices))]

    def path(self, index: int) -> Path | None:
        """Where the image at `index` lies; None if it is a member of a zip file."""
        tree, name = self._files[int(self.check([index])[0])]
        return tree.path(name)


def _open(path: Path) -> Tree:
    if path.is_dir():
        return FolderTree(path)
    if path.suffix.lower() == ".zip" and path.is_file():
        return ZipTree(path)
    if path.exists():
        raise GraspError(f"{path} is neither a folder of images nor a .zip file")
    raise GraspError(f"there is no image folder at {path}")


def _unwrapped(tree: Tree) -> Tree:
    """What lies in a folder that wraps everything, as downloads often have it; it is not a class."""
    while len(tree.folders) == 1 and not tree.folders & {"train", *_TESTS} and all("/" in name for name in tree.sizes):
        inner = tree.part(next(iter(tree.folders)))
        if inner is None or (inner.part("train") is None and any("/" not in name for name in inner.sizes)):
            break
        tree = inner
    return tree


def _splits(tree: Tree, test_split: str | None) -> tuple[Tree, Tree | None]:
    """The trees of class folders to train on and to test on; no second one if they must be split yet."""
    train = tree.part("train")
    asked = (test_split,) if test_split else _TESTS
    test = next((part for name in asked if (part := tree.part(name))), None)  # later ones are not even opened
    if test_split and test is None:
        raise GraspError(f"{tree.where()} has neither a folder {test_split} nor a file {test_split}.zip to test on")
    if train is None and test is not None:
        raise GraspError(f"{tree.where()} has {test.title} but no train, neither as a folder nor as train.zip")
    return train or tree, test


def _class_folders(tree: Tree) -> tuple[list[str], list[str], Int64s]:
    """Class names (sorted), the names of the images (sorted by class) and the label of each."""
    names = _images(tree)
    if not names:
        raise GraspError(f"{tree.where()} has no images; they belong into one folder per class, as in CLASS/photo.jpg")
    if flat := [name for name in names if "/" not in name]:
        raise GraspError(f"{tree.where(flat[0])} lies in no class folder; images belong into one folder per class")
    found = np.array([name.partition("/")[0] for name in names])
    classes, labels = np.unique(found, return_inverse=True)
    _refuse_empty(tree, classes)
    return classes.tolist(), names, labels.astype(np.int64)


def _test_images(tree: Tree, classes: list[str], mapping: Mapping[str, str] | None) -> tuple[list[str], Int64s]:
    """Names of the images to test on, and their labels: by class folder, or by the mapping where there is one."""
    names = _images(tree)
    if not names:
        raise GraspError(f"{tree.where()} has no images")
    if mapping is None:
        found = [name.partition("/")[0] for name in names]
        if any("/" not in name for name in names) or (set(found) == {"images"} and "images" not in classes):
            raise GraspError(
                f"{tree.where()} has images without class folders; name the file that says which class each is of, "
                "one 'name class' a line, as val_mapping"
            )
        _refuse_empty(tree, found)
    else:
        found = _mapped(tree, names, mapping)
        if set(found) - set(classes) and all(value.isdecimal() and int(value) < len(classes) for value in found):
            found = [classes[int(value)] for value in found]
    label_of = {name: label for label, name in enumerate(classes)}
    if unknown := sorted(set(found) - set(classes)):
        raise GraspError(
            f"{tree.where()} has classes that are not in train: {_few(unknown)}; "
            "a class needs images to train on before it can be tested"
        )
    return names, np.array([label_of[name] for name in found], dtype=np.int64)


def _mapping(root: Tree, test: Tree, given: str | Path | None) -> Mapping[str, str] | None:
    """What the text file says: file names to classes."""
    if given is None:
        return _parse(test.read(_MAPPING), test.where(_MAPPING)) if _MAPPING in test.sizes else None
    if not Path(given).is_file() and str(given) in root.sizes:
        return _parse(root.read(str(given)), root.where(str(given)))
    try:
        return _parse(Path(given).read_bytes(), str(given))
    except OSError as error:
        raise GraspError(f"val_mapping {given} cannot be read: {error.strerror}") from error


def _parse(content: bytes, where: str) -> Mapping[str, str]:
    mapping = {}
    for number, line in enumerate(content.decode("utf-8", errors="replace").splitlines(), start=1):
        # Tabs part columns if there are any, so that a class name may have spaces; else a comma or spaces do.
        fields = line.split("\t") if "\t" in line else re.split(r"[,\s]+", line.strip())
        if line.strip() and len(fields) < 2:
            raise GraspError(f"{where}, line {number}: {line.strip()!r} has no class; a line is 'name class'")
        if line.strip():
            mapping[fields[0].strip()] = fields[1].strip()
    return mapping


def _mapped(tree: Tree, names: list[str], mapping: Mapping[str, str]) -> list[str]:
    """The class of each image, found by its name in the tree, without folders, or without folders and suffix."""
    keys = [(name, PurePosixPath(name).name, PurePosixPath(name).stem) for name in names]
    found = [next((mapping[key] for key in some if key in mapping), None) for some in keys]
    if missing := [name for name, value in zip(names, found, strict=True) if value is None]:
        raise GraspError(f"val_mapping gives no class for {len(missing)} images of {tree.where()}: {_few(missing)}")
    return [value for value in found if value is not None]


def _held_out(labels: Int64s, names: Sequence[str], share: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which images are for testing: of each class the share with the smallest hashes."""
    order = np.lexsort((np.array([_hash(name) for name in names]), labels))
    sizes = np.bincount(labels)
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    tested = np.minimum(np.maximum(np.round(share * sizes), 1), sizes - 1) if share else np.zeros(len(sizes))
    return rank < tested[labels]


def _images(tree: Tree) -> list[str]:
    return sorted(name for name in tree.sizes if PurePosixPath(name).suffix.lower() in SUFFIXES)


def _refuse_empty(tree: Tree, classes: Iterable[str]) -> None:
    if empty := sorted(tree.folders - set(classes)):
        raise GraspError(f"{tree.where()} has class folders without images: {_few(empty)}; fill or remove them")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _hash(name: str) -> int:
    """63 bits that depend on the name alone."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]
