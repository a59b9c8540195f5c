"""Export a classifier as one file: ONNX for other programs, or safetensors.

An ONNX file takes images, vectors or the token ids of texts, and does the rest: normalisation, static embeddings,
network, head and temperature. What comes before is not part of ONNX. The metadata describe how a picture is cut and
resized, and hold the tokenizer.
"""

from __future__ import annotations

import copy
import json
import math
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.cache import digest_of
from graspcl.checks import is_utf8
from graspcl.errors import GraspError, MissingExtra, require
from graspcl.images import margin
from graspcl.limits import TEXT
from graspcl.model import SplitNetwork
from graspcl.model.execution import Execution
from graspcl.model.texts import TextSteps
from graspcl.pretrain import save_weights
from graspcl.state import write_output

FORMAT = 1  # of the metadata
TOLERANCE = 1e-4  # by how much probabilities of onnxruntime may differ
_INPUTS = {"images": "images", "vectors": "vectors", "texts": "ids"}
_TOKENS = 12  # of random texts for static embeddings, which take any number
_IDS = "int64 [n, tokens], what `tokenizer` (of the library tokenizers) gives for texts, cut to `characters`"
_OUTPUTS = ("probabilities", "score", "unknown")


@dataclass(frozen=True)
class Exportable:
    """What a file holds.

    Args:
        network: the network; its head has one row per class.
        classes: their names, in the order of the rows.
        reads: what the network takes.
        shape: of one input: (3, pixels, pixels), (dim,) or (most tokens,).
        temperature: divides the logits before the softmax.
        threshold: a sample whose score, the logarithm of the sum of exp(logits), is below it is unknown.
        about: more for the metadata, plain JSON.
        texts: how a text becomes token ids, for an ONNX file that takes these.
    """

    network: SplitNetwork
    classes: Sequence[str]
    reads: Literal["images", "vectors", "texts"]
    shape: tuple[int, ...]
    temperature: float = 1.0
    threshold: float = -math.inf
    about: Mapping[str, Any] | None = None
    texts: TextSteps | None = None

    @property
    def input(self) -> str:
        """The name of the input of an ONNX file."""
        return "ids" if self.texts is not None else _INPUTS[self.reads]

    @property
    def metadata(self) -> dict[str, Any]:
        """What the file says about itself, plain JSON."""
        return {
            "graspcl": FORMAT, "classes": list(self.classes), "reads": self.reads, "shape": list(self.shape),
            "temperature": self.temperature,
            "threshold": self.threshold if math.isfinite(self.threshold) else None,
            **({"pad": _vocabulary(self.network)[1]} if self.reads == "texts" else {}),
            **({} if self.texts is None else _encoder(self.texts)), **(self.about or {}),
        }  # fmt: skip


def _encoder(texts: TextSteps) -> dict[str, Any]:
    """Return what identifies the encoder of texts, as metadata."""
    contents = {"tokenizer": np.frombuffer(texts.tokenizer.encode(), np.uint8), "embeddings": texts.embeddings}
    found = digest_of({name: one for name, one in contents.items() if one is not None})
    return {"encoder": texts.name, "encoder_checksum": found, "pad": texts.pad, "characters": TEXT}


def image_steps(pixels: int, whole: bool = False) -> dict[str, Any]:
    """Return how a picture becomes an input, as metadata: what `graspcl.images` does before the network.

    >>> image_steps(224)["resize_shorter_side"]
    256
    """
    return {
        "input": f"uint8 [n, 3, {pixels}, {pixels}], RGB, 0..255; the file itself normalises",
        "resize_shorter_side": pixels if whole else margin(pixels),
        "resize": "bicubic" if whole else "bilinear, with antialiasing; a picture is not enlarged for the margin",
        "crop_centre": pixels,
    }


def check_ending(path: str | Path) -> None:
    """Refuse a file of a kind that `export` does not write."""
    if Path(path).suffix not in (".onnx", ".safetensors"):
        known = "choose one of them as the file's ending"
        raise GraspError(f"export writes .onnx or .safetensors; {known}, got {Path(path).name}")


def export(path: str | Path, what: Exportable) -> float | None:
    """Write a classifier to `path`, whole or not at all.

    Args:
        path: FILE.onnx or FILE.safetensors.
        what: the classifier.

    Returns:
        The largest difference between the probabilities of onnxruntime and ours, for random inputs. None if it is not
        installed, and for safetensors.

    Raises:
        GraspError: the kind of file is not known, the name of a class is not UTF-8, an extra is missing, the network
            cannot be exported, its predictions differ, or the disk is full.

    An ONNX file has one input, `images` (uint8), `vectors` (float32) or `ids` (int64, padded as the tokenizer does), of
    any number of samples. With `texts`, that is `ids`, and the metadata hold the `tokenizer` as JSON of the library
    `tokenizers`. Outputs are `probabilities` [n, classes], `score` [n] and `unknown` [n].
    """
    path = Path(path)
    check_ending(path)
    for name in what.classes:
        if not is_utf8(name):  # from a folder whose name is any bytes
            raise GraspError(f"the name of class {name!r} is not UTF-8: change it with `graspcl rename`")
    if len(what.classes) != what.network.head.classes:
        raise GraspError(f"the head has {what.network.head.classes} rows, but there are {len(what.classes)} classes")
    if path.suffix == ".safetensors":
        save_weights(what.network, path, settings=what.metadata)
        return None
    content = _onnx(what)
    difference = _difference(content, what)
    if difference is not None and not difference <= TOLERANCE:
        raise GraspError(
            f"onnxruntime predicts otherwise: probabilities differ by {difference:.2g}; nothing is written"
        )
    try:
        write_output(path, lambda file: file.write(content))
    except OSError as error:
        raise GraspError(f"{path} cannot be written: {error.strerror}") from error
    return difference


