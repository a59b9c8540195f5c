"""Predict with a finished run: its learner as the last session left it, without its data."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from graspcl.checks import Array, is_utf8, shown
from graspcl.codec import Codec, Encoded, Identity, codecs
from graspcl.data import Samples, data_sources
from graspcl.data.samples import few
from graspcl.errors import GraspError
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.prepare import make_learner
from graspcl.experiment.pretraining import build_network
from graspcl.images import decode_some
from graspcl.learner import Learner
from graspcl.model import SplitNetwork
from graspcl.model.texts import TextInputs
from graspcl.settings.config import Config, ExecutionConfig
from graspcl.settings.rules import network_options

# Inputs per pass through the network. Texts are many, since those of similar length are passed together.
_BATCH = {"images": 64, "texts": 256}


def load_learner(folder: Path) -> Learned:
    """Load the learner of the finished run in `folder`, ready to predict. The run's data are not needed.

    The run must have kept its state (`checkpoint.keep`). If this machine cannot execute the network as the run did, for
    example on cuda, it is executed in the default way.

    >>> learned = load_learner(Path("runs/mine"))  # doctest: +SKIP
    >>> learned.predict(["photos/1.jpg", "photos/2.jpg"]).names  # doctest: +SKIP
    ['Kiwi', 'Lemon']
    """
    place, damage = RunFolder(Path(folder)), list[str]()
    config = place.config()
    if not place.finished:
        raise GraspError(f"the run in {folder} is not finished; run its `graspcl run` command again to resume it")
    state = place.load_checkpoint(damage.append)
    if state is None:
        kept = Path(folder) / "checkpoints"
        nothing = "it kept no state; delete it and use graspcl run"
        if kept.exists() and not os.access(kept, os.R_OK | os.X_OK):
            nothing = f"{kept} cannot be read; you lack the right to"
        why = damage[0].partition(";")[0] if damage else nothing
        raise GraspError(f"the run in {folder} cannot be loaded: {why}")
    execution, names = replace(config.execution, compile=False), place.class_names()  # compiling takes minutes
    try:
        execution.make()
    except GraspError:
        execution = ExecutionConfig()
    config = replace(config, execution=execution)
    try:
        codec = _codec(config, state["learner"]["buffer"]["codec"] or {})
        learner = make_learner(config, build_network(config), codec, len(names))
        learner.load_state_dict(state["learner"])
    except GraspError as error:
        raise GraspError(f"the run in {folder} cannot be loaded: {error}") from error
    if not learner.classes:
        raise GraspError(f"the run in {folder} has learned no class: there is nothing to predict")
    if len(names) < (least := max(learner.classes) + 1):
        fault = f"must be a list of at least {least} class names, got {len(names)}"
        raise GraspError(f"{Path(folder) / 'classes.json'} {fault}; restore it, or run again in another folder")
    if why := broken_weights(learner.network):
        raise GraspError(f"the run in {folder} cannot predict: {why}; run it again with a lower learning rate")
    return Learned(learner, names, config, tuple(damage))


def broken_weights(network: SplitNetwork) -> str:
    """Return which weights of a network are not finite, in words; empty if all are."""
    weights = network.state_dict().items()
    broken = [name for name, value in weights if value.is_floating_point() and not value.isfinite().all()]
    return f"NaN or infinite weights in {few(broken)}" if broken else ""


def _codec(config: Config, state: dict[str, Any]) -> Codec:
    """Make a codec that fits `state`."""
    if config.rehearsal == "veridical":
        return Identity() if config.reads != "images" else Encoded(config.data.pixels, whole=keeps_whole(config))
    parameters = config.codec.parameters
    if (
        "centroids" in state and config.codec.name != "auto"
    ):  # a codec from a weights file may differ from the defaults of the settings
        codebooks, size, _ = state["centroids"].shape
        parameters = {**parameters, "codebooks": codebooks, "size": size}
    return codecs.create(config.codec.name, **parameters)


def keeps_whole(config: Config) -> bool:
    """Whether images of the run's data keep all of their shorter side, as `Samples.whole` tells."""
    source = data_sources.get(config.data.path) if config.data.path in data_sources else Samples
    return bool(getattr(source, "whole", Samples.whole))


@dataclass(frozen=True)
class Predictions:
    """Predictions for n inputs.

    `probabilities` [n, classes] are in the order of `classes`. The row of an input that could not be read is NaN, and
    `problems` explains it, by position.

    >>> found = Predictions(["cat", "dog"], np.array([[0.2, 0.8], [np.nan, np.nan]]), {1: "empty text"})
    >>> found.names, found.top(2)
    (['dog', None], [[('dog', 0.8), ('cat', 0.2)], []])
    """

    classes: list[str]
    probabilities: Array
    problems: dict[int, str]

    @property
    def names(self) -> list[str | None]:
        """Return the most likely class of each input [n]; None for one that could not be read."""
        return [best[0][0] if best else None for best in self.top()]

    def top(self, number: int = 1) -> list[list[tuple[str, float]]]:
        """Return the `number` most likely classes of each input with their probabilities [n]; empty if unreadable."""
        order = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :number]
        values = np.take_along_axis(self.probabilities, order, axis=1).tolist()
        return [
            [] if place in self.problems else [(self.classes[label], value) for label, value in zip(*both, strict=True)]
            for place, both in enumerate(zip(order.tolist(), values, strict=True))
        ]


