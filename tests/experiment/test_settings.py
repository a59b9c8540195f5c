"""Settings: the same from Python, TOML and the command line; mistakes are answered before anything is read."""

import dataclasses
import itertools
import tomllib
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from graspcl.cli.options import parse_settings, resolve
from graspcl.cli.run import run, sweep
from graspcl.errors import GraspError
from graspcl.experiment import Config, Part, change, from_plain, preset
from graspcl.experiment.source import SOURCES, arrange, open_data
from graspcl.learner import Optimiser
from graspcl.settings.config import BufferConfig, StopConfig, as_plain
from graspcl.settings.presets import names
from graspcl.settings.read import merge, nested, read_toml, single
from graspcl.settings.rules import check
from graspcl.stream import save_stream

SCALES, REHEARSALS, MEMORIES = ("full", "small", "smoke"), ("latent", "veridical"), ("bounded", "unbounded")

# -- one tree, three ways to write it ----------------------------------------------------------------------------------

words = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1).filter(
    lambda t: t.lower() != "none"
)
numbers = {bool: st.booleans(), int: st.integers(-(2**40), 2**40), float: st.floats(-1e9, 1e9)}
values = st.one_of(numbers[bool], numbers[int], numbers[float], st.sampled_from(["top", "last_layer", "some text"]))
parts = st.builds(Part, words, st.dictionaries(st.sampled_from(["eps", "mode", "candidates", "data"]), values))
special = {
    (Optimiser, "lr"): st.floats(1e-9, 1e3),
    (Optimiser, "layer_decay"): st.floats(1e-3, 1.0),
    (Optimiser, "momentum"): st.floats(0.0, 0.99),
    (Optimiser, "weight_decay"): st.floats(0.0, 1.0),
    (BufferConfig, "capacity"): st.one_of(st.none(), st.integers(1, 10**9), st.sampled_from(["8MB", "0.2GB"])),
}


def trees(kind):
    """Any settings of a group, by the types of its fields."""
    if kind is Part:
        return parts
    hints = get_type_hints(kind)
    return st.builds(
        kind, **{f.name: special.get((kind, f.name), leaf(hints[f.name])) for f in dataclasses.fields(kind)}
    )


def leaf(hint):
    if dataclasses.is_dataclass(hint):
        return trees(hint)
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_args(hint):
        return st.one_of(*map(leaf, get_args(hint)))
    return {type(None): st.none(), str: words, **numbers}[hint]


def dotted(plain, prefix=""):
    """Nested dictionaries as `--a.b=value` tokens."""
    for key, value in plain.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"--{prefix}{key}={str(value).lower() if isinstance(value, bool) else value}"


@settings(deadline=None, max_examples=50)
@given(trees(Config))
def test_python_toml_and_the_command_line_give_the_same(config):
    assert from_plain(tomllib.loads(tomli_w.dumps(as_plain(config)))) == config
    options = parse_settings([*dotted(as_plain(config))])
    assert from_plain(merge(as_plain(Config()), nested(options))) == config


@pytest.mark.parametrize("name", names())
def test_every_preset_comes_back_from_its_toml(name):
    for scale, rehearsal, memory in itertools.product(SCALES, REHEARSALS, MEMORIES):
        config = preset(name, scale, rehearsal, memory)
        assert from_plain(tomllib.loads(tomli_w.dumps(as_plain(config)))) == config
        assert config.rehearsal == rehearsal and (memory == "bounded" or config.buffer.capacity is None)


