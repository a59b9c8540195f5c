"""The command encode."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from rich.console import Console

from graspcl.cli import options
from graspcl.cli.options import Plugins, Scale, Settings, Timeout, Workers
from graspcl.cli.progress import Bars
from graspcl.errors import GraspError
from graspcl.progress import Progress, Silent

_SHOWN = 20  # problems; a file lists all


def encode(
    data: Path,
    /,
    *settings: Settings,
    preset: str = "images",
    scale: Scale = "full",
    workers: Workers = None,
    timeout: Timeout = 600.0,
    plugin: Plugins = (),
) -> None:
    """Encode a large image folder in parallel, before it is learned.

    Codes go to the cache. `graspcl run PRESET --data DATA` with the same settings reads them there. Run the same
    command again to resume. `torchrun --nproc-per-node N -m graspcl encode DATA` encodes with N ranks (docs/scale.md).

    Parameters
    ----------
    data
        Class folders of images, zip or tar files of them, or WebDataset shards.
    preset
        The preset or TOML file of the runs: its network and codec decide the codes.
    """
    from graspcl.distributed import is_first
    from graspcl.experiment import resolve
    from graspcl.experiment.encode import encode as encode_all

    if {"data", "data.path"} & options.parse_settings(settings).keys():
        raise GraspError("the data are given twice: remove --data")
    config = options.resolve(encode, preset, ("--data", str(data), *settings), scale, plugins=plugin)
    console, begin = Console(), time.monotonic()
    with contextlib.ExitStack() as stack:
        progress: Progress = stack.enter_context(Bars(console)) if is_first() else Silent()
        found = encode_all(resolve(config, progress), progress, workers, plugin, timeout)
    if found is None:
        return
    for problem in found.problems[:_SHOWN]:
        console.print(problem, style="dim", soft_wrap=True, markup=False, highlight=False)
    if found.problems:
        where = "" if found.listed is None else f", listed in {found.listed}"
        console.print(f"{len(found.problems):,} problems{where}", soft_wrap=True, highlight=False)
    size = f"{found.code_bytes:,} bytes each"
    console.print(
        f"{found.samples:,} samples are encoded, {size}, after {time.monotonic() - begin:.0f} s",
        soft_wrap=True, highlight=False,
    )  # fmt: skip
