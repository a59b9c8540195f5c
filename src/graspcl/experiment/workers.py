"""Where tasks are done: in a pool of processes, or here."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

from graspcl import machine
from graspcl.registry import load_plugin


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
