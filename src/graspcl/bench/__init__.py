"""Measurements of the bars this project sets itself; each is a ratio within one run."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict

BENCHES = ("selection", "insert", "decode", "session", "policies")


def run_benches(what: str, as_json: bool = False) -> bool:
    """Run one bench or "all", print a line per figure as it is measured, and return whether all bars were met."""
    met = True
    for name in BENCHES if what == "all" else (what,):
        for figure in importlib.import_module(f"graspcl.bench.{name}").run():
            text = json.dumps({**asdict(figure), "ok": figure.ok}) if as_json else figure.line()
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
            met &= figure.ok
    return met
