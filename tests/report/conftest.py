"""What tests of reports share: one browser, and runs that are made once."""

import pytest
from browser import browser, why_not
from making import make_sweep

from graspcl.report import gather


@pytest.fixture(scope="session")
def chromium():
    """One tab per test process."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with browser() as tab:
        yield tab


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    """A comparison that fills every figure; read-only."""
    return make_sweep(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="session")
def swept(sweep):
    """The only experiment of `sweep`."""
    (experiment,) = gather([sweep]).experiments
    return experiment
