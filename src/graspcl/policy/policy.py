"""What a rehearsal policy is: it says what it needs and returns slots; it keeps no reference to a model or a buffer."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.policy.drawing import evenly
from graspcl.registry import Registry, parameter_names

if TYPE_CHECKING:
    from graspcl.policy.session import Session

policies: Registry[Policy] = Registry("policy", "graspcl.policy")

# What a session can offer. The first five are of all stored samples, measured once; `forward` (outputs of chosen
# samples now), `gradients` (theirs) and `virtual_step` (losses after a step on some) whenever asked for.
QUANTITIES = frozenset({"labels", "new", "embeddings", "logits", "losses", "forward", "gradients", "virtual_step"})


class Policy:
    """Chooses which stored samples are rehearsed, mini-batch by mini-batch. Only `select` is asked of a new one.

    Write a policy as a dataclass: its fields are its parameters, known to `repr`, the command line and `clone`.
    Anything else it sets on itself during a session is its state.
    """

    name: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset({"labels"})  # of QUANTITIES; the session refuses to give more
    balanced: ClassVar[bool] = False  # as many draws from every class, within one, over a session
    family: ClassVar[str] = "own"  # which table heading it stands under
    cost: ClassVar[str] = "not stated"
    source: ClassVar[str] = "not stated"

    @property
    def called(self) -> str:
        """What to call the policy in a message: its registered name, or else its class."""
        return self.name or type(self).__name__

    def warm_up(self) -> None:
        """Load or compile what a session needs; not booked as a cost of the session."""

    def begin(self, session: Session) -> None:
        """Once per session, before the first selection; quantities of all stored samples are read here."""

    def select(self, session: Session, n: int) -> Array:
        """The next mini-batch: `n` slots."""
        raise GraspError(
            f"policy {type(self).__name__} must define select(session, n), or plan() if it is a PlannedPolicy"
        )

    def observe(self, slots: Array, outputs: Any) -> None:
        """Feedback after the update on `slots`: `outputs.logits` [n, K] and `outputs.losses` [n] of the mini-batch."""

    def upcoming(self, n: int) -> Array | None:
        """The slots of the next mini-batch of `n`, if they are decided already: they can be loaded meanwhile."""
        return None

    def parameters(self) -> dict[str, Any]:
        """The parameters the policy was made with."""
        return {name: getattr(self, name) for name in parameter_names(type(self))}

    def clone(self) -> Policy:
        """A policy with the same parameters and no history."""
        return type(self)(**copy.deepcopy(self.parameters()))

    def state_dict(self) -> dict[str, Any]:
        """All that the policy has set on itself beside its parameters."""
        parameters = self.parameters()
        return {name: copy.deepcopy(value) for name, value in vars(self).items() if name not in parameters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave; what the policy has set on itself meanwhile is forgotten."""
        for name in vars(self).keys() - self.parameters().keys():
            delattr(self, name)
        vars(self).update(copy.deepcopy(state))


class PlannedPolicy(Policy):
    """A policy that draws the whole session before training begins, from what it knows then.

    A new one defines only `plan(session, budget, rng)`, which returns `budget` slots in the order of rehearsal.
    """

    _plan: Array
    _next: int

    def plan(self, session: Session, budget: int, rng: np.random.Generator) -> Array:
        """`budget` slots in the order of rehearsal."""
        raise GraspError(f"policy {type(self).__name__} must define plan(session, budget, rng)")

    def begin(self, session: Session) -> None:
        budget = session.budget.samples
        self._plan = np.asarray(self.plan(session, budget, session.rng)) if budget else np.empty(0, np.int64)
        self._next = 0
        if self._plan.shape != (budget,):
            raise GraspError(
                f"policy {self.called!r} planned slots of shape {self._plan.shape}; the budget is {budget:,} samples"
            )

    def select(self, session: Session, n: int) -> Array:
        self._next += n
        return self._plan[self._next - n : self._next]

    def upcoming(self, n: int) -> Array | None:
        return self._plan[self._next : self._next + n]


class IncomingPolicy(Policy):
    """Mini-batches of n - ⌊n/2⌋ incoming and ⌊n/2⌋ chosen old samples, so that no policy spends more than another.

    The incoming ones are drawn uniformly from what arrived since the last session; for them a new policy defines
    `choose(session, incoming, old, k)`. In a session without old samples, or without new ones, there is nothing to
    choose for: the missing half, too, is drawn uniformly from what there is.
    """

    needs = frozenset({"labels", "new"})
    family = "incoming"

    def choose(self, session: Session, incoming: Array, old: Array, k: int) -> Array:
        """`k` ≥ 1 slots out of `old` (all slots that are not new) to go with those in `incoming`.

        There may be fewer than `k`: they are then repeated, as `best` does it.
        """
        raise GraspError(f"policy {type(self).__name__} must define choose(session, incoming, old, k)")

    def select(self, session: Session, n: int) -> Array:
        arrived = session.new
        new, old = np.flatnonzero(arrived), np.flatnonzero(~arrived)
        k = n // 2
        if not (len(new) and len(old) and k):
            return evenly(new if len(new) else old, n, session.rng)
        incoming = evenly(new, n - k, session.rng)
        return np.concatenate([incoming, self.choose(session, incoming, old, k)])
