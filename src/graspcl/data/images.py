"""Images in class folders: split or not, unpacked or in zip files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from graspcl.data.base import Int64s
from graspcl.data.mapping import ClassesByName
from graspcl.data.stored import ImageFiles, few, files_digest, name_hash
from graspcl.data.trees import Tree, open_tree
from graspcl.errors import GraspError, require

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})
_TESTS = ("val", "valid", "validation", "test")  # in this order: a folder `test` often has no labels


class ImageFolder(ImageFiles):
    """Images at `path`, RGB at `pixels` x `pixels`, of one of these forms:

    - a folder with `train/CLASS/…` and `val/CLASS/…` (or `valid`, `validation`, `test`; `test_split` names another);
    - the same with `train.zip` and `val.zip` in place of the folders, read without unpacking;
    - class folders without a split, in a folder or in one zip file: then `test_share` of each class, chosen by a hash
      of the file names, is for testing, at least one image but never the last.

    Images of `val` may lie without class folders if a text file says which class each is of: one "name class" a line,
    the class by its name or its number in sorted order. That is `val_mapping`, or `val_annotations.txt` beside them.
    Files in deeper folders belong to the class of the first. Classes are sorted by name, `ids` are hashes of the
    files' names within `path`, and `version` is a hash of their sizes. Class folders without images are left out, which
    `problems` says. `graspcl.images` says how images are cut.

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
        tree = _unwrapped(open_tree(Path(path)))
        train, test = _splits(tree, test_split)
        options: dict[str, object] = {"pixels": pixels}
        classes, names, labels = _class_folders(train)
        problems = _without_images(train, classes, "left out")
        self._files = [(train, name) for name in names]
        if test is None:
            split = _held_out(labels, names, test_share)
            options["test_share"] = test_share
        else:
            mapping = ClassesByName.find(tree, test, val_mapping)
            more, found = _test_images(test, sorted(train.folders), mapping)
            problems += _without_images(test, found, "not tested") if mapping is None else []
            split = np.repeat([False, True], [len(names), len(more)])
            labels = np.concatenate([labels, _labels(test, found, classes)])
            self._files += [(test, name) for name in more]
        self._pixels = pixels
        super().__init__(
            name=tree.title,
            version=files_digest((part.sizes[name] for part, name in self._files), self._files),
            classes=classes,
            labels=labels,
            ids=np.array([name_hash(name if part is tree else f"{part.title}/{name}") for part, name in self._files]),
            train=np.flatnonzero(~split),
            test=np.flatnonzero(split),
            options=options,
            problems=problems,
        )


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
    return classes.tolist(), names, labels.astype(np.int64)


def _test_images(tree: Tree, folders: list[str], mapping: ClassesByName | None) -> tuple[list[str], list[str]]:
    """Names of the images to test on, and their classes: by class folder, or by the mapping where there is one."""
    names = _images(tree)
    if not names:
        raise GraspError(f"{tree.where()} has no images")
    if mapping is not None:
        return names, mapping.classes(tree, names, folders)
    found = [name.partition("/")[0] for name in names]
    if any("/" not in name for name in names) or (set(found) == {"images"} and "images" not in folders):
        raise GraspError(
            f"{tree.where()} has images without class folders; name the file that says which class each is of, "
            "one 'name class' a line, as val_mapping"
        )
    return names, found


def _labels(tree: Tree, found: list[str], classes: list[str]) -> Int64s:
    label_of = {name: label for label, name in enumerate(classes)}
    if unknown := sorted(set(found) - set(classes)):
        raise GraspError(
            f"{tree.where()} has classes that are not in train: {few(unknown)}; "
            "a class needs images to train on before it can be tested"
        )
    return np.array([label_of[name] for name in found], dtype=np.int64)


def _held_out(labels: Int64s, names: Sequence[str], share: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which images are for testing: of each class the share with the smallest hashes."""
    order = np.lexsort((np.array([name_hash(name) for name in names]), labels))
    sizes = np.bincount(labels)
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    tested = np.minimum(np.maximum(np.round(share * sizes), 1), sizes - 1) if share else np.zeros(len(sizes))
    return rank < tested[labels]


def _images(tree: Tree) -> list[str]:
    return sorted(name for name in tree.sizes if PurePosixPath(name).suffix.lower() in SUFFIXES)


def _without_images(tree: Tree, found: Iterable[str], fate: str) -> list[str]:
    empty = sorted(tree.folders - set(found))
    return [f"{tree.where()} has class folders without images, {fate}: {few(empty)}"] if empty else []
