"""Encoders in Hugging Face's format, taken apart: embeddings, and layers that run by themselves."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.errors import GraspError, require
from graspcl.model.hub import read_pretrained
from graspcl.model.layers import SeededDropout
from graspcl.model.seeding import fork

KNOWN = "BERT, RoBERTa, XLM-RoBERTa, ELECTRA, DistilBERT, MPNet, ALBERT and DeBERTa"
"""Families of encoders that are known to come apart."""

_ATTENTION = "graspcl"


class Pieces(NamedTuple):
    """What an encoder consists of; its own modules, not copies."""

    embeddings: nn.Module
    """Token ids [n, L] to vectors [n, L, d]."""
    projection: nn.Module
    """Those to hidden states [n, L, D]."""
    layers: list[nn.Module]
    """Hidden states and a mask [n, 1, 1, L], 0 or -∞, to hidden states. They may share modules, or be the same one."""


class _WithBias(nn.Module):
    """A layer of MPNet: what a token attends to depends also on how far it is."""

    def __init__(self, layer: nn.Module, stack: Any) -> None:
        super().__init__()
        self.layer, self.stack = layer, stack

    def forward(self, hidden: Tensor, mask: Tensor) -> Any:
        return self.layer(hidden, mask, position_bias=self.stack.compute_position_bias(hidden[:1]))  # for all texts


class _WithPositions(_WithBias):
    """A layer of DeBERTa: the same, by embeddings of distances."""

    def forward(self, hidden: Tensor, mask: Tensor) -> Any:
        where = self.stack.get_rel_pos(hidden)
        return self.layer(hidden, mask == 0, relative_pos=where, rel_embeddings=self.stack.get_rel_embedding())


class Layout(NamedTuple):
    """Where an encoder has what: paths of attributes."""

    layers: str = "encoder.layer"
    projection: str = ""
    """What widens the embeddings to hidden states; some encoders of a family have it, some do not."""
    wrapper: type[_WithBias] | None = None
    """What gives a layer all that its stack would give it."""


# By the type of model; all others are taken to be like BERT.
_LAYOUTS = {
    "albert": Layout("encoder.albert_layer_groups", "encoder.embedding_hidden_mapping_in"),
    "deberta": Layout(wrapper=_WithPositions),
    "deberta-v2": Layout(wrapper=_WithPositions),
    "distilbert": Layout("transformer.layer"),
    "electra": Layout(projection="embeddings_project"),
    "mpnet": Layout(wrapper=_WithBias),
}


def take_apart(encoder: Any) -> Pieces:
    """The pieces of `encoder`, which stays as it is."""
    kind = encoder.config.model_type
    layout = _LAYOUTS.get(kind, Layout())
    try:
        embeddings, layers = encoder.embeddings, list(attrgetter(layout.layers)(encoder))
    except (AttributeError, TypeError) as error:
        raise GraspError(
            f"a {type(encoder).__name__} cannot be split: it has no `embeddings` and `{layout.layers}`; {KNOWN} can"
        ) from error
    projection: nn.Module = nn.Identity()
    with contextlib.suppress(AttributeError):
        projection = attrgetter(layout.projection)(encoder)
    if kind == "albert":  # few layers, each passed several times
        times = encoder.config.num_hidden_layers
        layers = [layers[i * len(layers) // times] for i in range(times)]
    if layout.wrapper is not None:
        stack = copy.copy(encoder.encoder)  # without its layers: what is left is what they share
        stack._modules = {name: part for name, part in stack._modules.items() if name != "layer"}
        layers = [layout.wrapper(layer, stack) for layer in layers]
    return Pieces(embeddings, projection, layers)


# -- loading ----------------------------------------------------------------------------------------------------------


def load_encoder(source: str | Path, generator: torch.Generator) -> Any:
    """The encoder, in eval mode and float32; what its file lacks is drawn from `generator`."""
    transformers = require("transformers", "text")
    seed = fork(generator).initial_seed()

    def read(local: bool) -> Any:
        return transformers.AutoModel.from_pretrained(str(source), local_files_only=local, output_loading_info=True)

    with _quietly(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also move the generators of all devices
        try:
            encoder, report = read_pretrained(source, read)
        except GraspError:
            raise
        except Exception as error:
            why = str(error).strip().partition("\n")[0]
            raise GraspError(f"transformers could not load an encoder from {source}: {why}") from error
    if missing := sorted(name for name in report["missing_keys"] if not name.startswith("pooler.")):
        raise GraspError(f"the weights in {source} lack {len(missing)} tensors of its encoder, such as {missing[0]}")
    return encoder.float().eval()


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the bars and tables that transformers shows while it loads; what matters in them is checked above."""
    logging = require("transformers.utils.logging", "text")
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


# -- dropout ----------------------------------------------------------------------------------------------------------


def choose_attention(encoder: Any) -> None:
    """Let the attention of `encoder` be computed by `_attention`, which draws dropout from seeded generators."""
    require("transformers", "text").AttentionInterface.register(_ATTENTION, _attention)
    with _quietly():
        encoder.set_attn_implementation(_ATTENTION)  # those without a choice call their dropout themselves


def seed_dropout(module: nn.Module, generator: torch.Generator) -> None:
    """Give every dropout within `module` a generator of its own."""
    for part in module.modules():
        for name, child in part.named_children():
            if isinstance(child, nn.Dropout):
                setattr(part, name, SeededDropout(child.p, generator))


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    """softmax(q kᵀ · scaling + mask) v for q, k, v [n, heads, L, d], to [n, L, heads, d], with the module's dropout.

    torch's own function would draw dropout from the global generator; without dropout it is the quicker one.
    """
    mask = mask.to(query.dtype)
    dropout = getattr(module, "attention_dropout", None) or getattr(module, "dropout", None)
    if isinstance(dropout, SeededDropout) and dropout.training and dropout.p > 0:
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        found = dropout((query @ key.transpose(2, 3) * scaling + mask).softmax(-1)) @ value
    else:
        found = F.scaled_dot_product_attention(query, key, value, mask, scale=scaling)
    return found.transpose(1, 2).contiguous(), None
