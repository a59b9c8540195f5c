"""Networks as a session uses them: run in eval mode without a trace, or made of two functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

Network = Callable[[torch.Tensor], Any]


@contextlib.contextmanager
def evaluating(network: Any) -> Iterator[None]:
    """Put a module, or the module that owns a method, into eval mode; restore the mode of every submodule."""
    owner = getattr(network, "__self__", network)
    modes = {part: part.training for part in owner.modules()} if isinstance(owner, torch.nn.Module) else {}
    try:
        for module in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


class Joined(torch.nn.Module):
    """A model and an embedding function as one network with `.embedding` and `.logits`."""

    def __init__(self, model: Network, embed: Network | None) -> None:
        super().__init__()
        owner = getattr(model, "__self__", model)
        self.owner = owner if isinstance(owner, torch.nn.Module) else None
        # A tuple hides them from the module: `embed` may share layers, and functional_call must find each one once.
        self.functions: tuple[Any, Any] = model, embed

    @property
    def head(self) -> Any:
        return getattr(self.owner, "head", None)

    def forward(self, inputs: torch.Tensor) -> Any:
        model, embed = self.functions
        outputs = model(inputs)
        if embed is None and not isinstance(outputs, torch.Tensor):
            return outputs
        logits: torch.Tensor = getattr(outputs, "logits", outputs)
        if embed is None:
            return SimpleNamespace(embedding=logits.new_empty(len(logits), 0), logits=logits)
        with evaluating(embed):
            embedded = embed(inputs)
        return SimpleNamespace(embedding=getattr(embedded, "embedding", embedded), logits=logits)
