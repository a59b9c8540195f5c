"""Comparisons: the same stream, budget, buffer and base initialisation for several policies and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from graspcl.buffer import Codes
from graspcl.errors import GraspError
from graspcl.experiment.checkpoint import load_state, save_state
from graspcl.experiment.config import Config
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.progress import Progress, Silent
from graspcl.experiment.run import check, encode_all, initialise_base, run
from graspcl.experiment.setups import Latents, Setup, setups
from graspcl.learner import learners
from graspcl.policy import policies
from graspcl.registry import parameter_names


@dataclass(frozen=True)
class Choice:
    """A policy with parameters, and the learner that it is combined with."""

    policy: str
    parameters: dict[str, Any] = field(default_factory=dict)
    learner: str = "siesta"
    learner_parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def unbounded(self) -> bool:
        """Whether the learner keeps all it sees."""
        return learners.get(self.learner).unbounded

    def config(self, setup: Setup, seed: int) -> Config:
        """The settings of a run."""
        buffer = replace(setup.defaults.buffer, capacity=None) if self.unbounded else setup.defaults.buffer
        return setup.config(
            policy=self.policy, policy_parameters=self.parameters, seed=seed, buffer=buffer,
            learner=self.learner, learner_parameters=self.learner_parameters,
        )  # fmt: skip


DEMO_CHOICES = (
    Choice("grasp"),
    Choice("uniform_balanced"),
    Choice("uniform_balanced", {"replace": False}),
    Choice("uniform"),
)


def choose(
    names: str,
    parameters: Mapping[str, Mapping[str, Any]] | None = None,
    mode: str | None = None,
    learner_names: str = "siesta",
    learner_parameters: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Choice]:
    """Choices from comma-separated policy names or "all", parameters by policy, and a mode for those that have one;
    each with every one of the learners, whose names and parameters are given in the same way.

    A wrong name or parameter is an error here, before any work is done.

    >>> [(c.policy, c.parameters) for c in choose("grasp,max_loss", {"grasp": {"eps": 1e-6}}, mode="top")]
    [('grasp', {'eps': 1e-06}), ('max_loss', {'mode': 'top'})]
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
    if mode is not None and not any("mode" in choice.parameters for choice in choices):
        raise GraspError(f"mode {mode!r} is for policies with a score, and none of these has one: {', '.join(chosen)}")
    for name in given:
        policies.get(name)
        raise GraspError(
            f"parameters are given for policy {name!r}, which is not among those compared: {', '.join(chosen)}"
        )
    with_learners = _choose_learners(learner_names, learner_parameters)
    every = [replace(choice, **learner) for learner in with_learners for choice in choices]
    return [choice for number, choice in enumerate(every) if choice not in every[:number]]


def _choose_learners(names: str, parameters: Mapping[str, Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    chosen = learners.names() if names == "all" else [name.strip() for name in names.split(",")]
    given = dict(parameters or {})
    found = [{"learner": learners.get(name).name, "learner_parameters": dict(given.pop(name, {}))} for name in chosen]
    for name in given:
        learners.get(name)
        raise GraspError(
            f"parameters are given for learner {name!r}, which is not among those compared: {', '.join(chosen)}"
        )
    return found


def compare(
    setup: Setup, choices: Sequence[Choice], seeds: Sequence[int], folder: Path, progress: Progress, workers: Executor
) -> list[Path]:
    """Run every choice with every seed; returns the run folders.

    A seed decides class order, weights and draws; its base initialisation is done once per learner, for all policies.
    What cannot work together is refused before anything is loaded.
    """
    together: dict[tuple[str, int], list[Config]] = {}  # runs that start from the same base
    for choice in choices:
        policies.create(choice.policy, **choice.parameters)
    for choice in {choice.config(setup, 0).learner_label: choice for choice in choices}.values():
        check(choice.config(setup, seed=0), setup)
    for cache in (_latents, _start):
        cache.cache_clear()  # of an earlier comparison in this process
    for seed in seeds:
        for choice in choices:
            config = choice.config(setup, seed)
            together.setdefault((config.learner_label, seed), []).append(config)
    setup.load(progress)  # from here on the cache has the latents
    title = f"{setup.name}: {len(choices)} policies x {len(seeds)} seeds"
    runs: dict[Future[Path], None] = {}
    with progress.task(title, len(together) + len(seeds) * len(choices)) as advance:
        bases: dict[Future[Path], list[Config]] = {}
        for configs in together.values():
            path = folder / setup.name / "base" / configs[0].learner_label / f"seed-{configs[0].seed}"
            bases[workers.submit(_base_task, configs[0], path)] = configs
        try:
            for base in as_completed(bases):
                for config in bases[base]:
                    path = folder / setup.name / config.learner_label / config.policy_label / f"seed-{config.seed}"
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
    state, codes = _start(config.setup, config.rehearsal, base)
    run(config, setup, latents, codes, state, RunFolder(path))
    return path


@lru_cache(maxsize=1)
def _latents(setup: str) -> Latents:
    return setups[setup].load(Silent())


@lru_cache(maxsize=1)
def _start(setup: str, rehearsal: str, base: Path) -> tuple[dict[str, Any], Codes]:
    state = load_state(base)
    return state, encode_all(rehearsal, setups[setup], _latents(setup), state)
