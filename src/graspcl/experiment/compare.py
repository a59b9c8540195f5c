"""Comparisons: the same stream, budget and buffer for several policies and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graspcl.experiment.folder import RunFolder
from graspcl.experiment.progress import Progress
from graspcl.experiment.run import initialise_base, run
from graspcl.experiment.setups import Setup
from graspcl.policy import policies


@dataclass(frozen=True)
class Choice:
    """A policy with parameters."""

    policy: str
    parameters: dict[str, Any] = field(default_factory=dict)


DEMO_CHOICES = (
    Choice("grasp"),
    Choice("uniform_balanced"),
    Choice("uniform_balanced", {"replace": False}),
    Choice("uniform"),
)


def compare(
    setup: Setup, choices: Sequence[Choice], seeds: Sequence[int], folder: Path, progress: Progress
) -> list[Path]:
    """Run every choice with every seed; each seed's base initialisation is shared by all policies."""
    for choice in choices:
        policies.create(choice.policy, **choice.parameters)  # a wrong name or parameter is found before any work
    latents = setup.load(progress)
    done = []
    for seed in seeds:
        base = initialise_base(setup.config(seed=seed), setup, latents, progress)
        for choice in choices:
            config = setup.config(policy=choice.policy, policy_parameters=choice.parameters, seed=seed)
            path = folder / setup.name / config.policy_label / f"seed-{seed}"
            run(config, base, RunFolder(path), progress)
            done.append(path)
    return done
