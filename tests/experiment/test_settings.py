"""Settings: the same from Python, TOML and the command line; mistakes are answered before anything is read."""

import dataclasses
import itertools
import subprocess
import sys
import tomllib
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graspcl.checks import Count
from graspcl.cli.experiments import run, show, sweep
from graspcl.cli.options import parse_settings, resolve
from graspcl.data import Samples
from graspcl.errors import GraspError
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.prepare import arrange, open_data
from graspcl.learner import Aligned, Optimiser
from graspcl.model import Execution
from graspcl.settings import Config, Part, change, from_plain, preset
from graspcl.settings.config import (
    BaseConfig,
    BufferConfig,
    ExecutionConfig,
    OptimiserConfig,
    StopConfig,
    as_plain,
    identity,
)
from graspcl.settings.presets import names
from graspcl.settings.read import flatten, merge, read_toml, settled
from graspcl.settings.rules import check
from graspcl.stream import ClassIncremental, save_stream, streams

SCALES, REHEARSALS, MEMORIES = ("full", "small", "smoke"), ("latent", "veridical"), ("bounded", "unbounded")

# -- one tree, three ways to write it ----------------------------------------------------------------------------------

words = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1).filter(
    lambda t: t.lower() != "none"
)
numbers = {bool: st.booleans(), int: st.integers(-(2**40), 2**40), float: st.floats(-1e9, 1e9)}
values = st.one_of(numbers[bool], numbers[int], numbers[float], st.sampled_from(["top", "last_layer", "some text"]))
stages = st.lists(
    st.builds(Part, st.sampled_from(["swav", "mine"]), st.dictionaries(st.sampled_from(["lr", "part"]), values)),
    max_size=3,
)
parts = st.builds(Part, words, st.dictionaries(st.sampled_from(["eps", "mode", "candidates", "data"]), values))


def trees(kind):
    """Any settings of a group, by the types and ranges of its fields; parameters of streams and data need a plugin."""
    if kind is Part:
        return parts
    hints = get_type_hints(kind, include_extras=True)
    fields = {f.name: leaf(hints[f.name]) for f in dataclasses.fields(kind) if f.name != "parameters"}
    if kind is BufferConfig:
        fields["capacity"] = st.one_of(st.none(), st.integers(1, 10**9), st.sampled_from(["8MB", "0.2GB"]))
    return st.builds(kind, **fields)


def leaf(hint):
    if get_origin(hint) is tuple:
        return stages.map(tuple)
    if dataclasses.is_dataclass(hint):
        return trees(hint)
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is Annotated:
        inner, limit, *words_too = get_args(hint)
        found = (
            leaf(inner)
            .map(lambda number: abs(number) % 1e6 if inner is float else abs(number))
            .filter(limit.__contains__)
            if limit.high > 1
            else st.floats(0.0, 1.0).filter(limit.__contains__)
        )
        return st.one_of(found, *map(st.just, words_too))
    if get_args(hint):
        return st.one_of(*map(leaf, get_args(hint)))
    return {type(None): st.none(), str: words, **numbers}[hint]


def dotted(plain, prefix=""):
    """Nested dictionaries as `--a.b=value` tokens."""
    for key, value in plain.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            parts = [Part(one.pop("name"), one) for one in map(dict, value)]
            yield f"--{prefix}{key}={','.join(map(str, parts)) or 'none'}"
        else:
            yield f"--{prefix}{key}={str(value).lower() if isinstance(value, bool) else value}"


@settings(deadline=None, max_examples=50)
@given(trees(Config))
def test_python_toml_and_the_command_line_give_the_same(config):
    assert from_plain(tomllib.loads(tomli_w.dumps(as_plain(config)))) == config
    options = parse_settings([*dotted(as_plain(config))])
    assert from_plain(merge(flatten(as_plain(Config())), flatten(options))) == config


@pytest.mark.parametrize("name", names())
def test_every_preset_comes_back_from_its_toml(name):
    for scale, rehearsal, memory in itertools.product(SCALES, REHEARSALS, MEMORIES):
        config = preset(name, scale, rehearsal, memory)
        assert from_plain(tomllib.loads(tomli_w.dumps(as_plain(config)))) == config
        assert config.rehearsal == rehearsal and (memory == "bounded" or config.buffer.capacity is None)


