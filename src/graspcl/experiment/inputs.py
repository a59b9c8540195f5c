"""Samples as the network reads them: texts become vectors or token ids, everything else stays."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from numpy.typing import ArrayLike

from graspcl.data import Samples
from graspcl.model import StaticTextEncoder, Tokenizer
from graspcl.settings.config import Config
from graspcl.sources import data_sources


def as_inputs(samples: Samples[Any], config: Config) -> Samples[Any]:
    """Return samples that the configured network can read."""
    path = config.data.path
    gives = data_sources.declared(path, "gives") if path in data_sources else None
    texts = config.reads != "images" if gives is None else gives == "texts"
    return EncodedTexts(samples, TextEncoder(config)) if texts else samples


class TextEncoder:
    """Turns texts into what a network reads: vectors [n, 256] of static embeddings, or token ids [n, tokens].

    `options` identify the encoder.
    """

    def __init__(self, config: Config) -> None:
        self.options: dict[str, object] = {"encoder": "wordllama256"}
        self._tokenizer: Tokenizer | None = None
        if config.reads == "texts":
            given = config.network.parameters
            self._tokenizer = Tokenizer(given.get("model"), given.get("max_tokens", 256))
            self.options = {"tokenizer": self._tokenizer.fingerprint(), "tokens": self._tokenizer.max_tokens}

    @cached_property
    def encode(self) -> Callable[[list[str]], torch.Tensor]:
        """Encode a list of texts."""
        return StaticTextEncoder().encode if self._tokenizer is None else self._tokenizer.encode


class EncodedTexts(Samples[torch.Tensor]):
    """Texts through a `TextEncoder`, with their labels, splits and tasks; `texts` are the texts themselves."""

    def __init__(self, texts: Samples[list[str]], encoder: TextEncoder) -> None:
        self.texts, self.encoder = texts, encoder
        split = (texts.labels, texts.ids, texts.train, texts.test)
        super().__init__(texts.name, texts.version, texts.classes, *split, {**texts.options, **encoder.options})
        self.problems = texts.problems
        self.task_of, self.tasks = getattr(texts, "task_of", None), getattr(texts, "tasks", None)

    def read(self, indices: ArrayLike) -> torch.Tensor:
        """Return the encoded texts at `indices` [n]."""
        encoded = torch.as_tensor(self.encoder.encode(self.texts.read(indices)))
        return encoded.float() if encoded.is_floating_point() else encoded
