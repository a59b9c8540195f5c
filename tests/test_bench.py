"""How speed is measured, exactly; every bench at a tiny scale; and, slow, whether the bars are met."""

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from graspcl.bench import BENCHES, bars, full, network, ranks, run_benches, scale, size, timing
from graspcl.bench.network import Rate
from graspcl.bench.timing import HEADER, Bar, interleave, one_thread
from graspcl.errors import GraspError, MissingExtra
from graspcl.policy.drawing import group_by_class
from graspcl.policy.grasp import grasp_draws, race_keys


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHES)
def test_bars_are_met(name, capsys):
    met = run_benches(name)
    assert met, capsys.readouterr().out


# -- how speed is measured --------------------------------------------------------------------------------------------


def test_a_bar_shows_the_median_and_the_spread_of_all_rounds():
    found = Bar.of("b", "w", [5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found.low, found.value, found.high) == pytest.approx((1.2, 3.0, 4.8))
    assert (Bar.of("b", "w", [1.5]).low, Bar.of("b", "w", [1.5]).high) == (1.5, 1.5)


@pytest.mark.parametrize(
    ("rounds", "bar", "at_least", "ok"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], 3.0, False, True),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 2.9, False, False),  # some rounds reach the bar, the median does not
        ([1.0, 2.0, 3.0, 4.0, 5.0], 3.0, True, True),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 3.1, True, False),
        ([1.0, 2.0, 3.0, 4.0, 5.0], None, False, True),
    ],
)
def test_a_bar_is_met_by_the_median(rounds, bar, at_least, ok):
    found = Bar.of("b", "w", rounds, bar, at_least)
    assert found.ok is ok
    assert ("MISSED" in found.line()) is not ok and ("met" in found.line()) is (ok and bar is not None)


def test_the_table_is_markdown():
    header, rule = HEADER.splitlines()
    row = Bar.of("insert", "insert / copy", [1.0, 2.0, 300.0], bar=4).line()
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        "insert", "insert / copy", "2.00", "1.10 – 270", "≤ 4", "met",
    ]  # fmt: skip
    assert header.count("|") == rule.count("|") == row.count("|")


def test_calls_take_turns_and_the_first_round_does_not_count(monkeypatch):
    clock, made = [0.0], []
    monkeypatch.setattr(timing.time, "process_time", lambda: clock[0])

    def call(name, seconds):
        made.append(name)
        clock[0] += seconds * (1 + 9 * (len(made) <= 2)) * len(made)  # load that changes; the first calls are slow

    times = interleave(lambda: call("a", 1.0), lambda: call("b", 2.0), rounds=3)
    assert made == ["a", "b"] * 4
    assert times.tolist() == [[3.0, 5.0, 7.0], [8.0, 12.0, 16.0]]


TINY = {
    "selection": {"classes": 4, "per_class": 20, "budget": 40, "timed": 8},
    "insert": {"capacity": 200, "insertions": 60, "batch": 20},
    "decode": {"batch": 4, "side": 8, "channels": 16},
    "session": {"updates": 4, "stored": 40},
    "filters": {"channels": 8, "batch": 2},
    "heads": {"stored": 40, "classes": 4},
    "state": {"small": 16, "large": 2048},
    "policies": {"stored": 512, "few": 32},
}


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_measures_at_any_scale(name):
    if name == "decode":
        pytest.importorskip("faiss")
    with one_thread():
        found = getattr(bars, BENCHES[name])(**TINY[name], rounds=2)
        found = list(islice(found, 2) if name == "session" else found)  # MobileNetV3-Large comes last and is slow
    assert all(bar.bench == name and np.isfinite(bar.value) and bar.low <= bar.value <= bar.high for bar in found)
    assert any(bar.bar is not None for bar in found) and len({bar.what for bar in found}) == len(found)


def test_selection_from_shards_is_that_of_one_process(monkeypatch, tmp_path):
    monkeypatch.setattr("graspcl.distributed.race._CHUNK", 7)
    monkeypatch.setattr(scale, "_KEYS", race_keys(np.random.default_rng(0)))
    shards = [scale._shard(tmp_path, 601, 4, one) for one in range(2)]
    births, _, d, k = (np.concatenate([shard[part] for shard in shards]) for part in range(4))
    expected = grasp_draws(d, group_by_class(k), 6, np.random.default_rng(0), 1e-7, births)
    assert scale.select(shards, 4, 601).tolist() == births[expected].tolist()


