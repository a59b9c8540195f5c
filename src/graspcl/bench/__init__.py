"""Benchmarks: the bars this project sets itself (`bars`), and the speed of the network's stages (`network`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from graspcl.errors import GraspError

BENCHES = {name: name for name in ("selection", "insert", "decode", "session", "state")} | {"policies": "policy_times"}
ON_REQUEST = ("network",)  # takes minutes and has no bars: not part of "all"


def run_benches(what: str, as_json: bool = False, **options: Any) -> bool:
    """Run one bench, or "all" of those with bars; print the results and return whether no bar was missed.

    Results are printed as they are measured, as rows of a Markdown table. Only `network` takes options.
    """
    if options and what not in ON_REQUEST:
        given = ", ".join(f"--{name}" for name in options)
        raise GraspError(f"{given}: only `graspcl bench network` has this option, not `graspcl bench {what}`")
    if what in ON_REQUEST:
        from graspcl.bench import network

        rates = network.run(**options)
        if not as_json:
            network.show(rates)
            return True
        return _print(rates, as_json)
    from graspcl.bench import bars, timing

    if not as_json:
        sys.stdout.write(timing.HEADER + "\n")
    with timing.one_thread():
        chosen = BENCHES if what == "all" else [what]
        return _print((bar for name in chosen for bar in getattr(bars, BENCHES[name])()), as_json)


def _print(results: Iterable[Any], as_json: bool) -> bool:
    met = True
    for result in results:
        text = json.dumps({**asdict(result), "ok": result.ok}) if as_json else result.line()
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        met &= result.ok
    return met
