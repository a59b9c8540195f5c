"""A finished run opened again: its learner as it was when the last session ended."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from graspcl.checks import Array
from graspcl.codec import Codec, Encoded, Identity
from graspcl.data import Groceries, Samples
from graspcl.errors import GraspError
from graspcl.experiment import texts
from graspcl.experiment.backbone import build_network, make_codec
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.start import make_learner, ready
from graspcl.images import decode_some
from graspcl.learner import Learner
from graspcl.model import Execution, StaticTextEncoder, Tokenizer
from graspcl.policy import policies
from graspcl.progress import Progress, Silent
from graspcl.settings.config import Config, Part
from graspcl.settings.read import from_plain, read_toml
from graspcl.settings.rules import check


def reopen(folder: Path, progress: Progress | None = None) -> Learner:
    """The learner of the finished run in `folder`: network, buffer, policy and generators as they ended.

    Its data must still be where they were, and its state kept (`checkpoint.keep` "state", which is the default).
    `graspcl.experiment.load_learner` does without the data.
    """
    config, state = finished(folder)
    try:
        check(config)
        start = ready(config, progress or Silent())
    except GraspError as error:
        raise GraspError(f"the run in {folder} cannot be reopened: {error}") from error
    if state["start"] != start.key:
        raise GraspError(
            f"the run in {folder} cannot be reopened: its data, network or codec are not those that it began with"
        )
    return restored(config, state["learner"], len(start.samples.classes))


def finished(folder: Path) -> tuple[Config, dict[str, Any]]:
    """The settings of the finished run in `folder`, and the state that it ended in."""
    file = folder / "config.toml"
    if not file.is_file():
        raise GraspError(f"{folder} is not the folder of a run: it has no config.toml")
    config, place, damage = from_plain(read_toml(file), str(file)), RunFolder(folder), list[str]()
    if not place.finished:
        raise GraspError(f"the run in {folder} is not finished; the `graspcl run` that began it goes on with it")
    state = place.load_checkpoint(damage.append)
    if state is None:
        why = damage[0].partition(";")[0] if damage else "it kept no state; run it with --checkpoint.keep state"
        raise GraspError(f"the run in {folder} cannot be reopened: {why}")
    return config, state


def restored(config: Config, state: dict[str, Any], classes: int) -> Learner:
    """The learner of these settings, made for so many `classes`, in a `state` that its `state_dict` gave."""
    policy = policies.create(config.policy.name, **config.policy.parameters)
    codec = _codec(config, state["buffer"]["codec"] or {})
    learner = make_learner(config, build_network(config), codec, policy, classes)
    learner.load_state_dict(state)
    return learner


def keeps_whole(config: Config) -> bool:
    """Whether the run saw all of its images' shorter side, as `Samples.whole` of its data said."""
    return Groceries.whole if config.data.path == "groceries" else Samples.whole


def _codec(config: Config, state: dict[str, Any]) -> Codec:
    """A codec that can take the `state`."""
    if config.rehearsal == "veridical":
        read_texts = config.network.name in texts.NETWORKS
        return Identity() if read_texts else Encoded(config.data.pixels, whole=keeps_whole(config))
    part = config.codec
    if "centroids" in state:  # those of a codec from a file of weights decide what the settings leave open
        codebooks, size, _ = state["centroids"].shape
        part = Part(part.name, {**part.parameters, "codebooks": codebooks, "size": size})
    return make_codec(part)


# At once through the network. Texts are many, since those of like length are then passed together.
_BATCH = {"images": 64, "texts": 256}


@dataclass(frozen=True)
class Predictions:
    """What a learner says of n inputs.

    `probabilities` [n, classes] stand in the order of `classes`; the row of an input that could not be read is NaN,
    and `problems` says by its position what was wrong with it.

    >>> found = Predictions(["cat", "dog"], np.array([[0.2, 0.8], [np.nan, np.nan]]), {1: "empty text"})
    >>> found.names, found.top(2)
    (['dog', None], [[('dog', 0.8), ('cat', 0.2)], []])
    """

    classes: list[str]
    probabilities: Array
    problems: dict[int, str]

    @property
    def names(self) -> list[str | None]:
        """The likeliest class of each input [n]; None for one that could not be read."""
        return [best[0][0] if best else None for best in self.top()]

    def top(self, number: int = 1) -> list[list[tuple[str, float]]]:
        """The `number` likeliest classes of each input with their probabilities, the likeliest first [n]; none for an
        input that could not be read."""
        order = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :number]
        values = np.take_along_axis(self.probabilities, order, axis=1).tolist()
        return [
            [] if place in self.problems else [(self.classes[label], value) for label, value in zip(*both, strict=True)]
            for place, both in enumerate(zip(order.tolist(), values, strict=True))
        ]


