"""Images named in text files, as Places-LT and ImageNet-LT are distributed; and the source that opens any images."""

from __future__ import annotations

import functools
import os
import posixpath
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np

from graspcl.checks import Count, Range, Side, checked
from graspcl.data.image_folder import ImageFiles, ImageFolder, files_digest
from graspcl.data.image_shards import ImageShards, find_shards
from graspcl.data.samples import Samples, few, hash_id
from graspcl.data.sources import data_sources
from graspcl.data.trees import File, FolderTree, Tree, find_file, open_tree, read_lines
from graspcl.errors import GraspError, require
from graspcl.limits import changed

if TYPE_CHECKING:
    import torch


@data_sources.register("images", gives="images")
def open_images(
    path: str | Path,
    pixels: Side = 224,
    val_mapping: str | Path | None = None,
    test_split: str | None = None,
    test_share: Annotated[float, Range(0, 1, below=True)] = 0.1,
) -> Samples[torch.Tensor]:
    """Open the images of a folder, a zip file or a tar file.

    They are `ImageShards` if there are WebDataset shards, an `ImageList` if there is a list such as
    Places_LT_train.txt, else an `ImageFolder`, whose parameters these are. With lists, `test_split` is the parameter
    `test` of `ImageList`, and `test_share` is not used.
    """
    if find_shards(Path(path)):
        if val_mapping is not None:
            raise GraspError(f"{path}: val_mapping is for class folders, but these are shards; remove val_mapping")
        return ImageShards(path, pixels, test_split=test_split, test_share=test_share)
    lists = train_lists(Path(path), open_tree(Path(path)))
    if not lists:
        return ImageFolder(path, pixels, val_mapping=val_mapping, test_split=test_split, test_share=test_share)
    if val_mapping is not None:
        fault = f"val_mapping is for class folders, but {lists[0][1]} lists the images"
        raise GraspError(f"{path}: {fault}; remove val_mapping")
    return ImageList(path, test=test_split, pixels=pixels)


@checked
class ImageList(ImageFiles):
    """Images in a folder or zip file that text files name.

    A line of a list is "a/abbey/00000016.jpg 0": a path within `path`, and a label from 0. Where `path` has train.zip
    instead of a folder train, "train/abbey/1.jpg" is a member of it.

    A class is named after the folder that holds all of its training images, with as many parent folders as make the
    name unique. A class without a folder of its own is named by its label. Labels without training images are left
    out and listed in `problems`. `ids` are hashes of the image paths, `version` is a hash of the files.

    Args:
        path: a folder or a zip file.
        train: list to train on, as a path or as a name within `path`. None: the file in `path`, or next to the zip
            file and named like it, that ends in _train.txt.
        test: list to test on, as a path or a name. "val" and "test": the file next to `train` that ends in _val.txt or
            _test.txt. None: the latter, else the former.
        pixels: height and width of the images that `read` returns.
        classes: number of classes; larger labels are refused. None: any label is accepted.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("abbey", "yard"):
    ...         (Path(folder) / name).mkdir()
    ...         for number in (1, 2):
    ...             Image.new("RGB", (40, 30)).save(Path(folder) / name / f"{number}.png")
    ...     size = (Path(folder) / "my_train.txt").write_text("abbey/1.png 0\\nyard/1.png 1")
    ...     size = (Path(folder) / "my_test.txt").write_text("yard/2.png 1")
    ...     images = ImageList(folder, pixels=16)
    ...     images.classes, images.labels.tolist(), images.read(images.test).shape
    (['abbey', 'yard'], [0, 1, 1], torch.Size([1, 3, 16, 16]))
    """

    def __init__(
        self,
        path: str | Path,
        train: str | Path | None = None,
        test: str | Path | None = None,
        pixels: Side = 224,
        *,
        classes: Count | None = None,
    ) -> None:
        require("PIL.Image", "images")  # fail now, not after minutes of work
        tree = open_tree(Path(path))
        (within, name), test_list = _find_lists(Path(path), tree, train, test)
        trained, tested = _parse((within, name), classes), _parse(test_list, classes)
        lines, train_list = [*trained, *tested], within.where(name)
        self._files, sizes = _find_images(tree, lines)
        numbers = sorted({line.label for line in trained})
        label_of = {number: label for label, number in enumerate(numbers)}
        for line in tested:
            if line.label not in label_of:
                raise GraspError(f"{line.where}: label {line.label} is not in {train_list}; add training images of it")
        unused = [str(number) for number in range(classes or numbers[-1] + 1) if number not in label_of]
        super().__init__(
            name=tree.title,
            version=files_digest(sizes, self._files),
            classes=_class_names(trained, numbers),
            labels=np.array([label_of[line.label] for line in lines], np.int64),
            ids=np.array([hash_id(line.name) for line in lines]),
            train=np.arange(len(trained)),
            test=np.arange(len(trained), len(lines)),
            options={"pixels": pixels, **changed()},
            problems=[f"{train_list} has labels without images, left out: {few(unused)}"] if unused else [],
        )


