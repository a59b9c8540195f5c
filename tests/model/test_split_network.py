"""What all split networks share, and the two that need no weights from outside."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from graspcl.errors import GraspError
from graspcl.model import (
    CosineHead,
    SplitNetwork,
    efficientnet_lite0,
    mobilenet_v3_large,
    mobilevit_s,
    small_network,
    vector_network,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 2, size: int = 64) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=seeded(9))


Make = Callable[[torch.Generator], SplitNetwork]
NETWORKS: dict[str, tuple[Make, torch.Tensor]] = {
    "mobilenet": (lambda g: mobilenet_v3_large(classes=4, generator=g), images()),
    "efficientnet": (lambda g: efficientnet_lite0(split=10, classes=4, generator=g, pretrained=False), images()),
    "mobilevit": (lambda g: mobilevit_s(classes=4, dropout=0.5, generator=g), images(size=48)),
    "small": (lambda g: small_network(classes=4, dropout=0.5, generator=g), images()),
    "vector": (lambda g: vector_network(16, 32, 8, classes=4, dropout=0.5, generator=g), torch.ones(2, 16)),
}


@pytest.fixture(params=NETWORKS)
def case(request: pytest.FixtureRequest) -> tuple[Make, torch.Tensor]:
    return NETWORKS[request.param]


def train_step(net: SplitNetwork, x: torch.Tensor) -> torch.Tensor:
    optimiser = torch.optim.SGD([parameter for _, parameter in net.plastic_parameters()], lr=0.1)
    logits = net(net.encode(x)).logits
    nn.functional.cross_entropy(logits, torch.arange(len(x)) % logits.shape[1]).backward()
    optimiser.step()
    return logits.detach()


def test_global_generator_is_neither_used_nor_moved(case: tuple[Make, torch.Tensor]) -> None:
    make, x = case
    before = torch.get_rng_state()
    net = make(seeded()).train()
    train_step(net, x)
    net.head.grow(9)
    assert torch.equal(before, torch.get_rng_state())


def test_equal_seeds_make_equal_networks(case: tuple[Make, torch.Tensor]) -> None:
    make, x = case
    a, b, c = make(seeded(1)), make(seeded(1)), make(seeded(2))
    states = [net.state_dict() for net in (a, b, c)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert not all(torch.equal(value, states[2][name]) for name, value in states[0].items())
    assert torch.equal(train_step(a.train(), x), train_step(b.train(), x))


def test_frozen_part_never_changes_and_plastic_part_learns(case: tuple[Make, torch.Tensor]) -> None:
    make, x = case
    net = make(seeded()).train()
    frozen, plastic = copy.deepcopy(net.frozen.state_dict()), copy.deepcopy(net.plastic.state_dict())
    train_step(net, x)
    assert not any(module.training for module in net.frozen.modules())
    assert net.plastic.training and net.neck.training
    assert all(torch.equal(value, frozen[name]) for name, value in net.frozen.state_dict().items())
    assert all(p.grad is None and not p.requires_grad for p in net.frozen.parameters())
    assert all(p.grad is not None for _, p in net.plastic_parameters())
    learned = {name for name, value in net.plastic.state_dict().items() if not torch.equal(value, plastic[name])}
    assert {name for name, _ in net.plastic.named_parameters()} >= learned  # statistics of BatchNorm stay
    assert learned


def test_eval_mode_is_deterministic(case: tuple[Make, torch.Tensor]) -> None:
    make, x = case
    net = make(seeded()).eval()
    latents = net.encode(x)
    assert not latents.requires_grad
    assert torch.equal(net(latents).logits, net(latents).logits)


def test_state_resumes_training_bit_for_bit(case: tuple[Make, torch.Tensor]) -> None:
    make, x = case
    net = make(seeded(1)).train()
    train_step(net, x)
    other = make(seeded(2)).train()
    other.head.grow(11)  # a different size than the saved one
    other.load_state_dict(net.state_dict())
    net.head.grow(6)
    other.head.grow(6)
    assert torch.equal(train_step(net, x), train_step(other, x))


def test_outputs_are_stages_of_one_pass() -> None:
    net = vector_network(6, 12, 5, classes=3, generator=seeded()).eval()
    x = torch.randn(4, 6, generator=seeded(1))
    out = net(net.encode(x))
    assert torch.equal(out.embedding, net.plastic(x))
    assert torch.equal(out.features, nn.functional.gelu(out.embedding))
    assert torch.equal(out.logits, net.head(out.features))


def test_plastic_parameters_run_from_first_to_last() -> None:
    net = vector_network(6, 12, 5, classes=3, generator=seeded())
    assert [name for name, _ in net.plastic_parameters()] == [
        "plastic.hidden.weight",
        "plastic.hidden.bias",
        "plastic.embedding.weight",
        "plastic.embedding.bias",
        "head.weight",
        "head.bias",
        "head.sigma",
    ]
    names = [name for name, _ in mobilenet_v3_large(generator=seeded()).plastic_parameters()]
    layers = [int(name.split(".")[1].removeprefix("layer")) for name in names if ".layer" in name]
    assert layers == sorted(layers) and layers[0] == 8 and layers[-1] == 16


def test_share_counts_frozen_plastic_and_head() -> None:
    head = CosineHead(4, classes=2, generator=seeded())  # 2 x 5 + 1
    frozen, plastic = nn.utils.skip_init(nn.Linear, 3, 4), nn.utils.skip_init(nn.Linear, 4, 4)  # 16, 20
    assert SplitNetwork(frozen, plastic, head).share_plastic() == pytest.approx(31 / 47)


def test_a_network_of_ones_own_modules_finds_its_width() -> None:
    frozen = nn.Sequential(nn.utils.skip_init(nn.Conv2d, 3, 6, 3), nn.BatchNorm2d(6))
    plastic = nn.Sequential(nn.Flatten(), nn.utils.skip_init(nn.Linear, 216, 7), nn.BatchNorm1d(7))
    statistics = copy.deepcopy(plastic[2].state_dict())
    before = torch.get_rng_state()
    example = torch.zeros(2, 3, 8, 8)
    net = SplitNetwork.of(frozen, plastic, example, generator=seeded(), neck=nn.ReLU(), classes=2, scale=5.0)
    assert net.head.features == 7 and net.head.classes == 2 and net.head.sigma.item() == 5.0
    assert net.frozen is frozen and net.plastic is plastic and net.plastic.training and not net.frozen.training
    assert all(torch.equal(value, statistics[name]) for name, value in plastic[2].state_dict().items())
    assert torch.equal(before, torch.get_rng_state())
    assert net(net.encode(example)).logits.shape == (2, 2)


def test_a_neck_may_change_the_width() -> None:
    narrow = nn.utils.skip_init(nn.Linear, 4, 3)
    net = SplitNetwork.of(nn.Identity(), nn.Flatten(), torch.ones(1, 2, 2), generator=seeded(), neck=narrow)
    assert net.head.features == 3


@pytest.mark.parametrize(
    ("frozen", "plastic", "message"),
    [
        (nn.Linear(5, 4), nn.Flatten(), r"example of shape \[2, 3, 4\] does not pass through the frozen part"),
        (nn.Identity(), nn.Linear(5, 4), "does not pass through the plastic part"),
        (nn.Identity(), nn.Identity(), r"plastic part must return one vector per sample, \[N, d\], got \[2, 3, 4\]"),
    ],
)
def test_modules_that_do_not_fit_are_explained(frozen: nn.Module, plastic: nn.Module, message: str) -> None:
    with pytest.raises(GraspError, match=message):
        SplitNetwork.of(frozen, plastic, torch.zeros(2, 3, 4), generator=seeded())


def test_mobilenet_latents_at_224() -> None:
    net = mobilenet_v3_large(classes=3, generator=seeded()).eval()
    latents = net.encode(images(1, 224))
    assert latents.shape == (1, 80, 14, 14)
    out = net(latents)
    assert out.embedding.shape == out.features.shape == (1, 1280) and out.logits.shape == (1, 3)
    # A latent that comes back from a buffer in the default layout gives the same outputs.
    torch.testing.assert_close(net(latents.contiguous()).logits, out.logits)


def test_mobilenet_has_the_published_number_of_parameters() -> None:
    net = mobilenet_v3_large(classes=1000, generator=seeded())
    # MobileNetV3-Large of 1000 classes has 5,483,032; the cosine head adds sigma.
    assert sum(p.numel() for p in net.parameters()) == 5_483_033
    assert sum(p.numel() for p in net.frozen.parameters()) == 93_200
    assert sum(p.numel() for p in net.plastic.parameters()) == 4_108_832


@pytest.mark.parametrize(("classes", "share"), [(0, 97.78), (50, 97.82), (100, 97.85), (300, 97.97), (1000, 98.30)])
def test_mobilenet_share_that_learns(classes: int, share: float) -> None:
    """The paper says 97.81 % (section 4.2). No usual way of counting the reference's network gives just that.

    With all parameters it is 97.78 % without a head, and each class adds to it; a head of 40 would give 97.81 %, but no
    experiment has one. Without norms it is 97.85 %, without biases 97.79 %, and with the statistics of BatchNorm
    97.70 %. So the paper's number is met to within 0.05 without the head, and the exact ones are kept here.
    """
    net = mobilenet_v3_large(classes=classes, generator=seeded())
    assert round(100 * net.share_plastic(), 2) == share
    assert classes or abs(100 * net.share_plastic() - 97.81) < 0.05


@pytest.mark.parametrize(("split", "shape"), [(0, (16, 32, 32)), (6, (40, 8, 8)), (12, (112, 4, 4)), (16, (960, 2, 2))])
def test_mobilenet_splits_anywhere(split: int, shape: tuple[int, ...]) -> None:
    net = mobilenet_v3_large(classes=3, split=split, generator=seeded())
    latents = net.encode(images(1, 64))
    assert latents.shape[1:] == shape and net(latents).logits.shape == (1, 3)
    frozen, plastic = list(net.frozen.modules()), list(net.plastic.modules())
    assert not any(isinstance(module, nn.GroupNorm) for module in frozen)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in plastic)


@pytest.mark.parametrize("split", [-1, 17])
def test_mobilenet_explains_a_wrong_split(split: int) -> None:
    with pytest.raises(GraspError, match=r"split must be a whole number in \[0, 16\]"):
        mobilenet_v3_large(split=split, generator=seeded())


def test_vector_network_explains_a_wrong_size() -> None:
    with pytest.raises(GraspError, match="must be a whole number of at least 1, got 0"):
        vector_network(0, generator=seeded())
