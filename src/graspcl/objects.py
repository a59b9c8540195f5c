"""Immutable states in a folder, each named by its content; and rows of arrays in such states.

A file is ab/ab….safetensors, after the xxh3-128 of its bytes. What names it may be another file, written afterwards.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.files import open_regular
from graspcl.integrity import checksum, checksum_of
from graspcl.state import drop_unfinished, load_state, pack_state, partial_name, sync_folder, writing

_READ = 2**20  # bytes of a file at a time
_READERS = 4  # threads that verify files: one alone waits for memory half of the time
_NAME = re.compile(r"object:([0-9a-f]{32})")
_FILE = r"[0-9a-f]{32}\.safetensors"
_IN_TEXT = re.compile(r'"(object:[0-9a-f]{32})\\?"')  # a whole string of JSON, possibly JSON within a string


class Objects:
    """The states in `folder`. Equal states are stored once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._staged: dict[Path, Path] = {}  # files that are not yet synced, and their places
        self._unsynced: set[Path] = set()  # folders with new names

    def put(self, state: dict[str, Any]) -> str:
        """Store a state and return its name. When it returns, the state is on the disk."""
        name = self.stage(state)
        self.settle()
        return name

    def stage(self, state: dict[str, Any]) -> str:
        """As `put`, but the state is on the disk after `settle`. Its arrays may change in between."""
        with self._all_or_none():
            parts = pack_state(state)
            name = f"object:{checksum(*parts)}"
            path = self.path(name)
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)  # other ranks stage too
                self._unsynced.add(path.parent.parent)
            self._unsynced.add(path.parent)  # also of a file that is there: a killed process may have left it unsynced
            if self.fault(name):
                part = partial_name(path)
                with writing(part) as file:
                    file.writelines(parts)
                self._staged[path] = part
        return name

    def settle(self) -> None:
        """Write what is staged to the disk."""
        folders, self._unsynced = self._unsynced, set()
        with self._all_or_none():
            for path, part in self._staged.items():
                with writing(part, "r+b") as file:
                    os.fsync(file.fileno())
                    os.replace(part, path)
        self._staged = {}
        for folder in folders:
            sync_folder(folder)

    @contextlib.contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Delete all staged files if one cannot be written: a full disk must not stay full of them."""
        try:
            yield
        except BaseException:
            for part in self._staged.values():
                with contextlib.suppress(OSError):
                    part.unlink()
            self._staged = {}
            raise

    def get(self, name: str, verify: bool = True) -> dict[str, Any]:
        """Return the state that was stored under this name; verify its content, unless the caller has just done so.

        Raises:
            GraspError: the file is missing or damaged.
        """
        path = self.path(name)
        if fault := self.fault(name) if verify else "":
            raise GraspError(f"{path} {fault}")
        return load_state(path, verify=False)  # the name is a checksum of the whole file

    def path(self, name: str) -> Path:
        """Return the file of an object."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise GraspError(f"this is not the name of an object: {name!r}")
        return self.folder / found[1][:2] / f"{found[1]}.safetensors"

    def fault(self, name: str) -> str:
        """What is wrong with the file of an object; nothing if it is sound.

        Raises:
            GraspError: the file may not be read, so that nothing is known about it.
        """
        try:
            with open_regular(self.path(name)) as file:  # reading is faster than mapping what is used once
                found = checksum_of(iter(lambda: file.read(_READ), b""))
        except FileNotFoundError:
            return "is missing"
        except PermissionError as error:  # no damage, so a copy or an undo would not help
            raise GraspError(f"{self.path(name)} may not be read ({error.strerror}): change its permissions") from error
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        return "" if name == f"object:{found}" else "is damaged: its content does not match its name"

    def faults(self, names: Sequence[str]) -> list[str]:
        """What is wrong with each of several objects, see `fault`; some files are read at the same time."""
        with ThreadPoolExecutor(_READERS) as threads:
            return list(threads.map(self.fault, names))

    def keep(self, names: Iterable[str]) -> int:
        """Delete all objects but these, and the partial files of killed processes; return how many bytes.

        Only files with the name of an object are deleted: others are not ours.
        """
        kept, freed = {self.path(name) for name in names}, 0
        self.drop_unfinished()
        for folder in self._folders():
            for path in folder.iterdir():
                if re.fullmatch(_FILE, path.name) and path.name.startswith(folder.name) and path not in kept:
                    freed += path.lstat().st_size  # it may be a link to nothing
                    path.unlink()
        return freed

    def drop_unfinished(self) -> None:
        """Delete the partial files of killed processes. No other process may be writing."""
        for folder in self._folders():
            drop_unfinished(folder, _FILE)

    def clear(self) -> None:
        """Delete all objects, and the folder if nothing else is in it."""
        self.keep(())
        self.drop_empty()

    def drop_empty(self) -> None:
        """Delete folders without objects."""
        for folder in (*self._folders(), self.folder):
            with contextlib.suppress(OSError):  # there is none, or it has files
                folder.rmdir()

    def _folders(self) -> list[Path]:
        """The folders that may have objects."""
        return [folder for folder in self.folder.glob("[0-9a-f][0-9a-f]") if folder.is_dir()]


