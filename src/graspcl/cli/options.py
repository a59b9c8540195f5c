"""What several commands share: kinds of options, and how values are written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, validators

from graspcl.errors import GraspError

AtLeastOne = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Plugins = Annotated[
    list[Path], Parameter(help="A Python file of yours that registers policies; may be given again.", negative=())
]


def parse_settings(tokens: Sequence[str]) -> dict[str, str]:
    """Settings by dotted names: `--a.b value`, `--a.b=value`, and `--a.b` alone for true.

    >>> parse_settings(["--policy", "grasp", "--budget.times=0.5", "--execution.compile"])
    {'policy': 'grasp', 'budget.times': '0.5', 'execution.compile': 'true'}
    """
    found: dict[str, str] = {}
    rest = list(tokens)
    while rest:
        token = rest.pop(0)
        if not token.startswith("--") or token == "--":
            raise GraspError(f"{token!r} belongs to no option; settings are given as --name value")
        name, equals, value = token[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        name = name.replace("-", "_")
        if name in found:
            raise GraspError(f"--{name} is given twice")
        found[name] = value
    return found


def parse_values(given: dict[str, dict[str, str]] | None) -> dict[str, dict[str, Any]]:
    """Parameters by part and name, as written on the command line."""
    from graspcl.experiment.settings import parse

    return {part: {name: parse(text) for name, text in own.items()} for part, own in (given or {}).items()}


def load_plugins(paths: list[Path]) -> None:
    """Make the parts of users' own files known."""
    from graspcl.registry import load_plugin

    for path in paths:
        load_plugin(path)
