"""Any classification network of timm, split after a block that is named."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from graspcl.errors import GraspError, nearest, require
from graspcl.model.head import CosineHead
from graspcl.model.layers import ImageInput, fork
from graspcl.model.network import SplitNetwork, networks


@networks.register("timm", reads="images")
def timm_network(
    name: str,
    split: str,
    classes: int = 0,
    pretrained: bool = False,
    *,
    generator: torch.Generator,
    scale: float = 1.0,
) -> SplitNetwork:
    """The network that timm calls `name`, frozen up to and including the block `split`, such as "layer3" or "blocks.3".

    `encode` takes images [N, 3, H, W], uint8 or floats in 0..255, and scales them as the network's weights want them.
    The latents are whatever the block gives; the embedding is timm's pooled feature before the classifier, whose place
    the cosine head takes; `scale` is the head's. What lies before the block may do anything; after it, the features
    must be a plain chain of modules, which is found by watching one pass, and another block is an error that names
    those possible. BatchNorm in the plastic part keeps its statistics, as rehearsal must not move them.

    timm draws its weights from torch's global generator; here it does so within `torch.random.fork_rng`, from a seed
    drawn from `generator`, so that the global one is as it was before. Needs the extra `timm`.

    >>> net = timm_network("resnet18", "layer3", generator=torch.Generator().manual_seed(0))  # doctest: +SKIP
    >>> net.encode(torch.zeros(1, 3, 224, 224, dtype=torch.uint8)).shape  # doctest: +SKIP
    torch.Size([1, 256, 14, 14])
    """
    model = _create(name, pretrained, generator)
    config = model.pretrained_cfg
    example = torch.rand(1, *config["input_size"], generator=torch.Generator().manual_seed(0))
    watched = _watch(model, example)
    tail = watched.after(split, name)
    frozen, plastic = _Features(model, tail, watched.top), _Rest(model, tail, watched.top)
    _check(nn.Sequential(frozen, plastic), example, watched.embedding, f"{name} cannot be split after {split!r}")
    scaled = ImageInput(*([255 * value for value in config[key]] for key in ("mean", "std")))
    head = CosineHead(watched.embedding.shape[1], classes, generator=generator, scale=scale)
    return SplitNetwork(nn.Sequential(OrderedDict(input=scaled, features=frozen)), plastic, head)


def _create(name: str, pretrained: bool, generator: torch.Generator) -> Any:
    timm = _timm()
    if not timm.is_model(name):
        hint = nearest(name, timm.list_models())
        hint = hint if hint.startswith("did you mean") else "timm.list_models() has their names"  # not all of them
        raise GraspError(f"timm has no network {name!r}; {hint}")
    seed = fork(generator).initial_seed()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also move the generators of all devices
        try:
            return timm.create_model(name, pretrained=pretrained, num_classes=0).eval()
        except Exception as error:
            what = "find the published weights of" if pretrained else "make"
            raise GraspError(f"timm could not {what} {name!r}: {error}") from error


def _timm() -> ModuleType:
    try:
        return require("timm", "timm")
    except GraspError:
        raise
    except Exception as error:  # timm imports torchvision, which fails in its own ways beside another torch
        raise GraspError(f"timm is installed but cannot be imported: {error}; do torch and torchvision fit?") from error


class _Watched(NamedTuple):
    """What one pass through a network showed."""

    steps: list[str]
    """The modules that made the features, in the order in which they ran; containers are seen through."""
    first: int
    """The first step after which the network can be cut: from there on it is a plain chain of modules."""
    top: list[str]
    """Children of the network that ran between the features and the embedding."""
    embedding: Tensor
    """[1, d]"""

    def after(self, split: str, name: str) -> list[str]:
        """The steps that follow the block `split`, which is a step or a container of steps."""
        within = [index for index, step in enumerate(self.steps) if f"{step}.".startswith(f"{split}.")]
        if within and within[-1] >= self.first:
            return self.steps[within[-1] + 1 :]
        possible = self.steps[self.first :]
        containers = {step[:at] for step in possible for at, letter in enumerate(step) if letter == "."}
        problem = "what follows is no plain chain of modules" if within else "it has no such block"
        raise GraspError(
            f"{name} cannot be split after {split!r}: {problem}; {nearest(split, {*possible, *containers})}"
        )


class _Call(NamedTuple):
    name: str
    alone: bool  # called with one value and nothing else
    input: Any
    output: Any


def _watch(model: Any, example: Tensor) -> _Watched:
    """Run `model` once and note which modules ran, and since when each took just the output of the one before."""
    calls: list[_Call] = []
    hooks = [part.register_forward_hook(_note(name, calls), with_kwargs=True) for name, part in _parts(model)]
    try:
        with torch.no_grad():
            features = model.forward_features(example)
            count = len(calls)
            embedding = model.forward_head(features, pre_logits=True)
    finally:
        for hook in hooks:
            hook.remove()
    steps, top = calls[:count], {call.name.partition(".")[0]: None for call in calls[count:]}
    first, wanted = count, features
    while first and steps[first - 1].output is wanted and isinstance(wanted, Tensor):
        first -= 1
        if not steps[first].alone:
            break
        wanted = steps[first].input
    return _Watched([step.name for step in steps], first, list(top), embedding)


def _note(name: str, calls: list[_Call]) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        alone = len(args) == 1 and all(value is None for value in kwargs.values())
        calls.append(_Call(name, alone, args[0] if args else None, output))

    return hook


def _parts(model: nn.Module, prefix: str = "") -> Iterable[tuple[str, nn.Module]]:
    """The children of `model` with their names; of a container its children instead."""
    for name, child in model.named_children():
        if type(child) in (nn.Sequential, nn.ModuleList) and len(list(child.children())):
            yield from _parts(child, f"{prefix}{name}.")
        else:
            yield prefix + name, child


class _Features(nn.Module):
    """timm's own pass up to the cut: images [N, 3, H, W] -> latents. The chain after it is passed through."""

    def __init__(self, model: nn.Module, tail: list[str], top: list[str]) -> None:
        super().__init__()
        self.model = _without(model, lambda name: name in tail or name.partition(".")[0] in top)

    def forward(self, x: Tensor) -> Tensor:
        latents: Tensor = self.model.forward_features(x)
        return latents


