"""Setups: a data set, its frozen encoder, a plastic network and settings that fit them.

The two here learn from real data and weights that come by pip alone (extra `demo`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from graspcl.codec import OPQ, Codec, Encoded, Half
from graspcl.data import Groceries, Listings, Samples
from graspcl.experiment.config import BaseConfig, BudgetConfig, BufferConfig, Config, StreamConfig
from graspcl.experiment.features import cached_latents
from graspcl.experiment.progress import Progress
from graspcl.learner import Optimiser
from graspcl.model import SplitNetwork, StaticTextEncoder, efficientnet_lite0, vector_network

Array = np.ndarray[Any, Any]


_ENCODERS = 1  # raised when an encoder or its preprocessing changes what it gives, so that no old cache is taken


@dataclass(frozen=True)
class Latents:
    """A data set after the frozen part: latents [N, …], labels [N], the train and test indices, class names."""

    values: Array
    labels: Array
    train: Array
    test: Array
    classes: list[str]


@dataclass(frozen=True)
class Setup:
    """What is the same for all runs of a comparison."""

    name: str
    title: str
    defaults: Config
    load: Callable[[Progress], Latents]
    network: Callable[[torch.Generator], SplitNetwork]  # its plastic part takes latents
    codec: Callable[[], Codec]
    bounded: int | str  # the capacity that stands for bounded memory in comparisons
    raw: Callable[[], Array] | None = None  # all samples as they came [N], for veridical rehearsal
    raw_codec: Callable[[], Codec] | None = None

    def config(self, **changes: Any) -> Config:
        """The setup's settings, with changes."""
        return replace(self.defaults, **changes)


def _latents(
    samples: Samples[Any], encoder: str, encode: Callable[[Any], Array], chunk: int, progress: Progress
) -> Latents:
    def compute() -> Iterator[Array]:
        for begin in range(0, len(samples.labels), chunk):
            yield encode(samples.read(np.arange(begin, min(begin + chunk, len(samples.labels)))))

    key = f"{samples.name}-{samples.fingerprint()}-{encoder}-v{_ENCODERS}"
    values = cached_latents(key, len(samples.labels), compute, progress)
    labels, train, test = (np.array(part) for part in (samples.labels, samples.train, samples.test))
    return Latents(values, labels, train, test, samples.classes)


# -- marketplace listings through static token embeddings -------------------------------------------------------------


def _listings(progress: Progress) -> Latents:
    encoder = StaticTextEncoder()
    return _latents(Listings(), "wordllama256", lambda texts: np.asarray(encoder.encode(texts)), 1024, progress)


_LISTINGS = Setup(
    name="listings",
    title="Marketplace listings, 66 classes: 26 at the start, then 4 sessions of 10",
    defaults=Config(
        setup="listings",
        stream=StreamConfig(base_classes=26, sessions=4),
        buffer=BufferConfig(capacity="8MB"),
        budget=BudgetConfig(passes=1.0, batch_size=64),
        base=BaseConfig(passes=6, optimiser=Optimiser(lr=1.6)),
        optimiser=Optimiser(lr=1.6),
    ),
    load=_listings,
    network=lambda generator: vector_network(256, hidden=256, scale=10.0, generator=generator),
    codec=Half,
    bounded="8MB",
)

# -- grocery photos through EfficientNet-Lite0, cut before its last stage ---------------------------------------------

_SPLIT, _PIXELS = 14, 128  # latents of 192 x 4 x 4; an earlier cut is as correct but takes minutes per run on a CPU


def _groceries(progress: Progress) -> Latents:
    frozen = efficientnet_lite0(split=_SPLIT, generator=torch.Generator())

    def encode(images: torch.Tensor) -> Array:
        return frozen.encode(images).half().numpy()

    return _latents(Groceries(_PIXELS), f"efficientnet_lite0-{_SPLIT}", encode, 32, progress)


def _photos() -> Array:
    groceries = Groceries(_PIXELS)
    return Encoded(_PIXELS, whole=True).encode(groceries.encoded(np.arange(len(groceries))))


_GROCERIES = Setup(
    name="groceries",
    title="Grocery photos, 14 classes: 8 at the start, then 3 sessions of 2",
    defaults=Config(
        setup="groceries",
        stream=StreamConfig(base_classes=8, sessions=3, chunk=64),
        buffer=BufferConfig(capacity=None),
        budget=BudgetConfig(passes=1.0, batch_size=32),
        base=BaseConfig(passes=3, optimiser=Optimiser(lr=3e-4), batch_size=32),
        optimiser=Optimiser(lr=1e-3),
    ),
    load=_groceries,
    network=lambda generator: efficientnet_lite0(split=_SPLIT, dropout=0.0, scale=16.0, generator=generator),
    codec=lambda: OPQ(iterations=5),
    bounded=400,
    raw=_photos,
    raw_codec=lambda: Encoded(_PIXELS, whole=True),
)

setups = {setup.name: setup for setup in (_LISTINGS, _GROCERIES)}
