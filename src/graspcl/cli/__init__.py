"""The command-line program. Each command calls the rooms that do the work."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from graspcl.errors import GraspError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `graspcl` with the given arguments, by default those of the command line; show errors without a traceback."""
    from graspcl import machine

    machine.prepare()  # before torch is loaded
    for stream in (sys.stdout, sys.stderr):  # tables contain μ and ±, which not every encoding has
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    from graspcl.cli.app import app

    signal.signal(signal.SIGTERM, _stop)
    try:
        app(sys.argv[1:] if arguments is None else arguments)
    except GraspError as error:
        print(f"graspcl: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (nothing is flushed into the closed pipe at exit)
        raise SystemExit(141) from None
    except KeyboardInterrupt:
        _stop(signal.SIGINT)


def _stop(number: int, frame: object = None) -> NoReturn:
    """Leave by an exception, so that workers are ended too."""
    resumes = len(sys.argv) > 1 and sys.argv[1] in ("run", "sweep", "tune", "pretrain")
    print(f"graspcl: stopped{'; run the same command again to resume' if resumes else ''}", file=sys.stderr)
    raise SystemExit(128 + number) from None
