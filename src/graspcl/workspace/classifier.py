"""What predicts: the network of a version, the names of its classes, and its calibration. No stored sample is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from graspcl.checks import Array
from graspcl.experiment.prediction import Inputs, Predictions, keeps_whole
from graspcl.model import SplitNetwork, networks
from graspcl.settings.config import Config
from graspcl.settings.rules import network_options
from graspcl.workspace.calibration import Calibration, score

if TYPE_CHECKING:
    from graspcl.workspace.export import Exportable


@dataclass(frozen=True)
class Recognised(Predictions):
    """Predictions of a workspace: also which inputs look like no learned class, and their scores [n].

    `unknown` [n] is false for an input that could not be read, and its score is NaN. If `marks` is false, there were
    too few held-out samples to tell what is unknown, and nothing is marked.
    """

    unknown: Array
    scores: Array
    marks: bool


@dataclass(frozen=True)
class Classifier:
    """Predicts classes by name, with calibrated probabilities."""

    network: SplitNetwork
    classes: list[str]  # in the order of the head's rows
    config: Config
    calibration: Calibration

    @property
    def reads(self) -> Literal["images", "texts"]:
        """What `predict` takes, apart from arrays."""
        return self.inputs.reads

    @cached_property
    def inputs(self) -> Inputs:
        """What reads inputs as the network takes them."""
        return Inputs(self.config)

    def predict(self, inputs: Sequence[Any] | Array | Tensor) -> Recognised:
        """Predict the classes of n inputs. One that cannot be read does not stop the others.

        Args:
            inputs: a list of texts; paths or bytes of image files; or an array as the network takes it.
        """
        checked = self.inputs.check(inputs)
        number, problems = len(checked), dict[int, str]()
        probabilities = np.full((number, len(self.classes)), np.nan)
        unknown, scores = np.zeros(number, bool), np.full(number, np.nan)
        for places, batch, faults in self.inputs.batches(checked):
            if len(places):
                logits = self.logits(batch)
                probabilities[places] = self.calibration.probabilities(logits)
                unknown[places], scores[places] = self.calibration.unknown(logits), score(logits)
            problems |= faults
        return Recognised(self.classes, probabilities, problems, unknown, scores, self.calibration.marks)

    @torch.no_grad()
    def logits(self, batch: Tensor) -> Tensor:
        """Return the logits [n, classes] of inputs of the network [n, …]."""
        logits: Tensor = self.network(self.network.encode(batch.to(self.network.device))).logits
        return logits

    def exportable(self) -> Exportable:
        """Return what a file for other programs holds."""
        from graspcl.workspace.export import Exportable, image_steps

        config, reads = self.config, cast(Literal["images", "vectors", "texts"], self.config.reads)
        options = {**networks.parameters(config.network.name), **network_options(config)}
        shapes: dict[str, tuple[Any, ...]] = {
            "images": (3, config.data.pixels, config.data.pixels),
            "vectors": (options.get("dim"),),
            "texts": (options.get("max_tokens"),),
        }
        about = image_steps(config.data.pixels, keeps_whole(config)) if reads == "images" else None
        told, texts = self.calibration, None if reads == "images" else self.inputs.texts.steps()
        return Exportable(
            self.network, self.classes, reads, shapes[reads], told.temperature, told.threshold, about, texts
        )
