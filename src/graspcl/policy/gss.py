"""GSS: samples whose gradients point in the most diverse directions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from graspcl.checks import Array
from graspcl.policy.drawing import best, candidates
from graspcl.policy.gradients import check_settings
from graspcl.policy.policy import Policy, policies
from graspcl.policy.session import Session


@policies.register("gss")
@dataclass
class Gss(Policy):
    """Gradient-based sample selection, greedy: C_i = max_b cos(g_i, G_b), smallest C first.

    g_i are the gradients of `candidates_per_pick` · n random stored samples and G_b is the mean gradient of the b-th of
    `references` mini-batches of `reference_size` random stored samples. Published as a rule of storage: when a sample
    arrives, one with a large C, whose direction the memory has already, tends to make room. As a rule of selection the
    same score says what is worth rehearsing: the n candidates that the rest of the buffer speaks for least.
    `gradients` are those of the "last_layer" in closed form, or "full": of all that learns.
    """

    candidates_per_pick: int = 5
    references: int = 10
    reference_size: int = 10
    gradients: str = "last_layer"

    needs = frozenset({"labels", "gradients"})
    balanced = False
    family = "gradient"
    cost = (
        "candidates_per_pick · n + references · reference_size forward passes per mini-batch; "
        "with full gradients as many backward ones"
    )
    source = "Aljundi et al. 2019"

    def __post_init__(self) -> None:
        check_settings(
            self.gradients,
            candidates_per_pick=self.candidates_per_pick,
            references=self.references,
            reference_size=self.reference_size,
        )

    def select(self, session: Session, n: int) -> Array:
        stored = np.arange(len(session.labels))
        slots = candidates(stored, self.candidates_per_pick * n, session.rng)
        drawn = [candidates(stored, self.reference_size, session.rng) for _ in range(self.references)]
        both = session.gradients(np.concatenate([slots, *drawn]), full=self.gradients == "full")
        g, *memory = both.split([len(slots), *map(len, drawn)])
        similarity = torch.stack([g.mean_cosines(reference) for reference in memory]).amax(0)
        return best(slots, -similarity, n)
