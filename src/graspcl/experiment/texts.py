"""Texts as what a network takes: vectors of static token embeddings, or token ids for a transformer."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import ArrayLike

from graspcl.data import Listings, Samples, TextTable, TextTasks
from graspcl.errors import GraspError
from graspcl.model import StaticTextEncoder, Tokenizer
from graspcl.settings.config import Config

NETWORKS = ("transformer", "vector")
"""Networks that read texts."""


def open_texts(config: Config) -> Samples[list[str]]:
    """The texts at the path of a run's settings, a file, a folder or hf:NAME: one table, or several as tasks."""
    data = config.data
    if data.tasks is None:
        return TextTable(data.path, data.text, data.label)
    names = [name.strip() for name in data.tasks.split(",") if name.strip()]
    if data.classes is not None:
        raise GraspError("--data.classes is not for texts in tasks: --data.tasks says which there are")
    return TextTasks(
        data.path, names, data.per_class, data.test_per_class, seed=0, text=data.text, label=data.label
    )  # the same texts for every seed, so that tokens and latents are shared


def as_inputs(samples: Samples[Any], config: Config) -> Samples[Any]:
    """Samples that the configured network can read; texts become vectors or token ids."""
    texts, reads_texts = isinstance(samples, Listings | TextTable | TextTasks), config.network.name in NETWORKS
    if texts and config.network.name == "transformer":
        options = config.network.parameters
        return TokenIds(samples, Tokenizer(options.get("model"), options.get("max_tokens", 256)))
    if texts and not reads_texts:
        raise GraspError(f"the network {config.network.name!r} sees images, but {samples.name} are texts")
    return TextVectors(samples) if texts else samples


class _Texts(Samples[torch.Tensor]):
    """Texts with labels, splits and tasks as they are; a subclass says what becomes of a text."""

    def __init__(self, texts: Samples[list[str]], **options: object) -> None:
        self.texts = texts
        split = (texts.labels, texts.ids, texts.train, texts.test)
        super().__init__(texts.name, texts.version, texts.classes, *split, {**texts.options, **options})
        self.problems = texts.problems
        self.task_of, self.tasks = getattr(texts, "task_of", None), getattr(texts, "tasks", None)


class TextVectors(_Texts):
    """Texts through static token embeddings: `read` gives float32 [n, 256]."""

    def __init__(self, texts: Samples[list[str]]) -> None:
        super().__init__(texts, encoder="wordllama256")
        self._encoder: StaticTextEncoder | None = None

    def read(self, indices: ArrayLike) -> torch.Tensor:
        """Vectors of the texts at `indices` [n]."""
        if self._encoder is None:
            self._encoder = StaticTextEncoder()
        return torch.as_tensor(self._encoder.encode(self.texts.read(indices))).float()


class TokenIds(_Texts):
    """Texts through a tokenizer: `read` gives int32 [n, tokens]."""

    def __init__(self, texts: Samples[list[str]], tokenizer: Tokenizer) -> None:
        super().__init__(texts, tokenizer=tokenizer.fingerprint(), tokens=tokenizer.max_tokens)
        self._tokenizer = tokenizer

    def read(self, indices: ArrayLike) -> torch.Tensor:
        """Token ids of the texts at `indices` [n]."""
        return self._tokenizer.encode(self.texts.read(indices))
