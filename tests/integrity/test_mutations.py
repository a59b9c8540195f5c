"""Damage of every kind to every kind of file, seen by a user of the program: told or without effect, never a traceback.

The commands run in this process, on copies of small folders, so that hundreds of mutations take minutes.
"""

import collections
import contextlib
import io
import itertools
import json
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from graspcl.cli import main
from graspcl.errors import GraspError
from graspcl.experiment.live import ProgressFile
from graspcl.experiment.pretraining import build_network
from graspcl.integrity import Damaged, read_arrays
from graspcl.learner import Rehearsal
from graspcl.pretrain import load_codec, load_weights, read_header
from graspcl.report.watch import WatchedRun
from graspcl.settings.presets import load
from graspcl.state import load_state
from graspcl.stream import load_stream

pytest.importorskip("jinja2", reason="needs graspcl[report]")
Image = pytest.importorskip("PIL.Image", reason="needs graspcl[images]")

SETTINGS = """
name = "small"
codec = "half"
network = "small(embedding=16)"
policy = "grasp"
data = {path = "photos", pixels = 8}
stream = {base_classes = 2, sessions = 3}
base = {stages = ["supervised(epochs=1, batch_size=8)"], passes = 1.0}
budget = {updates = 3, batch_size = 8}
optimiser = {lr = 0.05}
measure = {drift = 4}
checkpoint = {seconds = 0.0}
execution = {device = "cpu"}
"""

# -- what is damaged ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder with a finished run, one that was stopped in a session, their cache, and exported weights.

    A copy of the finished run has two checkpoints, as if it had been killed before it deleted the older one.

    The program works in this folder, on parts of it that are copied to `used`.
    """
    place = tmp_path_factory.mktemp("sound")
    rng = np.random.default_rng(0)
    for label, name in enumerate(("ant", "bee", "cod", "dab", "emu")):
        (place / "photos" / name).mkdir(parents=True)
        for number in range(8):
            pixels = np.clip(50 * label + rng.normal(0, 40, (8, 8, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(place / "photos" / name / f"{number}.png")
    (place / "photos" / "ant" / "broken.png").write_bytes(b"no image")
    (place / "settings.toml").write_text(SETTINGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr("os.fsync", lambda file: None)
        patch.setenv("GRASPCL_CACHE", "cache")
        patch.setenv("COLUMNS", "200")
        graspcl("run", "settings.toml", "--out", "finished")
        with patch.context() as stopping:
            stopping.setattr(Rehearsal, "step", stopped_at(7, Rehearsal.step))
            with pytest.raises(Stopped):
                graspcl("run", "settings.toml", "--out", "stopped")
        shutil.copytree("finished", "kept")
        kept, stopped = run_folder("kept", Path()), run_folder("stopped", Path())
        shutil.copytree(stopped / "codes", kept / "codes")
        shutil.copy(max((stopped / "checkpoints").iterdir()), kept / "checkpoints")
        graspcl("pretrain", "settings.toml", "--out", "export/weights.safetensors")
        graspcl("stream", "save", "settings.toml", "--out", "export/stream.npz")
        patch.setenv("GRASPCL_CACHE", "used/cache")
        yield place


class Stopped(Exception):
    """A run ends amid a session."""


def stopped_at(number, step):
    """A step whose call `number` does not happen."""
    calls = iter(range(number))

    def once(self):
        if next(calls, None) is None:
            raise Stopped
        step(self)

    return once


class Refused(Exception):
    """The program ended with a message."""


def graspcl(*arguments):
    """Run a command; return what it prints."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            main(arguments)
        except SystemExit as end:
            unread = arguments[0] == "predict" and end.code == 1  # one photo among them is no image
            if end.code and not unread:
                raise Refused(told.getvalue()) from None
    return told.getvalue()


def files(place):
    """Every file that is read again."""
    found = [path.relative_to(place) for part in COMMANDS for path in sorted((place / part).rglob("*.*"))]
    return [path for path in found if (place / path).is_file() and not path.name.startswith(".")]


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


def run(part, *options):
    """The results of a run that is resumed, that is finished already, or that starts from what it finds."""
    options = (*options, "--checkpoint.seconds", "60")  # saving every update again would take most of the time
    told = graspcl("run", "settings.toml", "--out", f"used/{part}", *options)
    folder = Path(*shlex.split(told.rpartition("Run: ")[2]))
    summary = json.loads((folder / "summary.json").read_text())
    timeless = {name: value for name, value in summary.items() if not name.endswith(("seconds", "joules"))}
    try:
        return plain([timeless, read_arrays(folder / "predictions.npz")]), ""
    except Damaged as error:  # a finished run is not read again, and whoever reads its predictions is told
        raise Refused(str(error)) from None


def run_from_base(part):
    """Another policy starts from the same state."""
    return run(part, "--policy", "uniform")


def run_from_export(part):
    stages, stream = "weights(file=used/export/weights.safetensors)", "used/export/stream.npz"
    return run("new", "--base.stages", stages, "--stream.file", stream)


def run_from_cache(part):
    return run("new")


