"""One version of a workspace in memory, ready to be changed, and how it becomes the next version on disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graspcl.checks import Array
from graspcl.codec import codecs
from graspcl.errors import GraspError, nearest
from graspcl.learner import Learner
from graspcl.settings.config import Config, as_plain
from graspcl.settings.read import from_plain
from graspcl.workspace.calibration import Calibration, calibrate
from graspcl.workspace.classifier import Classifier
from graspcl.workspace.history import History
from graspcl.workspace.judging import Tally, tallies
from graspcl.workspace.known import Known
from graspcl.workspace.memory import (
    HeldOut,
    Manifest,
    load_known,
    load_learner,
    load_network,
    save_known,
    save_learner,
)
from graspcl.workspace.store import Store

UNDOABLE = 3  # changes that can be taken back; each keeps its weights and sums on the disk
_CHUNK = 1024  # held-out samples that are predicted at a time
_NUMBERS = 10_000_000  # logits at most that a calibration looks at
FORMAT = 2  # of manifests; raise it when an earlier program could not read them


@dataclass
class Version:
    """The settings, the learner, the held-out samples and the classes of a workspace."""

    config: Config
    backbone: str  # digest of the network as it came
    learner: Learner
    held: HeldOut = field(default_factory=HeldOut.none)
    evicted: Known = field(default_factory=Known)  # trained samples that made room for others; the sums know them
    lost: Known = field(default_factory=Known)  # trained samples that the sums do not know; some are stored again
    names: dict[int, str] = field(default_factory=dict)  # of classes by label; labels are never used again
    seen: dict[int, int] = field(default_factory=dict)  # samples of each class so far, held-out ones among them
    next: int = 0  # the label of the next new class
    segments: list[dict[str, Any]] = field(default_factory=list)
    history: History = field(default_factory=History)

    @classmethod
    def load(cls, store: Store) -> Version:
        """Load the current version of a workspace."""
        manifest = head_of(store)
        store.check_files()
        config = from_plain(manifest["settings"])
        codec = codecs.create(config.codec.name, **config.codec.parameters)
        learner, held = load_learner(store, manifest, config, codec)
        evicted, lost = (load_known(store, manifest.get(part, [])) for part in ("evicted", "lost"))
        return cls(
            config, manifest["backbone"], learner, held, evicted, lost, class_names(manifest),
            {int(label): number for label, number in manifest["seen"].items()}, manifest["next"],
            manifest["segments"], History(store, manifest),
        )  # fmt: skip

    def save(self, store: Store, verb: str, summary: dict[str, Any], forgotten: bool = False) -> None:
        """Commit this as the next version.

        Args:
            verb: what was done.
            summary: what the history tells about it, plain JSON.
            forgotten: whether samples were forgotten. Then all earlier versions go, and with them what they stored.
        """
        parts = save_learner(store, self.learner, self.held, self.segments, forgotten)
        parts |= {"evicted": save_known(store, self.evicted), "lost": save_known(store, self.lost)}
        calibration, judged = self.calibration(), self.accuracies()
        total = Tally(sum(one.right for one in judged.values()), sum(one.number for one in judged.values()))
        entry = {
            "verb": verb, **summary, "accuracy": list(total),
            "classes": {self.names[label]: list(one) for label, one in judged.items()},
        }  # fmt: skip
        manifest = {
            "format": FORMAT, "settings": as_plain(self.config), "backbone": self.backbone, **parts,
            "rows": list(self.learner.classes), "classes": {str(label): name for label, name in self.names.items()},
            "seen": {str(label): number for label, number in self.seen.items()}, "next": self.next,
            "calibration": calibration.as_plain(), **self.history.saved(store, entry),
            "stored": {str(label): int(n) for label, n in zip(self.buffer.classes, self.buffer.sizes, strict=True)},
            "held_out": {str(label): one.number for label, one in judged.items()},
        }  # fmt: skip
        store.commit(verb, summary, manifest, keep=1 if forgotten else UNDOABLE + 1)

    @property
    def buffer(self) -> Any:
        """The memory of the learner."""
        return self.learner.buffer

    def label_of(self, name: str) -> int:
        """Return the label of a class; refuse a name that is not known."""
        for label, known in self.names.items():
            if known == name:
                return label
        raise GraspError(f"the workspace has no class {name!r}; {nearest(name, self.names.values())}")

    def labels_of(self, names: Iterable[str]) -> Array:
        """Return the labels [n] of classes by name. New ones get the next labels."""
        label_of = {name: label for label, name in self.names.items()}
        for name in names:
            if name not in label_of:
                label_of[name] = self.next
                self.names[self.next], self.next = name, self.next + 1
        return np.array([label_of[name] for name in names], np.int64)

    def known(self) -> Known:
        """Return the labels of all samples that the sums know or that are held out."""
        found = Known(self.evicted.runs)
        found.add(self.buffer.ids, self.buffer.labels)
        found.add(self.held.ids, self.held.labels)
        return found

    def learned(self) -> Known:
        """Return the labels of all samples that were ever learned and not forgotten."""
        found = self.known()
        found.add(self.lost.ids, self.lost.labels)
        return found

    def note_evicted(self, ids: Array, labels: Array) -> None:
        """Remember which of the samples with these `ids` [n] and `labels` [n] are neither stored nor held out."""
        gone = ~np.isin(ids, np.concatenate([self.buffer.ids, self.held.ids]))
        self.evicted.add(ids[gone], labels[gone])

    # -- held-out samples ----------------------------------------------------------------------------------------------

    def features(self) -> Tensor:
        """Return the features [n, D] of held-out samples. They are computed once, until the plastic part is trained."""
        known = len(self.held.features)
        if known < len(self.held):
            new = self.learner.outputs(torch.from_numpy(self.held.codes[known:]), "features").cpu()
            self.held.features = torch.cat([self.held.features, new]) if known else new
        return self.held.features

    def logits(self, which: Array | slice = slice(None)) -> Tensor:
        """Return the logits [n, classes] of held-out samples, by default of all."""
        if not len(self.held):
            return torch.zeros(0, len(self.learner.classes))
        return self.learner.logits_of(self.features()[which]).cpu()

    def predicted(self) -> Array:
        """Return the predicted labels of the held-out samples [n]."""
        parts = [self.logits(slice(begin, begin + _CHUNK)) for begin in range(0, len(self.held), _CHUNK)]
        rows = [part.argmax(1).numpy() for part in parts]
        return np.asarray(self.learner.classes, np.int64).take(np.concatenate([np.empty(0, np.int64), *rows]))

    def right(self) -> Array:
        """Return which held-out samples are predicted correctly [n]."""
        return np.asarray(self.predicted() == self.held.labels)

    def accuracy(self) -> float:
        """Return the share of held-out samples that are predicted correctly; 0 without such samples."""
        return float(self.right().sum()) / max(1, len(self.held))

    def retrained(self) -> None:
        """Note that the plastic part has changed."""
        self.held.features = torch.empty(0, 0)

    def accuracies(self) -> dict[int, Tally]:
        """Return how well each class is predicted, by label."""
        return tallies(self.right(), self.held.labels)

    def calibration(self) -> Calibration:
        """Return temperature and threshold, chosen on held-out samples; on some, if all would take too much memory."""
        number = min(len(self.held), max(_CHUNK, _NUMBERS // max(1, len(self.learner.classes))))
        some = np.linspace(0, len(self.held) - 1, number).astype(np.int64)
        row_of = {label: row for row, label in enumerate(self.learner.classes)}
        targets = torch.tensor([row_of[label] for label in self.held.labels[some].tolist()], dtype=torch.int64)
        return calibrate(self.logits(some), targets)


def head_of(store: Store) -> Manifest:
    """Return the manifest of the current version; refuse a workspace that has none, or one of a newer program."""
    if store.head is None:
        raise GraspError(f"the workspace {store.folder} is empty: its first `graspcl new` was stopped; run it again")
    if store.head.manifest["format"] > FORMAT:
        raise GraspError(f"the workspace {store.folder} is of a newer version of graspcl; update graspcl to use it")
    return store.head.manifest


def class_names(manifest: Manifest) -> dict[int, str]:
    """Return the names of classes by label."""
    return {int(label): name for label, name in manifest["classes"].items()}


def history_of(store: Store) -> list[dict[str, Any]]:
    """Return what was done to the workspace, oldest first, as `Version.save` noted it."""
    return [*History(store, head_of(store))]


def load_classifier(store: Store, manifest: Manifest | None = None) -> Classifier:
    """Return what predicts with a version, by default the current one. Stored samples are not read."""
    manifest = head_of(store) if manifest is None else manifest
    config, names = from_plain(manifest["settings"]), class_names(manifest)
    network = load_network(store, manifest, config)
    calibration = Calibration.from_plain(manifest["calibration"])
    return Classifier(network, [names[label] for label in manifest["rows"]], config, calibration)
