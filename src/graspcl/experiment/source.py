"""The data of a run: opened by what its settings say, cut to the classes and sizes they ask for, and put in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.data import Groceries, Listings, Samples, Subset, open_images
from graspcl.data.hub import HUB, hub_name
from graspcl.errors import GraspError, require
from graspcl.experiment import texts
from graspcl.experiment.texts import as_inputs
from graspcl.random import generator
from graspcl.settings.config import Config, DataConfig
from graspcl.stream import Stream, class_order, load_stream, make_stream

SOURCES: dict[str, Callable[[DataConfig], Samples[Any]]] = {
    "groceries": lambda data: Groceries(data.pixels),
    "listings": lambda data: Listings(),
}
"""Data by name, that come by pip."""
_KINDS = {"groceries": "images", "listings": "texts"}  # of the data by name; others may be either


def check_data(config: Config) -> None:
    """Refuse data that are not there, or that the other settings do not fit, before anything is read."""
    data, path = config.data, config.data.path
    kind = "texts" if config.network.name in texts.NETWORKS else "images"
    names = f"by name there are {', '.join(name for name in SOURCES if _KINDS.get(name, kind) == kind)}"
    if kind == "texts":
        names += f", and {HUB}NAME for a data set of the Hugging Face hub"
    if not path:
        what = {
            "texts": "a table with a text and a label column, or a folder of such tables",
            "images": "a folder with train/CLASS/… and val/CLASS/… or such zip files",
        }
        raise GraspError(f"{config.name} needs its {kind}: --data PATH, {what[kind]} ({names})")
    if path.startswith(HUB):
        _check_hub(data, kind)
    elif path not in SOURCES and not Path(path).exists():
        raise GraspError(f"--data {path}: there is no such folder or file; {names}")
    if data.tasks is not None and (path in SOURCES or kind == "images"):
        raise GraspError(
            f"--data.tasks {data.tasks}: these are names of data sets in a folder, and {path} has none: "
            "--data.tasks none, and tasks are groups of classes"
        )
    for name, value in (("val_mapping", data.val_mapping), ("test_split", data.test_split)):
        if path in SOURCES and value is not None:
            raise GraspError(f"--data.{name} is for folders of images, and {path} are none")
    for name, file in (("base.weights", config.base.weights), ("stream.file", config.stream.file)):
        if file is not None and not Path(file).is_file():
            raise GraspError(f"--{name} {file}: there is no such file")


def _check_hub(data: DataConfig, kind: str) -> None:
    if kind == "images":
        raise GraspError(f"--data {data.path}: from the hub come texts, and the network sees images")
    if data.tasks is not None and data.path != HUB:
        raise GraspError(
            f"--data {data.path} is one data set: --data.tasks none, or --data {HUB} to have those of --data.tasks"
        )
    if data.tasks is None:
        hub_name(data.path)
    require("datasets", "hub")


def open_data(config: Config) -> tuple[Samples[Any], Array]:
    """The samples that a run learns from, and the order of their classes [classes]."""
    data = config.data
    samples = as_inputs(_opened(config), config)
    order = class_order(config.stream.order, samples.classes, generator(config.seed, "stream"))
    if data.tasks is None and (data.classes, data.per_class, data.test_per_class) != (None, None, None):
        number = data.classes if data.classes is not None else len(order)
        if number > len(order):
            base = min(config.stream.base_classes, max(1, len(order) // 3))
            sessions = max(1, min(config.stream.sessions, len(order) - base))
            fit = f"--data.classes {len(order)} --stream.base_classes {base} --stream.sessions {sessions}"
            raise GraspError(f"--data.classes {number}: {samples.name} has only {len(order)} classes; {fit} would fit")
        chosen = order[:number]
        samples = Subset(
            samples, np.sort(chosen), data.per_class, data.test_per_class, rng=generator(0, "subset")
        )  # the same samples for every seed, so that latents are shared
        order = np.argsort(np.argsort(chosen))  # the chosen classes have new labels, in sorted order
    return samples, order if config.stream.file is None else _saved_order(config, samples, order)


def _opened(config: Config) -> Samples[Any]:
    data = config.data
    if data.path in SOURCES:
        return SOURCES[data.path](data)
    if config.network.name in texts.NETWORKS:
        return texts.open_texts(config)
    given = {"val_mapping": data.val_mapping, "test_split": data.test_split}
    return open_images(data.path, data.pixels, **{k: v for k, v in given.items() if v is not None})


def _saved_order(config: Config, samples: Samples[Any], order: Array) -> Array:
    """The classes in the order of a saved stream, or `order` if it knows of none."""
    home, given = _saved(config, samples).home, config.stream.base_classes
    if not home:
        return order
    if (number := sum(session == 0 for session in home.values())) != given:
        raise GraspError(
            f"--stream.file {config.stream.file} has {number} base classes, not {given}: --stream.base_classes {number}"
        )
    return np.array([*home])


def _saved(config: Config, samples: Samples[Any]) -> Stream:
    try:
        return load_stream(Path(str(config.stream.file)), fingerprint=samples.fingerprint())
    except GraspError as error:
        if config.data.classes is None or config.stream.order != "random":
            raise
        drawn = "which classes there are is drawn with --seed: give the one that the stream was saved with"
        raise GraspError(f"{error} ({drawn})") from error


def arrange(config: Config, samples: Samples[Any], order: Array) -> Stream:
    """The stream of a run; the same for every policy and learner."""
    stream = config.stream
    if stream.file is not None:
        return _saved(config, samples)
    rng = generator(config.seed, "stream")
    if stream.order == "random":
        rng.permutation(len(order))  # the draw that made the order
    labels = samples.labels[samples.train]
    if stream.kind == "task_incremental":
        task_of = _tasks(config, samples, order)[samples.train]
        return make_stream(stream.kind, samples.train, labels, rng, chunk=stream.chunk, task_of=task_of)
    given: dict[str, Any] = {"base_classes": stream.base_classes, "sessions": stream.sessions, "order": order}
    if stream.kind == "class_incremental" and stream.blurry:
        given["blurry"] = stream.blurry
    if stream.kind == "long_tailed":
        given["imbalance"] = stream.imbalance
    return make_stream(stream.kind, samples.train, labels, rng, chunk=stream.chunk, **given)


def _tasks(config: Config, samples: Samples[Any], order: Array) -> Array:
    """The task of each sample [N]: as the data have them, or groups of classes in their order."""
    found, sessions = getattr(samples, "task_of", None), config.stream.sessions
    if found is None:
        task_of_class = np.empty(len(order), np.int64)
        for task, classes in enumerate(np.array_split(order, sessions)):
            task_of_class[classes] = task
        found = task_of_class[samples.labels]
    if (number := int(found.max()) + 1) != sessions:
        raise GraspError(f"there are {number} tasks, one for each session, not {sessions}: --stream.sessions {number}")
    return np.asarray(found)
