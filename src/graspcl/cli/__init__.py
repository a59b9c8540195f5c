"""The command-line program: one line per command, calling the rooms that do the work."""

from __future__ import annotations

import sys

from graspcl.errors import GraspError


def main() -> None:
    """Entry point of `graspcl`: prepares the machine before torch is loaded, and shows mistakes without a traceback."""
    from graspcl import machine

    machine.prepare()
    from graspcl.cli.app import app

    try:
        app()
    except GraspError as error:
        print(f"graspcl: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("graspcl: stopped; finished runs stay in their folders", file=sys.stderr)
        raise SystemExit(130) from None