class Inputs:
    """Reads texts, image files or arrays as the network of `config` takes them."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def reads(self) -> Literal["images", "texts"]:
        """Return what is read, apart from arrays."""
        return "images" if self.config.reads == "images" else "texts"

    def check(self, inputs: Sequence[Any] | Array | Tensor, what: str = "predict") -> list[Any] | Tensor:
        """Return n inputs as a list or a tensor. Refuse one input alone, and arrays that the network does not take."""
        if isinstance(inputs, str | bytes | Path):
            raise GraspError(f"{what} takes a list of {self.reads}; write {what}([one])")
        if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "biuf":
            wide = np.int64 if inputs.dtype.kind in "biu" and self.reads == "texts" else inputs.dtype.newbyteorder("=")
            kind = np.float32 if inputs.dtype.kind == "f" else wide
            inputs = torch.from_numpy(np.array(inputs, dtype=kind, order="C"))
        if not isinstance(inputs, Tensor):
            try:
                return list(inputs)
            except TypeError:
                raise GraspError(f"{what} takes a list of {self.reads}, got {shown(inputs)}") from None
        self._check_array(inputs)
        return inputs

    def batches(self, inputs: list[Any] | Tensor) -> Iterator[tuple[Array, Tensor, dict[int, str]]]:
        """Yield checked inputs in batches: the positions of readable ones, these, and the problems of others."""
        for begin in range(0, len(inputs), _BATCH[self.reads]):
            part = inputs[begin : begin + _BATCH[self.reads]]
            batch, kept, faults = self.read(part)
            lost = np.setdiff1d(np.arange(len(part)), kept)
            yield begin + kept, batch, dict(zip((begin + lost).tolist(), faults, strict=True))

    def read(self, part: Sequence[Any] | Tensor) -> tuple[Tensor, Array, list[str]]:
        """Return the readable inputs as the network takes them, their positions, and the problems of the others."""
        if isinstance(part, Tensor):
            return part, np.arange(len(part)), []
        if self.reads == "images":
            images, kept, faults = decode_some(part, self.config.data.pixels, whole=keeps_whole(self.config))
            return torch.from_numpy(images).permute(0, 3, 1, 2), kept, faults
        found = [_text_fault(text) for text in part]
        kept = np.array([place for place, fault in enumerate(found) if not fault], np.int64)
        return self.texts.encode([part[place] for place in kept]), kept, [fault for fault in found if fault]

    @cached_property
    def texts(self) -> TextInputs:
        """What turns texts into inputs of the network."""
        return TextInputs.of(self.config.network.name, network_options(self.config))

    def _check_array(self, inputs: Tensor) -> None:
        if self.reads == "texts" and inputs.ndim != 2:
            raise GraspError(f"the run learned texts: give a list of strings, not an array {list(inputs.shape)}")
        if self.config.reads == "vectors":
            wanted = self.config.network.parameters.get("dim", inputs.shape[1])
            if inputs.shape[1] != wanted or not inputs.is_floating_point() or not inputs.isfinite().all():
                raise GraspError(f"the network takes finite vectors [n, {wanted}], got {list(inputs.shape)}")
        shape = (3, self.config.data.pixels, self.config.data.pixels)
        if self.reads == "images" and (inputs.dtype != torch.uint8 or inputs.shape[1:] != shape):
            got = f"{inputs.dtype} {list(inputs.shape)}"
            raise GraspError(f"give images as uint8 {['n', *shape]} or as a list of files, got {got}")


@dataclass(frozen=True)
class Learned:
    """The learner of a finished run, the names of its classes by label, and the run's settings."""

    learner: Learner
    classes: list[str]
    config: Config
    notes: tuple[str, ...] = ()  # about damaged checkpoints, in place of which an older one is used

    @property
    def reads(self) -> Literal["images", "texts"]:
        """Return what `predict` takes."""
        return self._inputs.reads

    def predict(self, inputs: Sequence[Any] | Array | Tensor) -> Predictions:
        """Predict the classes of n inputs. One that cannot be read does not stop the others.

        Args:
            inputs: a list of texts; paths or bytes of image files, which are cut and resized as in the run; images as
                uint8 [n, 3, pixels, pixels] with the run's `data.pixels`; or the vectors or token ids [n, d] that a
                network for texts reads.
        """
        checked = self._inputs.check(inputs)
        probabilities, problems = np.full((len(checked), len(self.classes)), np.nan), dict[int, str]()
        for places, batch, faults in self._inputs.batches(checked):
            if len(places):
                probabilities[places] = self._probabilities(batch)
            problems |= faults
        return Predictions(self.classes, probabilities, problems)

    @cached_property
    def _inputs(self) -> Inputs:
        return Inputs(self.config)

    def _probabilities(self, batch: Tensor) -> Array:
        """Return the softmax over the classes that have arrived [n, classes], for inputs of the network [n, …]."""
        found = np.zeros((len(batch), len(self.classes)))
        # In double precision, probabilities tie only if logits do, so both have the same order.
        found[:, self.learner.classes] = self.learner.logits(batch).double().softmax(1).numpy(force=True)
        return found


def _text_fault(text: object) -> str:
    """Return why a text cannot be used; empty if it can."""
    if not isinstance(text, str):
        return "no text" if text is None else f"text is {reprlib.repr(text)}, not a string"
    if not text or text.isspace():
        return "empty text"
    return "" if is_utf8(text) else "text is not UTF-8"
