"""Images in class folders: split or not, unpacked or in archives. And what all sources of image files share."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import ArrayLike

from graspcl.checks import Range, Side, checked
from graspcl.data.samples import Codes, Int64s, Samples, few, hash_id, labels_of
from graspcl.data.splits import held_out
from graspcl.data.trees import File, Tree, find_file, open_tree, read_lines
from graspcl.errors import GraspError, require
from graspcl.files import open_regular
from graspcl.images import decode_some
from graspcl.limits import changed

if TYPE_CHECKING:
    import torch

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})
_TESTS = ("val", "valid", "validation", "test")  # `test` comes last, since it often has no labels
_WRAPS = 8  # folders around everything that are entered; each is listed again
_ANNOTATIONS = "val_annotations.txt"  # the name that Tiny-ImageNet uses


class StoredImages(Samples["torch.Tensor"]):
    """Encoded images, decoded to RGB when they are read, with the height and width of the option `pixels`.

    A subclass implements where each image is stored, and its `title`.
    """

    @abstractmethod
    def _stored(self, index: int) -> bytes | Path:
        """Return the path of an image, or its bytes."""

    def read(self, indices: ArrayLike) -> torch.Tensor:
        """Return the images at `indices` [n] as RGB uint8 [n, 3, pixels, pixels] in channels-last memory."""
        images, _, problems = self.read_some(indices)
        if problems:
            raise GraspError(problems[0])
        return images

    def read_some(self, indices: ArrayLike) -> tuple[torch.Tensor, Int64s, list[str]]:
        import torch

        rows = self.check(indices).tolist()
        sources, titles = [partial(self._stored, row) for row in rows], [self.title(row) for row in rows]
        images, kept, problems = decode_some(sources, self.options["pixels"], names=titles, whole=self.whole)
        return torch.from_numpy(images).permute(0, 3, 1, 2), kept, problems

    def encoded_some(self, indices: ArrayLike) -> tuple[Codes, Int64s, list[str]]:
        codes: dict[int, bytes | str] = {}
        problems = []
        for place, index in enumerate(self.check(indices).tolist()):
            try:
                stored = self._stored(index)
                if isinstance(stored, Path):
                    open_regular(stored).close()  # fails if the file is missing
                codes[place] = os.path.abspath(stored) if isinstance(stored, Path) else stored
            except GraspError as error:
                problems.append(str(error))
            except OSError as error:
                problems.append(f"{self.title(index)} cannot be read: {error.strerror}")
        return np.array(list(codes.values()), object), np.array(list(codes), np.int64), problems


class ImageFiles(StoredImages):
    """Image files of folders, zip files and tar files."""

    _files: list[File]

    def _stored(self, index: int) -> bytes | Path:
        tree, name = self._files[index]
        return tree.path(name) or tree.read(name)

    def title(self, index: int) -> str:
        tree, name = self._files[index]
        return tree.where(name)


@checked
class ImageFolder(ImageFiles):
    """Images in class folders.

    `path` has one of these forms:

    - a folder with `train/CLASS/…` and `val/CLASS/…` (or `valid`, `validation`, `test`);
    - the same with `train.zip` and `val.zip`, or .tar files, instead of the folders, read without unpacking;
    - class folders without a split, in a folder or in one zip or tar file. Then a share of each class is held out for
      testing, chosen by a hash of the file names.

    Images in deeper folders belong to the class of the top folder. Classes are sorted by name. `ids` are hashes of the
    file names within `path`, `version` is a hash of the files. Class folders without images, broken links, and what is
    no regular file are left out and listed in `problems`. `graspcl.images` describes how images are cropped.

    Args:
        path: a folder, a zip file or a tar file.
        pixels: height and width of the images that `read` returns.
        val_mapping: text file with the classes of images in `val` that lie in no class folders, as a path or as a name
            within `path`. A line is "name class"; the class is a name, or a number in the sorted order of class
            folders. None: `val_annotations.txt` in `val`, if it exists.
        test_share: share of each class to test on if there is no split; at least one image, but never the last.
        test_split: name of the folder or zip file to test on. None: the first of `val`, `valid`, `validation`, `test`.

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
        pixels: Side = 224,
        *,
        val_mapping: str | Path | None = None,
        test_share: Annotated[float, Range(0, 1, below=True)] = 0.1,
        test_split: str | None = None,
    ) -> None:
        require("PIL.Image", "images")  # fail now, not after minutes of work
        tree = _unwrapped(open_tree(Path(path)))
        train, test = _splits(tree, test_split)
        options: dict[str, object] = {"pixels": pixels, **changed()}
        names, found = _images(train)
        if "" in found:
            where = train.where(names[found.index("")])
            raise GraspError(f"{where} is in no class folder; put images into one folder per class")
        classes = sorted(set(found))
        labels = labels_of(found, classes, train.where(), "images")
        problems = [*train.problems, *_empty_folders(train, classes, "left out")]
        self._files = [(train, name) for name in names]
        self.own_test = test is not None
        if test is None:
            tested = held_out(labels, np.array([hash_id(name) for name in names]), test_share)
            options["test_share"] = test_share
        else:
            more, found = _images(test)
            problems += test.problems
            if val_mapping is not None or _ANNOTATIONS in test.sizes:  # takes precedence over class folders
                mapping = (test, _ANNOTATIONS) if val_mapping is None else find_file(val_mapping, tree, "val_mapping")
                found = _mapped_classes(mapping, test, more, sorted(train.folders))
            elif "" in found or (set(found) == {"images"} and "images" not in train.folders):
                raise GraspError(
                    f"{test.where()} has images without class folders; give a file of 'name class' lines as val_mapping"
                )
            else:
                problems += _empty_folders(test, found, "not tested")
            tested = np.repeat([False, True], [len(names), len(more)])
            labels = np.concatenate([labels, labels_of(found, classes, test.where(), "images")])
            self._files += [(test, name) for name in more]
        super().__init__(
            name=tree.title,
            version=files_digest((part.sizes[name] for part, name in self._files), self._files),
            classes=classes,
            labels=labels,
            ids=np.array([hash_id(name if part is tree else f"{part.title}/{name}") for part, name in self._files]),
            train=np.flatnonzero(~tested),
            test=np.flatnonzero(tested),
            options=options,
            problems=problems,
        )


