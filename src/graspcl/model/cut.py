"""Cut a network in two: everything up to a named block, and the chain of modules that follows it.

Where a network can be cut is found by recording one forward pass. Reading its code would not show everything, so both
parts together are checked against the whole.
"""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from graspcl.errors import GraspError, nearest
from graspcl.model.layers import GlobalAveragePool, ImageInput


def cut_after(
    model: nn.Module, after: str, example: Tensor | None = None, input: nn.Module | None = None
) -> tuple[nn.Module, nn.Module, int]:
    """Return the frozen part, the plastic part and the width of the embedding; see `SplitNetwork.cut`."""
    name, model = type(model).__name__, copy.deepcopy(model).eval()
    example = _example(model) if example is None else example
    if input is None:
        input = ImageInput() if example.ndim == 4 and example.shape[1] == 3 else nn.Identity()
    with recording(model) as steps:
        try:
            embedding = model(example)
        except Exception as error:
            raise GraspError(
                f"an example of shape {list(example.shape)} does not pass through {name}: {error}; pass example="
            ) from error
    if steps and steps[-1].output is embedding and isinstance(model.get_submodule(steps[-1].name), nn.Linear):
        embedding = steps.pop().input  # of the classifier, which the head replaces
    last, tail = chain_after(after, steps, embedding, name)
    frozen, plastic = _Until(model, last, steps), ChainAfter(model, tail)
    check_parts(nn.Sequential(frozen, plastic), example, embedding, f"{name} cannot be cut after {after!r}")
    return nn.Sequential(OrderedDict(input=input, features=frozen)), plastic, embedding.shape[1]