def test_a_preset_changed_in_three_ways(tmp_path):
    start = preset("imagenet-300")
    python = dataclasses.replace(
        start,        policy=Part("mir", {"candidates": 50}), seed=3,
        buffer=dataclasses.replace(start.buffer, capacity="0.1GB"), stop=StopConfig(3, 10),
    )  # fmt: skip
    file = tmp_path / "mine.toml"
    changes = {"policy": {"name": "mir", "candidates": 50}, "seed": 3, "buffer": {"capacity": "0.1GB"}}
    file.write_text(tomli_w.dumps(merge(as_plain(start), {**changes, "stop": {"patience": 3, "every": 10}})))
    line = ["--policy", "mir", "--policy.candidates=50", "--seed=3", "--buffer", "0.1GB", "--stop=patience=3,every=10"]
    assert python == from_plain(read_toml(file)) == resolve(run, "imagenet-300", line) == resolve(run, str(file), [])


def test_the_order_of_options_does_not_matter():
    options = {"policy": "mir", "policy.candidates": "50", "buffer": "8MB", "buffer.maintenance": "gss",
               "buffer.maintenance.references": "5", "base.passes": "2", "base.optimiser.lr": "0.5",
               "base.optimiser": "adamw", "stream.base_classes": 3}  # fmt: skip
    found = [change(Config(), dict(order)) for order in (options.items(), reversed(options.items()))]
    assert found[0] == found[1]
    assert found[0].policy == Part("mir", {"candidates": 50})
    assert found[0].buffer == BufferConfig("8MB", Part("gss", {"references": 5}))
    assert found[0].base.optimiser == OptimiserConfig("adamw", lr=0.5)


def test_a_group_stands_for_its_first_setting():
    config = change(Config(), {"data": "/photos/year=2020", "buffer": "0.2GB", "stop": 3, "optimiser": "sgd"})
    assert config.data.path == "/photos/year=2020" and config.buffer.capacity == "0.2GB"
    assert config.stop.patience == 3 and config.optimiser == dataclasses.replace(Config.optimiser, name="sgd")
    several = change(Config(), {"optimiser": "name=sgd, lr=0.5, momentum=0", "data": {"pixels": 64, "path": "x"}})
    assert (
        several.optimiser == dataclasses.replace(Config.optimiser, name="sgd", lr=0.5, momentum=0.0)
        and several.data.pixels == 64
    )
    assert change(preset("groceries"), {"base.optimiser": "none"}).base.optimiser is None
    assert change(preset("groceries"), {"buffer": "none"}).buffer.capacity is None
    kept = change(change(Config(), {"optimiser.lr": 0.3}), {"optimiser": "adamw"})
    assert kept.optimiser.lr == 0.3  # an optimiser is a group of settings, not a part with parameters of its own


def test_a_part_named_anew_loses_its_parameters():
    config = change(Config(), {"policy.eps": 1e-3, "buffer.maintenance": "gss", "buffer.maintenance.references": 5})
    assert config.policy == Part("grasp", {"eps": 1e-3})
    assert change(config, {"policy": "uniform"}).policy == Part("uniform")
    assert change(config, {"policy": "grasp"}).policy == Part("grasp")
    assert change(config, {"policy.eps": 1.0}).policy == Part("grasp", {"eps": 1.0})
    assert change(config, {"buffer.maintenance": "reservoir"}).buffer.maintenance == Part("reservoir")
    assert change(preset("derpp-imagenet-1k"), {"learner": "derpp"}).learner == Part("derpp")  # as the preset says


