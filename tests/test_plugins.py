"""One file brings a part of every kind, usable by name in TOML and on the command line, and each keeps its contract."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

from graspcl import Buffer, learners, load_plugin, networks, policies, testing
from graspcl.buffer.maintenance import rules
from graspcl.cli.app import app
from graspcl.codec import codecs
from graspcl.data import data_sources
from graspcl.errors import GraspError
from graspcl.stream import streams

EXAMPLES = Path(__file__).parents[1] / "examples"
PLUGIN, SETTINGS = EXAMPLES / "one_of_each.py", EXAMPLES / "one_of_each.toml"
REGISTRIES = (policies, learners, networks, codecs, rules, streams, data_sources)


@pytest.fixture(autouse=True)
def plugin(monkeypatch, tmp_path):
    """The plugin's parts are known within a test only."""
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    for registry in REGISTRIES:
        registry.names()
        for table in ("_parts", "_declared", "_aliases"):
            monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    load_plugin(PLUGIN)


def graspcl(*words):
    return app([str(word) for word in words], result_action="return_value", exit_on_error=False)


def run(out, *options):
    graspcl("run", SETTINGS, "--plugin", PLUGIN, "--out", out, *options)
    (folder,) = (file.parent for file in out.rglob("summary.json"))
    return folder


def test_a_run_uses_a_part_of_each_kind_by_name(tmp_path):
    folder = run(tmp_path / "runs")
    config = tomllib.loads((folder / "config.toml").read_text())
    names = [config["policy"], config["learner"], config["network"], config["codec"], config["buffer"]["maintenance"]]
    expected = ["farthest_first", "halves", "two_layers", "tenths", "least_confident"]
    assert [part["name"] for part in names] == expected
    assert config["data"]["path"] == "points" and config["stream"]["kind"] == "in_steps"
    sessions = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(sessions) == 2 and sessions[-1]["stored"] == 40  # two classes a session, four to come
    assert sessions[-1]["accuracy"] > 2 * 100 / 6


def test_parameters_of_plugins_are_settings(tmp_path):
    """`--stream.step` and `--data.width` reach parts that the program does not know of."""
    options = ("--stream.step", 4, "--data.width", 5, "--network.width", 5, "--policy.power", 0.5)
    folder = run(tmp_path / "runs", *options)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["stream"]["step"] == 4 and config["data"]["width"] == 5 and config["policy"]["power"] == 0.5
    with np.load(folder / "stream.npz") as stream:
        assert len(stream["lengths"]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--stream.steps", 2), "steps.*did you mean.*step"),
        (("--stream.step", 0), "step must be a whole number of at least 1, got 0"),
        (("--data.widht", 2), "widht.*did you mean.*width"),
        (("--policy.powr", 2), "did you mean 'power'"),
        (("--network", "mobilenet_v3_large"), "gives vectors, but the network reads images"),
    ],
)
def test_mistakes_in_them_are_refused_before_anything_is_read(options, message, tmp_path, monkeypatch):
    monkeypatch.setattr(data_sources.get("points"), "read", None)
    with pytest.raises(GraspError, match=message):
        run(tmp_path / "runs", *options)


def test_each_part_keeps_the_contract_of_its_kind():
    labels, vectors = np.repeat(np.arange(6), 8), torch.randn(48, 8, generator=torch.Generator().manual_seed(0))

    def network(classes=0):
        return networks.create("two_layers", classes=classes, generator=torch.Generator().manual_seed(0))

    testing.check_policy(policies.create("farthest_first"))
    testing.check_codec(lambda: codecs.create("tenths"), vectors)
    testing.check_data(data_sources.create("points"), data_sources.create("points"))
    testing.check_maintenance(
        lambda: rules.create("least_confident"), rules.create("least_confident").columns_for(8, 8)
    )
    testing.check_network(lambda: network(classes=3), vectors[:4])
    testing.check_learner(lambda: learners.create("halves", network=network(), buffer=Buffer(30)), vectors)
    rng = np.random.default_rng
    testing.check_stream(lambda: streams.create("in_steps", np.arange(48), labels, rng=rng(0), step=2), labels)


def test_they_are_listed(capsys):
    for kind, name in (("policies", "farthest_first"), ("streams", "in_steps"), ("networks", "two_layers")):
        graspcl("list", kind, "--plugin", PLUGIN)
        assert name in capsys.readouterr().out
