"""Many settings from a few lists: policies, learners, seeds, budgets and buffers."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from graspcl.errors import GraspError
from graspcl.learner import learners
from graspcl.policy import policies
from graspcl.settings.config import Config, Part
from graspcl.settings.read import change, parse


def grid(
    config: Config, policy_names: str, learner_names: str = "", seeds: str = "1", updates: str = "1x", buffers: str = ""
) -> list[Config]:
    """Every combination of comma-separated lists, each of which changes one thing in `config`.

    >>> found = grid(Config(), "grasp,uniform_balanced(replace=False)", seeds="2", updates="0.5x,1x")
    >>> len(found), str(found[-1].policy), found[-1].seed, found[0].budget.times
    (8, 'uniform_balanced(replace=False)', 1, 0.5)
    """
    kept = replace(config, checkpoint=replace(config.checkpoint, keep="nothing"))
    chosen = parse_parts(",".join(policies.names()) if policy_names == "all" else policy_names)
    if not chosen:
        raise GraspError("--policies: give at least one, or all")
    for part in chosen:
        policies.create(part.name, **part.parameters)
    chosen = [Part(policies.get(part.name).name, part.parameters) for part in chosen]  # one name for each policy
    by = parse_parts(",".join(learners.names()) if learner_names == "all" else learner_names) or [config.learner]
    found = []
    for seed in parse_seeds(seeds):
        for learner in by:
            unbounded = learners.get(learner.name).unbounded
            for capacity in [None] if unbounded else _capacities(buffers, config):
                for budget in _budgets(updates, config):
                    for policy in chosen:
                        found.append(
                            replace(
                                kept, seed=seed, learner=learner, policy=policy, budget=budget,
                                buffer=replace(config.buffer, capacity=capacity),
                            )
                        )  # fmt: skip
    return found


def parse_parts(text: str) -> list[Part]:
    """Parts by name, with parameters in brackets.

    >>> parse_parts("grasp, mir(candidates=5, mode=top)")
    [Part(name='grasp', parameters={}), Part(name='mir', parameters={'candidates': 5, 'mode': 'top'})]
    """
    found = []
    for word in re.findall(r"[^,(]+(?:\([^)]*\))?", text):
        name, _, inner = word.strip().partition("(")
        if not name:
            continue
        pairs = [pair.partition("=") for pair in inner.rstrip(")").split(",") if pair.strip()]
        if wrong := [key for key, equals, _ in pairs if not equals]:
            raise GraspError(f"{word.strip()}: a parameter is written name=value, not {wrong[0]!r}")
        found.append(Part(name.strip(), {key.strip(): parse(value.strip()) for key, _, value in pairs}))
    return found


def parse_seeds(text: str) -> list[int]:
    """How many seeds, or which.

    >>> parse_seeds("3"), parse_seeds("1,74")
    ([0, 1, 2], [1, 74])
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdecimal() for word in words) or (len(words) == 1 and int(words[0]) < 1):
        raise GraspError(f"--seeds {text}: give how many (3), or which, separated by commas (1,74,1444)")
    return list(range(int(words[0]))) if len(words) == 1 and "," not in text else [int(word) for word in words]


def _budgets(text: str, config: Config) -> list[Any]:
    found = []
    for word in text.split(","):
        number = parse(word.strip().removesuffix("x"))
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
            raise GraspError(f"--updates {word}: give a multiple of the preset's such as 0.5x, or a number of updates")
        if word.strip().endswith("x"):
            found.append(replace(config.budget, times=number * config.budget.times))
        elif isinstance(number, int):
            found.append(replace(config.budget, updates=number, times=1.0))
        else:
            raise GraspError(f"--updates {word}: updates are whole; a multiple is written {word}x")
    return found


def _capacities(text: str, config: Config) -> list[Any]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    return [change(config, {"buffer": word}).buffer.capacity for word in words] or [config.buffer.capacity]
