"""Encode a data set before its runs: many processes share the work, and leave codes in the cache."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from graspcl import machine
from graspcl.cache import cache_folder, patience, required
from graspcl.distributed import is_first, launched
from graspcl.errors import GraspError
from graspcl.experiment.prepare import help_preparing, prepare
from graspcl.experiment.runner import check_run
from graspcl.experiment.sweeps import start_worker, worker_number
from graspcl.progress import Progress
from graspcl.settings.config import Config
from graspcl.state import write_whole


@dataclass(frozen=True)
class Encoded:
    """What `encode` has made."""

    samples: int  # that can be read
    code_bytes: int  # per sample
    problems: list[str]  # of the data, one line each
    listed: Path | None  # the file that lists all problems


def encode(
    config: Config, progress: Progress, workers: int | None = None, plugins: Sequence[Path] = (), timeout: float = 600.0
) -> Encoded | None:
    """Compute the codes of all samples of a run, and store them in the cache, from which runs read them.

    Run it again to resume: what is stored is not computed again. Samples that cannot be read are found on the way.

    Args:
        config: settings of the run.
        progress: shows the work.
        workers: number of processes, by default one per core. Under torchrun the ranks are the processes instead.
        plugins: files with parts of your own, which each process loads.
        timeout: under torchrun, seconds after which a rank fails that waits for a rank without progress.

    Returns:
        What was made; None on all ranks but the first.
    """
    check_run(config)
    if config.rehearsal == "veridical":
        raise GraspError("veridical rehearsal stores samples as they are, so there is nothing to encode")
    if not launched():
        with _helpers(config, worker_number(workers) - 1, plugins, progress):
            return _encode(config, progress)
    with patience(timeout):
        if is_first():
            return _encode(config, progress)
        help_preparing(config)
        return None


@contextlib.contextmanager
def _helpers(config: Config, number: int, plugins: Sequence[Path], progress: Progress) -> Iterator[None]:
    """Let `number` processes take part in the work of this one, which completes it whatever becomes of them.

    They are no pool, which would end all of its processes when one is killed.
    """
    threads = max(1, machine.cores() // (number + 1))
    if number:
        machine.prepare()  # children inherit its settings before they load torch
        torch.set_num_threads(threads)
    context = multiprocessing.get_context("spawn")  # a forked child could not use torch's threads
    helpers = list[tuple[SpawnProcess, Connection]]()
    try:
        for _ in range(number):
            ear, mouth = context.Pipe(duplex=False)
            process = context.Process(target=_help, args=(config, threads, tuple(plugins), mouth))
            process.start()
            mouth.close()  # the other end is the helper's alone, and closes with it
            helpers.append((process, ear))
        yield
        for _, ear in helpers:
            if ear.poll():  # else it is at work still, with nothing left to do
                _tell(ear, progress)
    finally:
        for process, _ in helpers:
            process.kill()
        for process, _ in helpers:
            process.join()


def _tell(ear: Connection, progress: Progress) -> None:
    """Tell what became of a helper, if it has not done its part."""
    try:
        said = ear.recv_bytes().decode()
    except (EOFError, OSError):
        progress.note("a process was killed, perhaps for lack of memory; the others have done its part")
    else:
        if said:
            progress.note(f"a process failed, and the others have done its part: {said}")


def _help(config: Config, threads: int, plugins: tuple[Path, ...], mouth: Connection) -> None:
    """Do a part of the work; send what went wrong, or nothing but an empty text."""
    said = ""
    try:
        start_worker(threads, plugins)
        help_preparing(config)
    except Exception as error:
        said = str(error) or type(error).__name__
    mouth.send_bytes(said.encode(errors="replace"))


def _encode(config: Config, progress: Progress) -> Encoded:
    with required():
        prepared = prepare(config, progress)
    if not config.measure.coded:
        prepared.test_latents()
    codes, listed = prepared.codes, None  # their number and size are known without reading them
    if prepared.problems:
        listed = cache_folder() / "problems" / f"{prepared.samples.name}-{prepared.samples.fingerprint()}.json"
        content = json.dumps(prepared.problems, indent=1).encode()
        try:
            write_whole(listed, lambda file: file.write(content))
        except OSError:  # runs list them again, in problems.json
            listed = None
    size = codes.nbytes // max(1, len(codes))
    return Encoded(int(prepared.readable.sum()), size, prepared.problems, listed)
