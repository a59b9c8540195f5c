"""The bars of the project are met; slow, since each measures for a while, and wants a quiet machine."""

import pytest

from graspcl.bench import BENCHES, run_benches
from graspcl.bench.figure import Figure


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_bars_are_met(name, capsys):
    met = run_benches(name)
    assert met, capsys.readouterr().out


def test_a_bar_can_be_missed():
    assert Figure("b", "w", 4.9, bar=5).ok is False and Figure("b", "w", 5.1, bar=5, at_least=False).ok is False
    assert "MISSED" in Figure("b", "w", 4.9, bar=5).line()
    assert Figure("b", "w", 1.0).ok
