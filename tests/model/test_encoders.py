"""Encoders of many families: taken apart, they compute what they did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small_encoders import LENGTH, hugging_face, save, seeded, texts

from graspcl.errors import GraspError
from graspcl.model import SeededDropout, SplitNetwork, transformer_network, veridical
from graspcl.pretrain import load_weights, save_weights

THREE = {"num_hidden_layers": 3}
ALBERT = {**THREE, "embedding_size": 16, "hidden_dropout_prob": 0.1}
DEBERTA = {**THREE, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
FAMILIES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "bert": ("bert", 0, THREE),
    "roberta": ("roberta", 1, THREE),
    "xlm-roberta": ("xlm-roberta", 1, THREE),
    "electra": ("electra", 0, {**THREE, "embedding_size": 32}),
    "electra, projected": ("electra", 0, {**THREE, "embedding_size": 16}),
    "distilbert": ("distilbert", 0, THREE),
    "mpnet": ("mpnet", 1, THREE),
    "albert": ("albert", 0, ALBERT),
    "albert, groups": ("albert", 0, {**ALBERT, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}),
    "deberta": ("deberta", 0, DEBERTA),
    "deberta-v2": ("deberta-v2", 0, {**DEBERTA, "position_buckets": 8, "norm_rel_ebd": "layer_norm"}),
    "deberta-v2, absolute": ("deberta-v2", 0, THREE),
}
# transformers' DeBERTa is compiled by what torch has left behind.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is:DeprecationWarning")
SHARING = ("mpnet", "albert", "albert, groups", "deberta-v2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        family: save(tmp_path_factory.mktemp("encoder"), kind, **settings)
        for family, (kind, _, settings) in FAMILIES.items()
    }


def network(folder: Path, frozen_layers: int = 1, seed: int = 0, **options: Any) -> SplitNetwork:
    options = {"classes": 3, "max_tokens": LENGTH, **options}
    return transformer_network(folder, frozen_layers, generator=seeded(seed), **options).eval()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("frozen_layers", [0, 1, 3])
def test_the_parts_compute_what_the_encoder_does(folders: dict[str, Path], family: str, frozen_layers: int) -> None:
    pad = FAMILIES[family][1]
    ids = texts(n=9, pad=pad)
    hidden, real = hugging_face(folders[family], ids, pad), (ids != pad).float()[:, :, None]
    net = network(folders[family], frozen_layers)
    latents = net.encode(ids)
    assert latents.shape == (9, 32, LENGTH)
    expected = (hidden * real).sum(1) / real.sum(1)
    torch.testing.assert_close(net(latents).embedding, expected, rtol=1e-4, atol=2e-5)
    raw = veridical(net, unfreeze=True).eval()
    torch.testing.assert_close(raw(ids).embedding, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_frozen_stays_and_what_is_plastic_learns(folders: dict[str, Path], family: str) -> None:
    """Also where layers share weights."""
    net = network(folders[family], 2)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    optimiser = torch.optim.SGD([value for _, value in net.plastic_parameters()], lr=0.1)
    net.train()(net.encode(texts(pad=FAMILIES[family][1]))).logits.square().sum().backward()
    optimiser.step()
    moved = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert not any(name.startswith("frozen") for name in moved)
    assert any(name.startswith("plastic.layers.layer2") and name.endswith("weight") for name in moved)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_dropout_is_seeded(folders: dict[str, Path], family: str) -> None:
    ids = texts(pad=FAMILIES[family][1])
    before = torch.get_rng_state()
    a, b, c = (veridical(network(folders[family], seed=seed), unfreeze=True).train() for seed in (1, 1, 2))
    first = a(ids).embedding
    assert torch.equal(first, b(ids).embedding) and not torch.equal(first, c(ids).embedding)
    assert torch.equal(before, torch.get_rng_state())
    assert not any(isinstance(part, torch.nn.Dropout) for part in a.modules())


@pytest.mark.parametrize(
    ("kind", "settings", "name"),
    [
        ("albert", {"attention_probs_dropout_prob": 0.4}, "attention_dropout"),
        ("distilbert", {"attention_dropout": 0.4}, "attention.dropout"),
        ("electra", {"attention_probs_dropout_prob": 0.4}, "self.dropout"),
    ],
)
def test_attention_has_dropout(tmp_path: Path, kind: str, settings: dict[str, Any], name: str) -> None:
    """With all other dropout off."""
    net = network(save(tmp_path, kind, **settings))
    latents = net.encode(texts())
    without = net(latents).embedding
    found = [(where, part) for where, part in net.plastic.named_modules() if isinstance(part, SeededDropout)]
    for where, part in found:
        part.p = part.p if where.endswith(name) else 0.0
    assert any(part.p == 0.4 for _, part in found)
    assert not torch.allclose(net.train()(latents).embedding, without, atol=1e-3)


@pytest.mark.parametrize("family", SHARING)
def test_weights_that_layers_share(folders: dict[str, Path], family: str, tmp_path: Path) -> None:
    """They stay shared on either side of the cut, are stored, and fit the veridical form, too."""
    net, other = network(folders[family], 1), network(folders[family], 1, seed=5)
    with torch.no_grad():
        for _, value in net.plastic_parameters():
            value += 0.1
    save_weights(net, tmp_path / "weights.safetensors")
    raw = veridical(network(folders[family], 1, seed=6), unfreeze=True).eval()
    ids = texts(pad=FAMILIES[family][1])
    for loaded in (other, raw):
        assert not load_weights(loaded, tmp_path / "weights.safetensors").missing
    expected = net(net.encode(ids)).logits
    torch.testing.assert_close(other(other.encode(ids)).logits, expected)
    torch.testing.assert_close(raw(ids).logits, expected)
    names = [name for name in net.state_dict() if name.startswith("plastic") and not name.endswith("_extra_state")]
    assert len(names) > sum(name.startswith("plastic") for name, _ in net.plastic_parameters())


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("bert", {"is_decoder": True}, "layers do not compute the same by themselves as the whole"),
        (
            "roberta-prelayernorm",
            {},
            "layers do not compute the same by themselves as the whole",
        ),  # the last is normalised
        ("deberta-v2", {"conv_kernel_size": 3}, "layers do not compute the same by themselves as the whole"),
        ("modernbert", {"pad_token_id": 0}, "ModernBertModel cannot be cut: it has no `embeddings` and `encoder.la"),
        ("gpt2", {}, "GPT2Model cannot be cut"),
        ("t5", {"d_model": 32, "d_kv": 8}, "T5Model cannot be cut"),
    ],
)
def test_others_are_refused_and_told_which_can_be_split(
    tmp_path: Path, kind: str, settings: dict[str, Any], message: str
) -> None:
    save(tmp_path, kind, **settings)
    with pytest.raises(
        GraspError, match=f"{message}.*; .*BERT, RoBERTa.*ELECTRA, DistilBERT, MPNet, ALBERT and DeBERTa"
    ):
        network(tmp_path)
