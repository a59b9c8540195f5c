"""Samples as the network reads them: texts become vectors or token ids, everything else stays."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import ArrayLike

from graspcl.data import Samples, data_sources
from graspcl.model.texts import TextInputs
from graspcl.settings.config import Config


def as_inputs(samples: Samples[Any], config: Config) -> Samples[Any]:
    """Return samples that the configured network can read."""
    path = config.data.path
    gives = data_sources.declared(path, "gives") if path in data_sources else None
    texts = config.reads != "images" if gives is None else gives == "texts"
    return EncodedTexts(samples, TextInputs.of(config.network.name, config.network.parameters)) if texts else samples


class EncodedTexts(Samples[torch.Tensor]):
    """Texts through `TextInputs`, with their labels, splits and tasks; `texts` are the texts themselves."""

    def __init__(self, texts: Samples[list[str]], encoder: TextInputs) -> None:
        self.texts, self.encoder = texts, encoder
        split = (texts.labels, texts.ids, texts.train, texts.test)
        super().__init__(texts.name, texts.version, texts.classes, *split, {**texts.options, **encoder.fingerprint()})
        self.problems = texts.problems
        self.task_of, self.tasks = getattr(texts, "task_of", None), getattr(texts, "tasks", None)

    def read(self, indices: ArrayLike) -> torch.Tensor:
        """Return the encoded texts at `indices` [n]."""
        encoded = torch.as_tensor(self.encoder.encode(self.texts.read(indices)))
        return encoded.float() if encoded.is_floating_point() else encoded
