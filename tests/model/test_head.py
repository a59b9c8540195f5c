"""The cosine head: its formula, its growth, its state."""

from __future__ import annotations

import io

import pytest
import torch

from graspcl.errors import GraspError
from graspcl.model import CosineHead


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_logits_are_scaled_cosines_of_rows_with_bias() -> None:
    head = CosineHead(6, classes=4, generator=seeded())
    with torch.no_grad():
        head.sigma.fill_(3.5)
    h = torch.randn(5, 6, generator=seeded(1))
    logits = head(h)
    for n in range(5):
        for k in range(4):
            a, b = torch.cat([h[n], torch.ones(1)]), torch.cat([head.weight[k], head.bias[k : k + 1]])
            torch.testing.assert_close(logits[n, k], 3.5 * (a @ b) / (a.norm() * b.norm()))


def test_initial_values() -> None:
    head = CosineHead(400, classes=200, generator=seeded())
    assert head.sigma.item() == 1.0
    assert head.weight.std().item() == pytest.approx(0.01, rel=0.02)
    assert head.bias.abs().max().item() <= 1 / 20


def test_zero_rows_and_zero_inputs_stay_finite() -> None:
    head = CosineHead(3, classes=2, generator=seeded())
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    logits = head(torch.zeros(2, 3))
    logits.sum().backward()
    assert head.weight.grad is not None
    assert logits.isfinite().all() and head.weight.grad.isfinite().all()


def test_no_classes_yet() -> None:
    assert CosineHead(3, generator=seeded())(torch.ones(2, 3)).shape == (2, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_growth_keeps_old_rows_and_type(dtype: torch.dtype) -> None:
    head = CosineHead(5, classes=3, generator=seeded()).to(dtype)
    weight, bias = head.weight.detach().clone(), head.bias.detach().clone()
    head.grow(7)
    assert head.classes == 7 and head.weight.dtype == head.bias.dtype == dtype
    assert torch.equal(head.weight[:3], weight) and torch.equal(head.bias[:3], bias)
    assert head.weight.requires_grad and head.weight[3:].abs().sum() > 0


def test_growth_is_to_at_least_so_many_rows() -> None:
    head = CosineHead(5, classes=3, generator=seeded())
    weight = head.weight
    head.grow(2)
    head.grow(3)
    assert head.weight is weight


def test_equal_seeds_grow_equal_rows() -> None:
    a, b = (CosineHead(5, classes=2, generator=seeded(4)) for _ in range(2))
    a.grow(6)
    b.grow(6)
    assert torch.equal(a.weight, b.weight) and torch.equal(a.bias, b.bias)


def test_reset_draws_rows_again_and_returns_to_the_initial_scale() -> None:
    head, other = (CosineHead(5, classes=3, generator=seeded(), scale=scale) for scale in (4.0, 4.0))
    with torch.no_grad():
        other.sigma.fill_(9.0)
    head.load_state_dict(other.state_dict())  # a learned scale, as in a resumed run
    rows = head.weight.detach().clone()
    head.reset()
    assert head.sigma.item() == 4.0 and head.classes == 3 and not torch.equal(head.weight, rows)


def test_set_rows_writes_in_place() -> None:
    head = CosineHead(4, classes=5, generator=seeded())
    before, weight = head.weight.detach().clone(), head.weight
    means = torch.randn(2, 4, generator=seeded(1), dtype=torch.float64)
    head.set_rows(torch.tensor([4, 1]), means)
    assert head.weight is weight and weight.requires_grad
    assert torch.equal(weight[[4, 1]], means.float()) and head.bias[[4, 1]].tolist() == [1.0, 1.0]
    assert torch.equal(weight[[0, 2, 3]], before[[0, 2, 3]])
    head.set_rows(torch.empty(0, dtype=torch.int64), torch.empty(0, 4))


@pytest.mark.parametrize(
    ("rows", "means", "message"),
    [
        ([5], torch.ones(1, 4), "grow the head first"),
        ([-1], torch.ones(1, 4), "0..4"),
        ([0], torch.ones(1, 3), r"\[1, 4\]"),
    ],
)
def test_set_rows_explains_mistakes(rows: list[int], means: torch.Tensor, message: str) -> None:
    with pytest.raises(GraspError, match=message):
        CosineHead(4, classes=5, generator=seeded()).set_rows(torch.tensor(rows), means)


@pytest.mark.parametrize("classes", [0, 2, 9])
def test_state_loads_into_a_head_of_another_size(classes: int) -> None:
    head = CosineHead(4, classes=3, generator=seeded(5))
    file = io.BytesIO()
    torch.save(head.state_dict(), file)
    file.seek(0)
    other = CosineHead(4, classes=classes, generator=seeded(6))
    other.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randn(2, 4, generator=seeded(1))
    assert torch.equal(head(x), other(x)) and other.weight.requires_grad
    # The generator resumes too: both grow the same new rows.
    head.grow(8)
    other.grow(8)
    assert torch.equal(head.weight, other.weight)


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(GraspError, match="must be a whole number of at least"):
        CosineHead(0, generator=seeded())
