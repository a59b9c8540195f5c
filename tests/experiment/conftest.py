"""Fixtures of runs on made-up data, and one process that serves all resume tests."""

import pytest
from killing import Driver
from made_up import Clusters, Notes, clusters_in, settings_of_clusters

from graspcl.data import data_sources
from graspcl.experiment import run
from graspcl.settings import Config, change


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def add_source(monkeypatch):
    """Registers data for one test: `add_source(name, make, gives)`."""
    data_sources.names()
    for table in ("_parts", "_declared"):
        monkeypatch.setattr(data_sources, table, dict(getattr(data_sources, table)))

    def add(name, make, gives="vectors"):
        data_sources._parts.pop(name, None)
        data_sources.register(name, gives=gives)(make)

    return add


@pytest.fixture
def small(monkeypatch, tmp_path, add_source) -> Config:
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    add_source("clusters", lambda: Clusters())
    return settings_of_clusters()


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """Starts commands in forks of a process that has loaded everything."""
    driver = Driver(tmp_path_factory.mktemp("home"))
    yield driver
    driver.close()


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The settings and the folder of a finished run on made-up classes, to be read only."""
    place = tmp_path_factory.mktemp("finished")
    with clusters_in(place) as small:
        config = change(small, {"budget.updates": 3, "codec": "half"})
        run(config, place / "run")
    return config, place / "run"