def predict(part):
    told = graspcl("predict", str(run_folder(part)), "photos", "--top", "5", "-o", "used/table.csv")
    return Path("used/table.csv").read_text(), "trying the previous one" in told


def report(part):
    told = graspcl("report", f"used/{part}", "--format", "csv", "-o", "used/report")
    tables = {path.name: path.read_text() for path in Path("used/report").rglob("*.csv")}
    return plain(tables), "problems" in told or "damaged" in told


def runs(part):
    told = graspcl("list", "runs", f"used/{part}")
    return told, "cannot be read" in told or "damaged" in told


def watch(part):
    shown = WatchedRun(run_folder(part))
    assert shown.page() and shown.news()
    return plain(shown._update()), shown._run.problems or not shown._heartbeat  # no news are shown as none


def load_states(part):
    return [plain(load_state(path)) for path in sorted(run_folder(part).glob("checkpoints/*.safetensors"))], ""


def load_export(part):
    file, network = Path("used/export/weights.safetensors"), build_network(load(Path("settings.toml")))
    load_weights(network, file, part="body")
    stream = load_stream(Path("used/export/stream.npz"))
    sessions = [stream.base, *stream.sessions, stream.labels, list(stream.home.items())]
    return plain([read_header(file), dict(network.state_dict()), type(load_codec(file)).__name__, sessions]), ""


COMMANDS = {
    "finished": (run, predict, report, runs, load_states),
    "kept": (predict,),
    "stopped": (run, report, runs, watch, load_states),
    "cache": (run_from_cache,),
    "export": (run_from_export, load_export),
}


def run_folder(part, place=Path("used")):
    (config,) = (place / part).rglob("config.toml")
    return config.parent


def plain(value):
    """A value of nested arrays as text."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, torch.Tensor | np.ndarray):
        array = np.asarray(value)
        return f"{array.dtype} {array.shape} {array.tobytes().hex()}"
    return repr(value)


def answer(place, part, command, damage=lambda: None):
    """Use a copy of a part, after `damage` to it."""
    shutil.rmtree(place / "used", ignore_errors=True)
    for name in {part, "cache"}:
        shutil.copytree(place / name, place / "used" / name)
    if part == "stopped":
        ProgressFile(run_folder(part))  # this process is at work
    damage()
    return command(part)


def outcome(place, path, mutate, command, expected, rng):
    """Damage one file and use it; return what came of it."""

    def damage():
        file = place / "used" / path
        content = bytearray(file.read_bytes())
        mutate(content, rng)
        file.write_bytes(content)

    try:
        found, told = answer(place, path.parts[0], command, damage)
    except (GraspError, Refused):
        return "refused"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"
    return "same result" if found == expected else "told" if told else "SILENT"


def suite(place, number, seed):
    """Count the outcomes of random mutations; return them, and those that are wrong."""
    rng, answers, found, wrong = np.random.default_rng(seed), {}, collections.Counter(), []
    for path in itertools.islice(itertools.cycle(rng.permutation(files(place))), number):  # all files equally often
        part, mutate = path.parts[0], MUTATIONS[rng.integers(len(MUTATIONS))]
        commands = (run_from_base,) if "base" in path.parts and part != "cache" else COMMANDS[part]
        command = commands[rng.integers(len(commands))]
        if (part, command) not in answers:
            answers[part, command] = answer(place, part, command)[0]
        result = outcome(place, path, mutate, command, answers[part, command], rng)
        found[command.__name__, result.partition(":")[0]] += 1
        if result.startswith("traceback") or result == "SILENT":
            wrong.append(f"{mutate.__name__} of {path}, {command.__name__}: {result}")
    return found, wrong


def counted(found):
    """The count of each outcome, over all commands and by command."""
    totals = collections.Counter()
    for (_, result), count in found.items():
        totals[result] += count
    lines = [f"{command:16} {result:12} {count:4}" for (command, result), count in sorted(found.items())]
    return "\n".join(["", f"{sum(totals.values())} mutations: {dict(totals)}", *lines, ""])


def test_a_sample_of_mutations(sound, capsys):
    found, wrong = suite(sound, 40, seed=1)
    with capsys.disabled():
        sys.stdout.write(counted(found))
    assert wrong == [] and sum(count for (_, result), count in found.items() if result in ("refused", "told")) > 5


def test_a_finished_run_with_two_checkpoints_tells_that_it_uses_the_older_one(sound):
    older, newer = (path.relative_to(sound) for path in sorted((sound / "kept").rglob("checkpoints/*.safetensors")))
    expected, told = answer(sound, "kept", predict)
    found, fallback = answer(sound, "kept", predict, lambda: (sound / "used" / newer).write_bytes(b"damaged"))
    assert not told and fallback and found != expected
    assert answer(sound, "kept", predict, lambda: (sound / "used" / older).write_bytes(b"damaged")) == (expected, False)


@pytest.mark.slow
def test_five_hundred_mutations(sound, capsys):
    found, wrong = suite(sound, 500, seed=2)
    with capsys.disabled():
        sys.stdout.write(counted(found))
    assert wrong == [] and sum(found.values()) == 500
