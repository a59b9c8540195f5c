"""MIR: the old samples that learning the incoming ones would harm most."""

from __future__ import annotations

from dataclasses import dataclass

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.policy.drawing import best, candidates
from graspcl.policy.policy import IncomingPolicy, policies
from graspcl.policy.session import Session


@policies.register("mir")
@dataclass
class Mir(IncomingPolicy):
    """The largest l(x; θ - η ∇l(incoming; θ)) - l(x; θ): loss after a virtual step on the incoming half, minus now.

    They are sought among uniform old candidates, `candidates_per_pick` for each that is chosen or `candidates` in all.
    The step is a plain one, without momentum, at the rate η of the coming update.
    """

    candidates_per_pick: int = 5
    candidates: int | None = None

    needs = IncomingPolicy.needs | {"forward", "virtual_step"}
    cost = (
        "per mini-batch, a forward and a backward pass over its incoming half and two forward passes over "
        "`candidates_per_pick` (5) candidates for each old sample"
    )
    source = "Aljundi et al. 2019"

    def __post_init__(self) -> None:
        if self.candidates_per_pick < 1 or (self.candidates is not None and self.candidates < 1):
            raise GraspError(
                "mir takes candidates_per_pick >= 1 and candidates >= 1 or None, "
                f"not {self.candidates_per_pick} and {self.candidates}"
            )

    def choose(self, session: Session, incoming: Array, old: Array, k: int) -> Array:
        number = k * self.candidates_per_pick if self.candidates is None else max(k, self.candidates)
        slots = candidates(old, number, session.rng)
        interference = session.losses_after_step(incoming, slots) - session.forward(slots).losses
        return best(slots, interference, k)
