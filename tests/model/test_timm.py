"""Networks of timm, split after a block. What needs timm is skipped where it cannot be imported."""

from __future__ import annotations

import copy
import importlib
import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from graspcl.errors import GraspError, MissingExtra
from graspcl.model import make_network, mobilevit_s, timm_network
from graspcl.model.layers import fork
from graspcl.testing import check_network


@pytest.fixture(scope="module")
def timm() -> ModuleType:
    if find_spec("timm") is None or find_spec("torchvision") is None:
        pytest.skip("needs graspcl[timm]")
    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # a torchvision without its compiled operators, which timm does not use
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        return importlib.import_module("timm")
    except Exception as error:
        pytest.skip(f"timm cannot be imported: {error}")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int, size: int = 64) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=seeded(9))


@pytest.mark.skipif(find_spec("timm") is not None, reason="timm is installed")
def test_a_missing_timm_names_the_extra() -> None:
    with pytest.raises(MissingExtra, match=r"\.\[timm\]"):
        timm_network("resnet18", "layer3", generator=seeded())


def test_importing_the_networks_does_not_import_timm() -> None:
    code = "import sys, graspcl.model; assert not {'timm', 'torchvision'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


class Stock(nn.Module):
    """The interface of a network of timm: `forward_features`, `forward_head` and `pretrained_cfg`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.position = nn.Conv2d(3, 4, 3, 2), nn.Parameter(torch.randn(1, 4, 1, 1))
        blocks = [nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)) for _ in range(3)]
        self.blocks, self.norm = nn.Sequential(*blocks), nn.BatchNorm2d(4)
        self.global_pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.pretrained_cfg = {"input_size": (3, 32, 32), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2)}

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.blocks(self.stem(x) + self.position))

    def forward_head(self, x: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
        return self.global_pool(x)


def test_the_interface_of_timm_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("timm")
    module.is_model, module.list_models = {"stock"}.__contains__, lambda: ["stock"]
    module.create_model = lambda name, pretrained, num_classes: Stock()
    monkeypatch.setitem(sys.modules, "timm", module)
    net = make_network("timm:stock", classes=3, split="blocks.1", generator=seeded())
    frozen = [name.removeprefix("frozen.features.model.") for name in net.state_dict() if name.startswith("frozen.")]
    plastic = [name.removeprefix("plastic.model.") for name in net.state_dict() if name.startswith("plastic.")]
    assert {name.partition(".")[0] for name in frozen} == {"stem", "position", "blocks"}  # part of weights files
    assert {".".join(name.split(".")[:2]) for name in plastic if "blocks" in name} == {"blocks.2"}
    assert {name.partition(".")[0] for name in plastic} == {"blocks", "norm"}
    with torch.random.fork_rng():
        torch.manual_seed(fork(seeded()).initial_seed())
        stock = Stock().eval()
    x = (images(2, 32) - 255 * torch.tensor([0.5, 0.4, 0.3])[:, None, None]) / (255 * 0.2)
    with torch.no_grad():
        expected = stock.forward_head(stock.forward_features(x))
        torch.testing.assert_close(net(net.encode(images(2, 32))).embedding, expected, rtol=1e-4, atol=1e-5)
    check_network(lambda: make_network("timm:stock", classes=3, split="blocks.1", generator=seeded()), images(3, 32))
    for split, message in (("stem", "not a plain chain of modules"), ("blocks.7", "no such block")):
        with pytest.raises(GraspError, match=f"stock cannot be cut after '{split}': .*{message}"):
            make_network("timm:stock", split=split, generator=seeded())
    with pytest.raises(GraspError, match="timm has no network 'stok'; did you mean 'stock'"):
        make_network("timm:stok", split="stem", generator=seeded())


SPLITS = [
    ("resnet18", "layer3", 64, (256, 4, 4), 512),
    ("resnet18", "layer3.0", 64, (256, 4, 4), 512),
    ("resnet18", "bn1", 64, (64, 32, 32), 512),
    ("resnet18", "layer4", 64, (512, 2, 2), 512),
    ("mobilenetv3_large_100", "blocks.3", 64, (80, 4, 4), 1280),
    ("convnext_atto", "stages.2", 64, (160, 4, 4), 320),
    ("vit_tiny_patch16_224", "blocks.5", 224, (197, 192), 192),
    ("mixer_s32_224", "blocks.3", 224, (49, 512), 512),
]


@pytest.mark.parametrize(("name", "split", "pixels", "shape", "width"), SPLITS)
def test_the_two_parts_compute_what_the_whole_does(
    timm: ModuleType, name: str, split: str, pixels: int, shape: tuple[int, ...], width: int
) -> None:
    net = timm_network(name, split, 3, generator=seeded()).eval()
    # The same weights as timm's own: all random draws come from the seed that the generator gave.
    whole = timm.create_model(name, num_classes=0).eval()
    parts = {**net.plastic.model.state_dict(), **net.frozen.features.model.state_dict()}  # type: ignore[union-attr]
    assert parts.keys() == whole.state_dict().keys()
    whole.load_state_dict(parts)
    x = images(2, pixels)
    latents = net.encode(x)
    assert latents.shape[1:] == shape
    before = latents.clone()
    out = net(latents)
    assert torch.equal(latents, before)  # an activation in place would have overwritten a stored sample
    config = whole.pretrained_cfg
    mean, std = (torch.tensor(config[key]).reshape(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        torch.testing.assert_close(out.embedding, whole((x / 255 - mean) / std), rtol=1e-3, atol=1e-4)
    assert out.embedding.shape == (2, width) and out.logits.shape == (2, 3)
    frozen, plastic, all_of_it = (
        sum(p.numel() for p in part.parameters()) for part in (net.frozen, net.plastic, whole)
    )
    assert frozen + plastic == all_of_it and frozen > 0


def step(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = net(net.encode(x)).logits  # type: ignore[operator]
    nn.functional.cross_entropy(logits, torch.arange(len(x)) % logits.shape[1]).backward()
    return logits.detach()


@pytest.mark.parametrize(
    ("name", "split", "pixels"), [("resnet18", "layer2", 64), ("vit_tiny_patch16_224", "blocks.9", 224)]
)
def test_randomness_comes_from_the_generator_alone(timm: ModuleType, name: str, split: str, pixels: int) -> None:
    before = torch.get_rng_state()
    a, b, c = (timm_network(name, split, 3, generator=seeded(seed)).train() for seed in (1, 1, 2))
    assert torch.equal(step(a, images(2, pixels)), step(b, images(2, pixels)))
    assert torch.equal(before, torch.get_rng_state())
    states = [net.state_dict() for net in (a, b, c)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert not all(torch.equal(value, states[2][name]) for name, value in states[0].items())


@pytest.mark.parametrize(
    ("name", "split", "pixels"), [("resnet18", "layer2", 64), ("vit_tiny_patch16_224", "blocks.9", 224)]
)
def test_only_the_plastic_part_learns_and_statistics_stay(timm: ModuleType, name: str, split: str, pixels: int) -> None:
    net = timm_network(name, split, 3, generator=seeded()).train()
    buffers = copy.deepcopy(dict(net.named_buffers()))
    step(net, images(2, pixels))
    assert all(p.grad is None for p in net.frozen.parameters())
    assert all(p.grad is not None for _, p in net.plastic_parameters())
    assert sum(p.numel() for _, p in net.plastic_parameters()) > sum(p.numel() for p in net.head.parameters())
    assert all(torch.equal(value, buffers[name]) for name, value in net.named_buffers())


def test_state_loads_into_a_fresh_network(timm: ModuleType) -> None:
    net, other = (timm_network("resnet18", "layer3", classes, generator=seeded(classes)) for classes in (3, 5))
    other.load_state_dict(net.state_dict())
    assert torch.equal(step(net, images(2)), step(other, images(2)))


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("resnte18", "layer3", "timm has no network 'resnte18'; did you mean 'resnet18'"),
        ("!", "layer3", r"timm.list_models\(\)"),
        ("resnet18.nonsense", "layer3", "could not create 'resnet18.nonsense'"),
        ("resnet18", "layr3", "no such block; did you mean 'layer3'"),
        ("resnet18", "layer3.0.conv1", "no such block; did you mean 'layer3"),
        ("resnet18", "fc", "no such block; valid names: act1, bn1, conv1, layer1"),
        ("vit_tiny_patch16_224", "patch_embed", "not a plain chain of modules; did you mean"),
        ("eva02_tiny_patch14_224", "blocks.3", "not a plain chain of modules; did you mean 'blocks'"),
        ("xcit_nano_12_p16_224", "blocks.3", "not a plain chain of modules; valid names: cls_attn_blocks"),
    ],
)
def test_mistakes_name_what_would_be_right(timm: ModuleType, name: str, split: str, message: str) -> None:
    with pytest.raises(GraspError, match=message):
        timm_network(name, split, generator=seeded())


def test_by_name_in_settings(timm: ModuleType) -> None:
    net = make_network("timm:resnet18", classes=4, split="layer4", generator=seeded())
    assert net(net.encode(images(1))).logits.shape == (1, 4)


@pytest.mark.parametrize("pixels", [64, 224, 256])
def test_mobilevit_in_its_stock_form_computes_what_timms_does(timm: ModuleType, pixels: int) -> None:
    """With every layer frozen, ours has BatchNorm and plain convolutions throughout, like the published network."""
    stock = timm.create_model("mobilevit_s", num_classes=0).eval()
    ours = mobilevit_s(split=11, generator=seeded())
    theirs = stock.state_dict()
    own = {name: value for name, value in ours.frozen.state_dict().items() if not name.startswith("input.")}
    assert [value.shape for value in own.values()] == [value.shape for value in theirs.values()]
    stock.load_state_dict(dict(zip(theirs, own.values(), strict=True)))
    x = torch.randn(2, 3, pixels, pixels, generator=seeded(4))
    with torch.no_grad():
        expected = stock(x)
        actual = ours(nn.Sequential(*list(ours.frozen.children())[1:])(x)).embedding
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())