def test_a_toml_file_of_ones_own_may_be_short(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('policy = "uniform"\nbuffer = 100\n[codec]\nname = "opq"\nsize = 16\n[data]\nclasses = "none"\n')
    config = resolve(run, str(file), ["--seed", "4"])
    assert config == Config("mine", Part("uniform"), seed=4, buffer=BufferConfig(100), codec=Part("opq", {"size": 16}))


def test_stages_of_the_base_in_four_ways(tmp_path):
    swav, labels = Part("swav", {"epochs": 400, "large": [0.2, 1]}), Part("supervised", {"epochs": 50})
    python = dataclasses.replace(preset("imagenet-300"), base=BaseConfig((swav, labels)))
    file = tmp_path / "mine.toml"
    file.write_text("""
extends = "imagenet-300"
name = "imagenet-300"
[[base.stages]]
name = "swav"
epochs = 400
large = [0.2, 1]
[[base.stages]]
name = "supervised"
epochs = 50
""")
    assert resolve(run, str(file), []) == python
    file.write_text('extends = "imagenet-300"\n[base]\nstages = ["swav(epochs=400)", "supervised(epochs=50)"]')
    assert resolve(run, str(file), []).base.stages == (Part("swav", {"epochs": 400}), labels)
    line = resolve(run, "imagenet-300", ["--base.stages", "swav(epochs=400), supervised(epochs=50)"])
    assert line.base.stages == (Part("swav", {"epochs": 400}), labels)
    assert resolve(run, "imagenet-300", ["--base", "supervised"]).base.stages == (Part("supervised"),)
    assert resolve(run, "imagenet-300", ["--base.stages", "none"]).base.stages == ()


def test_a_file_extends_a_preset(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('extends = "imagenet-300"\n[budget]\nupdates = 7\n[policy]\neps = 0.5\n')
    start = preset("imagenet-300")
    expected = dataclasses.replace(
        start, name="mine", policy=Part("grasp", {"eps": 0.5}), budget=dataclasses.replace(start.budget, updates=7)
    )
    assert resolve(run, str(file), []) == expected
    small = resolve(run, str(file), ["--seed", "3"], scale="smoke", rehearsal="veridical")
    assert small.seed == 3 and small.budget.updates == 7 and small.data.path == "groceries"
    assert small.budget.batch_size == preset("imagenet-300", "smoke", "veridical").budget.batch_size
    file.write_text('extends = "imagenet-300"\nrehearsal = "veridical"\ndata = "photos"\n')
    found = resolve(run, str(file), [], scale="smoke")
    assert found.optimiser == preset("imagenet-300", "smoke", "veridical").optimiser and found.data.path == "photos"
    found = resolve(run, str(file), [], scale="smoke", rehearsal="latent")
    assert found.optimiser == preset("imagenet-300", "smoke").optimiser and found.rehearsal == "latent"
    file.write_text('extends = "imagenet300"')
    with pytest.raises(GraspError, match="no preset called 'imagenet300'; did you mean 'imagenet-300'"):
        resolve(run, str(file), [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[stop]\nevery = 5", "stop.every would do nothing: without stop.patience"),
        ('rehearsal = "veridical"\ncodec = "half"', "codec.name would do nothing: veridical rehearsal stores"),
        ('extends = "imagenet-1k"\n[budget]\npasses = 2.0', "budget.passes would do nothing: budget.updates is 2502"),
        ('extends = "listings"\n[network]\nfrozen = false', "network.frozen would do nothing: latent rehearsal"),
    ],
)
def test_a_line_of_a_file_that_would_do_nothing_is_refused(tmp_path, text, message):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(GraspError, match=f"mine.toml: {message}"):
        resolve(run, str(tmp_path / "mine.toml"), [])


def test_what_an_earlier_version_wrote_into_a_run_folder_is_read(tmp_path):
    (tmp_path / "config.toml").write_text(
        'rehearsal = "veridical"\ncodec = "half"\nbase = { method = "none", lr = 0.2 }'
    )
    (tmp_path / "environment.json").write_text("{}")
    for place in (tmp_path, tmp_path / "config.toml"):
        assert resolve(run, str(place), []) == Config("config", rehearsal="veridical", codec=Part("half"))


@pytest.mark.parametrize("name", ["groceries", "mobilevit-imagenet-300", "text-order-1"])
def test_what_show_prints_can_be_run(tmp_path, name, capsys):
    for scale, rehearsal in itertools.product(("full", "smoke"), REHEARSALS):
        show(name, scale=scale, rehearsal=rehearsal)
        file = tmp_path / "mine.toml"
        file.write_text(capsys.readouterr().out)
        config = preset(name, scale, rehearsal)
        assert resolve(run, str(file), []) == settled(config) and resolve(run, str(file), []).path == config.path


# -- settings of earlier versions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "stages"),
    [
        ({"method": "none", "epochs": 50, "batch_size": 256, "lr": 0.2, "passes": 3.0}, ()),
        (
            {"method": "supervised", "epochs": 3, "batch_size": 16, "lr": 0.05},
            (Part("supervised", {"epochs": 3, "batch_size": 16, "lr": 0.05}),),
        ),
        (
            {"method": "swav", "weights": "a.pth"},
            (
                Part("weights", {"file": "a.pth", "seen": "report"}),
                Part("swav", {"epochs": 50, "batch_size": 256, "lr": 0.2}),
            ),
        ),
        ({"method": "weights", "weights": "a.pth"}, (Part("weights", {"file": "a.pth", "seen": "report"}),)),
    ],
)
def test_settings_from_before_there_were_stages(base, stages):
    assert from_plain({"base": base}).base == BaseConfig(stages, base.get("passes", 0.0))


def test_a_mobilevit_of_an_earlier_run_keeps_its_form():
    old = from_plain({"network": {"name": "mobilevit_s", "scale": 16.0}, "base": {"method": "none"}})
    assert old.network.parameters == {"frozen_norm": "batch", "standardised": "blocks", "scale": 16.0}
    assert from_plain({"network": "mobilevit_s"}).network == Part("mobilevit_s")


@pytest.mark.parametrize(
    ("policy", "former"),
    [
        ({"name": "gss"}, {"mode": "top", "reference_size": 10}),
        ({"name": "gss", "reference_size": 3}, {"mode": "top", "reference_size": 3}),
        ({"name": "min_margin"}, {"of": "logits"}),
        ({"name": "grasp"}, {}),
    ],
)
def test_a_policy_of_an_earlier_run_is_the_one_it_was(policy, former, tmp_path):
    """So its finished run is not taken for one of today's policy."""
    plain = as_plain(from_plain({"policy": policy}))
    old = {**plain, "base": {"method": "none", "epochs": 50, "batch_size": 256, "lr": 0.2, "passes": 0.0}}
    (tmp_path / "config.toml").write_text(tomli_w.dumps(old))
    folder, today = RunFolder(tmp_path), from_plain({"policy": policy})
    assert folder.config().policy == Part(policy["name"], former)
    assert folder.holds(dataclasses.replace(today, policy=Part(policy["name"], former)))
    assert {"name": today.policy.name, **today.policy.parameters} == policy
    if today.policy.parameters != former:
        with pytest.raises(GraspError, match=r"has a run with other settings \(policy\)"):
            folder.holds(today)


def test_reciprocal_shift_is_the_former_name_of_published(tmp_path):
    former, today = (
        change(Config(), {"policy": f"max_loss(weighting={name})"}) for name in ("reciprocal_shift", "published")
    )
    assert former == today and former.path == today.path
    old = {**as_plain(today), "policy": {"name": "max_loss", "weighting": "reciprocal_shift"}}
    (tmp_path / "config.toml").write_text(tomli_w.dumps(old))
    assert RunFolder(tmp_path).holds(today)


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bufer": 3}, "no setting 'bufer'; did you mean 'buffer'"),
        ({"stream.sesions": 3}, "no setting 'stream.sesions'; did you mean 'sessions'"),
        ({"base.optimiser.lrr": 3}, "no setting 'base.optimiser.lrr'; did you mean 'lr'"),
        ({"sessions": 3}, "did you mean 'stream.sessions'"),
        ({"momentum": 3}, "did you mean 'base.optimiser.momentum' or 'optimiser.momentum'"),
        ({"seed.start": 3}, "no setting 'seed.start'; 'seed' is not a group"),
        ({"seed": "x"}, "seed must be a whole number of at least 0, got 'x'"),
        ({"seed": 1.5}, "seed must be a whole number of at least 0, got 1.5"),
        ({"seed": True}, "seed must be a whole number of at least 0, got True"),
        ({"seed": "inf"}, "seed must be a whole number"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"budget.times": "nan"}, "budget.times must be a positive number, got 'nan'"),
        ({"budget.updates": -1}, r"budget.updates must be a whole number in \[0, 1000000000\] or none, got -1"),
        ({"data.pixels": 10**15}, r"data.pixels must be a whole number in \[1, 4096\] or 'auto', got 1000000000000000"),
        ({"stop": 0}, "stop.patience must be a whole number of at least 1 or none, got 0"),
        ({"stream.blurry": 1}, r"stream.blurry must be a number in \[0, 1\), got 1.0"),
        ({"base.stages": 3}, "base.stages must be a list such as swav"),
        ({"base.stages": ["swav", 3]}, "base.stages must be a list such as swav.*, got 3"),
        ({"base.epochs": 3}, "no setting 'base.epochs'; write --base.stages 'supervised"),
        ({"base.weights": "a.pth"}, r"no setting 'base.weights'; write --base.stages 'weights\(file=FILE\)'"),
        ({"optimiser.lr": "fast"}, "optimiser.lr must be a positive number, got 'fast'"),
        ({"optimiser.lr": -1}, "optimiser.lr must be a positive number, got -1"),
        ({"execution.compile": 1}, "execution.compile must be true or false, got 1"),
        ({"rehearsal": "pixels"}, "rehearsal must be 'latent' or 'veridical', got 'pixels'"),
        ({"stop.patience": "long"}, "stop.patience must be a whole number of at least 1 or none, got 'long'"),
        ({"data.path": 3}, "data.path must be a string, got 3"),
        ({"data.path": None}, "data.path must be a string"),
        ({"stream.sessions": "none"}, "stream.sessions must be a whole number of at least 1 or 'auto', got 'none'"),
        ({"policy": 3}, "policy.name must be a string, got 3"),
        ({"buffer": "8MB", "buffer.capacity": 3}, "--buffer.capacity is given twice"),
        ({"stop": "patience=3", "stop.patience": 3}, "--stop.patience is given twice"),
    ],
)
def test_a_mistake_names_the_setting_and_what_would_be_right(options, message):
    with pytest.raises(GraspError, match=message):
        change(Config(), options)


