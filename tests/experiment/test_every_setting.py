"""Every setting arrives: a run with another value ends differently, or a reason says why it does not."""

import json
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from killing import make_photos, timeless, unequal
from made_up import Clusters

from graspcl.codec import Identity
from graspcl.data import data_sources
from graspcl.experiment import encoding, prepare, pretraining, run, runner
from graspcl.experiment.prepare import PreparedCache, arrange, build_network, make_learner, open_data
from graspcl.model import CosineHead, Execution, SplitNetwork, build, networks, vector_network
from graspcl.pretrain import save_weights
from graspcl.progress import Silent
from graspcl.settings import from_plain, presets
from graspcl.settings.read import all_settings, flatten, merge
from graspcl.state import load_state
from graspcl.stream import save_stream

VECTORS = {
    "data.path": "mine", "network.name": "vector", "network.dim": 8, "network.hidden": 16, "network.embedding": 8,
    "network.dropout": 0.1, "codec.name": "half", "stream.base_classes": 2, "base.passes": 0.2, "buffer.capacity": 60,
    "budget.updates": 3, "budget.batch_size": 8, "execution.device": "cpu", "checkpoint.seconds": 1e6,
    "learner.name": "siesta", "optimiser.name": "sgd", "optimiser.lr": 0.5,
}  # fmt: skip
PHOTOS = {
    **VECTORS, "data.path": "PHOTOS", "data.pixels": 16, "network.name": "small", "base.passes": 0.0,
    "base.stages": [{"name": "supervised", "epochs": 1, "batch_size": 8}],
}  # fmt: skip
for name in ("dim", "hidden"):
    del PHOTOS[f"network.{name}"]

LONG_TAIL = {"stream.kind": "long_tailed", "stream.base_classes": 0, "stream.imbalance": 2.0, "base.passes": 0.0}
PASSES = {"budget.updates": None, "budget.passes": 0.3}
PATIENCE = {"stop.patience": 1, "stop.every": 1, "stop.share": 0.3}
BASE = {"base.optimiser.name": "sgd", "base.optimiser.lr": 0.5}
OF_PRESET = [{"name": "weights", "preset": "photos", "seen": "report"}]
OPQ = {"codec.name": "opq", "codec.codebooks": 2, "codec.size": 8, "codec.iterations": 1}

