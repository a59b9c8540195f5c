"""A classifier that stays current: a folder, and verbs for what happens to it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from graspcl.buffer.columns import integer_array
from graspcl.checks import Array
from graspcl.data import Samples
from graspcl.errors import GraspError, nearest
from graspcl.experiment.prediction import Inputs
from graspcl.progress import Progress, Silent
from graspcl.settings.config import Config
from graspcl.settings.read import from_plain
from graspcl.workspace.arriving import Given, check_names, content_ids, open_labelled
from graspcl.workspace.changing import forget, merge
from graspcl.workspace.classifier import Classifier, Recognised
from graspcl.workspace.evaluation import Evaluation, evaluate
from graspcl.workspace.history import History
from graspcl.workspace.journal import Version as Stored
from graspcl.workspace.learning import Learnt, Refused, check_classes, learn, refusal, summary_of
from graspcl.workspace.making import MEMORY, choose_settings, new_version
from graspcl.workspace.overview import RECENT, Status, remember_scores, status
from graspcl.workspace.place import check_free
from graspcl.workspace.store import Store
from graspcl.workspace.training import Effort, parse_seconds
from graspcl.workspace.version import FORMAT, UNDOABLE, Version, head_of, history_of, load_classifier

Contents = Sequence[Any] | Array | torch.Tensor
Found = TypeVar("Found")


class Workspace:
    """A classifier in a folder. Open it with `Workspace.open`, or make one with `Workspace.new`.

    Each change is one transaction: it happens entirely or not at all, and `undo` takes it back. Prediction never waits
    for a change of another process.

    >>> ws = Workspace.open("shop")  # doctest: +SKIP
    >>> ws.learn(["new/1.jpg", "new/2.jpg"], ["kiwi", "kiwi"])  # doctest: +SKIP
    >>> ws.predict(["photo.jpg"]).names  # doctest: +SKIP
    ['kiwi']
    """

    def __init__(self, folder: Path, wait: float, progress: Progress) -> None:
        self.folder, self.wait, self.progress = folder, wait, progress
        self.made: Learnt | None = None  # what `new` did
        self._classifier: Classifier | None = None
        self._version: Stored | None = None  # the current version
        self._predicting = -1  # the number of the one that predicts, which is another if the current one is damaged

    # -- opening -------------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: str | Path, wait: float = 0.0, progress: Progress | None = None) -> Workspace:
        """Open a workspace.

        Args:
            folder: where it is.
            wait: how many seconds a change waits for one of another process.
            progress: what shows the steps of a change; by default nothing is shown.
        """
        found = cls(Path(folder), wait, progress or Silent())
        with Store.open(folder) as store:
            head_of(store)
        return found

    @classmethod
    def new(
        cls, folder: str | Path, data: str | Path, *, backbone: str | None = None, memory: str = MEMORY,
        pixels: int | None = None, text: str | None = None, label: str | None = None, budget: str | float | None = None,
        updates: int | None = None, seed: int = 0, progress: Progress | None = None,
    ) -> Workspace:  # fmt: skip
        """Make a workspace from its first data.

        Args:
            folder: where to make it; it must be empty or missing.
            data: a folder or zip file with one folder of images per class, or a table of texts.
            backbone: name of a network (`graspcl list networks`), or folder of a text encoder.
            memory: the largest size of the stored samples, such as "500MB".
            pixels: side of the square that images are cut and resized to.
            text, label: columns of a table.
            budget: time to spend, such as "2min", or seconds.
            updates: number of mini-batches to train on.
            seed: of all random choices.
            progress: what shows the steps and the choices.
        """
        progress, effort = progress or Silent(), _effort(budget, updates)
        check_free(Path(folder))
        config = choose_settings(str(data), backbone, memory, pixels, seed, progress, text, label)
        samples = open_labelled(config, str(data), text, label)
        check_classes(samples.name, len(samples.classes))
        with _created(folder) as store:
            rows = _rows(samples)
            empty = new_version(config, samples, rows, progress)
            version, result = learn(lambda: deepcopy(empty), samples, rows, effort, progress)
            version.save(store, "new", summary_of(result, str(data)))
        found = cls(Path(folder), 0.0, progress)
        found.made = result
        return found

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of arrival."""
        return self._current().classes

    @property
    def history(self) -> list[dict[str, Any]]:
        """What was done, oldest first."""
        return self._read(history_of)

    @property
    def config(self) -> Config:
        """The settings that were chosen when the workspace was made."""
        return self._current().config

    def predict(self, inputs: Contents) -> Recognised:
        """Predict the classes of n inputs, with calibrated probabilities.

        Args:
            inputs: a list of texts; paths or bytes of image files; or an array as the network takes it.
        """
        found = self._current().predict(inputs)
        remember_scores(self.folder, found.scores, self._predicting)
        return found

    @property
    def reads(self) -> Literal["images", "texts"]:
        """What `predict` takes, apart from arrays."""
        return self._current().reads

    def evaluate(
        self, inputs: Contents | str | Path, labels: Sequence[str] | None = None, *, text: str | None = None,
        label: str | None = None,
    ) -> Evaluation:  # fmt: skip
        """Predict samples whose classes are known. Arguments are those of `learn`.

        Of a folder or table with test samples of its own these are used, else all samples.
        """
        classifier = self._current()
        samples = self._labelled(classifier.config, inputs, labels, text, label)
        rows = np.array(samples.test) if labels is None and samples.own_test else np.arange(len(samples))
        return evaluate(classifier, samples, rows, self.progress)

    def status(self) -> Status:
        """Describe classes, memory, history and warnings."""
        return self._read(status)

    def verify(self) -> list[str]:
        """Check every file of the workspace; return what is wrong, one line each."""
        while True:
            with Store.open(self.folder) as store:
                if not (found := store.verify()) or not store.outdated():
                    return found

    def restore(self, copy: str | Path) -> int:
        """Replace missing and damaged files by those of a copy of the workspace; return how many."""
        with Store.open(self.folder, write=True, wait=self.wait, damaged=True, copy=copy) as store:
            return store.restore(copy)

    def way_out(self) -> str:
        """Return what to do about damage that `verify` found."""
        return self._read(Store.way_out)

    def export(self, path: str | Path) -> float | None:
        """Write the classifier to one file for other programs: `.onnx` or `.safetensors`.

        Class names, temperature, threshold and how inputs are prepared are in its metadata.

        Returns:
            The largest difference of probabilities that onnxruntime computes; None if it was not compared.
        """
        from graspcl.workspace.export import check_ending, export

        check_ending(path)
        return export(path, self._current().exportable())

    def ids(self, inputs: Contents) -> Array:
        """Return the ids [n] of inputs, by which `forget` finds samples; -1 for one that cannot be read."""
        reader = Inputs(self._current().config)
        checked = reader.check(inputs, "ids")
        found = np.full(len(checked), -1)
        for places, batch, _ in reader.batches(checked):
            found[places] = content_ids(batch)
        return found

    def _current(self) -> Classifier:
        return self._read(self._classifier_of)

    def _read(self, look: Callable[[Store], Found]) -> Found:
        """Return what `look` finds in the workspace as it is now.

        Another process may remove what a version names, once it has committed a later one: then look again.
        """
        while True:
            with Store.open(self.folder) as store:
                try:
                    return look(store)
                except GraspError:
                    if not store.outdated():
                        raise

    def _classifier_of(self, store: Store) -> Classifier:
        # Compared as a whole: the folder may have been made again, and have another version of the same number.
        if self._classifier is None or store.head != self._version:
            self._classifier, self._version = self._sound_classifier(store), store.head
            if store.problems:
                self._tell(f"{store.problems[0]}; predicting by its backup, which may lack the last change")
        return self._classifier

    def _tell(self, said: str) -> None:
        self.progress.note(said)
        if type(self.progress) is Silent:  # whoever shows no notes must know all the same
            warnings.warn(said, stacklevel=5)

    def _sound_classifier(self, store: Store) -> Classifier:
        """Load what predicts: of the current version, or if that is damaged, of the last one that is not."""
        self._predicting = -1 if store.head is None else store.head.number
        try:
            return load_classifier(store)
        except GraspError as error:
            if store.head is None or store.outdated() or (sound := store.last_good()).number == store.head.number:
                raise
            self._tell(f"{error}; predicting as before the change of {store.head.time}")
            self._predicting = sound.number
            return load_classifier(store, sound.manifest)

    # -- changing ------------------------------------------------------------------------------------------------------

    def learn(
        self, inputs: Contents | str | Path, labels: Sequence[str] | None = None, *, accept: bool = False,
        budget: str | float | None = None, updates: int | None = None, text: str | None = None,
        label: str | None = None,
    ) -> Learnt:  # fmt: skip
        """Learn new samples of old or new classes.

        Args:
            inputs: a folder of class folders, a table of texts, or with `labels` what `predict` takes.
            labels: the name of the class of each input; not for a folder or table.
            accept: commit even if a class falls beyond chance.
            budget: time to spend, such as "2min", or seconds.
            updates: number of mini-batches to train on.
            text, label: columns of a table.

        Returns:
            What was added, gained and lost.

        Raises:
            Refused: a class falls beyond chance. Nothing is changed.
        """
        effort = _effort(budget, updates)
        with self._writing() as store:
            config = from_plain(head_of(store)["settings"])
            samples = self._labelled(config, inputs, labels, text, label)
            version, result = learn(lambda: Version.load(store), samples, _rows(samples), effort, self.progress)
            if (why := refusal(result)) and not accept:
                raise Refused(why, result)
            if result.samples:
                source = str(inputs) if labels is None else "samples from Python"
                version.save(store, "learn", summary_of(result, source))
        return result

    def undo(self) -> dict[str, Any]:
        """Take the last change back; return what was taken back, as `history` told it.

        The last three changes can be undone, but never a `forget`.
        """
        with self._writing() as store:
            head_of(store)  # refuses an empty workspace, and one of a newer program
            newest, *before = store.versions()
            last = {"verb": newest.verb, **newest.summary}
            with suppress(GraspError):  # a damaged history is no reason to keep it
                last = History(store, head_of(store)).last()
            if not before and last["verb"] not in ("new", "forget"):
                raise GraspError(f"only the last {UNDOABLE} changes can be undone, and these were")
            store.undo()
        return last

    def forget(self, *classes: str, ids: Sequence[int] | Array = ()) -> dict[str, Any]:
        """Forget classes, or single samples by their `ids`. It cannot be undone.

        Samples, sums and the head's rows of a class go, from all versions, and the ids of samples that the memory has
        evicted. What the plastic part of the network and the codec learned from them stays.

        Returns:
            What the history tells about it, and the ids that were `missing`: of no sample that was learned.
        """
        check_names(classes)
        wanted = integer_array(ids, "ids")
        if not classes and not len(wanted):
            raise GraspError("say what to forget: a class, or samples by their ids")
        with self._writing() as store:
            version = Version.load(store)
            missing = wanted[version.learned().labels_of(wanted) < 0].tolist()
            told = forget(version, classes, wanted)
            version.save(store, "forget", told, forgotten=True)
            with suppress(OSError):  # its scores do not count for the new version
                (self.folder / RECENT).unlink(missing_ok=True)
        return {**told, "missing": missing}

    def merge(self, source: str, into: str) -> dict[str, Any]:
        """Make all samples of one class samples of another; return what the history tells about it."""
        check_names([source, into])
        with self._writing() as store:
            version = Version.load(store)
            told = merge(version, source, into)
            version.save(store, "merge", told)
        return told

    def rename(self, old: str, new: str) -> dict[str, Any]:
        """Give a class another name; return what the history tells about it."""
        check_names([old, new])
        with self._writing() as store:
            manifest = head_of(store)
            names = dict(manifest["classes"])
            if old not in names.values():
                raise GraspError(f"the workspace has no class {old!r}; {nearest(old, names.values())}")
            if new in names.values() or not new:
                raise GraspError(f"there is a class {new!r} already; use merge" if new else "a class needs a name")
            history, told = History(store, manifest), {"renamed": old, "to": new}
            history.rename(old, new)
            last = history.last()
            entry = {"verb": "rename", **told, **{part: last[part] for part in ("accuracy", "classes")}}
            changed = {label: new if name == old else name for label, name in names.items()}
            parts = {"format": FORMAT, "classes": changed, **history.saved(store, entry)}
            store.commit("rename", told, {**manifest, **parts}, keep=UNDOABLE + 1)
        return told

    @contextmanager
    def _writing(self) -> Iterator[Store]:
        with Store.open(self.folder, write=True, wait=self.wait) as store:
            yield store

    def _labelled(
        self, config: Config, inputs: Contents | str | Path, labels: Sequence[str] | None, text: str | None,
        label: str | None,
    ) -> Samples[Any]:  # fmt: skip
        if labels is None:
            if not isinstance(inputs, str | Path):
                raise GraspError("give the classes of the samples as well: learn(inputs, labels)")
            return open_labelled(config, str(inputs), text, label)
        reader = Inputs(config)
        if isinstance(inputs, str | Path):
            raise GraspError(f"with labels, give a list of {reader.reads}: learn([one], [class])")
        return Given(reader, reader.check(inputs, "learn"), labels)


@contextmanager
def _created(folder: str | Path) -> Iterator[Store]:
    """Make the folder of a workspace; if its first version fails, nothing of it stays."""
    with Store.create(folder, {"kind": "classifier"}) as store:
        try:
            yield store
        except BaseException:
            store.discard()
            raise


def _rows(samples: Samples[Any]) -> Array:
    """Return the samples to learn: all, or those to train on if the data have test samples of their own."""
    return np.array(samples.train) if samples.own_test else np.arange(len(samples))


def _effort(budget: str | float | None, updates: int | None) -> Effort:
    if budget is not None and updates is not None:
        raise GraspError("give a time (budget) or a number of updates, not both")
    return Effort(updates, None if budget is None else parse_seconds(budget))
