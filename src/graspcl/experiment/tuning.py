"""Choose settings by successive halving, on samples that are held out of the training samples.

Trials are combinations of values from a small grid, drawn at random; the settings to start from are the first of them.
All trials learn a part of the samples, the best third of them three times as many, and so on, until the last ones learn
all. Each trial is a run in a folder of its own, so a stopped search resumes and repeats no finished run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import check as check_value
from graspcl.errors import GraspError
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.prepare import open_data
from graspcl.experiment.sweeps import finished_before, sweep
from graspcl.learner import learners
from graspcl.model import networks
from graspcl.progress import Progress
from graspcl.random import generator
from graspcl.settings.config import Config, as_plain
from graspcl.settings.read import change, flatten
from graspcl.settings.rules import check, idle_reason

Space = dict[str, list[Any]]  # values to try, by setting

_VALIDATION = 0.2  # share of the training samples that trials are tested on
_KEPT = 3  # one of so many trials goes on, with so many times as many samples
_LISTED = 10**6  # combinations that are listed to draw from; of more, this many trials at most are drawn
_FEWEST = 10  # samples per class
# Multiples of the values to start from.
_FACTORS = {
    "optimiser.lr": (0.1, 0.3, 1, 3, 10),
    "base.optimiser.lr": (0.3, 1, 3),
    "network.scale": (0.5, 1, 2),
    "budget.passes": (0.5, 1, 2),
    "budget.updates": (0.5, 1, 2),
}
_OF_LEARNERS = (0.3, 1, 3)


@dataclass
class Trial:
    """Values of the settings that are searched, and their mean validation accuracy by samples per class."""

    values: dict[str, Any]
    scores: dict[int | None, float] = field(default_factory=dict)


@dataclass
class Search:
    """The outcome of a search: the best trial first, and by stage the samples per class and the number of trials."""

    trials: list[Trial]
    stages: list[tuple[int | None, int]]
    best: Config  # the settings to use, tested on the test samples again
    failed: dict[Path, str]


def search_space(config: Config) -> Space:
    """Return the values to try by default: multiples of rates, budget, the head's scale and the learner's numbers.

    Settings that have no effect, and values that a part refuses, are left out.

    >>> from graspcl.settings import preset
    >>> search_space(preset("groceries"))["optimiser.lr"]
    [3e-05, 9e-05, 0.0003, 0.0009, 0.003]
    """
    usual = {f"network.{name}": value for name, value in networks.parameters(config.network.name).items()}
    usual |= {f"learner.{name}": value for name, value in learners.parameters(config.learner.name).items()}
    factors = dict(_FACTORS)
    factors |= {name: _OF_LEARNERS for name, value in usual.items() if name[:8] == "learner." and type(value) is float}
    given = {**usual, **flatten(as_plain(config))}
    space: Space = {}
    for name, multiples in factors.items():
        value = given.get(name)
        if isinstance(value, int | float) and value > 0 and idle_reason(config, name) is None:
            tried = [type(value)(float(f"{value * multiple:.6g}")) for multiple in multiples]
            space[name] = [one for one in tried if one > 0 and _works(config, {name: one})]
    return {name: values for name, values in space.items() if len(values) > 1}


def _works(config: Config, values: Mapping[str, Any]) -> bool:
    try:
        check(change(config, values))
        return True
    except GraspError:
        return False


def draw_trials(space: Mapping[str, Sequence[Any]], number: int) -> list[Trial]:
    """Draw different combinations, always in the same order; the first one changes nothing.

    >>> [trial.values for trial in draw_trials({"seed": [1, 2]}, 5)]
    [{}, {'seed': 1}, {'seed': 2}]
    """
    sizes, rng = [len(values) for values in space.values()], generator(0, "tuning")
    if math.prod(sizes) <= _LISTED:
        places = rng.permutation(math.prod(sizes))[: number - 1]
        chosen = [*zip(*np.unravel_index(places, sizes), strict=True)]
    else:  # nearly all draws differ
        drawn = zip(*(rng.integers(size, size=min(number, _LISTED)).tolist() for size in sizes), strict=True)
        chosen = [*dict.fromkeys(drawn)][: number - 1]
    picked = [{name: space[name][at] for name, at in zip(space, row, strict=True)} for row in chosen]
    return [Trial({}), *map(Trial, picked)]


def plan_stages(trials: int, per_class: int) -> list[tuple[int | None, int]]:
    """Return the stages: samples per class (None: all, about `per_class`), and number of trials.

    >>> plan_stages(12, 90), plan_stages(3, 90), plan_stages(12, 35), plan_stages(12, 20)
    ([(10, 12), (30, 4), (None, 2)], [(None, 3)], [(11, 12), (None, 4)], [(None, 12)])
    """
    numbers = [trials]
    while numbers[-1] > _KEPT:
        numbers.append(math.ceil(numbers[-1] / _KEPT))
    parts = [part for part in (per_class // _KEPT**2, per_class // _KEPT) if part >= _FEWEST]
    return [*zip([*parts, None][-len(numbers) :], numbers, strict=False)]


def tune(
    config: Config, space: Space, trials: int, seeds: int, folder: Path, progress: Progress, workers: Executor
) -> Search:
    """Search for the best settings; every trial is a run below `folder`.

    Args:
        config: settings to start from, without "auto".
        space: values to try (`search_space`).
        trials: number of combinations.
        seeds: runs of each trial in a stage; their mean counts.
        folder: where runs are stored.
        progress: shows the work.
        workers: processes that run trials (`make_workers`).
    """
    own = replace(config, name=f"{config.name}-tune", checkpoint=replace(config.checkpoint, keep="nothing"))
    own = change(own, {"data.validation": _VALIDATION})
    samples, _ = open_data(own)
    sizes = np.bincount(samples.labels[samples.train])
    drawn = [one for one in draw_trials(space, trials + 1) if not one.values or change(own, one.values) != own][:trials]
    stages, left, failed = plan_stages(len(drawn), int(np.median(sizes))), drawn, dict[Path, str]()
    for stage, (per_class, number) in enumerate(stages, start=1):
        left = left[:number]
        limit = {} if per_class is None else {"data.per_class": per_class}
        wanted = [
            [change(own, {**trial.values, **limit, "seed": config.seed + seed}) for seed in range(seeds)]
            for trial in left
        ]
        title = f"stage {stage} of {len(stages)}, {number} trials, {per_class or 'all'} samples per class"
        runs = [one for configs in wanted for one in configs]
        for path, fault in finished_before({folder / one.path: one for one in runs}).items():
            if fault:  # not a trial that failed: without it, another one would win
                raise GraspError(f"a trial is damaged: {fault}. Delete {path} and run the same command again")
        outcome = sweep(runs, folder, progress, workers, title)
        failed |= outcome.failed
        for trial, configs in zip(left, wanted, strict=True):
            scores = [_score(folder / one.path, failed) for one in configs]
            trial.scores[per_class] = float(np.mean(scores))
        left = sorted(left, key=_rank)
        if left[0].scores[per_class] == -math.inf:
            raise GraspError(f"no trial could be run; the first failed: {next(iter(failed.values()))}")
    ranked = sorted(drawn, key=_rank)
    return Search(ranked, stages, change(config, ranked[0].values), failed)


def _score(path: Path, failed: dict[Path, str]) -> float:
    """Return the accuracy of a run; minus infinity for one that failed, to which one without an accuracy is added."""
    if path in failed:
        return -math.inf
    alpha: Any = RunFolder(path).summary().get("alpha")
    try:
        check_value("its accuracy", alpha, float)
    except GraspError as error:
        failed[path] = str(error)
        return -math.inf
    return float(alpha)


def _rank(trial: Trial) -> tuple[int, float]:
    """Return what trials are sorted by: the number of stages, then the last score; both from the highest."""
    return -len(trial.scores), -[*trial.scores.values()][-1]