def test_a_file_with_a_mistake_is_named(tmp_path):
    file = tmp_path / "mine.toml"
    for text, message in (
        ("bufer = 3", "mine.toml: there is no setting 'bufer'; did you mean 'buffer'"),
        (
            "[stream]\nsessions = 1.5",
            "mine.toml: stream.sessions must be a whole number of at least 1 or 'auto', got 1.5",
        ),
        ("[policy]\neps = 1.0", "mine.toml: policy.name must be a string"),
        ("seed = ", "mine.toml is not a TOML file"),
        ("base.epochs = 3", "mine.toml: there is no setting 'base.epochs'; write --base.stages"),
    ):
        file.write_text(text)
        with pytest.raises(GraspError, match=message):
            resolve(run, str(file), [])
    with pytest.raises(GraspError, match=r"elsewhere\.toml cannot be read: No such file"):
        resolve(run, str(tmp_path / "elsewhere.toml"), [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy.candidates": 5}, "policy 'grasp' has no parameter 'candidates'"),
        ({"policy": "mir", "policy.candidate": 5}, "did you mean 'candidates'"),
        ({"policy": "mir", "policy.candidates": -5}, "candidates"),
        ({"policy": "graps"}, "no policy called 'graps'; did you mean 'grasp'"),
        ({"learner": "derpp", "learner.techer": True}, "did you mean 'teacher'"),
        ({"learner.reset": False}, "learner 'aligned' has no parameter 'reset'; valid names: corrected"),
        ({"learner": "offline"}, "stores everything it has seen: set --buffer none"),
        ({"network.split": 3}, "network 'wide' has no parameter 'split'"),
        ({"network": "mobilenet"}, "no network called 'mobilenet'"),
        ({"codec": "opq", "codec.codebook": 4}, "codec 'opq' has no parameter 'codebook'; did you mean 'codebooks'"),
        ({"codec": "opq", "codec.size": 100}, "size must be 2, 4, 8, 16"),
        ({"codec.size": 16}, "codec 'half' has no parameter 'size'; it takes none"),
        ({"buffer.maintenance": "ring", "buffer.maintenance.per_clas": 3}, "did you mean 'per_class'"),
        ({"buffer.maintenance": "largest"}, "called 'largest'"),
        ({"buffer": "8 apples"}, "'8 apples' is not a size"),
        ({"stream.kind": "iidd"}, "no stream called 'iidd'"),
        ({"stream.imbalance": 10.0}, "streams of kind class_incremental do not use it"),
        ({"stream.kind": "iid", "stream.blurry": 0.1}, "streams of kind iid do not use it"),
        ({"base.stages": "supervised", "stream.base_classes": 0}, "supervised needs classes to train on"),
        ({"base.stages": "swav"}, "swav trains on images"),
        ({"base.stages": "swaw"}, "no stage called 'swaw'; did you mean 'swav'"),
        ({"base.stages": "swav(epoch=3)"}, "stage 'swav' has no parameter 'epoch'; did you mean 'epochs'"),
        ({"base.stages": "swav(batch_size=1)"}, "batch_size must be a whole number of at least 2, got 1"),
        ({"base.stages": "swav(epochs=3,warmup=3)"}, "warmup must be shorter than the 3 epochs"),
        ({"base.stages": [{"name": "swav", "large": [0.1, 2]}]}, r"large must be \[a number in \[0, 1\]"),
        ({"base.stages": "supervised(optimiser=adamw,momentum=0.5)"}, "momentum of supervised would do nothing: AdamW"),
        ({"base.stages": "supervised(schedule=onecycle,step=3)"}, "step of supervised would do nothing: the schedule"),
        ({"base.stages": "swav(queue_from=3)"}, "queue_from of swav would do nothing: queue is 0"),
        ({"base.stages": "swav,weights(file=x)"}, "put them first"),
        ({"base.stages": "weights"}, r"weights needs a file or a preset: set --base.stages 'weights\(file=FILE\)'"),
        ({"base.stages": "weights(file=a,preset=listings)"}, "weights needs a file or a preset"),
        ({"base.stages": "weights(file=a,scale=smoke)"}, "scale of weights would do nothing"),
        ({"base.stages": "weights(preset=imagenet-1k)"}, "imagenet-1k, which needs its images: set --base.data"),
        ({"base.stages": "weights(preset=imagenet-1k)", "base.data": "nowhere"}, "nowhere: imagenet-1k cannot be"),
        ({"base.stages": "weights(file=nowhere.safetensors)"}, "nowhere.safetensors: there is no such file"),
        ({"rehearsal": "veridical", "network.frozen": 3}, "network.frozen must be true or false or none, got 3"),
        ({"stream.file": "nowhere.npz"}, "--stream.file nowhere.npz: there is no such file"),
        ({"data.path": "nowhere"}, "--data nowhere: there is no such folder"),
        ({"data.val_mapping": "x.txt"}, "--data.val_mapping.* is for folders of images"),
        ({"name": ""}, "name must contain a letter or a digit"),
        ({"name": ".."}, "name must contain a letter or a digit"),
    ],
)
def test_what_cannot_work_is_refused_before_data_are_read(options, message, add_source):
    add_source("listings", lambda: pytest.fail("data were read"), "texts")
    with pytest.raises(GraspError, match=message):
        check(change(preset("listings"), options))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("imagenet-1k", {"budget.passes": 2}, "budget.updates is 2502"),
        ("imagenet-1k", {"stop.every": 5}, "without stop.patience"),
        ("imagenet-1k", {"stop": "share=0.1"}, "without stop.patience"),
        ("imagenet-1k", {"base.optimiser.lr": 0.1}, "base.passes 0"),
        ("imagenet-1k", {"base.data": "photos"}, r"no stage of base.stages is weights\(preset=NAME\)"),
        ("mobilevit-imagenet-300", {"optimiser.momentum": 0.5}, "AdamW has none"),
        ("groceries", {"network.frozen": False}, "latent rehearsal never changes the frozen part"),
        ("listings", {"data.pixels": 64}, "texts, not images"),
        ("places-lt", {"base.passes": 2}, "no base classes"),
        ("text-order-1", {"stream.base_classes": 2}, "streams of kind task_incremental do not use it"),
        ("groceries", {"rehearsal": "veridical", "codec": "half"}, "stores samples unmodified"),
        ("groceries", {"stream.file": "x.npz", "stream.sessions": 3}, "the stream comes from x.npz"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(name, options, message):
    with pytest.raises(GraspError, match=message) as error:
        change(preset(name), options)
    assert any(str(error.value).startswith(f"--{option} would do nothing") for option in flatten(options))


def test_an_option_that_does_something_is_not():
    change(preset("imagenet-1k"), {"budget.updates": "none", "budget.passes": 2})
    change(preset("listings"), {"stop.patience": 3, "stop.every": 5, "base.optimiser.lr": 0.1})
    change(preset("groceries"), {"rehearsal": "veridical", "network.frozen": False})
    change(preset("groceries"), {"stream.file": "x.npz", "data.classes": 3, "stream.order": "sorted"})


def test_what_a_sweep_decides_itself_is_refused_there():
    for line, message in (
        (["--policy", "mir"], "--policy.name would do nothing here: --policies decides"),
        (["--seed", "3"], "--seeds decides"),
        (["--checkpoint.keep", "state"], "which keeps no states"),
    ):
        with pytest.raises(GraspError, match=message):
            sweep("listings", *line)
    with pytest.raises(GraspError, match="--updates decides"):
        sweep("listings", "--budget.times", "2", updates="500")
    with pytest.raises(GraspError, match="--learners decides"):
        sweep("listings", "--learner", "derpp", learners="siesta")
    with pytest.raises(GraspError, match="--buffer decides"):
        sweep("listings", "--buffer.capacity", "5", buffer="5,6")
    with pytest.raises(GraspError, match="give one of them"):
        sweep("listings", memory="unbounded", buffer="5")


def test_what_is_named_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "listings").mkdir()  # as a run with --out . leaves it
    assert resolve(run, "listings", []) == preset("listings")
    (tmp_path / "text").write_text("")
    for what, line, message in (
        ("text", [], "text is neither a preset nor a TOML file"),
        ("./listings", [], "config.toml cannot be read"),
        ("imagenet300", [], "no preset called 'imagenet300'; did you mean 'imagenet-300'"),
        ("listings", ["--scalee", "smoke"], "no option --scalee; did you mean --scale"),
        ("listings", ["smoke"], "'smoke' is not an option"),
        ("listings", ["--seed", "1", "--seed", "2"], "--seed is given twice"),
    ):
        with pytest.raises(GraspError, match=message):
            resolve(run, what, line)
    with pytest.raises(GraspError, match="did you mean --workers"):
        resolve(sweep, "listings", ["--worker", "2"])
    with pytest.raises(GraspError, match="--memory unbounded contradicts a buffer of 5"):
        resolve(run, "listings", ["--buffer", "5"], memory="unbounded")
    (tmp_path / "mine.toml").write_text("")
    with pytest.raises(GraspError, match="are for presets"):
        resolve(run, "mine.toml", [], scale="smoke")
    for wrong, message in (
        ({"scale": "tiny"}, "scale must be 'full', 'small' or 'smoke', got 'tiny'"),
        ({"memory": "bound"}, "memory must be 'bounded' or 'unbounded', got 'bound'"),
    ):
        with pytest.raises(GraspError, match=message):
            preset("listings", **wrong)


