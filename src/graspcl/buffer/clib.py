"""CLIB: keep the samples that training on helped most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from graspcl.buffer.byclass import ByClass
from graspcl.buffer.maintenance import rules

if TYPE_CHECKING:
    from graspcl.buffer.buffer import Buffer

Array = np.ndarray[Any, Any]


@rules.register("clib")
@dataclass
class Clib(ByClass):
    """CLIB (Koh et al. 2022): of the largest class, newcomers counted, the samples of smallest importance go.

    The learner writes importances (how much training on a sample lowers the loss) to buffer["importance"]; the current
    ones count. A newcomer starts with the mean of its class, the first of a class with the mean of all, the first of
    all with 0. Ties are broken uniformly, so that without a learner that writes them this is `largest_class` with the
    newcomer at risk.
    """

    columns: ClassVar[frozenset[str]] = frozenset({"importance"})
    fills: ClassVar[frozenset[str]] = frozenset({"importance"})

    def arriving(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> None:
        stored = buffer["importance"]
        first = np.zeros_like(buffer.incoming["importance"])
        for label in np.unique(labels).tolist():
            peers = stored[buffer.slots_of(label)]
            first[labels == label] = (peers if len(peers) else stored).mean() if len(stored) else 0
        buffer.incoming["importance"] = first

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        shuffled = rng.permutation(len(values))
        return shuffled[np.argsort(values[shuffled], kind="stable")[:number]]
