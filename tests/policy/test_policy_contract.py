"""Every registered policy keeps the contract; policies that break it are told what they broke."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from graspcl.policy import PlannedPolicy, Policy, Session, policies
from graspcl.testing.policies import check_policy

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("name", policies.names())
def test_registered_policies_keep_the_contract(name: str) -> None:
    check_policy(policies.create(name))


@pytest.mark.parametrize(
    "policy", [policies.create("uniform_balanced", replace=False), policies.create("mof", eps=1.0)]
)
@pytest.mark.usefixtures("fewer_sessions")
def test_so_they_do_with_other_parameters(policy: Policy) -> None:
    check_policy(policy)


def test_the_check_leaves_the_policy_and_the_threads_alone() -> None:
    policy, threads = policies.create("grasp"), torch.get_num_threads()
    check_policy(policy)
    assert policy.state_dict() == {} and torch.get_num_threads() == threads


# -- policies that keep it in other ways -----------------------------------------------------------------------------


@dataclass
class Fair(Policy):
    """Uniform draws with replacement, mini-batch by mini-batch: the base that the broken ones spoil."""

    def select(self, session: Session, n: int) -> Array:
        return session.rng.integers(len(session.labels), size=n)


@dataclass
class FewestRehearsals(Policy):
    """Has a history by the buffer's ids and listens to feedback."""

    decay: float = 0.5
    needs = frozenset({"ids", "feedback"})

    def begin(self, session: Session) -> None:
        self.score = {**dict.fromkeys(session.ids.tolist(), 0.0), **getattr(self, "score", {})}
        self.ids = session.ids.copy()

    def select(self, session: Session, n: int) -> Array:
        weights = np.exp(-np.array([self.score[i] for i in self.ids.tolist()]))
        return session.rng.choice(len(self.ids), n, p=weights / weights.sum())

    def observe(self, slots: Array, outputs: Any) -> None:
        for i, loss in zip(self.ids[slots].tolist(), outputs.losses.tolist(), strict=True):
            self.score[i] = self.decay * self.score[i] + loss


@dataclass
class Highest(PlannedPolicy):
    """Not random: the largest losses, over and over."""

    needs = frozenset({"losses", "new"})

    def plan(self, session: Session) -> Array:
        return np.resize(np.argsort(-session.losses.numpy() + 0.0 * session.new), session.budget.samples)


def test_policies_with_feedback_and_history_keep_it() -> None:
    check_policy(Fair())
    check_policy(FewestRehearsals())


def test_a_policy_without_chance_keeps_it_when_that_is_said() -> None:
    check_policy(Highest(), random=False)
    with pytest.raises(AssertionError, match="five seeds gave the same draws"):
        check_policy(Highest())


# -- policies that break it ------------------------------------------------------------------------------------------


class TooFew(Fair):
    def select(self, session: Session, n: int) -> Array:
        return super().select(session, n)[1:]


class OutOfRange(Fair):
    def select(self, session: Session, n: int) -> Array:
        return super().select(session, n) + 1


class FloatSlots(Fair):
    def select(self, session: Session, n: int) -> Array:
        return super().select(session, n).astype(float)


class Undeclared(Fair):
    def select(self, session: Session, n: int) -> Array:
        return super().select(session, n) + 0 * len(session.embeddings)


class Listens(Fair):
    def observe(self, slots: Array, outputs: Any) -> None:
        self.seen = slots


class SaysBalanced(Fair):
    balanced = True


class NeedsMagic(Fair):
    needs = frozenset({"labels", "magic"})


class GlobalRandom(Fair):
    def select(self, session: Session, n: int) -> Array:
        random.seed(int(session.rng.integers(99)))
        return super().select(session, n)


class OwnRandom(Fair):
    def select(self, session: Session, n: int) -> Array:
        return np.random.default_rng().integers(len(session.labels), size=n)


class WritesLabels(Fair):
    def begin(self, session: Session) -> None:
        session.labels[0] = 1


