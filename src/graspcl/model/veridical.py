"""The network for veridical rehearsal: it takes raw inputs, where the split network takes latents."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graspcl.model.split import SplitNetwork


def veridical(network: SplitNetwork, unfreeze: bool = False) -> SplitNetwork:
    """`network` in a form that is called with raw inputs: images pass the frozen part each time they are rehearsed.

    The layers are the same objects. With `unfreeze` the frozen part learns too. A buffer then stores images as they
    came (codec `encoded`) or as tensors (`identity`).

    >>> from graspcl.model import CosineHead
    >>> head = CosineHead(4, classes=3, generator=torch.Generator().manual_seed(0))
    >>> raw = veridical(SplitNetwork(nn.Flatten(), nn.Linear(4, 4), head))
    >>> raw(raw.encode(torch.ones(2, 2, 2))).logits.shape, raw.veridical
    (torch.Size([2, 3]), True)
    """
    return _Veridical(network, unfreeze)


class _Veridical(SplitNetwork):
    def __init__(self, network: SplitNetwork, unfreeze: bool) -> None:
        super().__init__(nn.Identity(), _Whole(network.frozen, network.plastic, unfreeze), network.head, network.neck)
        self.execution = network.execution

    @property
    def veridical(self) -> bool:
        return True


class _Whole(nn.Module):
    """The frozen part and then the plastic one."""

    def __init__(self, frozen: nn.Module, plastic: nn.Module, unfreeze: bool) -> None:
        super().__init__()
        self.frozen, self.plastic, self.unfrozen = frozen.requires_grad_(unfreeze), plastic, unfreeze

    def train(self, mode: bool = True) -> _Whole:
        super().train(mode)
        self.frozen.train(mode and self.unfrozen)
        return self

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.unfrozen):
            latents = self.frozen(x)
        embedding: Tensor = self.plastic(latents)
        return embedding
