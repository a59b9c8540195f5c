"""Measurements of the bars this project sets itself; each is a ratio within one run."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from typing import Any

from graspcl.errors import GraspError

BENCHES = ("selection", "insert", "decode", "session", "policies")
ON_REQUEST = ("network",)  # without bars, and for minutes: not part of "all"


def run_benches(what: str, as_json: bool = False, **options: Any) -> bool:
    """Run one bench or "all" of those with bars, print what is measured, and return whether all bars were met.

    Figures are printed as they are measured, a line each; `network`, which alone takes options, shows a table.
    """
    if options and what not in ON_REQUEST:
        given = ", ".join(f"--{name}" for name in options)
        raise GraspError(f"{given}: only `graspcl bench network` has this option, not `graspcl bench {what}`")
    met = True
    for name in BENCHES if what == "all" else (what,):
        bench = importlib.import_module(f"graspcl.bench.{name}")
        figures = bench.run(**options)
        if name in ON_REQUEST and not as_json:
            bench.show(figures)
            continue
        for figure in figures:
            text = json.dumps({**asdict(figure), "ok": figure.ok}) if as_json else figure.line()
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
            met &= figure.ok
    return met
