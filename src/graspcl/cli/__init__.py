"""The command-line program: one line per command, calling the rooms that do the work."""

from __future__ import annotations

import io
import os
import signal
import sys

from graspcl.errors import GraspError


def main() -> None:
    """Entry point of `graspcl`: prepares the machine before torch is loaded, and shows mistakes without a traceback."""
    from graspcl import machine

    machine.prepare()
    for stream in (sys.stdout, sys.stderr):  # a table holds μ and ±, which not every encoding has
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    from graspcl.cli.app import app

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that workers are ended too
    try:
        app()
    except GraspError as error:
        print(f"graspcl: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (nothing is flushed into the closed pipe at exit)
        raise SystemExit(141) from None
    except KeyboardInterrupt:
        print("graspcl: stopped; finished runs stay in their folders", file=sys.stderr)
        raise SystemExit(130) from None