def test_selection_from_many_samples_is_measured_at_few():
    found = list(scale.run(samples=400, small=200, classes=5))
    assert all(np.isfinite(bar.value) for bar in found) and len({bar.what for bar in found}) == len(found)


@pytest.mark.parametrize("capacity", ["1MB", None])
def test_the_parts_of_a_full_rehearsal_are_measured_at_few_samples(capacity, tmp_path):
    sizes = full.Sizes(capacity, samples=900, classes=6, sessions=2, updates=2)
    learned = full.learn(full.make_learner(capacity), tmp_path, sizes)
    resumed = full.resume(full.make_learner(capacity), tmp_path, sizes)
    assert len(resumed.content) == 32 and resumed.stored == learned.stored > 0
    found = list(full.bars("few", learned, resumed))
    assert all(np.isfinite(bar.value) for bar in found) and len({bar.what for bar in found}) == len(found)
    for part in ("inserting", "selecting and training", "checkpoints", "resuming", "a report"):
        assert {f"few: seconds of {part}", f"few: MB at the peak of {part}, beside the buffer"} < {
            b.what for b in found
        }
    resumed.content = "other"
    with pytest.raises(GraspError, match="the resumed buffer differs"):
        list(full.bars("few", learned, resumed))


@pytest.mark.slow
def test_a_full_rehearsal_is_killed_and_resumed():
    found = list(full.run(samples=900, classes=6, sessions=2, updates=2))
    assert all(np.isfinite(bar.value) for bar in found) and len({bar.what for bar in found}) == len(found)


@pytest.mark.slow
def test_peak_memory_is_that_of_the_process_alone():
    """A process that is started by a large one must not count the memory of its parent."""
    held = np.ones(50_000_000)
    program = "from graspcl.bench.scale import peak_bytes; print(peak_bytes(reset=True))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    if Path("/proc/self/status").exists():
        assert int(found.stdout) < held.nbytes


def test_peak_memory_is_counted_from_the_reset():
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system cannot reset the peak")
    code = """
import numpy as np
from graspcl.bench.scale import peak_bytes
np.ones(20_000_000)
before = peak_bytes(reset=True)
np.ones(10_000_000)
print(peak_bytes() - before)
"""
    # In a process of its own: this one may have free memory of earlier tests to reuse.
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert int(found) == pytest.approx(80e6, rel=0.1)


@pytest.mark.slow
def test_a_session_on_two_ranks_sends_what_the_formula_says():
    sizes = ranks.Sizes(2000, classes=10, updates=5, batch=32, width=64, hidden=128, embedding=32)
    found = {bar.what: bar for bar in ranks.run(sizes)}
    assert all(bar.ok and np.isfinite(bar.value) for bar in found.values())
    assert found["bytes sent by a rank / bytes by formula"].value == pytest.approx(1, abs=0.02)
    assert 0 < found["share of a session on 2 ranks spent sending and waiting"].value < 1


def test_results_are_rows_or_json_and_a_missed_bar_is_told(monkeypatch, capsys):
    monkeypatch.setattr(bars, "decode", lambda: iter([Bar.of("decode", "w", [2.0], 1), Bar.of("decode", "v", [2.0])]))
    assert not run_benches("decode")
    assert [line.count("|") for line in capsys.readouterr().out.splitlines()] == [7] * 4
    assert not run_benches("decode", as_json=True)
    missed, shown = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (missed["value"], missed["bar"], missed["ok"], shown["ok"]) == (2.0, 1, False, True)


# -- the stages of a network ------------------------------------------------------------------------------------------


STAGES = [
    "read and decode JPEG",
    "frozen forward",
    "OPQ encode",
    "OPQ decode",
    "plastic forward",
    "training step",
    "wake update",
]


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


def test_a_workspace_is_measured_at_few_photos(monkeypatch):
    pytest.importorskip("PIL")
    monkeypatch.setattr(size, "_PREDICTED", 4)
    monkeypatch.setattr(size, "_STARTS", 1)
    found = {bar.what: bar for bar in size.run(samples=24, classes=2)}
    assert all(np.isfinite(bar.value) for bar in found.values())
    assert found["MB on disk after 24 photos"].ok and found["MB of memory at the peak of graspcl learn"].value > 100
    assert [bar.bar for bar in found.values()] == [None, 1500, None, 1500, 250, 3, 0.9]


def test_a_command_that_fails_is_told(tmp_path):
    with pytest.raises(GraspError, match=r"(?s)graspcl new shop photos failed: .*photos"):
        size._spent(["new", "shop", "photos"], tmp_path)