def files_digest(sizes: Iterable[int], files: Sequence[File]) -> str:
    """Return 12 hex digits that change with the files, to serve as their version.

    The digest covers all sizes, and the contents of 32 files: uncompressed files may all have the same size.
    """
    digest = hashlib.sha256("\n".join(map(str, sizes)).encode())
    for at in np.unique(np.linspace(0, len(files) - 1, 32).astype(int)) if len(files) else ():
        tree, name = files[at]
        with contextlib.suppress(GraspError):  # damaged files are reported when they are read
            digest.update(tree.read(name))
    return digest.hexdigest()[:12]


def _images(tree: Tree) -> tuple[list[str], list[str]]:
    """Return the names of all images, sorted, and the top folder of each."""
    names = sorted(name for name in tree.sizes if PurePosixPath(name).suffix.lower() in SUFFIXES)
    if not names:
        raise GraspError(f"{tree.where()} has no images; put them into one folder per class, as in CLASS/photo.jpg")
    return names, [name.rpartition("/")[0].partition("/")[0] for name in names]


def _unwrapped(tree: Tree) -> Tree:
    """Enter a single folder around everything, as many downloads have one: it is not a class."""
    for _ in range(_WRAPS):
        named = tree.folders & {"train", *_TESTS}
        if len(tree.folders) != 1 or named or any("/" not in name for name in tree.sizes):
            break
        inner = tree.part(next(iter(tree.folders)))
        if inner is None or (inner.part("train") is None and any("/" not in name for name in inner.sizes)):
            break
        tree = inner
    return tree


def _splits(tree: Tree, test_split: str | None) -> tuple[Tree, Tree | None]:
    """Return the trees to train on and to test on. Without a split, the second one is None."""
    train = tree.part("train")
    asked = (test_split,) if test_split else _TESTS
    test = next((part for name in asked if (part := tree.part(name))), None)  # opens no more than it needs
    if test_split and test is None:
        raise GraspError(f"{tree.where()} has neither a folder {test_split} nor a file {test_split}.zip to test on")
    if train is None and test is not None:
        raise GraspError(f"{tree.where()} has {test.title} but no train; add a folder train or a file train.zip")
    return train or tree, test


def _empty_folders(tree: Tree, found: Iterable[str], consequence: str) -> list[str]:
    empty = sorted(tree.folders - set(found))
    return [f"{tree.where()} has class folders without images, {consequence}: {few(empty)}"] if empty else []


def _mapped_classes(mapping: File, tree: Tree, names: list[str], folders: list[str]) -> list[str]:
    """Return the class of each image, found by its path, its file name, or its file name without suffix.

    Numbers count the class folders of `train` in sorted order, including empty ones.
    """
    class_of = {}
    for where, line in read_lines(mapping):
        # Tabs separate columns if there are any, so that class names may contain spaces.
        key, *values = line.split("\t") if "\t" in line else re.split(r"[,\s]+", line)
        if not values:
            raise GraspError(f"{where}: {line!r} has no class; a line is 'name class'")
        class_of[key.strip()] = values[0].strip()
    file = mapping[0].where(mapping[1])
    keys = [(name, PurePosixPath(name).name, PurePosixPath(name).stem) for name in names]
    found = [next((class_of[key] for key in some if key in class_of), "") for some in keys]
    if missing := [name for name, value in zip(names, found, strict=True) if not value]:
        raise GraspError(f"{file} gives no class for {len(missing)} images of {tree.where()}: {few(missing)}")
    # Where folders are named by numbers, a number is a name.
    if not all(re.fullmatch(r"-?\d{1,9}", value) for value in found) or any(map(str.isdecimal, folders)):
        return found
    for name, value in zip(names, found, strict=True):
        if not 0 <= int(value) < len(folders):
            numbers = f"{len(folders)} class folders, numbered 0..{len(folders) - 1} in sorted order"
            raise GraspError(f"{file} gives {name} the class {value}, but train has {numbers}")
    return [folders[int(value)] for value in found]