class _Whole(nn.Module):
    """From inputs to calibrated probabilities, scores and which samples are unknown."""

    def __init__(self, what: Exportable) -> None:
        super().__init__()
        self.network = copy.deepcopy(what.network).cpu()
        self.network.execute(Execution(device="cpu"))  # float32, not compiled
        self.pooled: nn.Module = nn.Identity()
        if what.texts is not None and what.texts.embeddings is not None:
            self.pooled = _Pooled(what.texts.embeddings, what.texts.unknown)
        self.temperature, self.threshold = what.temperature, what.threshold

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = self.network(self.network.encode(self.pooled(x))).logits
        score = logits.logsumexp(1)
        return (logits / self.temperature).softmax(1), score, score < self.threshold


class _Pooled(nn.Module):
    """The normalised mean of the embeddings of token ids, as of `StaticTextEncoder`. Padding is one more id."""

    table: Tensor

    def __init__(self, embeddings: Tensor, unknown: int) -> None:
        super().__init__()
        table = torch.cat([embeddings, torch.zeros_like(embeddings[:1])])
        exact = table.half().float().equal(table)  # as embeddings are published
        self.register_buffer("table", table.half() if exact else table)
        self.pad, self.unknown = len(embeddings), unknown

    def forward(self, ids: Tensor) -> Tensor:
        number = (ids != self.pad).sum(1, keepdim=True)
        means = F.embedding(ids, self.table).float().sum(1) / number.clamp(min=1)
        return F.normalize(torch.where(number > 0, means, self.table[self.unknown].float()), dim=1)


def _onnx(what: Exportable) -> bytes:
    """Return the file as bytes."""
    onnx = require("onnx", "onnx")
    name, axes = what.input, {0: "n"} if what.input != "ids" else {0: "n", 1: "tokens"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # about checks of inputs, which are not part of the file
            try:
                # The newer exporter needs one more package, and here took ten times as long for the same result.
                torch.onnx.export(
                    _Whole(what).eval(), (_example(what, 2),), file, dynamo=False, input_names=[name],
                    output_names=[*_OUTPUTS], dynamic_axes={name: axes, **{key: {0: "n"} for key in _OUTPUTS}},
                )  # fmt: skip
            except Exception as error:  # torch raises many kinds
                raise GraspError(f"this network cannot be exported to ONNX: {error}") from error
        model = onnx.load(str(file))
    told = what.metadata
    if what.texts is not None:
        most = what.shape[0] if what.texts.embeddings is None else None
        told |= {"input": _IDS, "reads": "texts", "shape": [most], "tokenizer": json.loads(what.texts.tokenizer)}
    for key, value in told.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, json.dumps(value, ensure_ascii=False)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def _example(what: Exportable, number: int) -> Tensor:
    """Return random inputs."""
    generator = torch.Generator().manual_seed(number)
    shape = (number, *what.shape)
    if what.input == "vectors":
        return torch.randn(shape, generator=generator)
    if what.reads == "images":
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    static = None if what.texts is None else what.texts.embeddings
    most = what.shape[0] if static is None else _TOKENS
    tokens, pad = _vocabulary(what.network) if static is None else (len(static), len(static))
    ids = torch.randint(0, tokens, (number, most), generator=generator)
    lengths = torch.randint(1, most + 1, (number, 1), generator=generator)
    return ids.where(torch.arange(most) < lengths, pad)


def _vocabulary(network: SplitNetwork) -> tuple[int, int]:
    """Return the number of token ids of a network for texts, and which of them is padding."""
    frozen: Any = network.frozen
    return int(frozen.tokens), int(frozen.pad)


def _difference(content: bytes, what: Exportable) -> float | None:
    """Return by how much the probabilities of random inputs differ in onnxruntime."""
    try:
        runtime = require("onnxruntime", "onnx")
    except MissingExtra:
        return None
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    inputs = _example(what, 5)
    with torch.no_grad():
        expected = _Whole(what).eval()(inputs)[0].numpy()
    (found,) = session.run(["probabilities"], {what.input: inputs.numpy()})
    return float(np.abs(found - expected).max())
