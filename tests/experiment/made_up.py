"""Made-up data small enough for a run to take a second, and a progress that remembers."""

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
import torch

from graspcl.data import Samples, data_sources
from graspcl.progress import Silent
from graspcl.settings import Config, change, preset


class Clusters(Samples[torch.Tensor]):
    """12 classes of 60 vectors around their means."""

    def __init__(self, classes: int = 12, dim: int = 256) -> None:
        rng = np.random.default_rng(0)
        labels = np.repeat(np.arange(classes), 60)
        number = len(labels)
        self.values = (rng.normal(size=(classes, dim))[labels] + 2.5 * rng.normal(size=(number, dim))).astype(
            np.float32
        )
        train, test = np.flatnonzero(np.arange(number) % 3 > 0), np.flatnonzero(np.arange(number) % 3 == 0)
        super().__init__(
            "clusters", "1", [f"class {k}" for k in range(classes)], labels, np.arange(number), train, test
        )

    def read(self, indices):
        return torch.from_numpy(self.values[self.check(indices)])


class Notes(Silent):
    """Remembers the notes and tasks of a run."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)

    def task(self, title: str, total: int) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        self.said.append(f"{title}: {total} to do")
        return super().task(title, total)

    def __contains__(self, text: str) -> bool:
        return any(text in said for said in self.said)


def settings_of_clusters() -> Config:
    """Siesta with a small network on made-up classes, so that a run takes a second."""
    options = {
        "name": "small", "data.path": "clusters", "stream.base_classes": 4, "stream.sessions": 4, "learner": "siesta",
        "network": "vector(dim=256, hidden=256, scale=10.0)", "base.passes": 6.0, "buffer": "8MB", "optimiser": "sgd",
        "optimiser.lr": 1.6, "optimiser.weight_decay": 1e-5, "optimiser.layer_decay": 0.99,
        "optimiser.schedule": "onecycle",
    }  # fmt: skip
    return change(preset("listings"), options)


@contextlib.contextmanager
def clusters_in(place):
    """Register the made-up classes, with a cache in `place`, for fixtures that outlive a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRASPCL_CACHE", str(place / "cache"))
        data_sources.names()
        patch.setitem(data_sources._parts, "clusters", lambda: Clusters())
        patch.setitem(data_sources._declared, "clusters", {"gives": "vectors"})
        yield settings_of_clusters()
