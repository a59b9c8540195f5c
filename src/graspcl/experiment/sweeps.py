"""Sweeps: many runs, in a pool of processes, on a Ray cluster, or in this process."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import multiprocessing
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from graspcl import machine
from graspcl.cache import lock
from graspcl.cluster import RayWorkers
from graspcl.errors import GraspError
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.prepare import PreparedCache, base_key, learn_base
from graspcl.experiment.runner import check_run, run
from graspcl.progress import Progress, Silent
from graspcl.registry import load_plugin
from graspcl.settings.config import Config

_MOST = 32  # processes that work at the same time on one machine


@dataclass
class Outcome:
    """The folders of finished runs, and the folders of failed ones with the reason."""

    finished: list[Path] = field(default_factory=list)
    failed: dict[Path, str] = field(default_factory=dict)


def sweep(
    configs: Sequence[Config], folder: Path, progress: Progress, workers: Executor, title: str = "sweep"
) -> Outcome:
    """Run every one of `configs`, each in its own folder below `folder` (`Config.path`).

    Settings that cannot work are refused before anything is done. Finished runs are skipped. Runs that start from the
    same state share it.
    """
    for one in {replace(config, seed=0).path: config for config in configs}.values():
        check_run(one)
    wanted = {folder / config.path: config for config in configs}
    reasons = finished_before(wanted)
    if finished := [*reasons.values()].count(""):
        progress.note(f"{finished} of {len(wanted)} runs were finished before")
    if waiting := {path: config for path, config in wanted.items() if path not in reasons}:
        cache, first = PreparedCache(), next(iter(waiting.values()))
        if not first.base.trains:
            cache.get(first, progress)  # now the latents are in the cache on disk, for all processes
        own = cache if isinstance(workers, _Here) else None
        reasons |= _run_all(waiting, folder, progress, workers, title, own)
    failed = {path: reasons[path] for path in wanted if reasons[path]}
    return Outcome([path for path in wanted if path not in failed], failed)


def finished_before(configs: Mapping[Path, Config]) -> dict[Path, str]:
    """Return the folders of finished runs with empty texts, and damaged folders with what is wrong."""
    reasons: dict[Path, str] = {}
    for path, config in configs.items():
        place = RunFolder(path)
        try:
            if place.holds(config) and place.finished:
                place.summary()  # it must be readable
                reasons[path] = ""
        except GraspError as error:
            reasons[path] = str(error)
    return reasons


def _run_all(
    configs: dict[Path, Config], folder: Path, progress: Progress, workers: Executor, title: str,
    cache: PreparedCache | None,
) -> dict[Path, str]:  # fmt: skip
    """Run all, after the states from which they start; return why each failed, or an empty text."""
    alike: dict[str, list[Path]] = {}  # runs that start from the same state
    alone = [path for path, config in configs.items() if not config.rehearses]
    for path, config in configs.items():
        if config.rehearses:
            alike.setdefault(base_key(config), []).append(path)
    runs, reasons = dict[Future[str], Path](), dict[Path, str]()
    counts = {"run": len(configs), "starting state": len(alike)}
    words = " and ".join(f"{number} {what}{'s' * (number > 1)}" for what, number in counts.items() if number)
    with progress.task(f"{title}: {words}", len(alike) + len(configs)) as advance:
        try:
            bases = {workers.submit(_task, configs[paths[0]], folder, cache, True): paths for paths in alike.values()}
            task = _task_after_another if isinstance(workers, RayWorkers) else _task
            for base in as_completed(bases):
                for path in bases[base]:
                    if reason := _reason(base):
                        reasons[path] = reason
                        advance(1)
                    else:
                        runs[workers.submit(task, configs[path], folder, cache)] = path
                advance(1)
            runs |= {workers.submit(task, configs[path], folder, cache): path for path in alone}
            for done in as_completed(runs):
                reasons[runs[done]] = _reason(done)
                advance(1)
        except BrokenProcessPool as error:
            killed = "a worker process was killed, perhaps for lack of memory"
            raise GraspError(f"{killed}; finished runs are kept: run the same command again to resume") from error
    return reasons


def _reason(done: Future[str]) -> str:
    try:
        return done.result()
    except GraspError as error:  # a task that Ray could not finish
        return str(error)


_own_cache = functools.cache(PreparedCache)  # one in each worker process


def _task(config: Config, folder: Path, cache: PreparedCache | None, only_base: bool = False) -> str:
    """Run, or make only the state from which runs start; return the reason if that fails.

    failure.txt has the traceback of a failure that is not the user's mistake.
    """
    base, cache = folder / config.folder / "base", cache or _own_cache()
    place = base if only_base else folder / config.path
    try:
        if only_base:
            prepared = cache.get(config, Silent())
            learn_base(config, prepared, prepared.new_learner(config), base, Silent())
        else:
            run(config, place, base=base, cache=cache)
            (place / "failure.txt").unlink(missing_ok=True)
    except GraspError as error:
        return str(error)
    except Exception as error:
        with contextlib.suppress(GraspError):  # the disk may be full
            RunFolder(place).write_texts({"failure.txt": traceback.format_exc()})
        return f"{type(error).__name__}: {error} ({place / 'failure.txt'})"
    return ""


def _task_after_another(config: Config, folder: Path, cache: PreparedCache | None) -> str:
    """Run like `_task`, but first wait for a process that holds the folder.

    When a node is lost, Ray starts its runs elsewhere at once, and their former processes may live a little longer.
    """
    held = folder / config.path / ".lock"
    with lock(held) if held.exists() else contextlib.nullcontext():
        pass
    return _task(config, folder, cache)


def make_workers(number: int | None = None, plugins: Sequence[Path] = ()) -> Executor:
    """Make worker processes that share the cores, one per core by default; 1 works in this process.

    >>> with make_workers(1) as workers:
    ...     workers.submit(max, 3, 4).result()
    4
    """
    machine.prepare()  # children inherit its settings before they load torch
    number = worker_number(number)
    if number == 1:
        return _Here()
    context = multiprocessing.get_context("spawn")  # a forked child could not use torch's threads
    return _Pool(number, context, start_worker, (max(1, machine.cores() // number), tuple(plugins)))


def worker_number(asked: int | None) -> int:
    """Return how many processes work at the same time: as many as are asked for, or one per core."""
    if asked is not None and asked > _MOST:
        raise GraspError(f"--workers must be at most {_MOST}, got {asked}")
    return asked or min(machine.cores(), _MOST)


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
    """Processes that end on Ctrl-C, an error, or the end of this process; a run at work saves a checkpoint first."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            at_work = list((self._processes or {}).values())
            self.shutdown(wait=False, cancel_futures=True)
            try:
                for process in at_work:
                    process.terminate()
                for process in at_work:
                    process.join()
            finally:  # a second Ctrl-C does not wait for them
                for process in at_work:
                    process.kill()
        super().__exit__(kind, error, trace)


def start_worker(threads: int, plugins: Sequence[Path]) -> None:
    """Prepare a process that works for another one, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides for all
    if sys.platform == "linux":  # the kernel ends this process when its parent is gone
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    machine.prepare()
    machine.flush_denormals()
    torch.set_num_threads(threads)
    for path in plugins:
        load_plugin(path)
