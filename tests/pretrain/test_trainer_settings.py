"""Every setting of a method arrives: training with another value ends in other weights or another log."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from tiny_network import stripes, tiny

from graspcl.pretrain import Settings, make_trainer, stages

IMAGES, LABELS = stripes(12)
SMALL: dict[str, dict[str, Any]] = {
    "supervised": {"epochs": 2, "batch_size": 6},
    "swav": {
        "epochs": 2, "batch_size": 6, "prototypes": 5, "projection": 4, "hidden": 6, "small_views": 1, "queue_from": 0,
    },
}  # fmt: skip
# Another value of each setting, and what else must be set for it to matter.
EVERY: dict[str, tuple[Any, dict[str, Any]]] = {
    "epochs": (3, {}),
    "batch_size": (4, {}),
    "lr": (0.1, {}),
    "momentum": (0.1, {}),
    "weight_decay": (0.1, {}),
    "part": ("plastic", {}),
    "optimiser": ("lars", {}),
    "schedule": ("onecycle", {}),
    "step": (1, {"schedule": "steps"}),
    "gamma": (0.5, {"schedule": "steps", "step": 1}),
    "warmup": (1, {"schedule": "cosine"}),
    "final_lr": (0.1, {"schedule": "cosine"}),
}
CHANGES: dict[str, dict[str, tuple[Any, dict[str, Any]]]] = {
    "supervised": {
        **EVERY,
        "mix": (0.0, {}),
        "mixup_share": (1.0, {"mixup_share": 0.0}),
        "mixup_alpha": (5.0, {"mixup_share": 1.0}),
        "cutmix_alpha": (5.0, {"mixup_share": 0.0}),
        "crop": ((0.5, 0.6), {}),
        "flip": (0.0, {"flip": 1.0}),
    },
    "swav": {
        **EVERY,
        "prototypes": (6, {}),
        "projection": (3, {}),
        "hidden": (5, {}),
        "epsilon": (1.0, {}),
        "iterations": (1, {}),
        "temperature": (1.0, {}),
        "frozen_prototypes": (0, {}),
        "queue": (6, {}),
        "queue_from": (9, {"queue": 6}),
        "small_views": (2, {}),
        "small_pixels": (8, {}),
        "large": ((0.5, 0.6), {}),
        "small": ((0.5, 0.6), {}),
        "colours": (0.1, {}),
        "blur": (0.0, {"blur": 1.0}),
    },
}


def trained(method: str, **changes: Any) -> tuple[list[tuple[float, float]], dict[str, torch.Tensor]]:
    settings = stages.get(method)(**{**SMALL[method], **changes})
    trainer = make_trainer(tiny(width=4), method, lambda i: IMAGES[i], np.arange(12), LABELS, settings)
    return [(epoch.loss, epoch.lr) for epoch in trainer.run()], trainer.network.state_dict()


@pytest.mark.parametrize("method", CHANGES)
def test_another_value_of_every_setting_trains_another_network(method: str) -> None:
    assert CHANGES[method].keys() == {field.name for field in fields(stages.get(method))}
    done: dict[str, Any] = {}
    for name, (value, context) in CHANGES[method].items():
        if (key := str(context)) not in done:
            done[key] = trained(method, **context)
        before = done[key]
        after = trained(method, **{**context, name: value})
        alike = all(torch.equal(value, after[1][key]) for key, value in before[1].items())
        assert before[0] != after[0] or not alike, f"{name} has no effect"


def test_every_stage_that_trains_is_here() -> None:
    assert {name for name in stages.names() if issubclass(stages.get(name), Settings)} == CHANGES.keys()
