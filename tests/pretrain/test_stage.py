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
