"""Encode a data set before its runs: many processes share the work, and leave codes in the cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import torch

from graspcl import machine
from graspcl.cache import cache_folder, required
from graspcl.distributed import is_first, launched
from graspcl.errors import GraspError
from graspcl.experiment.prepare import help_preparing, prepare
from graspcl.experiment.runner import check_run
from graspcl.experiment.sweeps import make_workers
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
    config: Config, progress: Progress, workers: int | None = None, plugins: Sequence[Path] = ()
) -> Encoded | None:
    """Compute the codes of all samples of a run, and store them in the cache, from which runs read them.

    Run it again to resume: what is stored is not computed again. Samples that cannot be read are found on the way.

    Args:
        config: settings of the run.
        progress: shows the work.
        workers: number of processes, by default one per core. Under torchrun the ranks are the processes instead.
        plugins: files with parts of your own, which each process loads.

    Returns:
        What was made; None on all ranks but the first.
    """
    check_run(config)
    if config.rehearsal == "veridical":
        raise GraspError("veridical rehearsal stores samples as they are, so there is nothing to encode")
    if not is_first():
        help_preparing(config)
        return None
    number = 1 if launched() else min(workers or machine.cores(), 32)
    if number == 1:
        return _encode(config, progress)
    torch.set_num_threads(max(1, machine.cores() // number))
    with make_workers(number, plugins) as processes:
        others = [processes.submit(help_preparing, config) for _ in range(number - 1)]
        found = _encode(config, progress)  # whatever becomes of the others, this process completes the work
        for other in others:
            try:
                other.result()
            except BrokenProcessPool:
                progress.note("a process was killed, perhaps for lack of memory; the others have done its part")
                break
            except Exception as error:
                progress.note(f"a process failed, and the others have done its part: {error}")
    return found


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
