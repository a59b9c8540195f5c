"""The data of a run: opened by what its settings say, cut to the classes and sizes they ask for, and put in order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from graspcl.data import Groceries, Listings, Samples, Subset, open_images
from graspcl.errors import GraspError
from graspcl.experiment.config import Config, DataConfig
from graspcl.model import StaticTextEncoder
from graspcl.random import generator
from graspcl.stream import Stream, class_order, load_stream, make_stream

Array = np.ndarray[Any, Any]


class TextVectors(Samples[torch.Tensor]):
    """Texts through static token embeddings: `read` gives float32 [n, 256]."""

    def __init__(self, texts: Samples[list[str]]) -> None:
        self._texts = texts
        self._encoder: StaticTextEncoder | None = None
        options = {**texts.options, "encoder": "wordllama256"}
        split = (texts.labels, texts.ids, texts.train, texts.test)
        super().__init__(texts.name, texts.version, texts.classes, *split, options)

    def read(self, indices: ArrayLike) -> torch.Tensor:
        """Vectors of the texts at `indices` [n]."""
        if self._encoder is None:
            self._encoder = StaticTextEncoder()
        return torch.as_tensor(self._encoder.encode(self._texts.read(indices))).float()


SOURCES: dict[str, Callable[[DataConfig], Samples[Any]]] = {
    "groceries": lambda data: Groceries(data.pixels),
    "listings": lambda data: TextVectors(Listings()),
}
"""Data by name, that come by pip."""


def check_data(config: Config) -> None:
    """Refuse a path that is not there, before anything is read."""
    path = config.data.path
    if not path:
        raise GraspError(
            f"{config.name} needs its images: --data PATH, a folder with train/CLASS/… and val/CLASS/… or such zip "
            f"files (or by name: {', '.join(SOURCES)})"
        )
    if path not in SOURCES and not Path(path).exists():
        raise GraspError(f"--data {path}: there is no such folder or file; by name there are {', '.join(SOURCES)}")
    if config.base.weights is not None and not Path(config.base.weights).is_file():
        raise GraspError(f"--base.weights {config.base.weights}: there is no such file")


def open_data(config: Config) -> tuple[Samples[Any], Array]:
    """The samples that a run learns from, and the order of their classes [classes]."""
    data = config.data
    if data.path in SOURCES and not Path(data.path).exists():
        samples = SOURCES[data.path](data)
    else:
        given = {"val_mapping": data.val_mapping, "test_split": data.test_split}
        samples = open_images(data.path, data.pixels, **{k: v for k, v in given.items() if v is not None})
    order = class_order(config.stream.order, samples.classes, generator(config.seed, "stream"))
    if data.classes is None and data.per_class is None and data.test_per_class is None:
        return samples, order
    number = data.classes if data.classes is not None else len(order)
    if number > len(order):
        raise GraspError(f"--data.classes {number}: {samples.name} has only {len(order)} classes")
    chosen = order[:number]
    samples = Subset(
        samples, np.sort(chosen), data.per_class, data.test_per_class, rng=generator(0, "subset")
    )  # the same samples for every seed, so that latents are shared
    return samples, np.argsort(np.argsort(chosen))  # the chosen classes have new labels, in sorted order


def arrange(config: Config, samples: Samples[Any], order: Array) -> Stream:
    """The stream of a run; the same for every policy and learner."""
    stream = config.stream
    if stream.file is not None:
        return load_stream(Path(stream.file), fingerprint=samples.fingerprint())
    rng = generator(config.seed, "stream")
    if stream.order == "random":
        rng.permutation(len(order))  # the draw that made the order
    given: dict[str, Any] = {"base_classes": stream.base_classes, "sessions": stream.sessions, "order": order}
    if stream.kind == "class_incremental" and stream.blurry:
        given["blurry"] = stream.blurry
    if stream.kind == "long_tailed":
        given["imbalance"] = stream.imbalance
    labels = samples.labels[samples.train]
    return make_stream(stream.kind, samples.train, labels, rng, chunk=stream.chunk, **given)