def is_name(text: str) -> bool:
    """Whether a text is the name of an object."""
    return _NAME.fullmatch(text) is not None


def names_in(text: str) -> Iterator[str]:
    """The objects that a text in JSON names."""
    return (found[1] for found in _IN_TEXT.finditer(text))


# -- rows --------------------------------------------------------------------------------------------------------------


class Positions:
    """Finds integers in `keys` [n], which are distinct.

    >>> Positions(np.array([7, 3, 5])).of(np.array([5, 6, 7])).tolist()
    [2, -1, 0]
    """

    def __init__(self, keys: Array) -> None:
        self._order = np.argsort(keys)
        self._sorted = keys[self._order]

    def of(self, wanted: Array) -> Array:
        """Return where each of `wanted` [m] is in the keys; -1 if it is not there."""
        if not len(self._sorted):
            return np.full(len(wanted), -1)
        place = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        return np.where(self._sorted[place] == wanted, self._order[place], -1)


def reusable(segments: Mapping[str, Array], keys: Array, dead: float) -> tuple[list[str], Array]:
    """Return which segments to keep for the rows with `keys` [n], and which rows are in none of them, bool [n].

    Args:
        segments: the keys in each segment, by its name.
        keys: of all rows, distinct.
        dead: a segment in which more than this share of rows is no longer wanted is not kept.
    """
    positions, kept, missing = Positions(keys), [], np.ones(len(keys), bool)
    for name, own in segments.items():
        found = positions.of(own)
        if (found < 0).mean() <= dead:
            kept.append(name)
            missing[found[found >= 0]] = False
    return kept, missing


def read_rows(segments: Iterable[tuple[Array, Array]], keys: Array, out: Array) -> None:
    """Read the rows [n, …] with `keys` [n], which are distinct, into the first rows of `out`.

    Args:
        segments: keys [m] and rows [m, …] of each, read one after the other.
        keys: of the wanted rows.
        out: where the rows are put.

    Raises:
        GraspError: rows are missing.
    """
    for place, rows in placed_rows(segments, keys):
        out[place] = rows


def placed_rows(segments: Iterable[tuple[Array, Array]], keys: Array) -> Iterator[tuple[Array, Array]]:
    """As `read_rows`, but yield where some rows belong [m], and these rows [m, …]. Each row comes once."""
    positions, missing = Positions(keys), np.ones(len(keys), bool)
    for own, rows in segments:
        place = positions.of(own)
        here = place >= 0
        here[here] = missing[place[here]]
        missing[place[here]] = False
        yield place[here], rows[here]
    if missing.any():
        raise GraspError(f"the codes of {int(missing.sum())} samples are lost")