def test_a_preset_changed_in_three_ways(tmp_path):
    start = preset("imagenet-300")
    python = start.with_(
        policy=Part("mir", {"candidates": 50}), seed=3,
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
    assert found[0].base.optimiser == Optimiser("adamw", lr=0.5)


def test_a_group_stands_for_its_first_setting():
    config = change(Config(), {"data": "/photos/year=2020", "buffer": "0.2GB", "stop": 3, "optimiser": "adamw"})
    assert config.data.path == "/photos/year=2020" and config.buffer.capacity == "0.2GB"
    assert config.stop.patience == 3 and config.optimiser == Optimiser("adamw")
    several = change(Config(), {"optimiser": "lr=0.5, momentum=0", "data": {"pixels": 64, "path": "x"}})
    assert several.optimiser == Optimiser(lr=0.5, momentum=0.0) and several.data.pixels == 64
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


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bufer": 3}, "no setting 'bufer'; did you mean 'buffer'"),
        ({"stream.sesions": 3}, "no setting 'stream.sesions'; did you mean 'sessions'"),
        ({"base.optimiser.lrr": 3}, "no setting 'base.optimiser.lrr'; did you mean 'lr'"),
        ({"sessions": 3}, "did you mean 'stream.sessions'"),
        ({"momentum": 3}, "did you mean 'base.optimiser.momentum' or 'optimiser.momentum'"),
        ({"seed.start": 3}, "seed must be a whole number"),
        ({"seed": 3, "seed.start": 3}, "no setting 'seed.start'; 'seed' is not a group"),
        ({"seed": "x"}, "seed must be a whole number, not 'x'"),
        ({"seed": 1.5}, "seed must be a whole number, not 1.5"),
        ({"seed": True}, "seed must be a whole number, not True"),
        ({"seed": "inf"}, "seed must be a whole number"),
        ({"budget.times": "nan"}, "budget.times must be a number, not 'nan'"),
        ({"optimiser.lr": "fast"}, "optimiser.lr must be a number, not 'fast'"),
        ({"optimiser.lr": -1}, "optimiser: lr must be a positive number"),
        ({"execution.compile": 1}, "execution.compile must be true or false, not 1"),
        ({"rehearsal": "pixels"}, "rehearsal must be one of latent, veridical, not 'pixels'"),
        ({"base.method": "none "}, "base.method must be one of none, weights, supervised, swav"),
        ({"stop.patience": "long"}, "stop.patience must be a whole number or none, not 'long'"),
        ({"data.path": 3}, "data.path must be a text, not 3"),
        ({"data.path": None}, "data.path must be a text"),
        ({"stream.sessions": "none"}, "stream.sessions must be a whole number, not 'none'"),
        ({"policy": 3}, "policy.name must be a text, not 3"),
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
        ("[stream]\nsessions = 1.5", "mine.toml: stream.sessions must be a whole number, not 1.5"),
        ("[policy]\neps = 1.0", "mine.toml: policy.name must be a text"),
        ("seed = ", "mine.toml is not a TOML file"),
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
        ({"learner.reset": False}, "learner 'siesta' has no parameter 'reset'; it takes none"),
        ({"learner": "offline"}, "give the buffer no capacity"),
        ({"network.split": 3}, "network 'vector' has no option 'split'"),
        ({"network": "mobilenet"}, "no network called 'mobilenet'"),
        ({"codec": "opq", "codec.codebook": 4}, "codec 'opq' has no parameter 'codebook'; did you mean 'codebooks'"),
        ({"codec": "opq", "codec.size": 100}, "size must be 2, 4"),
        ({"codec.size": 16}, "codec 'half' has no parameter 'size'; it takes none"),
        ({"buffer.maintenance": "ring", "buffer.maintenance.per_clas": 3}, "did you mean 'per_class'"),
        ({"buffer.maintenance": "largest"}, "no maintenance called 'largest'"),
        ({"buffer": "8 apples"}, "'8 apples' is not a size"),
        ({"stream.kind": "iidd"}, "no stream called 'iidd'"),
        ({"stream.imbalance": 10.0}, "stream.imbalance is for long_tailed streams"),
        ({"stream.kind": "iid", "stream.blurry": 0.1}, "stream.blurry is for class_incremental"),
        ({"base.method": "supervised", "stream.base_classes": 0}, "needs classes to train on"),
        (
            {"base.method": "weights", "base.weights": "nowhere.safetensors"},
            "nowhere.safetensors: there is no such file",
        ),
        ({"stream.file": "nowhere.npz"}, "--stream.file nowhere.npz: there is no such file"),
        ({"data.path": "nowhere"}, "--data nowhere: there is no such folder"),
        ({"data.val_mapping": "x.txt"}, "--data.val_mapping is for folders of images"),
        ({"budget.updates": -1}, "budget.updates cannot be -1"),
        ({"stop": 0}, "stop.patience cannot be 0"),
        ({"seed": -1}, "seed cannot be -1"),
    ],
)
def test_what_cannot_work_is_refused_before_data_are_read(options, message, monkeypatch):
    monkeypatch.setitem(SOURCES, "listings", lambda data: pytest.fail("data were read"))
    with pytest.raises(GraspError, match=message):
        check(change(preset("listings"), options))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("imagenet-1k", {"budget.passes": 2}, "budget.updates is 2502"),
        ("imagenet-1k", {"stop.every": 5}, "without stop.patience"),
        ("imagenet-1k", {"stop": "share=0.1"}, "without stop.patience"),
        ("imagenet-1k", {"base.optimiser.lr": 0.1}, "base.passes 0"),
        ("mobilevit-imagenet-300", {"optimiser.momentum": 0.5}, "AdamW has none"),
        ("listings", {"base.lr": 0.1}, "with base.method none nothing is trained"),
        ("listings", {"base.epochs": 3, "base.method": "weights"}, "with base.method weights nothing is trained"),
        ("listings", {"data.pixels": 64}, "texts, not images"),
        ("places-lt", {"base.passes": 2}, "no base classes"),
        ("text-order-1", {"stream.base_classes": 2}, "tasks come one after the other"),
        ("groceries", {"rehearsal": "veridical", "codec": "half"}, "stores samples as they came"),
        ("groceries", {"stream.file": "x.npz", "stream.sessions": 3}, "the stream comes from x.npz"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(name, options, message):
    with pytest.raises(GraspError, match=message) as error:
        change(preset(name), options)
    assert any(str(error.value).startswith(f"--{option} would do nothing") for option in single(options))


def test_an_option_that_does_something_is_not():
    change(preset("imagenet-1k"), {"budget.updates": "none", "budget.passes": 2})
    change(preset("listings"), {"stop.patience": 3, "stop.every": 5, "base.optimiser.lr": 0.1})
    change(preset("listings"), {"base.method": "swav", "base.lr": 0.1})
    change(preset("groceries"), {"stream.file": "x.npz", "data.classes": 3, "stream.order": "sorted"})


def test_what_a_sweep_decides_itself_is_refused_there():
    for line, message in (
        (["--policy", "mir"], "--policy.name would do nothing here: --policies decides"),
        (["--seed", "3"], "--seeds decides"),
        (["--checkpoint.keep", "state"], "keeps results alone"),
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
        ("listings", ["smoke"], "'smoke' belongs to no option"),
        ("listings", ["--seed", "1", "--seed", "2"], "--seed is given twice"),
    ):
        with pytest.raises(GraspError, match=message):
            resolve(run, what, line)
    with pytest.raises(GraspError, match="did you mean --workers"):
        resolve(sweep, "listings", ["--worker", "2"])
    with pytest.raises(GraspError, match="--memory unbounded keeps everything, a buffer of 5 does not"):
        resolve(run, "listings", ["--buffer", "5"], memory="unbounded")
    (tmp_path / "mine.toml").write_text("")
    with pytest.raises(GraspError, match="are of presets"):
        resolve(run, "mine.toml", [], scale="smoke")
    for wrong, message in (({"scale": "tiny"}, "cannot be 'tiny'"), ({"memory": "bound"}, "did you mean 'bounded'")):
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
    with pytest.raises(GraspError, match="belongs to other data"):
        open_data(change(other, {"data.per_class": 5}))
