"""Where tasks are done: in a pool of processes, or here."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from graspcl import machine
from graspcl.errors import GraspError
from graspcl.experiment.folder import RunFolder, held
from graspcl.experiment.runner import run
from graspcl.experiment.start import forget, ready, start_key, start_state
from graspcl.progress import Progress, Silent
from graspcl.registry import load_plugin
from graspcl.settings.config import Config
from graspcl.settings.rules import check


def make_workers(number: int | None = None, plugins: Sequence[Path] = ()) -> Executor:
    """Processes that share the cores, one per core by default; with 1, tasks are done in this process.

    >>> with make_workers(1) as workers:
    ...     workers.submit(max, 3, 4).result()
    4
    """
    machine.prepare()  # children inherit what it sets before they load torch
    cores = machine.cores()
    number = min(number or cores, 32)
    if number == 1:
        return _Here()
    context = multiprocessing.get_context("spawn")  # a forked child would inherit torch's threads in an unusable state
    return _Pool(number, context, _prepare, (max(1, cores // number), tuple(plugins)))


class _Pool(ProcessPoolExecutor):
    """Processes that end at once when the work is given up: by Ctrl-C, an error, or the end of this process."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            at_work = list((self._processes or {}).values())
            self.shutdown(wait=False, cancel_futures=True)
            for process in at_work:
                process.kill()
        super().__exit__(kind, error, trace)


def _prepare(threads: int, plugins: tuple[Path, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one decides for all
    _end_with_parent()
    machine.prepare()
    machine.flush_denormals()
    torch.set_num_threads(threads)
    for path in plugins:
        load_plugin(path)


def _end_with_parent() -> None:
    """On Linux, have the kernel end this process when its parent is gone, however that came about."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


class _Here(Executor):
    """Does a task when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@dataclass
class Outcome:
    """The folders of runs that are finished, and of those that are not, the reason."""

    finished: list[Path] = field(default_factory=list)
    failed: dict[Path, str] = field(default_factory=dict)


def sweep(
    configs: Sequence[Config], folder: Path, progress: Progress, workers: Executor, title: str = "runs"
) -> Outcome:
    """Run every one of `configs`, each in its own folder below `folder` (`Config.path`).

    What is misspelt or cannot work together is refused before anything is done. What several runs begin from is made
    once.
    """
    for one in {config.with_(seed=0).path: config for config in configs}.values():
        check(one)
    outcome, waiting = Outcome(), configs_by_path(configs)
    order = {folder / path: number for number, path in enumerate(waiting)}
    for path, config in list(waiting.items()):
        try:
            if _finished(folder / path, config):
                outcome.finished.append(folder / path)
                del waiting[path]
        except GraspError as error:  # what lies there is damaged
            outcome.failed[folder / path] = str(error)
            del waiting[path]
    if outcome.finished:
        progress.note(f"{len(outcome.finished)} runs were finished before")
    if not waiting:
        return outcome
    forget()
    first = next(iter(waiting.values()))
    if first.base.method in ("none", "weights"):
        ready(first, progress)  # from here on the cache has the latents
    _work(waiting, folder, progress, workers, title, outcome)
    outcome.finished.sort(key=order.__getitem__)
    return outcome


def _finished(place: Path, config: Config) -> bool:
    """Whether a run came to its end there; its summary must be readable."""
    if not (place / "config.toml").exists() or not held(place, config) or not RunFolder(place).finished:
        return False
    RunFolder(place).summary()
    return True


def configs_by_path(configs: Sequence[Config]) -> dict[str, Config]:
    """Settings by the folder of their run; the same settings come once."""
    return {config.path: config for config in configs}


def _work(
    configs: dict[str, Config], folder: Path, progress: Progress, workers: Executor, title: str, outcome: Outcome
) -> None:
    together: dict[str, list[str]] = {}  # runs that start from the same state
    for path, config in configs.items():
        together.setdefault(start_key(config), []).append(path)
    runs: dict[Future[str], Path] = {}
    with progress.task(title, len(together) + len(configs)) as advance:
        try:
            bases = {workers.submit(_base_task, configs[paths[0]], folder): paths for paths in together.values()}
            for base in as_completed(bases):
                for path in bases[base]:
                    if reason := base.result():
                        outcome.failed[folder / path] = reason
                        advance(1)
                    else:
                        runs[workers.submit(_run_task, configs[path], folder)] = folder / path
                advance(1)
            for done in as_completed(runs):
                if reason := done.result():
                    outcome.failed[runs[done]] = reason
                else:
                    outcome.finished.append(runs[done])
                advance(1)
        except BrokenProcessPool as error:
            raise GraspError(
                "a worker process was ended from outside, perhaps for want of memory; finished runs stay, and the same "
                "command goes on with the others"
            ) from error


def _base_task(config: Config, folder: Path) -> str:
    """Make what a run begins from; returns why not, if it fails."""
    base = folder / config.name / "base"
    try:
        start_state(config, ready(config, Silent()), base, Silent())
    except Exception as error:
        return _reason(error, base)
    return ""


def _run_task(config: Config, folder: Path) -> str:
    place = folder / config.path
    try:
        run(config, place, base=folder / config.name / "base")
        (place / "failure.txt").unlink(missing_ok=True)
    except Exception as error:
        return _reason(error, place)
    return ""


def _reason(error: Exception, place: Path) -> str:
    """Why a run failed, in one line; of what is no mistake of the user's, failure.txt has the rest."""
    if isinstance(error, GraspError):
        return str(error)
    file = place / "failure.txt"
    with contextlib.suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return f"{type(error).__name__}: {error} ({file})"
