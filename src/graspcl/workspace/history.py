"""What was done to a workspace: one object for each change, so that a change writes its own entry alone.

A new name of a class is noted in the manifest, and entries get it when they are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from graspcl.workspace.store import Store

Told = dict[str, Any]  # what the history tells about one change, plain JSON


class History:
    """The entries of one version, oldest first. They are read when they are first asked for.

    Whoever iterates over them may change them: `saved` writes what was changed.
    """

    def __init__(self, store: Store | None = None, manifest: dict[str, Any] | None = None) -> None:
        found = manifest or {}
        names = found.get("history", [])
        self._store = store
        self._names: list[str] = names if isinstance(names, list) else [names]  # format 1: one object with all entries
        self._renamed: list[tuple[int, str, str]] = found.get("renamed", [])  # before which object: old and new name
        self._entries: list[Told] | None = None

    def __iter__(self) -> Iterator[Told]:
        if self._entries is None:
            self._entries = self._read(0)
        return iter(self._entries)

    def last(self) -> Told:
        """Return the newest entry, without reading others."""
        return self._read(len(self._names) - 1)[-1]

    def rename(self, old: str, new: str) -> None:
        """Give a class another name in all entries so far."""
        self._renamed = [*self._renamed, (len(self._names), old, new)]

    def saved(self, store: Store, entry: Told) -> dict[str, Any]:
        """Write one more entry, and those that were changed; return their part of a manifest."""
        names, renamed = self._names, self._renamed
        if self._entries is not None:  # with their names of now
            names, renamed = [store.put(_packed(one)) for one in self._entries], []
        return {"history": [*names, store.put(_packed(entry))], "renamed": renamed}

    def _read(self, begin: int) -> list[Told]:
        """Read the entries of the objects from `begin` on."""
        if self._store is None:
            return []
        parts = [_unpacked(self._store.get(name)) for name in self._names[begin:]]
        for end, old, new in self._renamed:
            rename_in([one for part in parts[: max(0, end - begin)] for one in part], old, new)
        return [one for part in parts for one in part]


def rename_in(entries: list[Told], old: str, new: str) -> None:
    """Write a new name of a class into the history, so that its accuracies and warnings are found under one name."""
    for entry in entries:
        for part in ("classes", "changed", "added"):
            if old in entry.get(part, {}):
                entry[part][new] = entry[part].pop(old)
        entry["fallen"] = [new if name == old else name for name in entry.get("fallen", [])]
        entry["confused"] = [line.replace(repr(old), repr(new)) for line in entry.get("confused", [])]


def _packed(entry: Told) -> dict[str, Any]:
    """Return an entry as a state: an array, since the plain values of a state have a limit and are read slowly."""
    return {"entry": np.frombuffer(json.dumps(entry).encode(), np.uint8)}


def _unpacked(state: dict[str, Any]) -> list[Told]:
    return list(state["entries"]) if "entries" in state else [json.loads(np.asarray(state["entry"]).tobytes())]
