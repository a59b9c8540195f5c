"""Where tasks are done: in a pool of processes, or here."""

from __future__ import annotations

import multiprocessing
import os
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
    cores = os.cpu_count() or 1
    number = min(number or cores, 32)
    if number == 1:
        return _Here()
    context = multiprocessing.get_context("spawn")  # a forked child would inherit torch's threads in an unusable state
    return ProcessPoolExecutor(number, context, _prepare, (max(1, cores // number), tuple(plugins)))


def _prepare(threads: int, plugins: tuple[Path, ...]) -> None:
    machine.prepare()
    torch.set_num_threads(threads)
    for path in plugins:
        load_plugin(path)


class _Here(Executor):
    """Does a task when it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future
