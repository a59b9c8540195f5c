"""What tests of reports share: one browser, and runs that are made once."""

import pytest
from browser import browser, why_not
from making import make_sweep

from graspcl.report import gather


@pytest.fixture(scope="session")
def tab():
    """One tab per test process."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    with browser() as page:
        yield page


@pytest.fixture
def chromium(tab):
    """The tab, empty: the page of the test before may be gone, or be printing."""
    tab.driver.get("about:blank")
    return tab


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    """A comparison that fills every figure; read-only."""
    return make_sweep(tmp_path_factory.mktemp("sweep"))


@pytest.fixture(scope="session")
def swept(sweep):
    """The only experiment of `sweep`."""
    (experiment,) = gather([sweep]).experiments
    return experiment
