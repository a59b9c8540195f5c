"""Sweeps: many runs, in a pool of processes or in this one."""

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
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.prepare import PreparedCache, base_key, learn_base
from graspcl.experiment.runner import check_run, run
from graspcl.progress import Progress, Silent
from graspcl.registry import load_plugin
from graspcl.settings.config import Config


@dataclass
class Outcome:
    """The folders of finished runs, and the folders of failed ones with the reason."""

    finished: list[Path] = field(default_factory=list)
    failed: dict[Path, str] = field(default_factory=dict)


def sweep(
    configs: Sequence[Config], folder: Path, progress: Progress, workers: Executor, title: str = "runs"
) -> Outcome:
    """Run every one of `configs`, each in its own folder below `folder` (`Config.path`).

    Settings that cannot work are refused before anything is done. Finished runs are skipped. Runs that start from the
    same state share it.

    Args:
        configs: settings of the runs.
        folder: the folder of all runs.
        progress: shows the work.
        workers: see `make_workers`.
        title: what the work is called.
    """
    for one in {config.with_(seed=0).path: config for config in configs}.values():
        check_run(one)
    outcome, waiting = Outcome(), {config.path: config for config in configs}
    order = {folder / path: number for number, path in enumerate(waiting)}
    for path, config in list(waiting.items()):
        try:
            if _is_finished(RunFolder(folder / path), config):
                outcome.finished.append(folder / path)
                del waiting[path]
        except GraspError as error:  # a damaged folder
            outcome.failed[folder / path] = str(error)
            del waiting[path]
    if outcome.finished:
        progress.note(f"{len(outcome.finished)} runs were finished before")
    if waiting:
        cache = PreparedCache()
        first = next(iter(waiting.values()))
        if not first.base.trains:
            cache.get(first, progress)  # now the latents are in the cache on disk, for all processes
        _run_all(waiting, folder, progress, workers, title, outcome, cache if isinstance(workers, _Here) else None)
    outcome.finished.sort(key=order.__getitem__)
    return outcome


def _is_finished(place: RunFolder, config: Config) -> bool:
    """Whether a run has finished there; its summary must be readable."""
    if not (place.path / "config.toml").exists() or not place.holds(config) or not place.finished:
        return False
    place.summary()
    return True


def _run_all(
    configs: dict[str, Config], folder: Path, progress: Progress, workers: Executor, title: str, outcome: Outcome,
    cache: PreparedCache | None,
) -> None:  # fmt: skip
    same_base: dict[str, list[str]] = {}  # runs that start from the same state
    for path, config in configs.items():
        same_base.setdefault(base_key(config), []).append(path)
    runs: dict[Future[str], Path] = {}
    with progress.task(title, len(same_base) + len(configs)) as advance:
        try:
            bases = {
                workers.submit(_base_task, configs[paths[0]], folder, cache): paths for paths in same_base.values()
            }
            for base in as_completed(bases):
                for path in bases[base]:
                    if reason := base.result():
                        outcome.failed[folder / path] = reason
                        advance(1)
                    else:
                        runs[workers.submit(_run_task, configs[path], folder, cache)] = folder / path
                advance(1)
            for done in as_completed(runs):
                if reason := done.result():
                    outcome.failed[runs[done]] = reason
                else:
                    outcome.finished.append(runs[done])
                advance(1)
        except BrokenProcessPool as error:
            raise GraspError(
                "a worker process was killed, perhaps for lack of memory; finished runs are kept: run the same command "
                "again to resume"
            ) from error


# -- tasks of the workers ----------------------------------------------------------------------------------------------

_of_this_worker: PreparedCache | None = None  # set when a worker process starts


def _base_task(config: Config, folder: Path, cache: PreparedCache | None) -> str:
    """Make the state from which runs start; return the reason if that fails."""
    base = folder / config.folder / "base"
    try:
        prepared = (cache or _of_this_worker or PreparedCache()).get(config, Silent())
        learn_base(config, prepared, prepared.new_learner(config), base, Silent())
    except Exception as error:
        return _reason(error, base)
    return ""


def _run_task(config: Config, folder: Path, cache: PreparedCache | None) -> str:
    """Run; return the reason if that fails."""
    place = folder / config.path
    try:
        run(config, place, base=folder / config.folder / "base", cache=cache or _of_this_worker)
        (place / "failure.txt").unlink(missing_ok=True)
    except Exception as error:
        return _reason(error, place)
    return ""


def _reason(error: Exception, place: Path) -> str:
    """Explain a failure in one line; failure.txt has the traceback of what is not the user's mistake."""
    if isinstance(error, GraspError):
        return str(error)
    file = place / "failure.txt"
    with contextlib.suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    return f"{type(error).__name__}: {error} ({file})"


# -- workers -----------------------------------------------------------------------------------------------------------


def make_workers(number: int | None = None, plugins: Sequence[Path] = ()) -> Executor:
    """Make worker processes that share the cores, one per core by default; 1 works in this process.

    >>> with make_workers(1) as workers:
    ...     workers.submit(max, 3, 4).result()
    4
    """
    machine.prepare()  # children inherit its settings before they load torch
    cores = machine.cores()
    number = min(number or cores, 32)
    if number == 1:
        return _Here()
    context = multiprocessing.get_context("spawn")  # a forked child could not use torch's threads
    return _Pool(number, context, _start_worker, (max(1, cores // number), tuple(plugins)))


class _Here(Executor):
    """Runs a task when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class _Pool(ProcessPoolExecutor):
    """Processes that end at once on Ctrl-C, an error, or the end of this process."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            at_work = list((self._processes or {}).values())
            self.shutdown(wait=False, cancel_futures=True)
            for process in at_work:
                process.kill()
        super().__exit__(kind, error, trace)


def _start_worker(threads: int, plugins: tuple[Path, ...]) -> None:
    global _of_this_worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides for all
    _end_with_parent()
    machine.prepare()
    machine.flush_denormals()
    torch.set_num_threads(threads)
    for path in plugins:
        load_plugin(path)
    _of_this_worker = PreparedCache()


def _end_with_parent() -> None:
    """On Linux, let the kernel end this process when its parent is gone."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
