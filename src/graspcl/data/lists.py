"""Images named in text files, as Places-LT and ImageNet-LT are distributed."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from graspcl.data.stored import ImageFiles, few, files_digest, name_hash
from graspcl.data.trees import FolderTree, Tree, open_tree
from graspcl.errors import GraspError, require


class ImageList(ImageFiles):
    """Images in the folder or zip file `root` that text files name, RGB at `pixels` x `pixels`.

    A line of a list is "a/abbey/00000016.jpg 0": a path within `root` and a label from 0. The lists `train` and `test`
    are given by their paths or by their names in `root`. By default `train` is the file there whose name ends in
    _train.txt (or one beside a zip file that begins like its name), and `test` the one beside it that ends in
    _test.txt, else in _val.txt. Where `root` has train.zip in place of a folder train, "train/abbey/1.jpg" is a member
    of it.

    A class is called by the folder that all its training images lie in, with as many parents as tell it from the
    others, or by its label if they share none. Labels that no training image has are left out, which `problems` says;
    with `classes`, the number of classes, a label beyond is an error. `ids` are hashes of the paths, and `version` is a
    hash of the files' sizes.

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
        root: str | Path,
        train: str | Path | None = None,
        test: str | Path | None = None,
        pixels: int = 224,
        *,
        classes: int | None = None,
    ) -> None:
        if pixels < 1:
            raise GraspError(f"{root}: pixels must be at least 1, not {pixels}")
        if classes is not None and classes < 1:
            raise GraspError(f"{root}: classes must be at least 1, not {classes}")
        require("PIL.Image", "images")  # now, not after minutes of work
        tree = open_tree(Path(root))
        train_file = _train_file(Path(root), tree, train)
        lists = [_parse(train_file, classes), _parse(_test_file(tree, test, train_file), classes)]
        _refuse_twice(lists)
        self._files, sizes = _find_images(tree, lists)
        numbers = sorted(set(lists[0].labels))  # of the classes that stay
        label_of = {number: label for label, number in enumerate(numbers)}
        _refuse_untrained(lists, label_of)
        self._pixels = pixels
        ends = np.cumsum([len(part.names) for part in lists])
        super().__init__(
            name=tree.title,
            version=files_digest(sizes, self._files),
            classes=_class_names(lists[0], numbers),
            labels=np.array([label_of[number] for part in lists for number in part.labels], np.int64),
            ids=np.array([name_hash(name) for part in lists for name in part.names]),
            train=np.arange(ends[0]),
            test=np.arange(ends[0], ends[1]),
            options={"pixels": pixels},
            problems=_left_out(lists[0], classes),
        )


class _File(NamedTuple):
    """A list: a file of a tree."""

    tree: Tree
    name: str


class _List(NamedTuple):
    """What a list says, and in which lines."""

    where: str
    names: list[str]
    labels: list[int]
    lines: list[int]

    def at(self, row: int) -> str:
        return f"{self.where}, line {self.lines[row]}"


def train_lists(root: Path, tree: Tree) -> list[_File]:
    """Files that look like lists to train on: train.txt or …_train.txt at the top of `tree`, which is at `root`, and
    beside a zip file those that begin like its name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     size = (Path(folder) / "Places_LT_train.txt").write_text("a/abbey/1.jpg 0")
    ...     [file.name for file in train_lists(Path(folder), open_tree(Path(folder)))]
    ['Places_LT_train.txt']
    """
    found = [_File(tree, name) for name in sorted(tree.files) if re.fullmatch(r"(.*_)?train\.txt", name)]
    if root.is_file():
        beside = FolderTree(root.parent)
        alike = rf"{re.escape(root.stem)}.*_train\.txt"
        found += [_File(beside, name) for name in sorted(beside.files) if re.fullmatch(alike, name)]
    return found


def _given(tree: Tree, given: str | Path) -> _File:
    path = Path(given)
    if path.is_file():
        return _File(FolderTree(path.parent), path.name)
    if tree.size(str(given)) is not None:
        return _File(tree, str(given))
    raise GraspError(f"there is no list {given}, neither as a path of its own nor in {tree.where()}")


def _train_file(root: Path, tree: Tree, given: str | Path | None) -> _File:
    if given is not None:
        return _given(tree, given)
    found = train_lists(root, tree)
    if len(found) == 1:
        return found[0]
    several = few([file.name for file in found])
    fault = f"has several lists to train on: {several}" if found else "has no list that ends in _train.txt"
    raise GraspError(f"{tree.where()} {fault}; name the one to use as train")


