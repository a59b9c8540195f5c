"""The contract of a rehearsal policy: it declares what it needs and returns slots. It keeps no model and no buffer."""

from __future__ import annotations

import copy
from collections.abc import Set
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from graspcl.checks import Array, check_parameters
from graspcl.errors import GraspError
from graspcl.policy.drawing import evenly
from graspcl.registry import Registry, parameter_names

if TYPE_CHECKING:
    from graspcl.policy.session import Session

policies: Registry[Policy] = Registry("policy", "graspcl.policy")

# What `needs` may name, and what each name gives a policy.
QUANTITIES = {
    "labels": "the class of each stored sample, and slots grouped by class",
    "ids": "the user's number of each stored sample",
    "births": "when each stored sample arrived",
    "new": "which samples arrived since the last session, and at least one new and one old sample",
    "embeddings": "embeddings of all samples when a session starts, and of chosen samples in `forward`",
    "distances": "distance of each sample to its class prototype when a session starts",
    "logits": "logits of all samples when a session starts",
    "losses": "cross-entropy of all samples when a session starts",
    "forward": "outputs of chosen samples under the current network",
    "gradients": "loss gradients of chosen samples",
    "virtual_step": "losses of chosen samples after a training step that is not taken",
    "feedback": "a call of `observe` after each update",
    "memory": "calls of `observe_new` and `observe`, where outputs of new or rehearsed samples are known anyway",
}


class Policy:
    """Chooses which stored samples are rehearsed, mini-batch by mini-batch. A subclass must define `select`.

    Write a policy as a dataclass. Its fields are its parameters: `repr`, the command line and `clone` know them, and
    their annotations are checked (see `graspcl.checks`). All other attributes are the policy's state.

    A built-in policy says after "Follows:" what it takes from "the paper" (Harun et al. 2024), from "the reference
    program" (the paper's own), and from the program of the policy's authors.
    """

    name: ClassVar[str] = ""
    needs: ClassVar[Set[str]] = frozenset({"labels"})  # names from QUANTITIES; the session refuses everything else
    balanced: bool = False  # over a session, every class gets the same number of draws, within one
    family: ClassVar[str] = "own"  # the heading in tables
    cost: ClassVar[str] = "not stated"
    source: ClassVar[str] = "not stated"

    def __post_init__(self) -> None:
        check_parameters(type(self), self.parameters())

    @property
    def display_name(self) -> str:
        """The name used in messages: the registered name, or else the class name."""
        return self.name or type(self).__name__

    @property
    def exact_with(self) -> str:
        """The setting with which several ranks draw what one process draws; empty if they do so as it is.

        Outputs of a network are equal on them up to rounding. Draws may not depend on more.
        """
        return ""

    def warm_up(self) -> None:
        """Load or compile what a session needs. The time is not counted as a cost of the session."""

    def begin(self, session: Session) -> None:
        """Prepare a session that has a budget. Read quantities of all stored samples here."""

    def select(self, session: Session, n: int) -> Array:
        """Return the next mini-batch: `n` slots."""
        raise GraspError(f"policy {type(self).__name__} must define select(session, n)")

    @property
    def listens(self) -> bool:
        """Whether `observe` and `observe_new` are to be called. Otherwise updates save that time."""
        return bool({"feedback", "memory"} & self.needs)

    def observe(self, slots: Array, outputs: Any) -> None:
        """Receive feedback after the update on `slots` [n]: `outputs.logits` [n, K] and `outputs.losses` [n]."""

    def observe_new(self, slots: Array, births: Array, labels: Array, outputs: Any) -> None:
        """Receive outputs of samples that were just stored in `slots` [n]: `outputs.embedding` [n, D] and `.logits`.

        Called between sessions, if the policy needs "memory" and the learner has computed the outputs anyway.
        """

    def upcoming(self, n: int) -> Array | None:
        """Return the next `n` slots if they are decided already, so that they can be loaded in the background."""
        return None

    def parameters(self) -> dict[str, Any]:
        """Return the parameters the policy was made with."""
        return {name: getattr(self, name) for name in parameter_names(type(self))}

    def clone(self) -> Policy:
        """Return a policy with the same parameters and no history."""
        return type(self)(**copy.deepcopy(self.parameters()))

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all attributes that are not parameters."""
        parameters = self.parameters()
        return {name: copy.deepcopy(value) for name, value in vars(self).items() if name not in parameters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace the policy's state by one from `state_dict`."""
        for name in vars(self).keys() - self.parameters().keys():
            delattr(self, name)
        vars(self).update(copy.deepcopy(state))


class PlannedPolicy(Policy):
    """A policy that draws the whole session before training begins. A subclass must define `plan`.

    >>> class OldestFirst(PlannedPolicy):
    ...     needs = {"births"}
    ...
    ...     def plan(self, session):
    ...         return np.resize(session.births.argsort(), session.budget.samples)
    """

    _plan, _next = np.empty(0, np.int64), 0  # of the last session, and how many of it were taken

    def plan(self, session: Session) -> Array:
        """Return `session.budget.samples` slots in the order of rehearsal. Draw with `session.rng`."""
        raise GraspError(f"policy {type(self).__name__} must define plan(session)")

    def begin(self, session: Session) -> None:
        self._plan = checked_slots(self, "plan", self.plan(session), session.budget.samples, len(session))
        self._next = 0

    def select(self, session: Session, n: int) -> Array:
        self._next += n
        return self._plan[self._next - n : self._next]

    def upcoming(self, n: int) -> Array | None:
        return self._plan[self._next : self._next + n]


def checked_slots(policy: Policy, does: str, given: Any, number: int, stored: int) -> Array:
    """Return what a policy plans or returns as int64 [number]; it must be slots of `stored` samples."""
    slots: Array = np.asarray(given)
    fits = slots.dtype.kind in "iu" and slots.shape == (number,)
    if not fits or slots.min() < 0 or slots.max() >= stored:
        got = f"{slots.min()} … {slots.max()}" if fits else f"{slots.dtype} of shape {slots.shape}"
        wanted = f"policy {policy.display_name!r} must {does} {number:,} slots in 0 … {stored - 1}"
        raise GraspError(f"{wanted}, got {got}")
    return np.array(slots, np.int64)


class IncomingPolicy(Policy):
    """Mini-batches of n - ⌊n/2⌋ incoming samples and ⌊n/2⌋ chosen old ones. A subclass must define `choose`.

    Incoming samples are drawn uniformly from what arrived since the last session. Without new or without old samples,
    the whole batch is uniform.
    """

    needs = frozenset({"new"})
    family = "incoming"

    def choose(self, session: Session, incoming: Array, old: Array, k: int) -> Array:
        """Return `k` ≥ 1 slots out of `old`, all that are not new, to go with `incoming`; repeat if there are fewer."""
        raise GraspError(f"policy {type(self).__name__} must define choose(session, incoming, old, k)")

    def select(self, session: Session, n: int) -> Array:
        new, old, k = np.flatnonzero(session.new), np.flatnonzero(~session.new), n // 2
        if not (len(new) and len(old) and k):
            return evenly(new if len(new) else old, n, session.rng)
        incoming = evenly(new, n - k, session.rng)
        return np.concatenate([incoming, self.choose(session, incoming, old, k)])