class _Rest(nn.Module):
    """The chain after the cut and timm's pooling: latents -> embedding [N, d]. BatchNorm stays in eval mode."""

    def __init__(self, model: nn.Module, tail: list[str], top: list[str]) -> None:
        super().__init__()
        self.steps = tail
        self.model = _without(model, lambda name: name not in tail and name.partition(".")[0] not in top)
        for name, _ in list(self.model.named_parameters(recurse=False)):
            setattr(self.model, name, None)  # class tokens, positions: they enter before the chain
        for part in self.modules():
            if getattr(part, "inplace", False):
                part.inplace = False  # type: ignore[assignment]  # the first one would overwrite the latents

    def train(self, mode: bool = True) -> _Rest:
        super().train(mode)
        for part in self.modules():
            if isinstance(part, _BatchNorm):
                part.eval()
        return self

    def forward(self, latents: Tensor) -> Tensor:
        for step in self.steps:
            latents = self.model.get_submodule(step)(latents)
        embedding: Tensor = self.model.forward_head(latents, pre_logits=True)
        return embedding


class _Through(nn.Module):
    """Stands for a module that was taken out."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x


def _without(model: nn.Module, taken: Callable[[str], bool]) -> Any:
    """A copy of `model` in which the parts whose names are `taken` pass their input through."""
    # What stands in the memo counts as copied already.
    return copy.deepcopy(model, {id(part): _Through() for name, part in _parts(model) if taken(name)})


def _check(split: nn.Module, example: Tensor, expected: Tensor, problem: str) -> None:
    """The two parts must compute what the whole network does; reading its modules cannot show everything."""
    try:
        with torch.no_grad():
            embedding = split(example)
    except Exception as error:
        raise GraspError(f"{problem}: its parts do not run by themselves ({error})") from error
    if embedding.ndim != 2 or not torch.allclose(embedding, expected, rtol=1e-4, atol=1e-5):
        raise GraspError(f"{problem}: its parts do not compute what the whole does")
