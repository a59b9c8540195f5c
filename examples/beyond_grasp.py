"""Policies that were tried in search of one better than GRASP and than uniform drawing (docs/results.md, docs/log.md).

Load them with `--plugin examples/beyond_grasp.py`. All spend the same budget; chance comes from `session.rng` alone.
"""

from dataclasses import dataclass

import numpy as np
import torch

from graspcl.policy import Grasp, PlannedPolicy, Policy, policies, prototype_distances
from graspcl.policy.drawing import draws_per_class, group_by_class
from graspcl.policy.grasp import grasp_draws


def dealt(session, order_of, draws=None):
    """Return a plan: each class gives its samples in the order `order_of(members)`, again and again, spread evenly."""
    groups = session.groups.each
    draws = draws_per_class(len(groups), session.budget.samples) if draws is None else draws
    picks, places = [], []
    for members, number in zip(groups, draws, strict=True):
        drawn = np.empty(0, np.int64)
        while len(drawn) < number:
            drawn = np.append(drawn, order_of(members))
        picks.append(drawn[:number])
        places.append((np.arange(number) + session.rng.random()) / max(1, number))
    return np.concatenate(picks)[np.argsort(np.concatenate(places), kind="stable")]


def draws_by(session, weights):
    """Return draws per class [K]: half of the budget equal, half in proportion to `weights` [K]."""
    share = 0.5 / len(weights) + 0.5 * weights / weights.sum()
    ends = np.round(np.cumsum(share) * session.budget.samples).astype(int)
    return np.diff(ends, prepend=0)


@policies.register("random_distances")
@dataclass
class RandomDistances(Grasp):
    """GRASP with the distances of a class dealt to its samples by chance: its coverage without its order."""

    def measured(self, session):
        distances = np.array(super().measured(session))
        for members in session.groups.each:
            distances[members] = session.rng.permutation(distances[members])
        return distances


@policies.register("easy_to_hard")
@dataclass
class EasyToHard(PlannedPolicy):
    """The order without chance: each class from its most to its least prototypical sample."""

    needs = {"labels", "distances"}
    balanced = True

    def plan(self, session):
        return dealt(session, lambda members: members[session.distances[members].argsort()])


@policies.register("easy_and_hard")
@dataclass
class EasyAndHard(PlannedPolicy):
    """In turn the most and the least prototypical sample of a class that is left."""

    needs = {"labels", "distances"}
    balanced = True

    def plan(self, session):
        def order(members):
            ranked = members[session.distances[members].argsort()]
            return np.stack([ranked, ranked[::-1]], 1).reshape(-1)[: len(ranked)]

        return dealt(session, order)


@policies.register("strata")
@dataclass
class Strata(PlannedPolicy):
    """Without replacement, in turn from `number` strata of a class by distance, so that every mini-batch has all."""

    number: int = 4
    needs = {"labels", "distances"}
    balanced = True

    def plan(self, session):
        def order(members):
            ranked = np.array_split(members[session.distances[members].argsort()], self.number)
            shuffled = [session.rng.permutation(part) for part in ranked]
            place = np.concatenate([np.arange(len(part)) for part in shuffled])
            return np.concatenate(shuffled)[np.argsort(place, kind="stable")]

        return dealt(session, order)


@policies.register("budget_by_loss")
@dataclass
class BudgetByLoss(PlannedPolicy):
    """Uniform without replacement; half of the budget goes to classes in proportion to their mean loss."""

    needs = {"labels", "losses"}

    def plan(self, session):
        losses = session.losses.double().numpy(force=True)
        means = np.array([losses[members].mean() for members in session.groups.each])
        return dealt(session, session.rng.permutation, draws_by(session, means + 1e-9))


@policies.register("budget_by_confusion")
@dataclass
class BudgetByConfusion(PlannedPolicy):
    """Uniform without replacement; half of the budget goes to classes whose prototypes are near another's."""

    needs = {"labels", "embeddings"}

    def plan(self, session):
        z = torch.nn.functional.normalize(session.embeddings.float(), dim=1).numpy(force=True)
        means = np.stack([z[members].mean(0) for members in session.groups.each])
        means /= np.linalg.norm(means, axis=1, keepdims=True)
        nearest = np.sort(means @ means.T, axis=1)[:, -2] if len(means) > 1 else np.ones(1)
        return dealt(session, session.rng.permutation, draws_by(session, np.exp(4 * nearest)))


@policies.register("middle_losses")
@dataclass
class MiddleLosses(PlannedPolicy):
    """Samples of medium difficulty alone: without the fifth of each class with the smallest losses and that with the
    largest (mid-speed samples, as Goldilocks keeps them)."""

    needs = {"labels", "losses"}
    balanced = True

    def plan(self, session):
        losses = session.losses.numpy(force=True)

        def order(members):
            cut = len(members) // 5
            return session.rng.permutation(members[losses[members].argsort()][cut : len(members) - cut])

        return dealt(session, order)


@policies.register("fewer_easy")
@dataclass
class FewerEasy(PlannedPolicy):
    """Each sample whose loss is below the mean is left out with probability 1/2 (InfoBatch, without its weights: a
    policy cannot weigh losses); the others come again in its place."""

    needs = {"labels", "losses"}
    balanced = True

    def plan(self, session):
        losses = session.losses.numpy(force=True)
        easy = losses < losses.mean()

        def order(members):
            kept = members[~easy[members] | (session.rng.random(len(members)) < 0.5)]
            return session.rng.permutation(kept if len(kept) else members)

        return dealt(session, order)


@policies.register("use_count")
@dataclass
class UseCount(PlannedPolicy):
    """Samples that were used least often over all sessions first (aL-SAR's use count, without its class similarity)."""

    needs = {"labels", "births"}
    balanced = True
    _uses = np.empty(0, np.int64)  # by birth

    def plan(self, session):
        uses = np.zeros(int(session.births.max()) + 1, np.int64)
        uses[: len(self._uses)] = self._uses[: len(uses)]
        keys = uses[session.births] + session.rng.random(len(session))
        plan = dealt(session, lambda members: members[keys[members].argsort()])
        np.add.at(uses, session.births[plan], 1)
        self._uses = uses
        return plan


@policies.register("refreshed")
@dataclass
class Refreshed(Policy):
    """GRASP that measures all distances again in the middle of the session: twice its cost."""

    needs = {"labels", "distances", "forward"}
    balanced = True
    _plan, _next, _half = np.empty(0, np.int64), 0, 0

    def begin(self, session):
        given = session.groups, session.budget.samples, session.rng, 1e-7
        self._plan, self._next = grasp_draws(np.array(session.distances), *given), 0
        self._half = session.budget.updates // 2 * session.budget.batch_size

    def select(self, session, n):
        if self._next == self._half:
            z, labels = session.forward(np.arange(len(session))).embedding, torch.from_numpy(np.array(session.labels))
            distances, drawn = prototype_distances(z, labels).numpy(force=True).copy(), self._plan[: self._half]
            for members in group_by_class(labels.numpy()).each:
                distances[members] += np.isin(members, drawn) * distances[members].max()  # the virtual update
            rest = len(self._plan) - self._half
            self._plan = np.concatenate([drawn, grasp_draws(distances, session.groups, rest, session.rng, 1e-7)])
        self._next += n
        return self._plan[self._next - n : self._next]
