"""Benchmarks: the bars this project sets itself (`bars`), a network's speed, and what a workspace is worth."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from itertools import chain
from typing import Any

from graspcl.errors import GraspError
from graspcl.progress import Progress

BENCHES = {name: name for name in ("selection", "insert", "decode", "session", "filters", "heads", "state")} | {
    "policies": "policy_times"
}
# Not part of "all", since they take minutes; with their options.
ON_REQUEST = {
    "network": ("pixels", "compile"),
    "workspace": ("data", "first", "weeks", "per_class", "backbone", "pixels", "memory"),
    "scale": ("samples", "classes"),
    "full": ("samples", "classes"),
    "size": ("samples", "classes"),
}


def run_benches(what: str, as_json: bool = False, progress: Progress | None = None, **options: Any) -> bool:
    """Run one bench, or "all" of those with bars; print the results and return whether no bar was missed.

    Results are printed as they are measured, as rows of a Markdown table. Those on request take options. `progress`
    shows the steps of the longest, which takes an hour on large data.
    """
    for name in options:
        if name not in ON_REQUEST.get(what, ()):
            option = f"--{name.replace('_', '-')}"
            takes = " and ".join(f"`graspcl bench {one}`" for one, taken in ON_REQUEST.items() if name in taken)
            raise GraspError(f"{option}: only {takes} has this option, not `graspcl bench {what}`")
    if what == "workspace":
        from graspcl.bench import workspace

        if "data" not in options:
            raise GraspError("bench workspace needs samples: set --data PATH, class folders or a table of texts")
        if not as_json:
            sys.stdout.write(workspace.HEADER + "\n")
        return _print(workspace.run(**options, progress=progress), as_json)
    if what == "network":
        from graspcl.bench import network

        rates = network.run(**options)
        if not as_json:
            network.show(rates)
            return True
        return _print(rates, as_json)
    from graspcl.bench import bars, full, ranks, scale, size, timing

    if not as_json:
        sys.stdout.write(timing.HEADER + "\n")
    if what == "full":
        return _print(full.run(**options), as_json)
    if what == "size":
        return _print(size.run(**options, progress=progress), as_json)
    if what == "scale":
        return _print(chain(scale.run(**options), ranks.run()), as_json)
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
