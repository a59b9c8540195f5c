"""The small network for images: its shapes, and that it learns real ones."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from graspcl.errors import GraspError
from graspcl.model import small_network, veridical
from graspcl.model.layers import StandardizedConv2d

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "tiny-imagenet-200"


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int, size: int) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=seeded(9))


@pytest.mark.parametrize(
    ("pixels", "split", "shape"),
    [(64, 0, (16, 32, 32)), (64, 1, (32, 16, 16)), (64, 3, (128, 4, 4)), (32, 1, (32, 16, 16)), (28, 2, (64, 7, 7))],
)
def test_shapes(pixels: int, split: int, shape: tuple[int, ...]) -> None:
    net = small_network(pixels, classes=5, split=split, generator=seeded()).eval()
    latents = net.encode(images(2, pixels))
    assert latents.shape[1:] == shape
    out = net(latents)
    assert out.embedding.shape == (2, 128) and out.logits.shape == (2, 5)
    assert torch.equal(out.features, nn.functional.gelu(out.embedding))


def test_frozen_and_plastic_forms() -> None:
    net = small_network(split=1, generator=seeded())
    assert not any(isinstance(part, StandardizedConv2d | nn.GroupNorm) for part in net.frozen.modules())
    assert not any(isinstance(part, nn.BatchNorm2d) for part in net.plastic.modules())
    assert sum(p.numel() for p in net.frozen.parameters()) == 16_752
    assert sum(p.numel() for p in net.plastic.parameters()) == 293_760


def test_mistakes_are_explained() -> None:
    for split in (-1, 4):
        with pytest.raises(GraspError, match=r"split must be a whole number in \[0, 3\]"):
            small_network(split=split, generator=seeded())
    with pytest.raises(GraspError, match="pixels must be a whole number of at least 8, got 4"):
        small_network(pixels=4, generator=seeded())


def tiny_imagenet(part: str, every: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images, uint8 [n, 3, 64, 64], and labels of every so many-th class of Tiny-ImageNet."""
    image = pytest.importorskip("PIL.Image", reason="needs graspcl[demo]")
    with zipfile.ZipFile(DATA / f"{part}.zip") as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        classes = sorted({name.split("/")[0] for name in names})[::every]
        names = [name for name in names if name.split("/")[0] in classes]
        pixels = [np.asarray(image.open(io.BytesIO(archive.read(name))).convert("RGB")) for name in names]
    labels = [classes.index(name.split("/")[0]) for name in names]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2), torch.tensor(labels)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Beside other busy processes, threads that wait for each other would take several times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/tiny-imagenet-200")
def test_learns_ten_classes_of_photographs() -> None:
    x, y = tiny_imagenet("train", every=20)
    net = veridical(small_network(classes=10, generator=seeded()), unfreeze=True)
    epochs, batch, order = 5, 64, seeded()
    optimiser = torch.optim.SGD([p for _, p in net.plastic_parameters()], lr=0.2, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=0.2, total_steps=epochs * (len(x) // batch), cycle_momentum=False
    )
    net.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(x), generator=order)[: len(x) // batch * batch].split(batch):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[chosen]).logits, y[chosen]).backward()
            optimiser.step()
            schedule.step()
    net.eval()
    x, y = tiny_imagenet("val", every=20)
    with torch.no_grad():
        right = torch.cat([net(part).logits.argmax(1) for part in x.split(250)]) == y
    assert right.float().mean() > 0.28  # 0.38 measured, on 500 images; chance is 0.10