def test_a_saved_stream_brings_its_own_order(small, tmp_path):
    samples, order = open_data(small)
    saved = arrange(small, samples, order)
    save_stream(saved, tmp_path / "saved.npz", fingerprint=samples.fingerprint())
    other = change(small, {"seed": 5, "stream.file": str(tmp_path / "saved.npz")})
    again, its_order = open_data(other)
    assert open_data(change(small, {"seed": 5}))[1].tolist() != order.tolist() == its_order.tolist()
    for one, same in zip(saved.sessions, arrange(other, again, its_order).sessions, strict=True):
        assert np.array_equal(one, same)
    with pytest.raises(GraspError, match="has 4 base classes, not 3"):
        open_data(change(other, {"stream.base_classes": 3}))
    with pytest.raises(GraspError, match="was made for other data"):
        open_data(change(other, {"data.per_class": 5}))


# -- names of folders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/b", "..\\x", "C:x", ". .", "ok"])
def test_a_run_stays_below_its_folder(name, tmp_path):
    config = Config(name=name, policy=Part("mir", {"candidates": "../../../../y"}), learner=Part("../z"))
    if not name.strip(". "):
        with pytest.raises(GraspError, match="name must contain a letter or a digit"):
            config.path  # noqa: B018
        return
    for place in (tmp_path / config.path, tmp_path / config.folder / "base"):
        inner = place.resolve().relative_to(tmp_path.resolve())
        assert len(inner.parts) == (4 if place.name != "base" else 2) and ".." not in inner.parts


