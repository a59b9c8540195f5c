"""Settings made to fit smaller data."""

from __future__ import annotations

from dataclasses import replace

from graspcl.errors import GraspError
from graspcl.experiment.source import check_data, open_data
from graspcl.settings.config import Config


def fitted(config: Config) -> Config:
    """These settings with no more classes than the data have; base and sessions keep their shares of them."""
    check_data(config)
    whole = replace(config, data=replace(config.data, classes=None, per_class=None, test_per_class=None))
    samples, order = open_data(whole)
    found, wanted = len(order), config.data.classes
    if found < 2:
        raise GraspError(f"{samples.name} has one class: there is nothing to tell apart")
    if wanted is None or found >= wanted:
        return config
    base = max(1, found * config.stream.base_classes // wanted)
    stream = replace(config.stream, base_classes=base, sessions=min(config.stream.sessions, found - base))
    return replace(config, data=replace(config.data, classes=found), stream=stream)
