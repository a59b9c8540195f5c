"""MIR: the old samples that learning the incoming ones would harm most."""

from dataclasses import dataclass

from graspcl.checks import Array, Count
from graspcl.policy.drawing import best, candidates
from graspcl.policy.policy import IncomingPolicy, policies
from graspcl.policy.session import Session


@policies.register("mir")
@dataclass
class Mir(IncomingPolicy):
    """Largest l(x; θ - η ∇l(incoming; θ)) - l(x; θ) first: loss after a virtual step on the incoming half, minus now.

    Candidates are uniform old samples: `candidates_per_pick` for each that is chosen, or `candidates` in all. The step
    is a plain gradient step without momentum, at the rate η of the next update.

    Follows: the program of Aljundi et al. (score, 5 candidates per pick); the reference program pairs neighbours.
    """

    candidates_per_pick: Count = 5
    candidates: Count | None = None

    needs = frozenset({"new", "forward", "virtual_step"})
    cost = "per mini-batch, a forward and backward pass over its incoming half, two forward over 5 candidates per pick"
    source = "Aljundi et al. 2019"

    def choose(self, session: Session, incoming: Array, old: Array, k: int) -> Array:
        number = k * self.candidates_per_pick if self.candidates is None else max(k, self.candidates)
        slots = candidates(old, number, session.rng)
        interference = session.losses_after_step(incoming, slots) - session.forward(slots).losses
        return best(slots, interference, k)
