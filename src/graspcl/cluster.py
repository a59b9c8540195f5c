"""Workers on a Ray cluster, used like a pool of processes. Ray starts a task again when its process or node dies."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graspcl import machine
from graspcl.errors import GraspError, require

_SAVING = 60.0  # seconds that stopped tasks have to save checkpoints
_ANSWERING = 20.0  # seconds in which a cluster must answer


@dataclass(frozen=True)
class _Home:
    """What a task needs to know of the process that submits it, so that relative paths and caches are the same."""

    folder: str  # working directory
    environment: dict[str, str]
    marks: tuple[str, ...]  # files that every node must see
    threads: int
    plugins: tuple[str, ...]


class RayWorkers(Executor):
    """Runs each task on a node of a Ray cluster with enough free resources.

    Every node needs graspcl, and must see the working directory, `folders` and the cache under the same paths.

    Args:
        folders: folders that tasks write.
        address: the cluster, such as "auto", "10.0.0.1:6379" or "ray://10.0.0.1:10001". None: that of $RAY_ADDRESS or
            of this machine; if there is none, one is started here until the end.
        cpus: cores that a task takes; it computes with as many threads.
        gpus: GPUs that a task takes, a share of one or whole ones.
        retries: how often a task starts again after its process or node died.
        plugins: files with parts of your own, which each process loads.
    """

    def __init__(
        self, folders: Sequence[Path], address: str | None = None, cpus: float = 1.0, gpus: float = 0.0,
        retries: int = 3, plugins: Sequence[Path] = (),
    ) -> None:  # fmt: skip
        from graspcl.cache import cache_folder

        if gpus > 1 and gpus != int(gpus):
            raise GraspError(f"--gpus must be a share of one GPU, such as 0.5, or a whole number, got {gpus:g}")
        self._ray: Any = require("ray", "ray")
        self._retries, self._pending = retries, dict[Future[Any], Any]()
        machine.prepare()
        self._connect(address)
        self._refuse(cpus, gpus)
        shared, mark = [*folders, cache_folder()], f".seen-{uuid.uuid4().hex}"
        marks = tuple(os.path.abspath(folder / mark) for folder in shared)
        kept = {name: value for name, value in os.environ.items() if name.startswith("GRASPCL_")}
        kept["GRASPCL_CACHE"] = os.path.abspath(cache_folder())
        given = tuple(map(os.path.abspath, plugins))
        self._home = _Home(os.getcwd(), kept, marks, max(1, int(cpus)), given)
        limits = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": retries, "retry_exceptions": False}
        self._task = self._ray.remote(**limits)(_call)

    def _connect(self, address: str | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        before = signal.getsignal(signal.SIGTERM)
        self._started = not self._ray.is_initialized()
        if self._started:
            where = "" if address is None else f" {address}"
            try:
                _knock(address or os.environ.get("RAY_ADDRESS", ""))
                self._ray.init(address, log_to_driver=False, logging_level="ERROR")
            except (OSError, OverflowError, ValueError, RuntimeError) as error:
                said = str(error).partition("\n")[0]
                raise GraspError(f"the Ray cluster{where} cannot be reached (--address): {said}") from error
            with contextlib.suppress(ValueError):  # not in the main thread, where Ray sets no handler either
                signal.signal(signal.SIGTERM, before)

    def _refuse(self, cpus: float, gpus: float) -> None:
        """Refuse resources that no node has: tasks would wait for them for ever."""
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        nodes = {(node.get("CPU", 0), node.get("GPU", 0)) for node in alive}
        if not any(cpus <= own_cpus and gpus <= own_gpus for own_cpus, own_gpus in nodes):
            self.shutdown()
            there = " or ".join(f"{own_cpus:g} CPUs and {own_gpus:g} GPUs" for own_cpus, own_gpus in sorted(nodes))
            hint = f"lower --cpus and --gpus, or add a node first. Nodes have {there}"
            raise GraspError(f"no node of the Ray cluster has what a run takes: {hint}, got {cpus:g} and {gpus:g}")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        for mark in self._home.marks:
            if not os.path.exists(mark):
                Path(mark).parent.mkdir(parents=True, exist_ok=True)
                Path(mark).touch()
        # Packed, so that a process is prepared before its arguments load torch. Ray itself sends tasks as pickles, and
        # none is stored.
        reference = self._task.remote(self._ray.cloudpickle.dumps((fn, args, kwargs)), self._home)
        future: Future[Any] = Future()
        self._pending[future] = reference
        reference.future().add_done_callback(lambda done: self._finish(future, done))
        return future

    def _finish(self, future: Future[Any], done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            future.set_result(done.result())
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            future.set_exception(error.cause)
        else:
            what = f"its process or node died {self._retries + 1} times (--retries {self._retries})"
            future.set_exception(GraspError(f"{what}: {str(error).partition(chr(10))[0]}"))
        self._pending.pop(future, None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        pending = dict(self._pending)
        if error is not None:
            for reference in pending.values():
                self._ray.cancel(reference)  # an interrupt, on which a run saves a checkpoint
        wait(pending, None if error is None else _SAVING)
        self.shutdown()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if hasattr(self, "_home"):
            for mark in self._home.marks:
                Path(mark).unlink(missing_ok=True)
        if self._started:
            self._ray.shutdown()


def _knock(address: str) -> None:
    """Raise an OSError if nothing listens at HOST:PORT; Ray itself would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERING).close()


def _call(packed: bytes, home: _Home) -> Any:
    """Run a task in a process of the cluster."""
    os.environ.update(home.environment)
    with contextlib.suppress(OSError):
        os.chdir(home.folder)
    for mark in home.marks:
        if not os.path.exists(mark):
            node, folder = os.uname().nodename, os.path.dirname(mark)
            raise GraspError(f"the node {node} does not see {folder}; all nodes must share --out and GRASPCL_CACHE")
    _prepare(home.threads, home.plugins)
    from ray import cloudpickle  # type: ignore[import-not-found,unused-ignore]

    fn, args, kwargs = cloudpickle.loads(packed)
    return fn(*args, **kwargs)


@functools.cache
def _prepare(threads: int, plugins: tuple[str, ...]) -> None:
    machine.prepare()
    machine.flush_denormals()
    import torch

    from graspcl.registry import load_plugin

    torch.set_num_threads(threads)
    for path in plugins:
        load_plugin(Path(path))
