import pytest
from worlds import Worlds


@pytest.fixture(scope="session")
def worlds(tmp_path_factory):
    made = Worlds(tmp_path_factory.mktemp("worlds"))
    yield made
    made.close()
