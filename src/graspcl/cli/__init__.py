"""The command-line program. Each command calls the rooms that do the work."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from graspcl.errors import GraspError

if TYPE_CHECKING:
    from cyclopts import CycloptsError

_DIVIDED = ("run", "encode")  # commands whose work several ranks share


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `graspcl` with the given arguments, by default those of the command line; show errors without a traceback."""
    from graspcl import machine

    machine.prepare()  # before torch is loaded
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the caller closed it
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):  # tables contain μ and ±, which not every encoding has
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    from cyclopts import CycloptsError

    from graspcl.cli.app import app

    # Pixels are counted before they are decoded; Pillow would add two lines to ours.
    warnings.filterwarnings("ignore", "Image size .* exceeds limit")
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        try:
            given = _without_nul(sys.argv[1:] if arguments is None else arguments)
            _alone_unless_divided(given)
            app(given, exit_on_error=False, print_error=False)
        finally:
            sys.stdout.flush()  # a full device shows itself here
    except GraspError as error:
        _fail(str(error))
    except CycloptsError as error:
        _fail(_usage_mistake(error))
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (nothing more is flushed at exit)
        if isinstance(error, BrokenPipeError):  # the reader has closed the pipe, as `head` does
            raise SystemExit(141) from None
        where = "" if error.filename is None else f"{str(error.filename)[:200]}: "
        _fail(f"{where}{error.strerror or error}")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "can't allocate memory" not in str(error):  # torch's own kind
            raise
        _fail(f"there is not enough memory: {str(error) or 'use less data, a smaller buffer or fewer workers'}")
    except KeyboardInterrupt:
        _stop(signal.SIGINT)
    finally:
        # Left in place, workers that the caller forks later would print that graspcl was stopped.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _without_nul(arguments: Sequence[str]) -> Sequence[str]:
    if wrong := [one for one in arguments if "\0" in one]:
        raise GraspError(f"an argument has a NUL character, which no name or setting may have: {wrong[0][:100]!r}")
    return arguments


def _is_one_of_several() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE") != "1"


def _alone_unless_divided(arguments: Sequence[str]) -> None:
    """Refuse to do the same work in each of several processes that torchrun has started."""
    if _is_one_of_several() and arguments and not arguments[0].startswith("-") and arguments[0] not in _DIVIDED:
        raise GraspError(f"{arguments[0]} works in one process: start it without torchrun, which is for run and encode")


def _usage_mistake(error: CycloptsError) -> str:
    """Return what is wrong with the arguments, in one line like other errors."""
    from cyclopts import UnusedCliTokensError

    if unused := error.unused_tokens if isinstance(error, UnusedCliTokensError) else None:
        said = f"too many arguments, from {unused[0][:100]!r} on"
    else:
        said = re.sub(r"(?<!\.)\.$", "", str(error))
    command = " ".join(("graspcl", *(error.command_chain or ())))
    return f"{said[:1].lower()}{said[1:]} (see {command} --help)"


def _fail(message: str) -> NoReturn:
    from graspcl.files import one_line

    message = one_line(message)  # it may name a foreign file or class
    rank = os.environ.get("RANK", "0")  # of those that torchrun started
    said = f"graspcl: {message}\n" if rank == "0" else f"graspcl, rank {rank}: {message}\n"
    print(said, end="", file=sys.stderr)  # at once: several ranks may write
    raise SystemExit(2) from None


def _stop(number: int, frame: object = None) -> NoReturn:
    """Leave by an exception, so that workers are ended too."""
    resumes = len(sys.argv) > 1 and sys.argv[1] in ("run", "sweep", "tune", "pretrain", "encode")
    print(f"graspcl: stopped{'; run the same command again to resume' if resumes else ''}\n", end="", file=sys.stderr)
    raise SystemExit(128 + number) from None
