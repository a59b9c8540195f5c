"""GDumb's greedy balancing sampler."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from graspcl.buffer.maintenance import Maintenance, rules

if TYPE_CHECKING:
    from graspcl.buffer.buffer import Buffer

Array = np.ndarray[Any, Any]


@rules.register("gdumb")
@dataclass
class GDumb(Maintenance):
    """GDumb's sampler (Prabhu et al. 2020): a class takes slots from the largest while it has less than its share.

    The share is k_c = capacity / classes seen, newcomer's class included. In a full buffer a newcomer is kept only if
    its class has less than k_c samples; a random sample of the largest class then makes room (ties uniformly). While
    there are free slots every sample is kept; the paper's listing tests the share even then. One by one, exactly.
    """

    _seen: set[int] = field(default_factory=set, init=False, repr=False)

    def replace(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> Array:
        self._seen.update(buffer.classes.tolist())  # classes vanish from a buffer only here and in shrink
        slots = np.full(len(labels), -1, np.int64)
        for i, label in enumerate(labels.tolist()):
            self._seen.add(label)
            if len(buffer.slots_of(label)) * len(self._seen) < len(buffer):
                slots[i] = buffer.index.replace_largest(labels[i : i + 1], rng)[0]
        return slots

    def shrink(self, buffer: Buffer, excess: int, rng: np.random.Generator) -> Array:
        self._seen.update(buffer.classes.tolist())
        return buffer.index.remove_largest(excess, rng)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": np.array(sorted(self._seen), np.int64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seen = set(np.array(state["seen"]).tolist())