@dataclass(frozen=True)
class Learned:
    """The learner of a finished run, the names of its classes by label, and the run's settings."""

    learner: Learner
    classes: list[str]
    config: Config

    @property
    def reads(self) -> Literal["images", "texts"]:
        """What is predicted from."""
        return "texts" if self.config.network.name in texts.NETWORKS else "images"

    def predict(self, inputs: Sequence[Any] | Array | Tensor) -> Predictions:
        """Classes of n texts (a list of strings), or of n images: paths or bytes of image files, or an array of them,
        uint8 [n, 3, pixels, pixels] with the run's `data.pixels`. Files are cut and resized as in the run.

        An input that cannot be read, such as a damaged file or an empty text, does not stop the others. An array of
        two dimensions is what a network for texts takes itself, vectors or token ids.
        """
        if isinstance(inputs, str | bytes | Path):
            raise GraspError(f"predict takes a list of {self.reads}; write predict([one])")
        if isinstance(inputs, np.ndarray) and inputs.dtype.kind in "biuf":
            wide = np.int64 if inputs.dtype.kind in "biu" and self.reads == "texts" else inputs.dtype.newbyteorder("=")
            inputs = np.array(inputs, dtype=np.float32 if inputs.dtype.kind == "f" else wide, order="C")
            inputs = torch.from_numpy(inputs)
        if isinstance(inputs, Tensor):
            self._check_array(inputs)
        else:
            inputs = list(inputs)
        probabilities, problems = np.full((len(inputs), len(self.classes)), np.nan), dict[int, str]()
        for begin in range(0, len(inputs), _BATCH[self.reads]):
            part = inputs[begin : begin + _BATCH[self.reads]]
            batch, kept, faults = self._read(part)
            if len(kept):
                probabilities[begin + kept] = self._probabilities(batch)
            lost = np.setdiff1d(np.arange(len(part)), kept)
            problems.update(zip((begin + lost).tolist(), faults, strict=True))
        return Predictions(self.classes, probabilities, problems)

    def _probabilities(self, batch: Tensor) -> Array:
        """Softmax over the classes that were met [n, classes], of inputs as the network takes them [n, …]."""
        learner, network = self.learner, self.learner.network.eval()
        with torch.no_grad():
            values = network.encode(batch.to(learner.device))
            if not network.veridical:  # latents went through the codec in the run, too
                values = learner.buffer.decode(learner.buffer.encode(values), learner.device)
            logits = network(values).logits
        found = np.zeros((len(batch), len(self.classes)))
        # In double precision two classes are as likely only if their logits are equal: the order is that of logits.
        found[:, learner.classes] = logits.double().softmax(1).numpy(force=True)
        return found

    def _read(self, part: Sequence[Any] | Tensor) -> tuple[Tensor, Array, list[str]]:
        """What can be read of some inputs as the network takes it, which ones, and what is wrong with the others."""
        if isinstance(part, Tensor):
            return part, np.arange(len(part)), []
        if self.reads == "images":
            images, kept, faults = decode_some(part, self.config.data.pixels, whole=keeps_whole(self.config))
            return torch.from_numpy(images).permute(0, 3, 1, 2), kept, faults
        found = [_text_fault(text) for text in part]
        kept = np.array([place for place, fault in enumerate(found) if not fault], np.int64)
        return self._encode_texts([part[place] for place in kept]), kept, [fault for fault in found if fault]

    @cached_property
    def _encode_texts(self) -> Callable[[list[str]], Tensor]:
        """Texts as the network takes them, as `texts.as_inputs` makes them of a run's data."""
        if self.config.network.name == "vector":
            return StaticTextEncoder().encode
        options = self.config.network.parameters
        return Tokenizer(options.get("model"), options.get("max_tokens", 256)).encode

    def _check_array(self, inputs: Tensor) -> None:
        if self.reads == "texts" and inputs.ndim != 2:
            raise GraspError(f"the run learned texts: give a list of strings, not an array {list(inputs.shape)}")
        if self.config.network.name == "vector":
            wanted = int(self.config.network.parameters.get("dim", 256))
            if inputs.shape[1] != wanted or not inputs.is_floating_point() or not inputs.isfinite().all():
                raise GraspError(f"the network takes finite vectors [n, {wanted}], not these {list(inputs.shape)}")
        shape = (3, self.config.data.pixels, self.config.data.pixels)
        if self.reads == "images" and (inputs.dtype != torch.uint8 or inputs.shape[1:] != shape):
            raise GraspError(
                f"images are uint8 {['n', *shape]}, or a list of image files, not {inputs.dtype} {list(inputs.shape)}"
            )


def load_learner(folder: Path) -> Learned:
    """The learner of the finished run in `folder`, ready to predict. The run's data need not be there.

    Its state must have been kept (`checkpoint.keep` "state", which is the default). Where this machine cannot execute
    the network as the run did, on cuda for instance, it is executed in the usual way.

    >>> learned = load_learner(Path("runs/mine"))  # doctest: +SKIP
    >>> learned.predict(["photos/1.jpg", "photos/2.jpg"]).names  # doctest: +SKIP
    ['Kiwi', 'Lemon']
    """
    folder = Path(folder)
    config, state = finished(folder)
    config = replace(config, execution=_possible(config.execution))
    try:
        names = json.loads((folder / "classes.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GraspError(f"{folder / 'classes.json'} cannot be read: {error}") from error
    try:
        learner = restored(config, state["learner"], len(names))
    except GraspError as error:
        raise GraspError(f"the run in {folder} cannot be reopened: {error}") from error
    if not learner.classes:
        raise GraspError(f"the run in {folder} has learned no class: nothing can be predicted")
    return Learned(learner, names, config)


def _possible(execution: Execution) -> Execution:
    """As the run had it but uncompiled, which would take minutes; else what every machine can do."""
    try:
        return replace(execution, compile=False).resolve()
    except GraspError:
        return Execution().resolve()


def _text_fault(text: object) -> str:
    """Why a text cannot be used; nothing if it can."""
    if not isinstance(text, str):
        return "no text" if text is None else f"text is {reprlib.repr(text)}, not a string"
    if not text or text.isspace():
        return "empty text"
    try:
        text.encode()
    except UnicodeError:
        return "text is not UTF-8"
    return ""