def _example(model: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    for part in model.modules():
        if isinstance(part, nn.Conv2d):
            return torch.rand(2, part.in_channels, 64, 64, generator=generator)
        if isinstance(part, nn.Linear):
            return torch.rand(2, part.in_features, generator=generator)
    raise GraspError(f"the first layer of {type(model).__name__} does not show what it takes; pass example=")


class Step(NamedTuple):
    """One call of a module during a forward pass."""

    name: str
    single: bool  # called with one value and nothing else
    input: Any
    output: Any


@contextlib.contextmanager
def recording(model: nn.Module) -> Iterator[list[Step]]:
    """Record the calls of the model's blocks, without gradients. A container counts as its children."""
    steps: list[Step] = []

    def record(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            single = len(args) == 1 and all(value is None for value in kwargs.values())
            steps.append(Step(name, single, args[0] if args else None, output))

        return hook

    hooks = [block.register_forward_hook(record(name), with_kwargs=True) for name, block in _blocks(model)]
    try:
        with torch.no_grad():
            yield steps
    finally:
        for hook in hooks:
            hook.remove()


def _blocks(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    for name, child in model.named_children():
        if type(child) in (nn.Sequential, nn.ModuleList) and len(list(child.children())):
            yield from _blocks(child, f"{prefix}{name}.")
        else:
            yield prefix + name, child


def chain_after(after: str, steps: list[Step], result: Any, model: str) -> tuple[str, list[tuple[str, nn.Module]]]:
    """Return the last step of the block `after`, and the plain chain from there to the `result` of all steps.

    The chain consists of names of steps, each with the joint that follows it, mostly nothing. The first name is empty:
    its joint directly follows the block. `model` is the network's name in errors.
    """
    names, first, joints = [step.name for step in steps], len(steps), list[nn.Module]()
    # Go backwards, as long as each step takes just the previous one's output.
    while first and (joint := _joint(steps[first - 1].output, result)) is not None:
        first -= 1
        joints.insert(0, joint)
        if not steps[first].single:
            break
        result = steps[first].input
    within = [index for index, name in enumerate(names) if f"{name}.".startswith(f"{after}.")]
    if within and within[-1] >= first:
        last = within[-1]
        return names[last], list(zip(["", *names[last + 1 :]], joints[last - first :], strict=True))
    containers = {name[:at] for name in names[first:] for at, letter in enumerate(name) if letter == "."}
    problem = "what follows is not a plain chain of modules" if within else "there is no such block"
    hint = nearest(after, {*names[first:], *containers})
    raise GraspError(f"{model} cannot be cut after {after!r}: {problem}; {hint}")


def _joint(output: Any, wanted: Any) -> nn.Module | None:
    """Return what turns a step's output into the next one's input, or None if that is unknown."""
    if not isinstance(output, Tensor) or not isinstance(wanted, Tensor):
        return None
    if output is wanted:
        return nn.Identity()
    if output.ndim > 2 and wanted.ndim == 2:
        if wanted.numel() == output.numel() and torch.equal(output.flatten(1), wanted):
            return nn.Flatten()
        if output.ndim == 4 and wanted.shape == output.shape[:2] and torch.allclose(output.mean((2, 3)), wanted):
            return GlobalAveragePool()
    return None


class _Reached(Exception):
    """The forward pass has reached the cut."""


def _stop(module: nn.Module, args: Any, output: Tensor) -> None:
    raise _Reached(output)


class _Until(nn.Module):
    """The model's own forward pass up to and including the step `last`."""

    def __init__(self, model: nn.Module, last: str, steps: list[Step]) -> None:
        super().__init__()
        names = [step.name for step in steps]
        kept = set(names[: names.index(last) + 1])
        self.model = without(model, lambda name: name not in kept)
        self.model.get_submodule(last).register_forward_hook(_stop)

    def forward(self, x: Tensor) -> Tensor:
        try:
            self.model(x)
        except _Reached as reached:
            latents: Tensor = reached.args[0]
            return latents
        raise GraspError("the network no longer reaches the block after which it was cut")


class ChainAfter(nn.Module):
    """The chain of modules after a cut: latents -> embedding [N, d]. BatchNorm stays in eval mode.

    `top` names children of the model that are kept for a subclass.
    """

    def __init__(self, model: nn.Module, tail: list[tuple[str, nn.Module]], top: list[str] | None = None) -> None:
        super().__init__()
        self.chain = tail  # a list: joints have no parameters, and steps are those of the model
        kept = {name for name, _ in tail}
        self.model = without(model, lambda name: name not in kept and name.partition(".")[0] not in (top or []))
        for name, _ in list(self.model.named_parameters(recurse=False)):
            setattr(self.model, name, None)  # class tokens and positions enter before the chain
        for part in self.modules():
            if getattr(part, "inplace", False):
                part.inplace = False  # type: ignore[assignment]  # the first one would overwrite the latents

    def train(self, mode: bool = True) -> ChainAfter:
        super().train(mode)
        for part in self.modules():
            if isinstance(part, _BatchNorm):
                part.eval()
        return self

    def forward(self, latents: Tensor) -> Tensor:
        for step, joint in self.chain:
            latents = joint(self.model.get_submodule(step)(latents) if step else latents)
        return latents


class _PassThrough(nn.Module):
    """Replaces a module that was removed."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return x


def without(model: nn.Module, removed: Callable[[str], bool]) -> Any:
    """Return a copy of `model` in which the blocks that are `removed` pass their input through."""
    # What is in the memo counts as copied already.
    return copy.deepcopy(model, {id(block): _PassThrough() for name, block in _blocks(model) if removed(name)})


def check_parts(parts: nn.Module, example: Tensor, expected: Tensor, problem: str) -> None:
    """Check that the two parts compute the same as the whole network."""
    try:
        with torch.no_grad():
            embedding = parts(example)
    except Exception as error:
        raise GraspError(f"{problem}: its parts do not run by themselves ({error})") from error
    if embedding.ndim != 2 or not torch.allclose(embedding, expected, rtol=1e-4, atol=1e-5):
        raise GraspError(f"{problem}: its parts do not compute the same as the whole")
