"""Images in WebDataset shards: tar files in which files of one name, such as 7.jpg and 7.cls, are one sample."""

from __future__ import annotations

import contextlib
import itertools
import re
import tarfile
from pathlib import Path, PurePosixPath
from typing import Annotated

import numpy as np

from graspcl.checks import Range, Side, checked
from graspcl.data.image_folder import SUFFIXES, ImageFiles, files_digest
from graspcl.data.samples import few, hash_id, labels_of
from graspcl.data.splits import held_out
from graspcl.data.trees import TarTree, tar_members
from graspcl.errors import GraspError, require
from graspcl.limits import changed

_SPLIT = re.compile(r"(?:^|[-_./])(train|val|valid|validation|test)(?=[-_./])")
_TESTS = ("val", "valid", "validation", "test")
_LABEL = 1000  # a class has fewer bytes


def find_shards(path: Path) -> list[tuple[str, Path]]:
    """Return the WebDataset shards at `path`, or in the folder `path` and its splits, with their names within it."""
    if path.is_dir():
        folders = [path, *(path / name for name in ("train", *_TESTS))]
        found = sorted(file for folder in folders if folder.is_dir() for file in folder.glob("*.tar"))
        names = [file.relative_to(path).as_posix() for file in found]
    else:
        found, names = ([path], [path.name]) if path.suffix.lower() == ".tar" else ([], [])
    return list(zip(names, found, strict=True)) if any(map(_has_classes, found)) else []


def _has_classes(file: Path) -> bool:
    """Whether there is a .cls file among the first members of a tar file."""
    try:
        return any(member.name.endswith(".cls") for member in itertools.islice(tar_members(file), 20))
    except (tarfile.ReadError, OSError):
        return False


@checked
class ImageShards(ImageFiles):
    """Images in WebDataset shards.

    The class of 7.jpg is the content of 7.cls, a name or a number. A shard is tested on if its name says so:
    val-0001.tar, imagenet-validation-07.tar or test/3.tar. Without such shards, a share of each class is held out,
    chosen by a hash of the names. Samples are in the order of the shards, so that reading them in order reads each
    shard from its start to its end.

    Images without a class, and members that cannot be read, are left out and listed in `problems`.

    Args:
        path: a tar file, or a folder of tar files.
        pixels: height and width of the images that `read` returns.
        test_share: share of each class to test on if there is no split; at least one image, but never the last.
        test_split: what the names of shards to test on say: "val", "valid", "validation" or "test". None: the first
            of these that occurs.
    """

    def __init__(
        self,
        path: str | Path,
        pixels: Side = 224,
        *,
        test_share: Annotated[float, Range(0, 1, below=True)] = 0.1,
        test_split: str | None = None,
    ) -> None:
        require("PIL.Image", "images")
        root = Path(path)
        shards = find_shards(root)
        splits = [found[1] if (found := _SPLIT.search(name)) else "" for name, _ in shards]
        tests = [name for name in _TESTS if name in splits]
        if test_split is not None and test_split not in tests:
            known = few(tests) or "none of val, valid, validation, test"
            raise GraspError(f"{root} has no shards named {test_split} to test on; there are: {known}")
        tested_on = test_split or (tests[0] if tests else None)
        self._files = []
        titles, found_classes, from_test, problems = list[str](), list[str](), list[bool](), list[str]()
        for (title, file), split in zip(shards, splits, strict=True):
            if split in tests and split != tested_on:
                continue
            tree = TarTree(file)
            names, classes, wrong = _samples_of(tree)
            problems += [*tree.problems, *wrong]
            self._files += [(tree, name) for name in names]
            titles += [f"{title}/{name}" for name in names]
            found_classes += classes
            from_test += [split == tested_on] * len(names)
        tested = np.array(from_test, bool)
        trained = [name for name, test in zip(found_classes, from_test, strict=True) if not test]
        if not trained:
            raise GraspError(f"{root} has no shards with images to train on; name them as in train-0001.tar")
        numbers = all(name.isdecimal() for name in found_classes)
        in_order = sorted(set(trained), key=lambda name: (int(name), name) if numbers else (0, name))
        labels = labels_of(found_classes, in_order, str(root), "images")
        ids = np.array([hash_id(title) for title in titles])
        options: dict[str, object] = {"pixels": pixels, **changed()}
        self.own_test = tested_on is not None
        if tested_on is None:
            tested, options["test_share"] = held_out(labels, ids, test_share), test_share
        super().__init__(
            name=root.stem if root.is_file() else root.resolve().name,
            version=files_digest((tree.sizes[name] for tree, name in self._files), self._files),
            classes=in_order,
            labels=labels,
            ids=ids,
            train=np.flatnonzero(~tested),
            test=np.flatnonzero(tested),
            options=options,
            problems=problems,
        )


def _samples_of(tree: TarTree) -> tuple[list[str], list[str], list[str]]:
    """Return the images of a shard in their order, the class of each, and a message for each that has none."""
    names, classes, problems = list[str](), list[str](), list[str]()
    for name in tree.sizes:
        if PurePosixPath(name).suffix.lower() not in SUFFIXES:
            continue
        folder, slash, file = name.rpartition("/")
        label = f"{folder}{slash}{file.partition('.')[0]}.cls"  # WebDataset's keys end at the first dot
        found = ""
        with contextlib.suppress(GraspError):
            if (tree.size(label) or _LABEL) < _LABEL:
                found = tree.read(label).decode("utf-8", errors="replace").strip()
        if found and "\0" not in found:  # zeros are a damaged block, not a name
            names.append(name)
            classes.append(found)
        else:
            problems.append(f"{tree.where(name)} is left out: {PurePosixPath(label).name} does not say its class")
    return names, classes, problems
