"""Changes of classes: forget, rename and merge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.learner import Aligned
from graspcl.policy import policies
from graspcl.workspace.known import Known
from graspcl.workspace.version import Version


def forget(version: Version, names: Iterable[str] = (), ids: Array | None = None) -> dict[str, Any]:
    """Remove classes, and samples by id, from everything that a version knows; return what the history tells.

    A class all of whose stored samples go is removed as well. The head is solved again from the samples that stay.
    """
    labels = [version.label_of(name) for name in names]
    wanted = np.empty(0, np.int64) if ids is None else ids
    buffer, held, learned = version.buffer, version.held, version.learned()
    if not labels and (learned.labels_of(wanted) < 0).all():
        raise GraspError("none of these samples was learned; nothing was changed")
    gone = np.isin(buffer.labels, labels) | np.isin(buffer.ids, wanted)
    emptied = set(buffer.classes.tolist()) - set(buffer.labels[~gone].tolist())
    labels = [label for label in version.names if label in labels or label in emptied]
    _check_left(version, labels)
    without = np.isin(learned.labels, labels) | np.isin(learned.ids, wanted)
    forgotten, removed = learned.ids[without], Counter(learned.labels[without].tolist())
    buffer.remove(np.flatnonzero(gone))
    version.held = held.part(~np.isin(held.ids, forgotten))
    version.evicted, version.lost = version.evicted.without(forgotten), version.lost.without(forgotten)
    for label, number in removed.items():
        version.seen[label] -= number
    dropped = [_drop(version, label) for label in labels]
    _solve_again(version)
    for entry in version.history:
        _without(entry, dropped)
    return {"forgot": dropped, "samples": sum(removed.values())}


def merge(version: Version, source: str, target: str) -> dict[str, Any]:
    """Make all samples of the class `source` samples of `target`; return what the history tells."""
    old, new = version.label_of(source), version.label_of(target)
    if old == new:
        raise GraspError(f"a class cannot be merged with itself: {source!r}")
    _check_left(version, [old])
    slots = np.array(version.buffer.slots_of(old), np.int64)
    version.buffer.overwrite(slots, np.full(len(slots), new))
    version.held.labels[version.held.labels == old] = new
    version.evicted, version.lost = version.evicted.relabelled(old, new), version.lost.relabelled(old, new)
    version.seen[new] = version.seen.get(new, 0) + version.seen.get(old, 0)
    _drop(version, old)
    _solve_again(version)
    for entry in version.history:
        _without_warnings(entry, source)
    return {"merged": source, "into": target, "samples": len(slots)}


def _check_left(version: Version, labels: list[int]) -> None:
    if len(version.names) - len(labels) < 2:
        raise GraspError("at least two classes must be left; nothing was changed")


def _drop(version: Version, label: int) -> str:
    version.seen.pop(label, None)
    return version.names.pop(label)


def _solve_again(version: Version) -> None:
    learner, policy = version.learner, version.config.policy
    if not isinstance(learner, Aligned):
        raise GraspError(f"the learner {learner.name} cannot forget; make the workspace with the learner aligned")
    version.lost.add(version.evicted.ids, version.evicted.labels)  # the sums are computed from stored samples alone
    version.evicted = Known()
    learner.policy = policies.create(policy.name, **policy.parameters)  # its plans name samples
    learner.relearn([label for label in learner.classes if label in version.names])


def _without(entry: dict[str, Any], names: list[str]) -> None:
    """Remove classes from an entry of the history; how many classes it added stays known."""
    gone = len(entry.get("added", {}).keys() & set(names))
    if gone:
        entry["forgotten"] = entry.get("forgotten", 0) + gone
    for name in names:
        for part in ("classes", "changed", "added"):
            entry.get(part, {}).pop(name, None)
        _without_warnings(entry, name)


def _without_warnings(entry: dict[str, Any], name: str) -> None:
    for part in ("fallen", "confused"):
        entry[part] = [one for one in entry.get(part, []) if name != one and repr(name) not in one]
