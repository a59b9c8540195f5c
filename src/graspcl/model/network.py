"""The split network: a frozen part that makes latents, and a plastic part that learns from them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graspcl.errors import GraspError
from graspcl.model.execution import Execution
from graspcl.model.head import CosineHead, Head
from graspcl.registry import Registry

networks: Registry[SplitNetwork] = Registry("network", "graspcl.model", given=("classes", "generator"))


class Outputs(NamedTuple):
    """What the plastic part says about N latents."""

    embedding: Tensor
    """[N, d], the penultimate embedding before its activation: what GRASP's distances are taken of."""
    features: Tensor
    """[N, features], what the head sees."""
    logits: Tensor
    """[N, classes]"""


class SplitNetwork(nn.Module):
    """Frozen part, plastic part, neck (activation and dropout; nothing if None) and head.

    `encode` maps inputs (images [N, 3, H, W] or whatever the frozen part takes) to latents; calling the network maps
    latents to `Outputs`. The frozen part has no gradients and stays in eval mode, whatever mode the rest is in.

    >>> head = CosineHead(4, classes=3, generator=torch.Generator().manual_seed(0))
    >>> net = SplitNetwork(nn.Identity(), nn.Flatten(), head, nn.GELU())
    >>> latents = net.encode(torch.ones(2, 2, 2))
    >>> net(latents).logits.shape, round(net.share_plastic(), 2)
    (torch.Size([2, 3]), 1.0)
    """

    def __init__(self, frozen: nn.Module, plastic: nn.Module, head: Head, neck: nn.Module | None = None) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.plastic = plastic
        self.neck = nn.Identity() if neck is None else neck
        self.head = head
        self.execution = Execution()
        self.train(self.training)

    @staticmethod
    def of(
        frozen: nn.Module,
        plastic: nn.Module,
        example: Tensor,
        *,
        generator: torch.Generator,
        neck: nn.Module | None = None,
        classes: int = 0,
        scale: float = 1.0,
    ) -> SplitNetwork:
        """A network of one's own modules, with a head of the width that inputs `example` [N, ...] show to be needed.

        `frozen` maps inputs to latents and `plastic` latents to embeddings [N, d]; their weights stay as they are.
        `generator` initialises the head's rows; `scale` is its first scale.

        >>> g = torch.Generator().manual_seed(0)
        >>> net = SplitNetwork.of(nn.Flatten(), nn.Linear(8, 5), torch.zeros(1, 2, 4), generator=g, neck=nn.ReLU())
        >>> net.head
        CosineHead(features=5, classes=0)
        """
        shape, values = list(example.shape), example
        parts = {"frozen part": frozen, "plastic part": plastic, "neck": nn.Identity() if neck is None else neck}
        for name, part in parts.items():
            try:
                with torch.no_grad():
                    values = part.eval()(values)
            except Exception as error:
                raise GraspError(f"an example of shape {shape} does not pass through the {name}: {error}") from error
            if len(values) != len(example):
                raise GraspError(f"the example must be a batch [N, ...], one row a sample, not of shape {shape}")
            if name != "frozen part" and values.ndim != 2:
                raise GraspError(f"the {name} must give one vector a sample, [N, d], but gives {list(values.shape)}")
        head = CosineHead(values.shape[1], classes, generator=generator, scale=scale)
        return SplitNetwork(frozen, plastic, head, neck)

    def train(self, mode: bool = True) -> SplitNetwork:
        """Set the mode of the plastic part, neck and head; the frozen part stays in eval mode."""
        super().train(mode)
        self.frozen.eval()
        return self

    def encode(self, x: Tensor, learn: bool = False) -> Tensor:
        """Latents [N, ...] of inputs x [N, ...]; without gradients, unless the frozen part is to `learn`."""
        with torch.set_grad_enabled(learn and torch.is_grad_enabled()), self.execution.autocast():
            latents: Tensor = self.frozen(x)
        return latents.float() if latents.is_floating_point() else latents

    def forward(self, latents: Tensor) -> Outputs:
        with self.execution.autocast():
            embedding = self.plastic(latents)
            features = self.neck(embedding)
        # The head's few products stay in float32, as the reference has it: cosines of 1280 numbers want the digits.
        return Outputs(embedding.float(), features.float(), self.head(features.float()))

    def execute(self, execution: Execution) -> SplitNetwork:
        """Be executed like this from now on: device, precision, compiled or not; returns itself."""
        self.execution = execution
        execution.prepare(self)
        execution.compiled(self.plastic)
        return self

    def plastic_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Names and parameters of all that learns, from the first layer to the last."""
        return [named for named in self.named_parameters() if named[1].requires_grad]

    @property
    def veridical(self) -> bool:
        """Whether raw inputs are rehearsed (`graspcl.model.network`), not latents."""
        return False

    def share_plastic(self) -> float:
        """Which share of all parameters learns, 0..1."""
        plastic = sum(parameter.numel() for _, parameter in self.plastic_parameters())
        total = sum(parameter.numel() for parameter in self.parameters())
        return plastic / total if total else 0.0


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


def make_network(name: str, classes: int = 0, *, generator: torch.Generator, **options: Any) -> SplitNetwork:
    """The network called `name`, or `timm:NAME` for one of timm's, with the options of its function.

    An unknown name or option raises an error that suggests the nearest valid one.

    >>> net = make_network("vector", classes=3, dim=8, generator=torch.Generator().manual_seed(0))
    >>> net(torch.zeros(2, 8)).logits.shape
    torch.Size([2, 3])
    >>> make_network("small", splt=2, generator=torch.Generator())
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: network 'small' has no parameter 'splt'; did you mean 'split'?
    """
    return networks.create(name, classes=classes, generator=generator, **options)
