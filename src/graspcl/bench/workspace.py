"""What a workspace is worth: weekly learning against retraining, a probe and fine-tuning, in one run."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graspcl.buffer import Codes
from graspcl.checks import Array
from graspcl.data import Samples, Subset
from graspcl.errors import GraspError
from graspcl.experiment.prepare import EncodedTexts, make_learner
from graspcl.learner import Learner
from graspcl.learner.rehearsal import Rehearsal
from graspcl.model.texts import encoder_source
from graspcl.policy import Budget
from graspcl.progress import Progress, Silent
from graspcl.random import generator
from graspcl.settings.config import Config
from graspcl.settings.read import replaced
from graspcl.settings.rules import network_options
from graspcl.workspace.arriving import open_labelled
from graspcl.workspace.evaluation import evaluate
from graspcl.workspace.learning import learn, summary_of
from graspcl.workspace.making import MEMORY, choose_settings, new_version
from graspcl.workspace.memory import new_network
from graspcl.workspace.store import Store
from graspcl.workspace.training import Effort
from graspcl.workspace.version import Version, load_classifier

_BARS: dict[str, dict[str, Callable[[float, float], bool]]] = {  # by learner: whether points and share of time meet it
    "offline": {
        "at most 1 point behind": lambda points, share: points >= -1.0,
        "at most a tenth of the time": lambda points, share: share <= 0.1,
    },
    "probe": {"at least 1 point ahead": lambda points, share: points >= 1.0},
}
_TRIAL = 3.0  # passes with which retraining tries a rate; it makes ten with the best
_READ = 64  # samples that are encoded at a time
_ADAPTIVE = "adaptive_classifier"  # a package for texts; compared with where it is installed


@dataclass(frozen=True)
class Result:
    """One way to stay current, after the last week: accuracy on test samples of all classes, and the week's seconds."""

    name: str
    accuracy: float  # in percent
    seconds: float
    points: float  # by which the workspace is more accurate
    time: float  # of the workspace's week, as a share of this one's
    bars: dict[str, bool] = field(default_factory=dict)  # whether each bar is met

    @property
    def ok(self) -> bool:
        """Whether all bars are met."""
        return all(self.bars.values())

    def line(self) -> str:
        """Return a row of a Markdown table."""
        met = "; ".join(f"{bar}: {'met' if ok else 'MISSED'}" for bar, ok in self.bars.items())
        return (
            f"| {self.name} | {self.accuracy:.1f} | {self.seconds:.1f} | {self.points:+.1f} | {self.time:.2f} | {met} |"
        )


HEADER = (
    "| way | accuracy % | seconds of the last week | workspace, points | workspace, share of time | bars |\n"
    "|---|---|---|---|---|---|"
)


