"""Damage of every kind to every kind of file: it is told or without effect, and never a traceback."""

import collections
import dataclasses
import io
import itertools
import shutil
import sys

import numpy as np
import pytest
import torch
from rich.console import Console

from graspcl.codec import Half
from graspcl.data import Samples, data_sources
from graspcl.errors import GraspError
from graspcl.experiment import load_learner, run
from graspcl.experiment.live import ProgressFile
from graspcl.experiment.pretraining import build_network
from graspcl.learner import Rehearsal
from graspcl.pretrain import load_codec, load_weights, save_weights
from graspcl.report import find_runs, gather, runs_table
from graspcl.report.watch import WatchedRun
from graspcl.settings import change, preset
from graspcl.state import load_state
from graspcl.stream import load_stream

pytest.importorskip("jinja2", reason="needs graspcl[report]")

OPTIONS = {"name": "small", "data.path": "dots", "stream.base_classes": 2, "stream.sessions": 3, "budget.updates": 3,
           "codec": "half", "checkpoint.seconds": 0, "measure.drift": 4}  # fmt: skip


class Dots(Samples[torch.Tensor]):
    """6 classes of 12 vectors."""

    def __init__(self):
        labels, number = np.repeat(np.arange(6), 12), np.arange(72)
        self.values = np.random.default_rng(0).normal(size=(72, 256)).astype(np.float32) + labels[:, None]
        names = [f"class {label}" for label in range(6)]
        super().__init__("dots", "1", names, labels, number, number[number % 3 > 0], number[number % 3 == 0])

    def read(self, indices):
        return torch.from_numpy(self.values[self.check(indices)])


# -- what is damaged ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A finished run, one that was stopped in a session, their cache, and exported files."""
    place = tmp_path_factory.mktemp("sound")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        patch.setenv("GRASPCL_CACHE", str(place / "cache"))
        data_sources.names()
        patch.setitem(data_sources._parts, "dots", Dots)
        patch.setitem(data_sources._declared, "dots", {"gives": "vectors"})
        config = change(preset("listings"), OPTIONS)
        run(config, place / "finished", base=place / "base")
        with patch.context() as stopping, pytest.raises(KeyboardInterrupt):
            stopping.setattr(Rehearsal, "step", stopped_at(7, Rehearsal.step))
            run(config, place / "stopped", base=place / "base")
        ProgressFile(place / "stopped")
        (place / "export").mkdir()
        save_weights(build_network(config), place / "export" / "weights.safetensors", Half(), {"classes": ["a"]})
        shutil.copy(place / "finished" / "stream.npz", place / "export" / "stream.npz")
        yield place, config


def stopped_at(number, step):
    """A step whose call `number` is interrupted."""
    calls = iter(range(number))

    def once(self):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        step(self)

    return once


def files(place):
    """Every file that is read again, by the part it belongs to."""
    found = [path.relative_to(place) for path in sorted(place.rglob("*")) if path.is_file() and path.suffix]
    return [path for path in found if path.name != ".lock"]


def flip(content, rng):
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)


def truncate(content, rng):
    del content[rng.integers(len(content)) :]


def swap(content, rng):
    size = int(rng.integers(1, 65))
    first, second = (int(one) for one in rng.integers(0, max(1, len(content) - size), 2))
    if abs(first - second) < size:
        return
    a, b = bytes(content[first : first + size]), bytes(content[second : second + size])
    content[first : first + len(b)], content[second : second + len(a)] = b, a


def zero(content, rng):
    begin = int(rng.integers(len(content)))
    end = min(len(content), begin + int(rng.integers(1, 257)))
    content[begin:end] = bytes(end - begin)


def append(content, rng):
    content += rng.bytes(int(rng.integers(1, 65)))


MUTATIONS = (flip, truncate, swap, zero, append)

# -- what is done with it: each returns an answer that can be compared, and what it told ------------------------------


def repeated(place, config):
    """The results of a run that starts from the cache, or from the shared state after the base, that it finds."""
    return resumed(place.parent / "repeated", config, place if place.name == "base" else None)


def resumed(place, config, base=None):
    """The results of a run that is resumed, or that is finished already."""
    summary = run(config, place, base=base)
    with np.load(place / "predictions.npz") as file:
        arrays = dict(file)
    timed = ("seconds", "joules")
    values = {name: value for name, value in summary.items() if not name.endswith(timed)}
    return plain([values, arrays]), ()


