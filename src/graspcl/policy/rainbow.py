"""Rainbow memory: samples of each class in equal steps from certain to uncertain."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch

from graspcl.checks import Array, Count, NonNegative, Range
from graspcl.errors import GraspError
from graspcl.padding import unpadded
from graspcl.policy.drawing import draws_per_class, round_robin
from graspcl.policy.policy import PlannedPolicy, policies
from graspcl.policy.session import Session
from graspcl.policy.views import image_view

# With and without a flip these make twelve views. The n-th view of every sample is moved in the same way.
_SHIFTS = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1))


@policies.register("rainbow")
@dataclass
class Rainbow(PlannedPolicy):
    """u = 1 - max_c #{views predicted as c} / A; each class, sorted by u, gives every ⌊N_c / m⌋-th sample, m in all.

    What the A `views` are depends on what is stored:
    - images (bytes [n, C, H, W], as in veridical rehearsal): twelve augmentations, see `graspcl.policy.views`.
    - latents: channels (or dimensions) are dropped with probability `dropout`, and noise of `noise` times their
      standard deviation is added. Feature maps are also flipped and shifted by a place.
    - token ids: with probability `dropout`, a token is replaced by another of the same text.

    A class that must give more draws than it has samples gives whole passes and a stride for the rest. Picks come in
    random order.

    Follows: the program of Bang et al. (views, stride), as the paper does; views of latents are the library's own.
    """

    views: Count = 12
    dropout: Annotated[float, Range(0, 1, below=True)] = 0.2
    noise: NonNegative = 0.2

    needs = frozenset({"labels", "forward"})
    balanced = True
    family = "diversity"
    cost = "`views` (12) forward passes over the buffer per session"
    source = "Bang et al. 2021"

    def plan(self, session: Session) -> Array:
        u, groups, rng = self.uncertainty(session), session.groups, session.rng
        drawn, each = [], draws_per_class(groups.number, session.budget.samples)
        for own, m in zip(groups.each, each, strict=True):
            members = rng.permutation(own)  # equal uncertainties come in random order
            drawn.append(strided_picks(members[np.argsort(u[members], kind="stable")], int(m), rng))
        return round_robin(np.concatenate(drawn), groups.number)

    def uncertainty(self, session: Session) -> Array:
        """Return u of every stored sample [N], in 0 … 1 - 1/views."""
        generator = torch.Generator().manual_seed(int(session.rng.integers(2**63)))
        u, slots = [], np.arange(len(session))
        for chunk in np.split(slots, slots[session.chunk :: session.chunk]):
            views = [partial(self.view, number=number, generator=generator) for number in range(self.views)]
            predicted = torch.stack([session.forward(chunk, view).logits.argmax(1) for view in views])
            agreeing = (predicted == predicted.mode(0).values).sum(0)
            u.append(1 - agreeing.numpy(force=True) / self.views)
        return np.concatenate(u)

    def view(self, x: torch.Tensor, number: int, generator: torch.Generator) -> torch.Tensor:
        """Return the view `number` of stored samples [n, …]: images, latents [n, D] or [n, C, H, W], or token ids."""
        if x.dtype == torch.uint8 and x.ndim == 4:
            return image_view(x, number, generator)
        if x.dtype == torch.uint8:  # other bytes become floats in 0..255
            return self.view(x.float(), number, generator).clamp(0, 255)
        if not x.is_floating_point():
            return self._other_tokens(x, generator)
        if x.ndim == 4:  # `number` decides flip and shift; the rest is random
            x = x.flip(3) if number % 2 else x
            x = x.roll(_SHIFTS[number // 2 % len(_SHIFTS)], dims=(2, 3))
        kept = torch.rand(*x.shape[:2], *[1] * (x.ndim - 2), generator=generator) >= self.dropout
        noise = self.noise * torch.randn(x.shape, generator=generator)
        return x * kept.to(x) / (1 - self.dropout) + noise.to(x) * x.std(correction=0)

    def _other_tokens(self, ids: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Token ids [n, L], some replaced by others of the same text. The first token and padding stay."""
        if ids.ndim != 2:
            raise GraspError(f"rainbow perturbs floats, images or token ids [n, L], got {ids.dtype} of {ids.ndim} axes")
        last = (unpadded(ids)[:, None] - 1).clamp_min(1)
        place = torch.arange(ids.shape[1], device=ids.device)
        chance = torch.rand(2, *ids.shape, generator=generator).to(ids.device)
        source = 1 + (chance[0] * last).long()
        moved = (chance[1] < self.dropout) & (place > 0) & (place <= last)
        return ids.gather(1, torch.where(moved, source, place).clamp_max(ids.shape[1] - 1))


def strided_picks(ordered: Array, m: int, rng: np.random.Generator) -> Array:
    """Pick `m` of the `ordered` samples [n]: whole passes first, then every ⌊n / rest⌋-th; each in random order."""
    passes, rest = divmod(m, len(ordered))
    stride = len(ordered) // rest if rest else 1
    picks = [rng.permutation(ordered) for _ in range(passes)]
    return np.concatenate([*picks, rng.permutation(ordered[::stride][:rest])])
