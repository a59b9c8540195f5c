"""Optimisers and schedules of the stages that train."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny_network import stripes, tiny

from graspcl.errors import GraspError
from graspcl.pretrain import SupervisedSettings, SwavSettings, make_trainer
from graspcl.pretrain.stage import Lars

IMAGES, LABELS = stripes(16)


def test_onecycle_is_torchs() -> None:
    steps = 1000
    settings = SupervisedSettings(epochs=10, lr=0.4, schedule="onecycle")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.4, total_steps=steps, cycle_momentum=False)
    for step in range(steps):
        assert settings.rate(10 * step / steps) == pytest.approx(schedule.get_last_lr()[0], abs=2e-3)
        optimizer.step()
        schedule.step()


def test_each_stage_has_any_schedule() -> None:
    for kind in (SupervisedSettings, SwavSettings):
        steps, cosine, onecycle = (
            kind(epochs=4, lr=1.0, schedule=one, final_lr=0.0) for one in ("steps", "cosine", "onecycle")
        )
        assert steps.rate(3.9) == 1.0 and cosine.rate(2.0) == pytest.approx(0.5) and onecycle.rate(1.2) == 1.0
    assert SupervisedSettings().schedule == "steps" and SwavSettings().schedule == "cosine"


def test_lars_by_hand() -> None:
    """A step of SwAV's LARS: g + decay w, times 0.001 |w| / (|g| + decay |w|), with momentum."""
    weight, bias = torch.tensor([3.0, 4.0], requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = Lars([weight, bias], lr=2.0, momentum=0.5, weight_decay=0.1)
    expected, velocity = np.array([3.0, 4.0]), np.zeros(2)
    for gradient in ([6.0, 8.0], [0.0, 1.0]):
        weight.grad, bias.grad = torch.tensor(gradient), torch.tensor([1.0])
        optimizer.step()
        length = np.linalg.norm(expected)
        scaled = (np.array(gradient) + 0.1 * expected) * 1e-3 * length / (np.linalg.norm(gradient) + 0.1 * length)
        velocity = 0.5 * velocity + scaled
        expected = expected - 2.0 * velocity
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-5)
    assert optimizer.param_groups[0]["weight_decay"] == 0.1
    assert bias.item() < -2.0  # a tensor of zeros has no length: its gradient is used as it is


def test_lars_leaves_a_gradient_of_zero_alone() -> None:
    weight, other = (torch.tensor([3.0, 4.0], requires_grad=True) for _ in range(2))
    optimizer = Lars([weight, other], lr=2.0, weight_decay=0.1)
    weight.grad, other.grad = torch.zeros(2), torch.ones(2)
    optimizer.step()
    assert weight.tolist() == [3.0, 4.0] and other.tolist() != [3.0, 4.0]


def test_lars_keeps_its_weight_decay_if_an_update_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = Lars([weight], lr=2.0, weight_decay=0.1)

    def interrupted(self: Any, closure: Any = None) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.optim.SGD, "step", interrupted)
    weight.grad = torch.ones(2)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert optimizer.param_groups[0]["weight_decay"] == 0.1


@pytest.mark.parametrize(
    ("kind", "name"), [(SupervisedSettings, "crop"), (SwavSettings, "large"), (SwavSettings, "small")]
)
def test_the_least_share_of_a_view_comes_first(kind: Any, name: str) -> None:
    assert getattr(kind(**{name: (0.5, 0.5)}), name) == (0.5, 0.5)
    with pytest.raises(GraspError, match=rf"{name} must be the least and the largest share.*got \(1.0, 0.08\)"):
        kind(**{name: (1.0, 0.08)})


@pytest.mark.parametrize("optimiser", ["sgd", "adamw", "lars"])
@pytest.mark.parametrize("kind", [SupervisedSettings, SwavSettings])
def test_every_optimiser_trains_and_resumes(kind: Any, optimiser: Any) -> None:
    few = {"prototypes": 4, "small_views": 0} if kind is SwavSettings else {}
    settings = kind(epochs=2, batch_size=8, lr=1e-3, optimiser=optimiser, **few)

    def trainer() -> Any:
        return make_trainer(tiny(), settings.name, lambda indices: IMAGES[indices], range(16), LABELS, settings)

    straight, stopped, resumed = trainer(), trainer(), trainer()
    before = straight.network.frozen.layer0[0].weight.clone()
    states: list[dict[str, Any]] = []
    stopped.run(lambda one: states.append(one.state_dict()))
    resumed.load_state_dict(states[0])
    assert [epoch.loss for epoch in resumed.run()] == [epoch.loss for epoch in straight.run()]
    after = straight.network.frozen.layer0[0].weight
    assert torch.equal(after, resumed.network.frozen.layer0[0].weight) and not torch.equal(before, after)


def test_a_stage_that_loads_trains_nothing() -> None:
    with pytest.raises(GraspError, match="the stage 'weights' trains nothing"):
        make_trainer(tiny(), "weights", lambda indices: IMAGES[indices], range(4))
