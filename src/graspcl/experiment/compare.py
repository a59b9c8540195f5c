"""Comparisons: the same stream, budget, buffer and base initialisation for several policies and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from graspcl.errors import GraspError
from graspcl.experiment.checkpoint import load_state, save_state
from graspcl.experiment.config import Config
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.progress import Progress, Silent
from graspcl.experiment.run import encode_all, initialise_base, run
from graspcl.experiment.setups import Latents, Setup, setups
from graspcl.policy import policies
from graspcl.registry import parameter_names


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


def choose(
    names: str, parameters: Mapping[str, Mapping[str, Any]] | None = None, mode: str | None = None
) -> list[Choice]:
    """Choices from comma-separated policy names or "all", parameters by policy, and a mode for those that have one.

    A wrong name or parameter is an error here, before any work is done.

    >>> choose("grasp,max_loss", {"grasp": {"eps": 1e-6}}, mode="top")
    [Choice(policy='grasp', parameters={'eps': 1e-06}), Choice(policy='max_loss', parameters={'mode': 'top'})]
    """
    chosen = policies.names() if names == "all" else [name.strip() for name in names.split(",")]
    given = dict(parameters or {})
    choices = []
    for name in chosen:
        policy = policies.get(name)
        own = dict(given.pop(name, {}))
        if mode is not None and "mode" in parameter_names(policy):
            own.setdefault("mode", mode)
        policies.create(name, **own)
        choices.append(Choice(policy.name, own))
    for name in given:
        policies.get(name)
        raise GraspError(
            f"parameters are given for policy {name!r}, which is not among those compared: {', '.join(chosen)}"
        )
    return [choice for number, choice in enumerate(choices) if choice not in choices[:number]]


def compare(
    setup: Setup, choices: Sequence[Choice], seeds: Sequence[int], folder: Path, progress: Progress, workers: Executor
) -> list[Path]:
    """Run every choice with every seed; returns the run folders.

    A seed decides class order, weights and draws; each seed's base initialisation is done once, for all policies.
    """
    for choice in choices:
        policies.create(choice.policy, **choice.parameters)  # a wrong name or parameter is found before any work
    setup.load(progress)  # from here on the cache has the latents
    title = f"{setup.name}: {len(choices)} policies x {len(seeds)} seeds"
    runs: dict[Future[Path], None] = {}
    with progress.task(title, len(seeds) * (1 + len(choices))) as advance:
        bases = {
            workers.submit(_base_task, setup.config(seed=seed), folder / setup.name / "base" / f"seed-{seed}"): seed
            for seed in seeds
        }
        try:
            for base in as_completed(bases):
                for choice in choices:
                    config = setup.config(policy=choice.policy, policy_parameters=choice.parameters, seed=bases[base])
                    path = folder / setup.name / config.policy_label / f"seed-{config.seed}"
                    runs[workers.submit(_run_task, config, base.result(), path)] = None
                advance(1)
            for run_done in as_completed(runs):
                run_done.result()
                advance(1)
        except BrokenProcessPool as error:
            raise GraspError("a worker process was ended from outside, perhaps for want of memory") from error
    return sorted((future.result() for future in runs), key=lambda path: int(path.name.partition("-")[2]))


def _base_task(config: Config, path: Path) -> Path:
    setup, file = setups[config.setup], path.with_suffix(".safetensors")
    save_state(file, initialise_base(config, setup, _latents(config.setup)))
    return file


def _run_task(config: Config, base: Path, path: Path) -> Path:
    setup, latents = setups[config.setup], _latents(config.setup)
    state, codes = _start(config.setup, base)
    run(config, setup, latents, codes, state, RunFolder(path))
    return path


@lru_cache(maxsize=1)
def _latents(setup: str) -> Latents:
    return setups[setup].load(Silent())


@lru_cache(maxsize=1)
def _start(setup: str, base: Path) -> tuple[dict[str, Any], torch.Tensor]:
    state = load_state(base)
    return state, encode_all(setups[setup], _latents(setup), state)
