"""The text file that says which class each image is of, where images of `val` lie without class folders."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from graspcl.data.stored import few
from graspcl.data.trees import Tree
from graspcl.errors import GraspError

_USUAL = "val_annotations.txt"  # Tiny-ImageNet's own


@dataclass(frozen=True)
class ClassesByName:
    """Classes by file name, and which file says so.

    >>> ClassesByName.parse(b"val_0.png n02", "val.txt").by_name
    {'val_0.png': 'n02'}
    """

    by_name: Mapping[str, str]
    where: str

    @classmethod
    def find(cls, root: Tree, test: Tree, given: str | Path | None) -> ClassesByName | None:
        """The file `given`, by its path or by its name in `root`; else the usual one in `test`, if it is there."""
        if given is None:
            return cls.parse(test.read(_USUAL), test.where(_USUAL)) if _USUAL in test.sizes else None
        if not Path(given).is_file() and str(given) in root.sizes:
            return cls.parse(root.read(str(given)), root.where(str(given)))
        try:
            return cls.parse(Path(given).read_bytes(), str(given))
        except OSError as error:
            raise GraspError(f"val_mapping {given} cannot be read: {error.strerror}") from error

    @classmethod
    def parse(cls, content: bytes, where: str) -> ClassesByName:
        """One "name class" a line."""
        by_name = {}
        for number, line in enumerate(content.decode("utf-8", errors="replace").splitlines(), start=1):
            # Tabs part columns if there are any, so that a class name may have spaces; else a comma or spaces do.
            fields = line.split("\t") if "\t" in line else re.split(r"[,\s]+", line.strip())
            if line.strip() and len(fields) < 2:
                raise GraspError(f"{where}, line {number}: {line.strip()!r} has no class; a line is 'name class'")
            if line.strip():
                by_name[fields[0].strip()] = fields[1].strip()
        return cls(by_name, where)

    def classes(self, tree: Tree, names: list[str], folders: list[str]) -> list[str]:
        """The class of each image, found by its name in the tree, without folders, or without folders and suffix.

        Numbers count the class folders of `train` in sorted order, also those that are empty.
        """
        keys = [(name, PurePosixPath(name).name, PurePosixPath(name).stem) for name in names]
        found = [next((self.by_name[key] for key in some if key in self.by_name), None) for some in keys]
        if missing := [name for name, value in zip(names, found, strict=True) if value is None]:
            raise GraspError(f"{self.where} gives no class for {len(missing)} images of {tree.where()}: {few(missing)}")
        values = [value for value in found if value is not None]
        # Where folders are called by numbers themselves, a number is a name.
        if not all(re.fullmatch(r"-?\d{1,9}", value) for value in values) or any(map(str.isdecimal, folders)):
            return values
        for name, value in zip(names, values, strict=True):
            if not 0 <= int(value) < len(folders):
                raise GraspError(
                    f"{self.where} gives {name} the class {value}, but train has {len(folders)} class folders, "
                    f"numbered 0..{len(folders) - 1} in sorted order"
                )
        return [folders[int(value)] for value in values]