# Another value of each setting, and what else must be set for it to matter. A setting that is used twice must matter
# in both places: the sessions' optimiser is changed where the base has one of its own.
CHANGES = {
    "policy": ("uniform", VECTORS),
    "policy.eps": (10.0, {**VECTORS, "policy.name": "grasp"}),
    "learner": ("gdumb", VECTORS),
    "learner.beta": (0.1, {**VECTORS, "learner.name": "derpp", "policy.name": "uniform"}),
    "rehearsal": ("veridical", PHOTOS),
    "seed": (1, VECTORS),
    "data.path": ("other", VECTORS),
    "data.pixels": (24, PHOTOS),
    "data.classes": (5, VECTORS),
    "data.per_class": (20, VECTORS),
    "data.test_per_class": (10, VECTORS),
    "data.val_mapping": ("file", VECTORS),
    "data.test_split": ("folder", VECTORS),
    "data.test_share": (0.3, VECTORS),
    "data.validation": (0.3, VECTORS),
    "data.text": ("title", VECTORS),
    "data.label": ("kind", VECTORS),
    "data.tasks": ("a,b", VECTORS),
    "data.spread": (3.0, VECTORS),  # a parameter of the source
    "stream.kind": ("iid", VECTORS),
    "stream.base_classes": (3, VECTORS),
    "stream.sessions": (2, VECTORS),
    "stream.order": ("sorted", VECTORS),
    "stream.blurry": (0.3, {**VECTORS, "stream.sessions": 2}),
    "stream.imbalance": (4.0, {**VECTORS, **LONG_TAIL}),
    "stream.chunk": (16, VECTORS),
    "stream.file": ("STREAM", VECTORS),
    "network": ("wide(dim=8)", VECTORS),
    "network.hidden": (12, VECTORS),
    "codec": ("identity", VECTORS),
    "codec.size": (4, {**VECTORS, **OPQ}),
    "base.stages": ([{"name": "weights", "file": "WEIGHTS"}], VECTORS),
    "base.data": ("OTHERS", {**PHOTOS, "base.stages": OF_PRESET, "base.data": "PHOTOS"}),
    "base.passes": (0.4, VECTORS),
    "base.optimiser.name": ("adamw", {**VECTORS, **BASE}),
    "base.optimiser.lr": (0.1, {**VECTORS, **BASE}),
    "base.optimiser.momentum": (0.1, {**VECTORS, **BASE}),
    "base.optimiser.weight_decay": (0.1, {**VECTORS, **BASE}),
    "base.optimiser.layer_decay": (0.1, {**VECTORS, **BASE}),
    "base.optimiser.schedule": ("constant", {**VECTORS, **BASE, "base.passes": 0.6}),
    "base.optimiser.warmup": (3, {**VECTORS, **BASE, "base.optimiser.schedule": "constant"}),
    "buffer.capacity": (50, VECTORS),
    "buffer.maintenance": ("reservoir", VECTORS),
    "buffer.new_samples": ("extra", VECTORS),
    "buffer.maintenance.per_class": (5, {**VECTORS, "buffer.maintenance.name": "ring", "buffer.capacity": 120}),
    "budget.updates": (4, VECTORS),
    "budget.passes": (0.6, {**VECTORS, **PASSES}),
    "budget.batch_size": (9, {**VECTORS, "base.passes": 0.0}),
    "budget.times": (2.0, VECTORS),
    "budget.growth": (1.0, {**VECTORS, "stream.sessions": 2}),
    "optimiser.name": ("adamw", {**VECTORS, **BASE}),
    "optimiser.lr": (0.1, {**VECTORS, **BASE}),
    "optimiser.momentum": (0.1, {**VECTORS, **BASE}),
    "optimiser.weight_decay": (0.1, {**VECTORS, **BASE}),
    "optimiser.layer_decay": (0.1, {**VECTORS, **BASE}),
    "optimiser.schedule": ("constant", {**VECTORS, **BASE, "budget.updates": 4}),
    "optimiser.warmup": (3, {**VECTORS, **BASE, "optimiser.schedule": "constant"}),
    "stop.patience": (3, {**VECTORS, **PATIENCE, "optimiser.lr": 1e-9}),
    "stop.every": (2, {**VECTORS, **PATIENCE, "optimiser.lr": 1e-9}),
    "stop.share": (0.6, {**VECTORS, **PATIENCE}),
    "stop.keep": ("best", {**VECTORS, **PATIENCE, "stop.patience": 9, "optimiser.lr": 5.0}),
    "measure.drift": (4, VECTORS),
    "measure.distances": (5, VECTORS),
    "measure.head": (10, VECTORS),
    "measure.coded": (True, {**VECTORS, **OPQ}),
    "checkpoint.keep": ("nothing", VECTORS),
}
SAME = {
    "name": "names the folder",
    "log": "logs to other programs",
    "checkpoint.seconds": "saves more or less often",
    "buffer.shards": "divides what is stored among ranks (tests/distributed)",
    "execution.precision": "see the test of the execution",
    "execution.compile": "see the test of the execution",
    "execution.device": "see the test of the execution",
    "execution.channels_last": "see the test of the execution",
}


class Mine(Clusters):
    """Six classes around means that depend on every setting a source may take."""

    def __init__(
        self, val_mapping: str = "", test_split: str = "", text: str = "", label: str = "", tasks: str = "",
        spread: float = 1.0, start: int = 0, test_share: float = 0.1,
    ) -> None:  # fmt: skip
        super().__init__(classes=6, dim=8)
        given = repr((val_mapping, test_split, text, label, tasks, spread, start, test_share))
        self.values = self.values + np.random.default_rng(zlib.crc32(given.encode())).normal(size=8).astype(np.float32)
        self.options = {"given": given}