def test_the_folders_of_ordinary_runs_keep_their_names():
    config = Config("drift-smoke", Part("uniform_balanced", {"replace": False}), Part("derpp", {"alpha": 1e-06}))
    expected = "drift-smoke/derpp(alpha=1e-06)/uniform_balanced(replace=False)/seed-0-"
    assert config.path.startswith(expected)
    earlier = {  # the settings of this preset when that folder was made
        "measure.coded": True, "learner": "siesta", "network": "vector(dim=256, hidden=256, scale=10.0)",
        "base.passes": 1.0, "buffer": 80, "optimiser": "sgd", "optimiser.lr": 0.2, "optimiser.weight_decay": 1e-5,
        "optimiser.layer_decay": 0.99, "optimiser.schedule": "onecycle",
    }  # fmt: skip
    assert change(preset("listings", "smoke"), earlier).path == "listings-smoke/siesta/grasp/seed-0-219990"


# -- parameters of plugins ---------------------------------------------------------------------------------------------


def test_settings_of_a_plugin_reach_its_part(add_source, monkeypatch):
    streams.names()
    monkeypatch.setattr(streams, "_parts", dict(streams._parts))

    @streams.register("bands")
    class Bands(ClassIncremental):
        def __init__(self, indices, labels, rng, width: Count = 1, chunk: Count = 512) -> None:
            super().__init__(indices, labels, 0, len(np.unique(labels)) // width, rng, chunk=chunk)

    add_source("blobs", lambda spread=1.0: Blobs(spread))
    start = from_plain({"network": {"name": "vector", "dim": 4}, "data": "blobs", "stream": "bands", "codec": "half"})
    config = change(start, {"stream.width": "3", "data.spread": "0.5"})
    assert config.stream.parameters == {"width": 3} and config.data.parameters == {"spread": 0.5}
    assert from_plain(tomllib.loads(tomli_w.dumps(as_plain(config)))) == config != start
    assert as_plain(config)["stream"] == {**as_plain(start)["stream"], "width": 3}  # absent ones change no digest
    check(config)
    samples, order = open_data(config)
    assert samples.spread == 0.5 and len(arrange(config, samples, order).sessions) == 2
    assert change(config, {"stream.kind": "iid"}).stream.parameters == {}
    for options, message in (
        ({"stream.widht": 3}, "no setting 'stream.widht'; did you mean 'width'"),
        ({"data.spred": 3}, "no setting 'data.spred'; did you mean 'spread'"),
        ({"stream.kind": "iid", "stream.width": 3}, "no setting 'stream.width'"),
        ({"stream.sessions": 3}, "streams of kind bands do not use it"),
    ):
        with pytest.raises(GraspError, match=message):
            change(config if "kind" not in str(options) else start, options)


class Blobs(Samples[torch.Tensor]):
    """Six classes of vectors."""

    def __init__(self, spread: float) -> None:
        self.spread, number = spread, np.arange(60)
        super().__init__("blobs", "1", list("abcdef"), number % 6, number, number[:48], number[48:])

    def read(self, indices):
        return torch.zeros(len(indices), 4)


# -- defaults ----------------------------------------------------------------------------------------------------------


def test_groups_have_the_defaults_of_what_they_make():
    assert vars(OptimiserConfig()) == vars(Optimiser())
    assert vars(ExecutionConfig()) == vars(Execution())


def test_the_default_learner_is_the_one_of_the_presets_with_its_optimiser():
    assert Config().learner == preset("images").learner == preset("texts").learner
    assert Config().optimiser == preset("images").optimiser == preset("texts").optimiser
    assert vars(Config().optimiser) == vars(Aligned.optimiser_by_default)
    assert from_plain({"optimiser": {"lr": 0.5}}).optimiser == dataclasses.replace(
        Config.optimiser, lr=0.5
    )  # the others as usual
    assert from_plain({"base": {"optimiser": {"lr": 0.5}}}).base.optimiser == OptimiserConfig(lr=0.5)


def test_settings_load_no_torch():
    code = """
import sys
from graspcl.settings import change, preset
change(preset("imagenet-300", "smoke"), {"seed": 3, "policy": "mir", "buffer": "8MB", "stream.sessions": 2})
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_runs_of_derpp_are_not_taken_for_those_with_its_former_loss():
    given = change(Config(), {"learner": "derpp"})
    assert identity(as_plain(given))["learner"]["loss"] == 2
    teacher = identity(as_plain(change(given, {"learner.teacher": True})))
    assert "loss" not in teacher["learner"]  # of the paper's presets; theirs did not change
    assert "loss" not in identity(as_plain(Config()))["learner"]
