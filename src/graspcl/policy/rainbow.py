"""Rainbow memory: of each class samples of every uncertainty, from certain to uncertain in equal steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.padding import unpadded
from graspcl.policy.drawing import draws_per_class, round_robin
from graspcl.policy.policy import PlannedPolicy, policies
from graspcl.policy.session import Session

# With and without a flip these are twelve views; the n-th view of every sample is moved in the same way.
_SHIFTS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1))


@policies.register("rainbow")
@dataclass
class Rainbow(PlannedPolicy):
    """u = 1 - max_c #{views predicted as c} / A; of each class, sorted by u, every ⌊N_c / m⌋-th, m of them.

    The A `views` are perturbed latents: channels (or dimensions) dropped with probability `dropout`, noise added of
    `noise` times their standard deviation, feature maps flipped and shifted by a place as well; of token ids those of
    other places of the text stand for as many as would be dropped. A class that is to give more draws than it has
    samples gives whole passes and such a stride for the rest. Picks come in random order.
    """

    views: int = 12
    dropout: float = 0.2
    noise: float = 0.2

    needs = frozenset({"labels", "forward"})
    balanced = True
    family = "diversity"
    cost = "`views` (12) forward passes over the buffer per session"
    source = "Bang et al. 2021"

    def __post_init__(self) -> None:
        if self.views < 1 or not 0 <= self.dropout < 1 or not 0 <= self.noise < float("inf"):
            raise GraspError(
                "rainbow takes views >= 1, 0 <= dropout < 1 and noise >= 0, "
                f"not {self.views}, {self.dropout} and {self.noise}"
            )

    def plan(self, session: Session, budget: int, rng: np.random.Generator) -> Array:
        u = self.uncertainty(session, rng)
        groups = session.groups
        drawn = []
        for (begin, end), m in zip(pairwise(groups.offsets), draws_per_class(groups.number, budget), strict=True):
            members = rng.permutation(groups.members[begin:end])  # equal uncertainties come in random order
            drawn.append(strided_picks(members[np.argsort(u[members], kind="stable")], int(m), rng))
        return round_robin(np.concatenate(drawn), groups.number)

    def uncertainty(self, session: Session, rng: np.random.Generator) -> Array:
        """u of every stored sample [N], in 0 … 1 - 1/views."""
        generator = torch.Generator().manual_seed(int(rng.integers(2**63)))
        slots = np.arange(len(session.labels))
        u = []
        for chunk in np.split(slots, slots[session.chunk :: session.chunk]):
            views = [partial(self.view, number=number, generator=generator) for number in range(self.views)]
            predicted = torch.stack([session.forward(chunk, view).logits.argmax(1) for view in views])
            agreeing = (predicted == predicted.mode(0).values).sum(0)
            u.append(1 - agreeing.numpy(force=True) / self.views)
        return np.concatenate(u)

    def view(self, x: torch.Tensor, number: int, generator: torch.Generator) -> torch.Tensor:
        """A view of latents [n, D] or [n, C, H, W]: the flip and shift are those of `number`, the rest is chance.

        Images of bytes become floats in 0..255.
        """
        if x.dtype == torch.uint8:
            return self.view(x.float(), number, generator).clamp(0, 255)
        if not x.is_floating_point():
            return self._other_tokens(x, generator)
        if x.ndim == 4:
            x = x.flip(3) if number % 2 else x
            x = x.roll(_SHIFTS[number // 2 % len(_SHIFTS)], dims=(2, 3))
        kept = torch.rand(*x.shape[:2], *[1] * (x.ndim - 2), generator=generator) >= self.dropout
        noise = self.noise * torch.randn(x.shape, generator=generator)
        return x * kept.to(x) / (1 - self.dropout) + noise.to(x) * x.std(correction=0)

    def _other_tokens(self, ids: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Token ids [n, L], some replaced by others of the same text; the first of them and padding stay."""
        if ids.ndim != 2:
            raise GraspError(
                f"rainbow perturbs numbers, images or token ids [n, L], not {ids.dtype} of {ids.ndim} axes"
            )
        last = (unpadded(ids)[:, None] - 1).clamp_min(1)
        place = torch.arange(ids.shape[1], device=ids.device)
        chance = torch.rand(2, *ids.shape, generator=generator).to(ids.device)
        source = 1 + (chance[0] * last).long()
        moved = (chance[1] < self.dropout) & (place > 0) & (place <= last)
        return ids.gather(1, torch.where(moved, source, place).clamp_max(ids.shape[1] - 1))


def strided_picks(ordered: Array, m: int, rng: np.random.Generator) -> Array:
    """`m` of the `ordered` samples [n]: as many whole passes as go in, then every ⌊n / rest⌋-th; each in random order.

    >>> sorted(strided_picks(np.arange(10), 3, np.random.default_rng(0)).tolist())
    [0, 3, 6]
    """
    passes, rest = divmod(m, len(ordered))
    stride = len(ordered) // rest if rest else 1
    picks = [rng.permutation(ordered) for _ in range(passes)]
    return np.concatenate([*picks, rng.permutation(ordered[::stride][:rest])])