def _test_file(tree: Tree, given: str | Path | None, train: _File) -> _File:
    if given is not None:
        return _given(tree, given)
    begin = train.name.removesuffix("train.txt")
    beside = [f"{begin}test.txt", f"{begin}val.txt"] if begin != train.name else []
    for name in beside:
        if train.tree.size(name) is not None:
            return _File(train.tree, name)
    missing = f"neither {beside[0]} nor {beside[1]}" if beside else "no list to test on"
    raise GraspError(f"there is {missing} beside {train.tree.where(train.name)}; name the list as test")


def _parse(file: _File, classes: int | None) -> _List:
    found = _List(file.tree.where(file.name), [], [], [])
    for number, line in enumerate(file.tree.read(file.name).decode("utf-8-sig", errors="replace").split("\n"), start=1):
        fields = line.strip().rsplit(maxsplit=1)
        if not fields:
            continue
        where = f"{found.where}, line {number}"
        if len(fields) < 2:
            raise GraspError(f"{where}: {line.strip()!r} has no label; a line is 'path label', as in 'abbey/1.jpg 0'")
        name, label = fields
        if not re.fullmatch(r"[0-9]{1,9}", label):
            raise GraspError(f"{where}: the label must be a whole number from 0, not {label!r}")
        if classes is not None and int(label) >= classes:
            raise GraspError(f"{where}: label {label} is beyond 0..{classes - 1}, the range of {classes} classes")
        found.names.append(posixpath.normpath(name))
        found.labels.append(int(label))
        found.lines.append(number)
    if not found.names:
        raise GraspError(f"{found.where} names no image")
    return found


def _refuse_twice(lists: list[_List]) -> None:
    seen: dict[str, tuple[_List, int]] = {}
    for part in lists:
        for row, name in enumerate(part.names):
            if name in seen:
                before, at = seen[name]
                raise GraspError(f"{part.at(row)}: {name} is named before, in {before.at(at)}; an image has one place")
            seen[name] = part, row


def _find_images(tree: Tree, lists: list[_List]) -> tuple[list[tuple[Tree, str]], list[int]]:
    """Where each image is, and its bytes."""
    zips: dict[str, Tree | None] = {}
    files, sizes, missing = [], [], []
    for part in lists:
        for row, name in enumerate(part.names):
            file, size = (tree, name), tree.size(name)
            top, _, rest = name.partition("/")
            if size is None and top and rest:  # perhaps in a zip file in place of the folder
                if top not in zips:
                    zips[top] = tree.part(top)
                if (inner := zips[top]) is not None:
                    file, size = (inner, rest), inner.size(rest)
            files.append(file)
            sizes.append(size or 0)
            if size is None:
                missing.append(f"{part.at(row)}: there is no {file[0].where(file[1])}")
    if missing:
        more = f"; {len(missing) - 1} more images are missing" if len(missing) > 1 else ""
        raise GraspError(f"{missing[0]}{more}; paths count from {tree.where()}")
    return files, sizes


def _refuse_untrained(lists: list[_List], label_of: dict[int, int]) -> None:
    train, test = lists
    for row, number in enumerate(test.labels):
        if number not in label_of:
            raise GraspError(
                f"{test.at(row)}: label {number} is not in {train.where}; "
                "a class needs images to train on before it can be tested"
            )


def _left_out(train: _List, classes: int | None) -> list[str]:
    used = set(train.labels)
    end = max(used) + 1 if classes is None else classes
    if end == len(used):
        return []
    some = islice((str(number) for number in range(end) if number not in used), 5)
    more = f" and {end - len(used) - 5} more" if end - len(used) > 5 else ""
    return [f"{train.where} has labels without images, left out: {', '.join(some)}{more}"]


def _class_names(train: _List, numbers: list[int]) -> list[str]:
    """What each class is called: "abbey" for a/abbey/1.jpg, "hotel/outdoor" if others are called "outdoor" too."""
    folders: dict[int, str] = {}
    for name, number in zip(train.names, train.labels, strict=True):
        folder = posixpath.dirname(name)
        folders[number] = folder if folders.setdefault(number, folder) == folder else ""
    shared = Counter(folders.values())
    names = {number: folder for number, folder in folders.items() if folder and shared[folder] == 1}
    short = _shortened(list(names.values()))
    called = [short[names[number]] if number in names else str(number) for number in numbers]
    return called if len(set(called)) == len(called) else [str(number) for number in numbers]


def _shortened(folders: list[str]) -> dict[str, str]:
    """Each folder's last parts, as many as tell it from the others."""
    short: dict[str, str] = {}
    depth = 1
    while left := [folder for folder in folders if folder not in short]:
        ends = {folder: "/".join(folder.split("/")[-depth:]) for folder in left}
        counts = Counter("/".join(folder.split("/")[-depth:]) for folder in folders)
        short |= {folder: end for folder, end in ends.items() if counts[end] == 1 or end == folder}
        depth += 1
    return short
