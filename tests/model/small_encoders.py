"""Encoders of random weights in Hugging Face's format, tokenizers for them, and texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

TOKENS, LENGTH = 50, 12


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def save(folder: Path, kind: str = "bert", **settings: Any) -> Path:
    """A small encoder of random weights, in Hugging Face's format."""
    transformers = pytest.importorskip("transformers", reason="needs graspcl[text]: transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    sizes |= {"vocab_size": TOKENS, "max_position_embeddings": 40}
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **settings})
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = transformers.AutoModel.from_config(config)
        for parameter in model.parameters():  # so that biases and norms are not all 0 and 1
            parameter.data += 0.1 * torch.randn_like(parameter)
        transformers.utils.logging.disable_progress_bar()
        model.save_pretrained(folder)
    return folder


def save_tokenizer(folder: Path, pad: int = 0) -> None:
    """A WordPiece tokenizer of the letters a to z, with [CLS] and [SEP] around a text."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs graspcl[text]: tokenizers")
    words = ["[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz"]
    words.insert(pad, "[PAD]")
    vocabulary = {word: i for i, word in enumerate(words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    ends = [(word, vocabulary[word]) for word in ("[CLS]", "[SEP]")]
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    made.save(str(folder / "tokenizer.json"))


def texts(n: int = 6, length: int = LENGTH, pad: int = 0, seed: int = 9) -> torch.Tensor:
    """Token ids [n, length], padded at the end; the first text is as long as it can be."""
    ids = torch.randint(4, TOKENS, (n, length), generator=seeded(seed), dtype=torch.int32)
    lengths = torch.randint(2, length, (n,), generator=seeded(seed + 1))
    lengths[:1] = length
    return ids.masked_fill(torch.arange(length) >= lengths[:, None], pad)


def hugging_face(folder: Path, ids: torch.Tensor, pad: int = 0) -> torch.Tensor:
    """The last hidden states as transformers itself computes them."""
    model = pytest.importorskip("transformers").AutoModel.from_pretrained(folder, local_files_only=True).eval()
    with torch.no_grad():
        hidden: torch.Tensor = model(input_ids=ids.long(), attention_mask=(ids != pad).long()).last_hidden_state
    return hidden
