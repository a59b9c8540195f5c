"""Made-up data small enough for a run to take a second."""

import numpy as np
import pytest
import torch

from graspcl.data import Samples
from graspcl.experiment import Config, change, preset
from graspcl.experiment.source import SOURCES
from graspcl.experiment.start import forget


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


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test takes what another one left, but for the real data's latents, which are the same for all."""
    forget()


@pytest.fixture
def small(monkeypatch, tmp_path) -> Config:
    """The listings preset on made-up classes, so that a comparison takes a second."""
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(SOURCES, "clusters", lambda data: Clusters())
    options = {"name": "small", "data.path": "clusters", "stream.base_classes": 4, "stream.sessions": 4}
    return change(preset("listings"), options)