class _Line(NamedTuple):
    """A line of a list: its place, and the image and label that it names."""

    where: str
    name: str
    label: int


def train_lists(root: Path, tree: Tree) -> list[File]:
    """Find lists to train on: train.txt or …_train.txt at the top of the tree at `root`.

    Next to a zip file, lists count whose names begin like the zip file's.
    """
    found = [(tree, name) for name in sorted(tree.files) if re.fullmatch(r"(.*_)?train\.txt", name)]
    if os.path.isfile(root):
        beside = FolderTree(root.parent)
        pattern = rf"{re.escape(root.stem)}.*_train\.txt"
        found += [(beside, name) for name in sorted(beside.files) if re.fullmatch(pattern, name)]
    return found


def _find_lists(root: Path, tree: Tree, train: str | Path | None, test: str | Path | None) -> tuple[File, File]:
    """Find the lists to train and to test on, as given or by their names."""
    found = train_lists(root, tree) if train is None else [find_file(train, tree, "list")]
    if len(found) != 1:
        several = few([name for _, name in found])
        fault = f"has several lists to train on: {several}" if found else "has no list that ends in _train.txt"
        raise GraspError(f"{tree.where()} {fault}; name the list to use as train")
    if test not in (None, "val", "test"):
        return found[0], find_file(str(test), tree, "list")
    within, name = found[0]
    start = name.removesuffix("train.txt")
    beside = [f"{start}{one}.txt" for one in ("test", "val") if test in (None, one)] if start != name else []
    for other in beside:
        if within.size(other) is not None:
            return found[0], (within, other)
    missing = f"no {' or '.join(beside)}" if beside else "no list to test on"
    raise GraspError(f"there is {missing} next to {within.where(name)}; name the list to use as test")


def _parse(file: File, classes: int | None) -> list[_Line]:
    found = []
    for where, line in read_lines(file):
        name, *label = line.rsplit(maxsplit=1)
        if not label:
            raise GraspError(f"{where}: {name!r} has no label; a line is 'path label', as in 'abbey/1.jpg 0'")
        if not re.fullmatch(r"[0-9]{1,9}", label[0]):
            raise GraspError(f"{where}: the label must be a whole number from 0, got {label[0]!r}")
        if classes is not None and int(label[0]) >= classes:
            raise GraspError(f"{where}: the label must lie in 0..{classes - 1} for {classes} classes, got {label[0]}")
        found.append(_Line(where, posixpath.normpath(name), int(label[0])))
    if not found:
        raise GraspError(f"{file[0].where(file[1])} names no image")
    return found


def _find_images(tree: Tree, lines: list[_Line]) -> tuple[list[File], list[int]]:
    """Return where each image is, and its size in bytes. Refuse images that are missing or named twice."""
    part = functools.cache(tree.part)
    seen: dict[str, _Line] = {}
    files, sizes, missing = [], [], []
    for line in lines:
        if (before := seen.setdefault(line.name, line)) is not line:
            raise GraspError(f"{line.where}: {line.name} is already named in {before.where}; remove one of the lines")
        file, size = (tree, line.name), tree.size(line.name)
        top, _, rest = line.name.partition("/")
        if size is None and top and rest and (inner := part(top)) is not None:  # a zip file instead of the folder
            file, size = (inner, rest), inner.size(rest)
        files.append(file)
        sizes.append(size or 0)
        if size is None:
            missing.append(f"{line.where}: there is no {file[0].where(file[1])}")
    if missing:
        more = f"; {len(missing) - 1} more images are missing" if len(missing) > 1 else ""
        raise GraspError(f"{missing[0]}{more}; paths are relative to {tree.where()}")
    return files, sizes


def _class_names(train: list[_Line], numbers: list[int]) -> list[str]:
    """Name each class: "abbey" for a/abbey/1.jpg, or "hotel/outdoor" if another class is also called "outdoor"."""
    folder_of: dict[int, str] = {}
    for line in train:
        folder = posixpath.dirname(line.name)
        folder_of[line.label] = folder if folder_of.setdefault(line.label, folder) == folder else ""
    uses = Counter(folder_of.values())
    ends = {number: _ends(folder) for number, folder in folder_of.items() if folder and uses[folder] == 1}
    shared = Counter(end for some in ends.values() for end in some)
    short = {number: next((end for end in some if shared[end] == 1), some[-1]) for number, some in ends.items()}
    names = [short.get(number, str(number)) for number in numbers]
    return names if len(set(names)) == len(names) else [str(number) for number in numbers]


def _ends(folder: str) -> list[str]:
    """Return the last folder of a path, the last two, …, and the whole path."""
    parts = folder.split("/")
    return ["/".join(parts[-depth:]) for depth in range(1, len(parts) + 1)]
