"""The change `learn`: take in new samples, train, and see what each class gained and lost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from graspcl.buffer import Codes
from graspcl.checks import Array
from graspcl.data import Samples
from graspcl.errors import GraspError
from graspcl.machine import give_back_memory
from graspcl.progress import Progress
from graspcl.workspace.arriving import Arrivals, Chunk
from graspcl.workspace.calibration import novelty
from graspcl.workspace.judging import Change, Tally, changes, fallen, hold_out, tallies
from graspcl.workspace.training import Effort, Trained, train
from graspcl.workspace.version import Version

_ENCODED = 64  # samples that pass through the frozen part at a time
_ALL = -1  # stands for all classes together, as a label
_SCORED = 500  # samples of known and of new classes at most that are scored before training
_CONFUSED = 0.2  # warn if a new class takes at least this share of an earlier class


@dataclass(frozen=True)
class Learnt:
    """What a `learn` did, by class name where it concerns classes."""

    added: dict[str, int]  # new samples by class, held-out ones among them
    held: int  # how many of them are held out
    duplicates: int
    contradictions: list[str]
    problems: list[str]
    trained: Trained
    changed: dict[str, Change]  # classes that had held-out samples before
    new: dict[str, Tally]  # classes that had none
    together: Change  # all held-out samples that existed before
    overall: Tally  # all held-out samples now
    held_out: dict[str, int]  # number of them of every class; 0 if it has too few samples
    fallen: list[str]  # classes that fell beyond chance
    all_fell: bool  # whether the earlier classes together fell beyond chance
    confused: list[str]  # earlier classes that are taken for new ones
    novelty: float | None  # AUROC of telling new classes as unknown, before they were learned
    seconds: float

    @property
    def samples(self) -> int:
        """Number of new samples."""
        return sum(self.added.values())


class Refused(GraspError):
    """A change was not committed, since a class would fall beyond chance. `result` is what it would have done."""

    def __init__(self, message: str, result: Learnt) -> None:
        super().__init__(message)
        self.result = result


def learn(
    load: Callable[[], Version], samples: Samples[Any], rows: Array, effort: Effort, progress: Progress
) -> tuple[Version, Learnt]:
    """Take the samples at `rows` [n] into a version and train it. Nothing is written.

    Args:
        load: returns the version as it is before. It is called twice if the samples contradict each other.
    """
    began, version = time.monotonic(), load()
    old, known, before = version.held, set(version.names), version.right()
    head = [part.clone() for part in (version.learner.network.head.weight, version.learner.network.head.bias)]
    arrivals = _take_all(version, samples, rows, progress)
    if arrivals.torn:
        progress.note(f"the same content has two classes: reading {samples.name} again without such samples")
        del version
        version = load()
        arrivals = _take_all(version, samples, rows, progress, arrivals.torn)
    problems = [*samples.problems, *arrivals.problems]
    if problems and len(arrivals.problems) == len(rows):
        raise GraspError(f"no sample can be used: {problems[0]}")
    check_classes(samples.name, len(version.names))
    held, novel = len(version.held) - len(old), _novelty(version, head, len(old), known)
    give_back_memory()
    trained = Trained(0, 0.0, "there is nothing new")
    if arrivals.counts:
        trained = train(version, effort, _batch(version), began, progress, first=not known)
    predicted = version.predicted()
    right = predicted == version.held.labels
    after = right[: len(old)]
    found = changes(before, after, old.labels)
    together = changes(before, after, np.full(len(old), _ALL)).get(_ALL, Change(Tally(0, 0), Tally(0, 0), 0, 0))
    fell = fallen({**found, _ALL: together})
    tally = tallies(right, version.held.labels)
    names = version.names
    return version, Learnt(
        dict(arrivals.counts), held, arrivals.duplicates, arrivals.contradictions, problems, trained,
        {names[label]: one for label, one in found.items()},
        {names[label]: one for label, one in tally.items() if label not in found},
        together, Tally(int(right.sum()), len(right)),
        {name: tally[label].number if label in tally else 0 for label, name in names.items()},
        [names[label] for label in fell if label != _ALL], _ALL in fell,
        _confused(version, predicted[: len(old)], old.labels, known), novel,
        time.monotonic() - began,
    )  # fmt: skip


def _novelty(version: Version, head: list[Tensor], old: int, known: set[int]) -> float | None:
    """Return how well `head` (weights and biases), which has not learned them, separates new classes from `known` ones.

    Both are scored by it: stored samples of new classes, and the `old` first held-out samples.
    """
    new = np.flatnonzero(~np.isin(version.buffer.labels, [*known]))
    if not old or not len(new):
        return None
    codes = torch.as_tensor(version.buffer["codes"][new[_spread(len(new))]])
    features = version.features()[_spread(old)], version.learner.outputs(codes, "features").cpu()
    return novelty(*(F.linear(part, *(values.cpu() for values in head)) for part in features))


def _spread(number: int) -> Array:
    """Return up to 500 of `number` positions, at equal distances."""
    return np.linspace(0, number - 1, min(number, _SCORED)).astype(np.int64)


def _confused(version: Version, predicted: Array, labels: Array, known: set[int]) -> list[str]:
    """Return which earlier classes are now taken for a new one, in words."""
    pairs = Counter(zip(labels.tolist(), predicted.tolist(), strict=True))
    sizes, names = Counter(labels.tolist()), version.names
    return [
        f"{names[true]!r} is confused with the new class {names[taken]!r}: {number} of {sizes[true]} held-out samples"
        for (true, taken), number in pairs.items()
        if taken not in known and number >= 2 and number >= _CONFUSED * sizes[true]
    ]


def check_classes(name: str, classes: int) -> None:
    """Refuse data, by their name, with fewer than two classes."""
    if classes < 2:
        raise GraspError(f"a classifier needs at least two classes, and {name} has {classes}")


def _take_all(
    version: Version, samples: Samples[Any], rows: Array, progress: Progress, disputed: Set[int] = frozenset()
) -> Arrivals:
    """Read the samples at `rows` [n] and store what is new, without samples whose ids are `disputed`."""
    arrivals = Arrivals(samples, rows, version.known(), version.lost, dict(version.names), disputed)
    stored = [(version.buffer.ids.copy(), version.buffer.labels.copy())]  # all that are or were
    for chunk in arrivals.chunks(progress):
        parts = [version.learner.encode(part) for part in chunk.inputs.split(_ENCODED)]
        stored.append((chunk.ids, _take(version, chunk, torch.cat([torch.as_tensor(part) for part in parts]))))
    version.note_evicted(*map(np.concatenate, zip(*stored, strict=True)))
    return arrivals


def _take(version: Version, chunk: Chunk, codes: Codes) -> Array:
    """Store new samples, and hold some of them out; return the labels of all [n]."""
    ids, labels, first = chunk.ids, version.labels_of(chunk.names), ~chunk.again
    apart = np.zeros(len(ids), bool)  # what was trained once is never held out
    apart[first] = hold_out(ids[first], labels[first], version.seen, Counter(version.held.labels.tolist()))
    for label, number in Counter(labels[first].tolist()).items():
        version.seen[label] = version.seen.get(label, 0) + number
    kept = torch.from_numpy(~apart)
    version.learner.observe_codes(codes[kept], labels[~apart], ids[~apart])
    version.held = version.held.with_samples(ids[apart], labels[apart], torch.as_tensor(codes)[~kept].numpy())
    return labels


def _batch(version: Version) -> int:
    """Return the size of mini-batches: that of the settings, or less if there are few samples."""
    return min(version.config.budget.batch_size, max(1, len(version.buffer)))


def summary_of(result: Learnt, source: str) -> dict[str, Any]:
    """Return what the history tells about a `learn`."""
    return {
        "samples": result.samples, "held": result.held, "duplicates": result.duplicates,
        "contradictions": len(result.contradictions), "added": result.added, "updates": result.trained.updates,
        "seconds": round(result.seconds, 1), "source": source, "fallen": result.fallen,
        "all_fell": result.all_fell, "confused": result.confused, "novelty": result.novelty,
        "changed": {name: [list(one.before), list(one.after)] for name, one in result.changed.items()},
    }  # fmt: skip


def refusal(result: Learnt) -> str:
    """Return why a change is refused; empty if it is not."""
    if result.all_fell and not result.fallen:
        fell = f"the earlier classes would fall from {result.together.before} to {result.together.after}"
        chance = f"of their held-out samples (p = {result.together.chance:.2g})"
        return f"nothing was changed: {fell} {chance}; look at the new samples, or use --accept"
    if not result.fallen:
        return ""
    name = min(result.fallen, key=lambda one: result.changed[one].points)
    worst = result.changed[name]
    more = f" and {len(result.fallen) - 1} more classes" if len(result.fallen) > 1 else ""
    fell = f"{name!r} would fall from {worst.before} to {worst.after} of its held-out samples (p = {worst.chance:.2g})"
    return f"nothing was changed: {fell}{more}; look at the new samples, or use --accept"