def predicted(place, config):
    learned = load_learner(place)
    found = learned.predict(Dots().values[:9])
    return plain([found.classes, found.probabilities]), ()


def reported(place, config):
    (found,) = gather([place]).runs
    return run_values(found), found.problems


def listed(place, config):
    (found,) = find_runs(place)
    console = Console(file=io.StringIO(), width=200)
    console.print(runs_table([found], place))
    return console.file.getvalue(), found.problems


def watched(place, config):
    shown = WatchedRun(place)
    assert shown.page()
    return plain(shown._update()), shown._run.problems or not shown._heartbeat  # no news are shown as none


def states(place, config):
    return [plain(load_state(path)) for path in sorted((place / "checkpoints").glob("*"))], ()


def exported(place, config):
    network = build_network(config)
    load_weights(network, place / "weights.safetensors")
    codec, stream = load_codec(place / "weights.safetensors"), load_stream(place / "stream.npz")
    sessions = [stream.base, *stream.sessions, stream.labels, list(stream.home.items())]
    return plain([dict(network.state_dict()), type(codec).__name__, sessions]), ()


COMMANDS = {
    "finished": (predicted, reported, listed, resumed, states),
    "stopped": (resumed, reported, listed, watched, states),
    "cache": (repeated,),
    "base": (repeated,),
    "export": (exported,),
}


def run_values(found):
    skipped = ("path", "problems")
    return plain({one.name: getattr(found, one.name) for one in dataclasses.fields(found) if one.name not in skipped})


def plain(value):
    """A value of nested arrays as text."""
    if dataclasses.is_dataclass(value):
        return plain(vars(value))
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, torch.Tensor | np.ndarray):
        array = np.asarray(value)
        return f"{array.dtype} {array.shape} {array.tobytes().hex()}"
    return repr(value)


def answer(place, config, part, command, scratch, damage=None):
    """Use a copy of a part, after `damage` to it."""
    copies = shutil.copytree(place / part, scratch / part)
    try:
        if damage is not None:
            damage(copies)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GRASPCL_CACHE", str(copies if part == "cache" else place / "cache"))
            return command(copies, config)
    finally:
        shutil.rmtree(scratch)


def outcome(place, config, path, mutate, command, scratch, expected, rng):
    """Damage one file and use it; return what came of it."""

    def damage(copies):
        file = copies.joinpath(*path.parts[1:])
        content = bytearray(file.read_bytes())
        mutate(content, rng)
        file.write_bytes(content)

    try:
        found, told = answer(place, config, path.parts[0], command, scratch, damage)
    except GraspError:
        return "refused"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"
    return "same result" if found == expected else "told" if told else "SILENT"


def suite(sound, scratch, number, seed):
    """Count the outcomes of random mutations; return them, and those that are wrong."""
    (place, config), rng = sound, np.random.default_rng(seed)
    answers, found, wrong = {}, collections.Counter(), []
    for path in itertools.islice(itertools.cycle(rng.permutation(files(place))), number):  # all files equally often
        mutate = MUTATIONS[rng.integers(len(MUTATIONS))]
        part = path.parts[0]
        command = COMMANDS[part][rng.integers(len(COMMANDS[part]))]
        if (part, command) not in answers:
            answers[part, command] = answer(place, config, part, command, scratch)[0]
        result = outcome(place, config, path, mutate, command, scratch, answers[part, command], rng)
        found[result.partition(":")[0]] += 1
        if result.startswith("traceback") or result == "SILENT":
            wrong.append(f"{mutate.__name__} of {path}, {command.__name__}: {result}")
    return found, wrong


def test_a_sample_of_mutations(sound, tmp_path, capsys):
    found, wrong = suite(sound, tmp_path / "scratch", 40, seed=1)
    with capsys.disabled():
        sys.stdout.write(f"\nmutations: {dict(found)}\n")
    assert wrong == [] and found["refused"] + found["told"] > 5


@pytest.mark.slow
def test_five_hundred_mutations(sound, tmp_path, capsys):
    found, wrong = suite(sound, tmp_path / "scratch", 500, seed=2)
    with capsys.disabled():
        sys.stdout.write(f"\nmutations: {dict(found)}\n")
    assert wrong == [] and sum(found.values()) == 500
