"""The samples of a finished run for a reader: images as thumbnails, texts by their first words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.data import Samples, View
from graspcl.data.hub import HUB
from graspcl.errors import GraspError
from graspcl.experiment.prepare import EncodedTexts, open_data
from graspcl.images import thumbnail
from graspcl.integrity import read_text
from graspcl.settings.read import from_plain, read_toml

_PIXELS, _CHARACTERS = 72, 120  # at most


@dataclass(frozen=True)
class RunSamples:
    """The samples that a run learned from; `texts` are the originals if its network read texts."""

    samples: Samples[Any]
    texts: Samples[list[str]] | None

    @property
    def classes(self) -> list[str]:
        return self.samples.classes

    @property
    def images(self) -> bool:
        return self.texts is None

    def show(self, rows: Array) -> tuple[dict[int, str], list[str]]:
        """Return by row a thumbnail as a data: address or the start of a text, and the problems of other rows."""
        if self.texts is not None:
            # `samples` may be a part of `texts`; both have the same ids.
            order = np.argsort(self.texts.ids)
            places = order[np.searchsorted(self.texts.ids[order], self.samples.ids[self.samples.check(rows)])]
            texts, kept, problems = self.texts.read_some(places)
            return dict(zip(rows[kept].tolist(), map(_first_words, texts), strict=True)), problems
        images, kept, problems = self.samples.read_some(rows)
        if images.ndim != 4 or images.shape[1] != 3:
            raise GraspError(f"{self.samples.name} are neither images nor texts")
        if not len(kept):
            raise GraspError(problems[0])
        small = (thumbnail(image, _PIXELS) for image in images.permute(0, 2, 3, 1).contiguous().numpy())
        return dict(zip(rows[kept].tolist(), small, strict=True)), problems


def open_samples(folder: Path) -> RunSamples:
    """Open the samples of the run in `folder`. Raise an error if they are gone, have changed or need a download."""
    config = from_plain(read_toml(folder / "config.toml"), str(folder / "config.toml"))
    model = config.network.parameters.get("model") if config.network.name == "transformer" else None
    if model is not None and not Path(str(model)).exists():
        raise GraspError(f"the tokenizer {model} is not a local folder, and a report downloads nothing")
    if config.data.path.startswith(HUB):
        raise GraspError(f"the data {config.data.path} are on the hub, and a report downloads nothing")
    samples, _ = open_data(config)
    if samples.fingerprint() != json.loads(read_text(folder / "environment.json"))["fingerprint"]:
        raise GraspError(f"the data at {config.data.path} have changed since the run")
    inner = samples
    while isinstance(inner, View):
        inner = inner.samples
    return RunSamples(samples, inner.texts if isinstance(inner, EncodedTexts) else None)


def _first_words(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _CHARACTERS else f"{line[: _CHARACTERS - 1].rstrip()}…"
