"""Samples of a run as a reader sees them, long after it: images as thumbnails, texts by their beginnings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.data import Samples, Subset
from graspcl.data.hub import HUB
from graspcl.errors import GraspError
from graspcl.experiment.inputs import EncodedTexts
from graspcl.experiment.prepare import open_data
from graspcl.images import thumbnail
from graspcl.settings.read import from_plain, read_toml

_PIXELS = 72  # of a thumbnail, at most
_LETTERS = 120


@dataclass(frozen=True)
class Shown:
    """The samples that a run learned from; `texts` are those behind what its network saw, if it saw texts."""

    samples: Samples[Any]
    texts: Samples[list[str]] | None

    @property
    def classes(self) -> list[str]:
        """Their names."""
        return self.samples.classes

    @property
    def images(self) -> bool:
        """Whether they are images, not texts."""
        return self.texts is None

    def show(self, rows: Array) -> tuple[dict[int, str], list[str]]:
        """By row, a thumbnail as a data: address or the beginning of a text; and what is wrong with the others."""
        return self._images(rows) if self.texts is None else self._beginnings(self.texts, rows)

    def _images(self, rows: Array) -> tuple[dict[int, str], list[str]]:
        images, kept, problems = self.samples.read_some(rows)
        if images.ndim != 4 or images.shape[1] != 3:
            raise GraspError(f"{self.samples.name} are neither images nor texts")
        if not len(kept):
            raise GraspError(problems[0])
        small = (thumbnail(image, _PIXELS) for image in images.permute(0, 2, 3, 1).contiguous().numpy())
        return dict(zip(rows[kept].tolist(), small, strict=True)), problems

    def _beginnings(self, texts: Samples[list[str]], rows: Array) -> tuple[dict[int, str], list[str]]:
        """`samples` may be some of the `texts`: ids tell which."""
        order = np.argsort(texts.ids)
        places = order[np.searchsorted(texts.ids[order], self.samples.ids[self.samples.check(rows)])]
        found, kept, problems = texts.read_some(places)
        return dict(zip(rows[kept].tolist(), map(_begin, found), strict=True)), problems


def open_shown(folder: Path) -> Shown:
    """The samples of the run in `folder`, or an error if they are not there any more, or others."""
    file = folder / "config.toml"
    config = from_plain(read_toml(file), str(file))
    model = config.network.parameters.get("model") if config.network.name == "transformer" else None
    if model is not None and not Path(str(model)).exists():  # the hub would be asked
        raise GraspError(f"the tokenizer {model} is in no folder here, and a report fetches nothing")
    if config.data.path.startswith(HUB):
        raise GraspError(f"the data {config.data.path} are on the hub, and a report fetches nothing")
    samples, _ = open_data(config)
    then = json.loads((folder / "environment.json").read_text(encoding="utf-8"))["fingerprint"]
    if samples.fingerprint() != then:
        raise GraspError(f"the data at {config.data.path} are not those that the run learned from")
    inner = samples.samples if isinstance(samples, Subset) else samples
    return Shown(samples, inner.texts if isinstance(inner, EncodedTexts) else None)


def _begin(text: str) -> str:
    """A text, or its begin if it is long, as one line."""
    line = " ".join(text.split())
    return line if len(line) <= _LETTERS else f"{line[: _LETTERS - 1].rstrip()}…"