class Trains(Fair):
    needs = frozenset({"labels", "embeddings"})

    def begin(self, session: Session) -> None:
        assert isinstance(session._network, torch.nn.Module)
        session._network.train()


class Learns(Fair):
    needs = frozenset({"labels", "embeddings"})

    def begin(self, session: Session) -> None:
        with torch.no_grad():
            session._network.weight += 1  # type: ignore[union-attr]


class LeavesGradients(Fair):
    needs = frozenset({"labels", "logits"})

    def begin(self, session: Session) -> None:
        with torch.enable_grad():
            session._network.weight.sum().backward()  # type: ignore[union-attr]


class Forgets(FewestRehearsals):
    def state_dict(self) -> dict[str, Any]:
        return {"ids": self.ids, "score": dict.fromkeys(self.score, 0.0)} if hasattr(self, "ids") else {}


class FrontFirst(Fair):
    """Prefers slots at the front."""

    def select(self, session: Session, n: int) -> Array:
        weights = 1 / (3.0 + np.arange(len(session.labels)))
        return session.rng.choice(len(weights), n, p=weights / weights.sum())


class KeepsSession(Fair):
    def begin(self, session: Session) -> None:
        self.session = session


class Stale(Fair):
    """Plans by the size of the first buffer it saw, and cannot find the others."""

    def begin(self, session: Session) -> None:
        self.stored = getattr(self, "stored", len(session.labels))
        assert self.stored == len(session.labels), "the buffer has grown"


class LabelsAreColumns(Fair):
    needs = frozenset({"labels", "logits"})

    def begin(self, session: Session) -> None:
        session.logits[torch.arange(len(session.labels)), torch.from_numpy(session.labels.astype(np.int64))]


class FailsOnOneSample(Fair):
    def select(self, session: Session, n: int) -> Array:
        return session.rng.integers(len(session.labels) - 1, size=n)


class Hides(Fair):
    """Its repr is silent."""

    def __init__(self, strength: float = 1.0) -> None:
        self.strength = strength

    def __repr__(self) -> str:
        return "Hides()"


@dataclass
class Inherits(Fair):
    """Its clones know what it saw."""

    seen: list[int] = field(default_factory=list)

    def clone(self) -> Policy:
        other = type(self)(self.seen)
        vars(other).update(vars(self))
        return other

    def begin(self, session: Session) -> None:
        self.history = len(session.labels)


BROKEN: list[tuple[type[Policy], str]] = [
    (TooFew, r"three unequal classes: .*'TooFew' must return 6 slots in 0 … 21, got int64 of shape \(5,\)"),
    (OutOfRange, "'OutOfRange' must return"),
    (FloatSlots, "got float64"),
    (Undeclared, r"reads session.embeddings but does not name 'embeddings' in `needs`"),
    (Listens, 'add "feedback" or "memory" to `needs`'),
    (SaysBalanced, r"`balanced`, but the classes got \[\d+, \d+, \d+\] draws"),
    (NeedsMagic, "`needs` names {'magic'}"),
    (GlobalRandom, "must draw from `session.rng` only, but draws from Python's global generator"),
    (OwnRandom, "two sessions with the same seed drew differently"),
    (WritesLabels, "read-only"),
    (Trains, "train/eval mode"),
    (Learns, "changed the network's weights"),
    (LeavesGradients, r"left gradients in the network's \.grad"),
    (Forgets, "restored by state_dict, the session continued differently"),
    (FrontFirst, "the slot of a sample decides how often it is drawn"),
    (KeepsSession, "keeps the Session as self.session"),
    (Stale, "a second session, over a grown buffer: AssertionError: the buffer has grown"),
    (LabelsAreColumns, "labels with gaps: IndexError"),
    (FailsOnOneSample, "one sample: ValueError"),
    (Hides, r"repr does not show strength=1\.0"),
    (Inherits, "a clone of a used policy has history: {'history'}"),
]


@pytest.mark.parametrize(("policy", "told"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_broken_is_told(policy: type[Policy], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_policy(policy())
