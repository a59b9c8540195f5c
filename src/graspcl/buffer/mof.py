"""Mean of features: keep the samples nearest to a running class mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from graspcl.buffer.byclass import ByClass
from graspcl.buffer.maintenance import rules
from graspcl.errors import GraspError

if TYPE_CHECKING:
    from graspcl.buffer.buffer import Buffer

Array = np.ndarray[Any, Any]


@rules.register("mof")
@dataclass
class MoF(ByClass):
    """Mean of features (Chaudhry et al. 2019): the largest class keeps the samples nearest to its running mean.

    μ ← decay·μ + (1 - decay)·z for every sample of the class that comes, kept or not, from μ = z of the first; a batch
    moves it before the batch is placed. A newcomer of the largest class (itself counted) takes the place of the class's
    farthest sample (Euclidean) if it is nearer, and else is not kept; a newcomer of another class takes the place of
    the largest class's farthest sample. The paper gives no decay: 0.9 is this library's choice.
    """

    decay: float = 0.9
    columns: ClassVar[frozenset[str]] = frozenset({"embedding"})
    _means: dict[int, Array] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise GraspError(f"MoF needs a decay from 0 up to, but not, 1, not {self.decay}")

    def arriving(self, buffer: Buffer, labels: Array, rng: np.random.Generator) -> None:
        for label, z in zip(labels.tolist(), buffer.incoming["embedding"].astype(np.float64), strict=True):
            mean = self._means.get(label, z)
            self._means[label] = self.decay * mean + (1 - self.decay) * z

    def victims(self, label: int, values: Array, number: int, rng: np.random.Generator) -> Array:
        mean = self._means.get(label, values.mean(0))  # none yet for a class stored under another rule
        distance = ((values - mean) ** 2).sum(1)
        return np.argsort(distance, kind="stable")[-number:]  # newcomers stand last: of equals they go

    def state_dict(self) -> dict[str, Any]:
        return {"labels": np.array(list(self._means), np.int64), "means": np.array(list(self._means.values()))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._means = dict(zip(np.array(state["labels"]).tolist(), np.array(state["means"]), strict=True))
