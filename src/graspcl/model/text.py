"""A frozen, fast text encoder: the mean of static token embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from graspcl.errors import GraspError, MissingExtra, require

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
