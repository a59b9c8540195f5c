"""The bars of the project are met; slow, since each measures for a while, and wants a quiet machine."""

import json
from contextlib import contextmanager
from itertools import islice

import pytest
import torch

from graspcl.bench import BENCHES, network, run_benches
from graspcl.bench.bars import Bar
from graspcl.bench.network import Rate
from graspcl.errors import GraspError, MissingExtra


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_bars_are_met(name, capsys):
    met = run_benches(name)
    assert met, capsys.readouterr().out


def test_a_bar_can_be_missed():
    assert Bar("b", "w", 4.9, bar=5).ok is False and Bar("b", "w", 5.1, bar=5, at_least=False).ok is False
    assert "MISSED" in Bar("b", "w", 4.9, bar=5).line()
    assert Bar("b", "w", 1.0).ok


STAGES = [
    "read and decode JPEG",
    "frozen forward",
    "OPQ encode",
    "OPQ decode",
    "plastic forward",
    "training step",
    "wake update",
]


@contextmanager
def one_thread():
    """Two on a busy machine spend most of their time waiting for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow
def test_every_stage_is_measured_under_every_execution(capsys):
    with one_thread():
        assert run_benches("network", as_json=True, pixels=32, images=4, rounds=1)
    rates = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert list(dict.fromkeys(rate["what"] for rate in rates)) == STAGES
    for stage in ("frozen forward", "plastic forward", "training step", "wake update"):
        found = {rate["execution"]: rate for rate in rates if rate["what"] == stage}
        assert list(found) == ["fp32", "fp32 contiguous", "bf16", "fp16"]
        assert found["fp32"]["ratio"] == 1
        for rate in found.values():
            if rate["value"] is None:
                assert rate["detail"].startswith("refused: ")
            else:
                assert rate["ratio"] == pytest.approx(rate["value"] / found["fp32"]["value"])


@pytest.mark.slow
def test_without_photos_images_are_random_and_reading_is_refused(monkeypatch):
    def missing(pixels):
        raise MissingExtra("no photos here")

    monkeypatch.setattr(network, "Groceries", missing)
    with one_thread():
        reading, forward = islice(network.run(pixels=32, images=4, rounds=1), 2)
    assert reading.value is None and reading.detail == "refused: random images (no photos here)"
    assert forward.value > 0 and "random images" in forward.detail


def test_the_table_shows_rates_ratios_and_reasons(capsys):
    network.show(
        [
            Rate("network", "training step", "fp32", 72.0, 1.0, 0.5, "64 px"),
            Rate("network", "training step", "bf16", 36.0, 0.5, 0.5, "64 px"),
            Rate("network", "training step", "fp16", detail="refused: no graspcl[demo]"),
            Rate("network", "training step", "fp32 compiled", 80.0, 1.11, 321.0, "64 px"),
        ]
    )
    out = capsys.readouterr().out
    assert out.endswith("\n") and out.count("training step") == 1
    lines = out.splitlines()
    (row,) = (line.split() for line in lines if "training step" in line)
    assert row[2:] == ["72.0", "(1.00)", "36.0", "(0.50)", "refused", "80.0", "(1.11)"]
    assert any("fp16: refused: no graspcl[demo]" in line for line in lines)
    assert any("fp32 compiled: 321 s" in line for line in lines)


def test_a_stopped_measurement_shows_what_it_has(capsys):
    def rates():
        yield Rate("network", "training step", "fp32", 72.0, 1.0)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        network.show(rates())
    assert "72.0" in capsys.readouterr().out


def test_options_of_one_bench_are_refused_by_the_others():
    with pytest.raises(GraspError, match=r"--pixels: only `graspcl bench network`"):
        run_benches("decode", pixels=64)
