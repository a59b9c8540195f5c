"""Comparisons: the same stream, budget, buffer and base initialisation for several policies, learners and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graspcl.errors import GraspError
from graspcl.experiment.sweeps import sweep
from graspcl.learner import learners
from graspcl.policy import policies
from graspcl.progress import Progress
from graspcl.registry import parameter_names
from graspcl.settings.config import Config, Part

SIESTA = Part("siesta")


@dataclass(frozen=True)
class Choice:
    """A policy, and the learner that it is combined with."""

    policy: Part
    learner: Part = SIESTA

    @property
    def unbounded(self) -> bool:
        """Whether the learner keeps all it sees."""
        return learners.get(self.learner.name).unbounded

    def config(self, settings: Config, seed: int) -> Config:
        """The settings of a run."""
        buffer = replace(settings.buffer, capacity=None) if self.unbounded else settings.buffer
        return replace(settings, policy=self.policy, learner=self.learner, seed=seed, buffer=buffer)


DEMO_CHOICES = (
    Choice(Part("grasp")),
    Choice(Part("uniform_balanced")),
    Choice(Part("uniform_balanced", {"replace": False})),
    Choice(Part("uniform")),
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

    >>> [str(choice.policy) for choice in choose("grasp,max_loss", {"grasp": {"eps": 1e-6}}, mode="top")]
    ['grasp(eps=1e-06)', 'max_loss(mode=top)']
    """
    chosen = policies.names() if names == "all" else [name.strip() for name in names.split(",")]
    given = dict(parameters or {})
    found = []
    for name in chosen:
        policy = policies.get(name)
        own = dict(given.pop(name, {}))
        if mode is not None and "mode" in parameter_names(policy):
            own.setdefault("mode", mode)
        policies.create(name, **own)
        found.append(Part(policy.name, own))
    if mode is not None and not any("mode" in part.parameters for part in found):
        raise GraspError(f"mode {mode!r} is for policies with a score, and none of these has one: {', '.join(chosen)}")
    for name in given:
        policies.get(name)
        raise GraspError(
            f"parameters are given for policy {name!r}, which is not among those compared: {', '.join(chosen)}"
        )
    with_learners = _choose_learners(learner_names, learner_parameters)
    every = [Choice(policy, learner) for learner in with_learners for policy in found]
    return [choice for number, choice in enumerate(every) if choice not in every[:number]]


def _choose_learners(names: str, parameters: Mapping[str, Mapping[str, Any]] | None) -> list[Part]:
    chosen = learners.names() if names == "all" else [name.strip() for name in names.split(",")]
    given = dict(parameters or {})
    found = [Part(learners.get(name).name, dict(given.pop(name, {}))) for name in chosen]
    for name in given:
        learners.get(name)
        raise GraspError(
            f"parameters are given for learner {name!r}, which is not among those compared: {', '.join(chosen)}"
        )
    return found


def compare(
    settings: Config, choices: Sequence[Choice], seeds: Sequence[int], folder: Path, progress: Progress,
    workers: Executor,
) -> list[Path]:  # fmt: skip
    """Run every choice with every seed; returns the run folders.

    A seed decides class order, weights and draws; its base initialisation is done once per learner, for all policies.
    What cannot work together is refused before anything is loaded; a run that fails stops the comparison.
    """
    settings = replace(settings, checkpoint=replace(settings.checkpoint, keep="nothing"))
    configs = [choice.config(settings, seed) for seed in seeds for choice in choices]
    title = f"{settings.name}: {len(choices)} policies x {len(seeds)} seeds"
    outcome = sweep(configs, folder, progress, workers, title)
    for path, reason in outcome.failed.items():
        raise GraspError(f"{path}: {reason}")
    return outcome.finished
