"""Uniform rehearsal, over all samples or class by class."""

from dataclasses import dataclass

import numpy as np

from graspcl.checks import Array
from graspcl.policy.drawing import evenly, shuffled_draws, uniform_draws
from graspcl.policy.policy import PlannedPolicy, policies
from graspcl.policy.session import Session


@policies.register("uniform")
@dataclass
class Uniform(PlannedPolicy):
    """p = 1/N: each mini-batch is drawn without replacement from all samples, independently of the others.

    Follows: the paper and the reference program.
    """

    needs = frozenset()
    family = "uniform"
    cost = "none"
    source = "Vitter 1985"

    def plan(self, session: Session) -> Array:
        slots, (updates, n) = np.arange(len(session)), (session.budget.updates, session.budget.batch_size)
        return np.concatenate([evenly(slots, n, session.rng) for _ in range(updates)])


@policies.register("uniform_balanced")
@dataclass
class UniformBalanced(PlannedPolicy):
    """One sample of each class per round, uniform within the class.

    With replacement (as published), one pass shows only about 63 % of a class. Without, it shows all of it.

    Follows: the paper and the reference program; `replace=False` is the library's own.
    """

    replace: bool = True

    needs = frozenset({"labels"})
    balanced = True
    family = "uniform"
    cost = "none"
    source = "Prabhu et al. 2020"

    def plan(self, session: Session) -> Array:
        draw = uniform_draws if self.replace else shuffled_draws
        return draw(session.groups, session.budget.samples, session.rng)
