"""An existing classifier, cut after a named block."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.errors import GraspError
from graspcl.model import SplitNetwork, make_network, networks
from graspcl.model.layers import ImageInput, build
from graspcl.testing import check_network


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 3, size: int = 48) -> Tensor:
    return torch.randint(0, 256, (n, 3, size, size), generator=seeded(9)).to(torch.uint8)


class Block(nn.Module):
    """Torchvision's BasicBlock, with a quarter of the channels."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        shortcut = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.downsample = None if stride == 1 and inside == out else shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """The children and the forward pass of torchvision's resnet18."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        for i, (inside, out) in enumerate(((16, 16), (16, 32), (32, 64), (64, 128)), start=1):
            blocks = nn.Sequential(Block(inside, out, 1 if i == 1 else 2), Block(out, out, 1))
            self.add_module(f"layer{i}", blocks)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(128, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet() -> ResNet:
    model = build(ResNet, seeded())
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):  # statistics that show when they change
            part.running_mean.normal_(generator=seeded(1))
    return model.eval()


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Torchvision where it can be imported; else a stand-in for what the example uses."""
    monkeypatch.setattr(networks, "_parts", dict(networks._parts))
    monkeypatch.setattr(networks, "_declared", dict(networks._declared))
    try:
        return importlib.import_module("torchvision")
    except Exception:
        module: Any = ModuleType("torchvision")
        module.models = SimpleNamespace(resnet18=ResNet)
        monkeypatch.setitem(sys.modules, "torchvision", module)
        return module


def test_the_example_of_the_documentation(torchvision: Any) -> None:
    @networks.register("resnet18", reads="images")
    def resnet18(split="layer3", classes=0, seed=0):
        return SplitNetwork.cut(torchvision.models.resnet18(), after=split, classes=classes, seed=seed)

    check_network(lambda: make_network("resnet18", classes=5, generator=seeded()), images())
    net = make_network("resnet18", classes=5, split="layer2.0", generator=seeded())
    assert net(net.encode(images())).logits.shape == (3, 5)
    assert networks.declared("resnet18", "reads") == "images"


@pytest.mark.parametrize("after", ["maxpool", "layer1.0", "layer3", "layer4", "avgpool"])
def test_both_parts_compute_what_the_model_does(after: str) -> None:
    model = resnet()
    net = SplitNetwork.cut(model, after=after).train()
    assert isinstance(net.frozen.input, ImageInput)
    latents = net.encode(images())
    before = latents.clone()
    embedding = net(latents).embedding
    assert torch.equal(latents, before)  # activations in place do not reach the latents
    with torch.no_grad():
        torch.testing.assert_close(model.fc(embedding), model(net.frozen.input(images())), rtol=1e-4, atol=1e-4)
    inside = {name.removeprefix("model.") for name, _ in net.frozen.features.named_parameters()}
    outside = {name.removeprefix("model.") for name, _ in net.plastic.named_parameters()}
    every = {name for name, _ in model.named_parameters() if not name.startswith("fc.")}
    assert not inside & outside and inside | outside == every


def test_the_model_itself_stays_as_it_is() -> None:
    model = resnet().train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    net = SplitNetwork.cut(model, after="layer2", classes=2)
    optimizer = torch.optim.SGD(net.plastic.parameters(), lr=1.0)
    net.train()(net.encode(images())).logits.sum().backward()
    optimizer.step()
    assert model.training and all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    norms = [part for part in net.plastic.modules() if isinstance(part, nn.BatchNorm2d)]
    assert norms and all(int(norm.num_batches_tracked) == 0 and not norm.training for norm in norms)


class Pooled(nn.Module):
    """What torchvision's MobileNetV2 does: features, a functional average, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU())
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(F.adaptive_avg_pool2d(self.features(x), (1, 1)).flatten(1))


def test_a_functional_average_and_another_number_of_channels() -> None:
    model = build(Pooled, seeded()).eval()
    net = SplitNetwork.cut(model, after="features.1", classes=2, seed=4, scale=7.0)
    x = torch.rand(2, 1, 20, 20, generator=seeded(1))
    check_network(lambda: SplitNetwork.cut(model, after="features.1", classes=2), x)  # its dropout is seeded
    net.eval()
    out = net(net.encode(x))
    with torch.no_grad():
        torch.testing.assert_close(model.classifier(out.embedding), model(x))
    assert net.head.sigma.item() == 7.0
    same, other = (SplitNetwork.cut(model, after="features.1", classes=2, seed=seed) for seed in (4, 5))
    assert torch.equal(net.head.weight, same.head.weight) and not torch.equal(net.head.weight, other.head.weight)


def test_a_model_without_a_classifier_and_with_inputs_of_its_own() -> None:
    model = build(lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4), nn.LayerNorm(4)), seeded())
    net = SplitNetwork.cut(model, after="1", example=torch.ones(3, 5), input=nn.Flatten())
    x = torch.rand(2, 5, 1, generator=seeded(1))
    torch.testing.assert_close(net(net.encode(x)).embedding, model(x.flatten(1)))


class Skipping(nn.Module):
    """The last layer needs the first one's output, so there is no chain after `first`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.fc(self.third(x + self.second(x)))


def test_mistakes_name_what_would_be_right() -> None:
    with pytest.raises(GraspError, match=r"ResNet cannot be cut after 'layr3': there is no such block; .* 'layer3'"):
        SplitNetwork.cut(resnet(), after="layr3")
    with pytest.raises(GraspError, match=r"cannot be cut after 'first': what follows is not a plain chain.*third"):
        SplitNetwork.cut(build(Skipping, seeded()), after="first")
    with pytest.raises(GraspError, match=r"shape \[1, 3\] does not pass through Skipping.*pass example="):
        SplitNetwork.cut(build(Skipping, seeded()), after="third", example=torch.ones(1, 3))
    with pytest.raises(GraspError, match="the first layer of Sequential does not show what it takes; pass example="):
        SplitNetwork.cut(nn.Sequential(nn.ReLU()), after="0")
