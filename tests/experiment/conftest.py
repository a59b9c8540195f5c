"""A setup small enough for a comparison to take seconds."""

from dataclasses import replace

import numpy as np
import pytest

from graspcl.experiment import setups
from graspcl.experiment.config import StreamConfig
from graspcl.experiment.setups import Latents, Setup


@pytest.fixture
def small(monkeypatch) -> Setup:
    """The listings setup on 12 made-up classes, so that a comparison takes a second."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 60)
    values = (rng.normal(size=(12, 256))[labels] + 2.5 * rng.normal(size=(720, 256))).astype(np.float32)
    train, test = np.flatnonzero(np.arange(720) % 3 > 0), np.flatnonzero(np.arange(720) % 3 == 0)
    latents = Latents(values, labels, train, test, [str(k) for k in range(12)])
    listings = setups["listings"]
    config = replace(listings.defaults, setup="small", stream=StreamConfig(base_classes=4, sessions=4))
    made = replace(listings, name="small", defaults=config, load=lambda progress: latents)
    monkeypatch.setitem(setups, "small", made)
    return made
