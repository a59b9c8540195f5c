"""Grids: many settings from a few lists of policies, learners, seeds, budgets and buffers."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

from graspcl.errors import GraspError
from graspcl.registry import Registry
from graspcl.settings.config import BudgetConfig, BufferConfig, Config, Part
from graspcl.settings.read import change, parse, parse_parts, settled

REFERENCES = "ncm,slda,ranpac,probe,er_ace"  # learners to compare with
_REFERENCE_POLICY = Part("uniform")  # of references that rehearse, as published for er_ace

_SEEDS = 10_000


def grid(
    config: Config, policy_names: str, learner_names: str = "", seeds: str = "1", updates: str = "1x",
    buffers: str = "", references: str = "none",
) -> list[Config]:  # fmt: skip
    """Return every combination of comma-separated lists, each of which changes one thing in `config`.

    Args:
        config: the settings to start from.
        policy_names: policies, or "all"; parameters in brackets, as in mir(candidates=50). Learners that do not
            rehearse have none.
        learner_names: learners, or "all"; by default the one of `config`.
        seeds: how many seeds, or which.
        updates: budgets: 0.5x is half of the one in `config`, 500 is 500 updates per session.
        buffers: capacities; by default the one of `config`. Learners that store everything or nothing ignore them.
        references: learners that are added once, whatever the policies; "all" for `REFERENCES`, or "none".

    >>> found = grid(Config(), "grasp,uniform_balanced(replace=False)", seeds="2", updates="0.5x,1x")
    >>> len(found), str(found[-1].policy), found[-1].seed, found[0].budget.times
    (8, 'uniform_balanced(replace=False)', 1, 0.5)
    >>> [one.label for one in grid(Config(), "grasp", references="slda,er_ace")]
    ['aligned + grasp', 'slda', 'er_ace + uniform']
    """
    from graspcl.learner import learners
    from graspcl.policy import policies

    kept = replace(config, checkpoint=replace(config.checkpoint, keep="nothing"))
    chosen = _parts(policies, policy_names)
    if not chosen:
        raise GraspError("--policies: give at least one, or all")
    named = {"all": REFERENCES, "none": ""}.get(references, references)
    compared = [(learner, chosen) for learner in _parts(learners, learner_names) or [config.learner]]
    compared += [(learner, [_REFERENCE_POLICY]) for learner in _parts(learners, named)]
    words = [word.strip() for word in buffers.split(",") if word.strip()]
    given: list[Any] = [change(config, {"buffer": word}).buffer.capacity for word in words]
    budgets = _budgets(updates, config.budget)
    found = []
    for seed, (learner, own) in product(parse_seeds(seeds), compared):
        kind = learners.get(learner.name)
        fit = [None] if kind.unbounded or not kind.stores else given or [config.buffer.capacity]
        if not kind.rehearses:
            for capacity in fit:
                buffer = replace(BufferConfig(), capacity=capacity)
                found.append(settled(replace(kept, seed=seed, learner=learner, buffer=buffer)))
            continue
        for capacity, budget, policy in product(fit, budgets, own):
            buffer = replace(config.buffer, capacity=capacity)
            found.append(replace(kept, seed=seed, learner=learner, policy=policy, budget=budget, buffer=buffer))
    return found


def _parts(registry: Registry[Any], text: str) -> list[Part]:
    """Return the parts in a list, or all of a registry, by their own names instead of aliases."""
    parts = parse_parts(",".join(registry.names()) if text == "all" else text)
    for part in parts:
        registry.validate(part.name, part.parameters)
    return [Part(registry.get(part.name).name, part.parameters) for part in parts]


def parse_seeds(text: str) -> list[int]:
    """Parse how many seeds, or which. With a comma, one number is a seed.

    >>> parse_seeds("3"), parse_seeds("1,74"), parse_seeds("0,")
    ([0, 1, 2], [1, 74], [0])
    """
    words, many = [word.strip() for word in text.split(",") if word.strip()], "," not in text
    if not words or not all(word.isdecimal() for word in words) or (many and not words[0].strip("0")):
        raise GraspError(f"--seeds {text}: give how many (3), or which, with commas (1,74,1444; one alone as 74,)")
    if many and (len(words[0]) > 9 or int(words[0]) > _SEEDS):
        raise GraspError(f"--seeds {text[:40]}: give at most {_SEEDS:,}, since all runs are listed before the first")
    return list(range(int(words[0]))) if many else [int(word) for word in words]


def _budgets(text: str, budget: BudgetConfig) -> list[BudgetConfig]:
    found = []
    for word in map(str.strip, text.split(",")):
        number = parse(word.removesuffix("x"))
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number < math.inf:
            raise GraspError(f"--updates {word}: give a multiple of the preset's such as 0.5x, or a number of updates")
        if word.endswith("x"):
            found.append(replace(budget, times=number * budget.times))
        elif isinstance(number, int):
            found.append(replace(budget, updates=number, times=1.0))
        else:
            raise GraspError(f"--updates {word}: give a whole number of updates, or a multiple as {word}x")
    return found