def run(
    data: str, first: int | None = None, weeks: int = 4, per_class: int | None = None, backbone: str | None = None,
    pixels: int | None = None, memory: str = MEMORY, progress: Progress | None = None,
) -> Iterator[Result]:  # fmt: skip
    """Yield the results of a workspace that learns `first` classes and then the others in equal weeks.

    Retraining chooses its rate and head on held-out samples. Its time is that of reading and encoding everything and of
    ten passes, without the search for the rate.

    Args:
        data: class folders of images, or a table of texts; a share is held out if there are no test samples.
        first: number of classes at the start; by default about half.
        weeks: in how many weeks the others arrive.
        per_class: samples per class at most, of training and of test samples each.
        backbone, pixels, memory: as for `Workspace.new`.
        progress: what shows the steps; by default nothing is shown.
    """
    progress = progress or Silent()
    config = choose_settings(data, backbone, memory, pixels, 0, progress)
    samples: Samples[Any] = open_labelled(config, data)
    if per_class is not None:
        samples = Subset(samples, per_class=per_class, test_per_class=per_class, rng=generator(0, "subset"))
    number = len(samples.classes)
    first = number - weeks * max(1, number // (2 * weeks)) if first is None else first
    if not 2 <= first <= number - weeks:
        raise GraspError(
            f"--first {first}: {samples.name} has {number} classes, for {weeks} weeks and at least 2 before"
        )
    order = generator(0, "weeks").permutation(number)
    parts = [order[:first], *np.array_split(order[first:], weeks)]
    train = [samples.train[np.isin(samples.labels[samples.train], part)] for part in parts]
    mine, seconds, codec_config = _workspace(config, samples, train, progress)
    yield Result("workspace", mine, seconds, 0.0, 1.0)
    others = _Others(codec_config, samples, train, progress)
    ways = {
        "retraining on everything": "offline", "probe on all features": "probe",
        "fine-tuning on the new week": "finetune",
    }  # fmt: skip
    if config.reads == "texts" and importlib.util.find_spec(_ADAPTIVE):
        ways["package adaptive-classifier"] = _ADAPTIVE
    for name, way in ways.items():
        accuracy, spent = _adaptive(config, samples, train) if way == _ADAPTIVE else others.week(way)
        points, share = mine - accuracy, seconds / max(spent, 1e-9)
        bars = {bar: meets(points, share) for bar, meets in _BARS.get(way, {}).items()}
        yield Result(name, accuracy, spent, points, share, bars)


def _workspace(
    config: Config, samples: Samples[Any], train: list[Array], progress: Progress
) -> tuple[float, float, Config]:
    """Return the accuracy after the last week, its seconds, and the settings with the codec that was chosen."""
    with tempfile.TemporaryDirectory() as folder, Store.create(Path(folder) / "shop", {}) as store:
        empty = new_version(config, samples, train[0], progress)
        chosen, seconds = empty.config, 0.0
        for week, rows in enumerate(train):
            start = time.perf_counter()
            load = (lambda: Version.load(store)) if week else (lambda: deepcopy(empty))
            version, result = learn(load, samples, rows, Effort(), progress)
            version.save(store, "learn" if week else "new", summary_of(result, f"week {week}"))
            seconds = time.perf_counter() - start
            told = f"{result.samples} samples, {result.trained.updates} updates, held-out accuracy {result.overall}"
            progress.note(f"week {week}: {told}, {seconds:.1f} s")
        found = evaluate(load_classifier(store), samples, np.array(samples.test), Silent())
        return found.overall.points, seconds, chosen


def _adaptive(config: Config, samples: Samples[Any], train: list[Array]) -> tuple[float, float]:
    """Return the accuracy of the package adaptive-classifier after the last week, on the same encoder; its seconds."""
    package, seconds = importlib.import_module(_ADAPTIVE), 0.0
    classifier = package.AdaptiveClassifier(str(encoder_source(network_options(config).get("model"))), device="cpu")
    for rows in train:
        start = time.perf_counter()
        classifier.add_examples(_texts(samples, rows), [samples.classes[label] for label in samples.labels[rows]])
        seconds = time.perf_counter() - start
    found = classifier.predict_batch(_texts(samples, np.array(samples.test)), k=1)
    right = [
        bool(best) and best[0][0] == samples.classes[label]
        for best, label in zip(found, samples.labels[samples.test].tolist(), strict=True)
    ]
    return float(100 * np.mean(right)), seconds


def _texts(samples: Samples[Any], rows: Array) -> list[str]:
    """Return the texts of samples that are read as token ids."""
    if isinstance(samples, Subset):
        return _texts(samples.samples, samples.rows(rows))
    texts: list[str] = samples.texts.read(rows) if isinstance(samples, EncodedTexts) else []
    return texts


class _Others:
    """Other ways to stay current, with the same network. All read half-precision latents of all samples."""

    def __init__(self, config: Config, samples: Samples[Any], train: list[Array], progress: Progress) -> None:
        self.config = replaced(config, {"codec.name": "half", "buffer.capacity": None})
        self.samples, self.train, self.progress = samples, train, progress
        start = time.perf_counter()
        self.codes = [self._encode(rows, f"reading week {week} for others") for week, rows in enumerate(train)]
        self.encoding = time.perf_counter() - start  # of all samples: retraining reads everything again
        self.test = self._encode(np.array(samples.test), "reading test samples")

    def week(self, name: str) -> tuple[float, float]:
        """Return the accuracy of a learner after the last week, and the seconds of that week."""
        learner = self._learner(name)
        if name == "finetune":
            seconds = 0.0
            for codes, rows in zip(self.codes, self.train, strict=True):
                learner.observe_codes(codes, self.samples.labels[rows], rows)
                seconds = self._rehearsed(learner, name, 3)
            share = len(self.train[-1]) / sum(map(len, self.train))  # it reads the new samples alone
            return self._accuracy(learner), self.encoding * share + seconds
        for codes, rows in zip(self.codes, self.train, strict=True):  # the others depend on all samples, not on weeks
            learner.observe_codes(codes, self.samples.labels[rows], rows)
        seconds = self._rehearsed(learner, name, 1)
        return self._accuracy(learner), self.encoding + seconds

    def _rehearsed(self, learner: Learner, name: str, passes: float) -> float:
        """Run a session; return its seconds, without the search for a rate before it."""
        budget = learner.session_budget(Budget.passes(passes, len(learner.buffer), self.config.budget.batch_size))
        if name == "offline":
            self.progress.note(f"choosing the rate of retraining: {_TRIAL:.0f} passes with each of three")
        session = Rehearsal(learner, budget)
        with self.progress.task(f"training {name}", budget.updates) as advance:
            while not session.done:
                session.step()
                advance(1)
        costs = session.finish().costs
        return costs.selection_seconds + costs.training_seconds

    def _learner(self, name: str) -> Learner:
        from graspcl.codec import codecs

        parameters = {"learner.trial_passes": _TRIAL} if name == "offline" else {}
        config = replaced(self.config, {"learner.name": name, **parameters})
        return make_learner(config, new_network(config)[0], codecs.create("half"), len(self.samples.classes))

    def _encode(self, rows: Array, title: str) -> Codes:
        learner, parts = self._learner("aligned"), list[Tensor]()
        with self.progress.task(title, len(rows)) as advance:
            for begin in range(0, len(rows), _READ):
                inputs, _, problems = self.samples.read_some(rows[begin : begin + _READ])
                if problems:
                    raise GraspError(f"the bench needs samples that can all be read: {problems[0]}")
                parts.append(torch.as_tensor(learner.encode(inputs)))
                advance(len(inputs))
        return torch.cat(parts)

    def _accuracy(self, learner: Learner) -> float:
        predicted = learner.predict_codes(self.test)
        return float(100 * (predicted == self.samples.labels[self.samples.test]).mean())