def wide_network(dim: int, classes: int = 0, *, generator: torch.Generator) -> SplitNetwork:
    return vector_network(dim, 32, 16, classes, generator=generator)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Made-up data, photos, weights and a stream, and one cache and base folder for all runs."""
    place = tmp_path_factory.mktemp("settings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRASPCL_CACHE", str(place / "cache"))
        patch.setattr(os, "fsync", lambda file: None)
        data_sources.names()
        for name, kind in (("mine", Mine), ("other", lambda: Mine(start=1))):
            patch.setitem(data_sources._parts, name, kind)
            patch.setitem(data_sources._declared, name, {"gives": "vectors"})
        networks.names()
        patch.setitem(networks._parts, "wide", wide_network)
        patch.setitem(networks._declared, "wide", {"reads": "vectors"})
        make_photos(place / "PHOTOS")
        make_photos(place / "OTHERS", seed=1)
        patch.setattr(presets, "preset", lambda *_, own_data, **more: from_plain({**PHOTOS, "data.path": own_data}))
        config = from_plain({**VECTORS, "seed": 5})
        save_weights(build_network(config), place / "WEIGHTS")
        samples, order = open_data(config)
        save_stream(arrange(config, samples, order), place / "STREAM", fingerprint=samples.fingerprint())
        yield place


def settings(place, *changes):
    found = {}
    for change in changes:
        found = merge(found, flatten(change))
    here = {name: str(place / value) for name, value in found.items() if value in ("PHOTOS", "OTHERS", "STREAM")}
    stages = [
        {key: str(place / value) if value == "WEIGHTS" else value for key, value in stage.items()}
        for stage in found.get("base.stages", [])
    ]
    return from_plain({**found, **here, "base.stages": stages})


@pytest.fixture(scope="module")
def outcome(place):
    """Returns what a run of these settings leaves, without their names; each is run once."""
    done = {}

    def find(config):
        if (key := str(config)) not in done:
            folder = place / f"run-{len(done)}"
            run(config, folder, base=place / "base")
            done[key] = content(folder)
        return done[key]

    return find


def content(folder: Path):
    arrays = {file.name: dict(np.load(file)) for file in (*folder.glob("*.npz"), *folder.glob("plans/*.npz"))}
    summary = json.loads((folder / "summary.json").read_text())
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    states = [load_state(file) for file in folder.glob("checkpoints/*.safetensors")]
    for state in states:
        del state["start"]
    for name in ("policy", "learner", "seed"):
        del summary[name]
    return timeless({"arrays": arrays, "summary": summary, "metrics": metrics, "states": states})


def test_every_setting_is_here():
    assert {name for name, _ in all_settings()} <= CHANGES.keys() | SAME.keys()
    assert not CHANGES.keys() & SAME.keys()


@pytest.mark.parametrize("name", CHANGES)
def test_another_value_makes_another_run(name, place, outcome):
    value, context = CHANGES[name]
    before, after = settings(place, context), settings(place, context, {name: value})
    assert unequal(outcome(before), outcome(after)), f"{name} has no effect"


@pytest.mark.parametrize("stage", [{"epochs": 2}, {"batch_size": 4}, {"lr": 0.1}, {"name": "swav"}])
def test_another_stage_makes_another_run(stage, place, outcome):
    stages = [{**PHOTOS["base.stages"][0], **stage}]
    before, after = settings(place, PHOTOS), settings(place, PHOTOS, {"base.stages": stages})
    assert unequal(outcome(before), outcome(after)), f"{stage} has no effect"


@pytest.mark.parametrize(("name", "value"), [("name", "another"), ("checkpoint.seconds", 0.0)])
def test_what_decides_no_result_leaves_the_same(name, value, place, outcome):
    assert not unequal(outcome(settings(place, VECTORS)), outcome(settings(place, VECTORS, {name: value})))


@pytest.mark.parametrize(("pixels", "stride"), [(32, 1), (64, 2)])
def test_a_network_is_made_for_the_size_of_the_images(pixels, stride):
    network = build_network(from_plain({**PHOTOS, "data.pixels": pixels}))
    assert network.frozen.stage0.reduce.conv.stride == (stride, stride)


@pytest.mark.parametrize("reads", ["images", "texts"])
def test_veridical_rehearsal_trains_all_of_a_network_for_texts(reads, monkeypatch):
    def layers(classes: int = 0, *, generator: torch.Generator) -> SplitNetwork:
        frozen, plastic = (build(lambda: torch.nn.Linear(4, 4), generator) for _ in range(2))
        return SplitNetwork(frozen, plastic, CosineHead(4, classes, generator=generator))

    networks.names()
    monkeypatch.setitem(networks._parts, "layers", layers)
    monkeypatch.setitem(networks._declared, "layers", {"reads": reads})
    config = from_plain({"network": "layers", "rehearsal": "veridical"})
    network = build_network(config)
    learner = make_learner(config, network, Identity(), 2)
    assert learner.network.veridical and network.frozen.weight.requires_grad == (reads == "texts")


def test_the_execution_reaches_network_and_learner(monkeypatch):
    monkeypatch.setattr(Execution, "resolve", lambda execution: execution)  # which tries out whether it works here
    monkeypatch.setattr(torch, "compile", lambda forward: forward)
    settings = {"precision": "bf16", "compile": True, "device": "cpu", "channels_last": False}
    config = from_plain({**VECTORS, **{f"execution.{name}": value for name, value in settings.items()}})
    learner = make_learner(config, build_network(config), None, 6)
    assert vars(learner.execution) == vars(learner.network.execution) == settings


# -- what the base has taught ------------------------------------------------------------------------------------------


def test_base_training_starts_from_the_weights_and_gives_classes_rows_in_their_order(place, monkeypatch):
    start = build_network(settings(place, PHOTOS, {"seed": 5}))
    save_weights(start, place / "start")
    stages = [{"name": "weights", "file": str(place / "start")}, *PHOTOS["base.stages"]]
    config = settings(place, PHOTOS, {"base.stages": stages, "stream.base_classes": 3})
    seen, real = [], pretraining.pretrain_once

    def watched(network, folder, method, read, base, rows, *rest):
        seen.append((network.plastic.embedding.weight.detach().clone(), base, rows))
        return real(network, folder, method, read, base, rows, *rest)

    monkeypatch.setattr(pretraining, "pretrain_once", watched)
    learner = prepare.prepare(config, Silent()).new_learner(config)
    samples, order = open_data(config)
    ((weight, base, rows),) = seen
    assert torch.equal(weight, start.plastic.embedding.weight)
    assert learner.classes == order[:3].tolist() != [0, 1, 2] and learner.network.head.classes == 3
    assert order[rows].tolist() == samples.labels[base].tolist()


@pytest.mark.parametrize("fits", [True, False])
def test_a_head_is_loaded_if_its_rows_are_the_base_classes(place, fits):
    samples, order = open_data(settings(place, VECTORS))
    names = [samples.classes[label] for label in (order[:2] if fits else order[1:3])]
    start = build_network(settings(place, VECTORS, {"seed": 5}))
    start.head.grow(2)
    save_weights(start, place / f"head-{fits}", settings={"classes": names})
    stages = [{"name": "weights", "file": str(place / f"head-{fits}"), "seen": "report"}]
    config = settings(place, VECTORS, {"base.stages": stages})
    learner = prepare.prepare(config, Silent()).new_learner(config)
    assert torch.equal(learner.network.plastic.embedding.weight, start.plastic.embedding.weight)
    assert learner.classes == (order[:2].tolist() if fits else [])
    assert torch.equal(learner.network.head.weight, start.head.weight) == fits


# -- seeds -------------------------------------------------------------------------------------------------------------


def test_the_seed_decides_the_order_of_classes_and_of_samples(place):
    def order(seed, **more):
        config = settings(place, VECTORS, {"seed": seed, **more})
        samples, order = open_data(config)
        return order.tolist(), arrange(config, samples, order).samples.tolist()

    assert order(3) == order(3)
    assert order(3)[0] != order(4)[0]
    (fixed, arrival), (also_fixed, other) = (order(seed, **{"stream.order": "sorted"}) for seed in (3, 4))
    assert fixed == also_fixed and arrival != other and sorted(arrival) == sorted(other)


def test_one_seed_makes_a_generator_of_its_own_for_each_purpose(place, monkeypatch):
    made = {}
    for module, name in ((prepare, "generator"), (runner, "generator"), (encoding, "generator"),
                         (pretraining, "generator"), (pretraining, "torch_generator")):  # fmt: skip
        real = getattr(module, name)
        monkeypatch.setattr(
            module,
            name,
            lambda seed, purpose, real=real: (made.setdefault(purpose, set()).add(seed), real(seed, purpose))[1],
        )
    config = settings(place, PHOTOS, OPQ, PATIENCE, {"seed": 7, "measure.drift": 2, "data.per_class": 7})
    run(config, place / "seven")
    purposes = {"init", "stream", "base", "codec", "codec cost", "buffer", "policy", "held out", "drift", "distances 1"}
    assert made.pop("subset") == {0}  # seeds share their samples, and so their latents
    assert made == {purpose: {7} for purpose in purposes}


# -- what runs share ---------------------------------------------------------------------------------------------------

OWN = ("policy", "learner", "buffer", "budget", "optimiser", "stop", "measure", "checkpoint", "base.passes",
       "base.optimiser")  # fmt: skip


@pytest.mark.parametrize("name", [*CHANGES, "execution.precision"])
def test_runs_share_what_is_prepared_unless_the_setting_changes_it(name, place, monkeypatch):
    value, context = CHANGES.get(name, ("bf16", VECTORS))
    monkeypatch.setattr(prepare, "prepare", lambda config, progress: config)
    cache = PreparedCache()
    before, after = (cache.get(settings(place, context, more), Silent()) for more in ({}, {name: value}))
    assert (before is after) == name.startswith(OWN)
