"""Any classification network of timm, cut after a named block."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from graspcl.checks import Positive, checked
from graspcl.errors import GraspError, nearest, require
from graspcl.model.cut import ChainAfter, chain_after, check_parts, recording, without
from graspcl.model.head import CosineHead
from graspcl.model.layers import ImageInput, fork, global_seed
from graspcl.model.network import SplitNetwork, networks


@networks.register("timm", reads="images", trained_on="imagenet")
@checked
def timm_network(
    name: str,
    split: str,
    classes: int = 0,
    pretrained: bool = False,
    *,
    generator: torch.Generator,
    scale: Positive = 1.0,
) -> SplitNetwork:
    """Create the network that timm calls `name`. Requires the extra `timm`.

    `encode` takes images [N, 3, H, W] in 0..255, uint8 or float, and normalises them as the network's weights expect.
    The latents are the block's output. The embedding is timm's pooled feature, and the cosine head replaces the
    classifier. `SplitNetwork.cut` explains which blocks are possible, and what happens to BatchNorm. timm draws its
    weights from torch's global generator; here it is seeded from `generator` and restored afterwards.

    Args:
        name: a name of `timm.list_models()`.
        split: the last frozen block, such as "layer3" or "blocks.3".
        pretrained: load the published weights.

    >>> net = timm_network("resnet18", "layer3", generator=torch.Generator().manual_seed(0))  # doctest: +SKIP
    >>> net.encode(torch.zeros(1, 3, 224, 224, dtype=torch.uint8)).shape  # doctest: +SKIP
    torch.Size([1, 256, 14, 14])
    """
    model = _create(name, pretrained, generator)
    config = model.pretrained_cfg
    example = torch.rand(1, *config["input_size"], generator=torch.Generator().manual_seed(0))
    with recording(model) as calls:
        features = model.forward_features(example)
        steps = list(calls)
        embedding = model.forward_head(features, pre_logits=True)
    top = list({call.name.partition(".")[0]: None for call in calls[len(steps) :]})
    _, tail = chain_after(split, steps, features, name)
    frozen, plastic = _Features(model, tail, top), _Rest(model, tail, top)
    check_parts(nn.Sequential(frozen, plastic), example, embedding, f"{name} cannot be cut after {split!r}")
    scaled = ImageInput(*([255 * value for value in config[key]] for key in ("mean", "std")))
    head = CosineHead(embedding.shape[1], classes, generator=generator, scale=scale)
    return SplitNetwork(nn.Sequential(OrderedDict(input=scaled, features=frozen)), plastic, head)


def _create(name: str, pretrained: bool, generator: torch.Generator) -> Any:
    try:
        timm = require("timm", "timm")
    except GraspError:
        raise
    except Exception as error:  # timm imports torchvision, which may not fit the installed torch
        raise GraspError(f"timm is installed but cannot be imported: {error}; do torch and torchvision fit?") from error
    if not timm.is_model(name):
        hint = nearest(name, timm.list_models())
        hint = hint if hint.startswith("did you mean") else "timm.list_models() lists their names"  # too many to print
        raise GraspError(f"timm has no network {name!r}; {hint}")
    with global_seed(fork(generator).initial_seed()):
        try:
            return timm.create_model(name, pretrained=pretrained, num_classes=0).eval()
        except Exception as error:
            what = "find the published weights of" if pretrained else "create"
            raise GraspError(f"timm could not {what} {name!r}: {error}") from error


class _Features(nn.Module):
    """timm's own pass up to the cut: images [N, 3, H, W] -> latents. The chain after it passes its input through."""

    def __init__(self, model: nn.Module, tail: list[tuple[str, nn.Module]], top: list[str]) -> None:
        super().__init__()
        removed = {name for name, _ in tail}
        self.model = without(model, lambda name: name in removed or name.partition(".")[0] in top)

    def forward(self, x: Tensor) -> Tensor:
        latents: Tensor = self.model.forward_features(x)
        return latents


class _Rest(ChainAfter):
    """The chain after the cut and timm's pooling: latents -> embedding [N, d]."""

    def forward(self, latents: Tensor) -> Tensor:
        embedding: Tensor = self.model.forward_head(super().forward(latents), pre_logits=True)
        return embedding
