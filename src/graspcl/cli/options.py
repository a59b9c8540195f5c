"""What several commands share: kinds of options, and how values are written."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, validators

from graspcl.errors import GraspError
from graspcl.registry import parameter_names

if TYPE_CHECKING:
    from graspcl.experiment import Config

AtLeastOne = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Plugins = Annotated[
    list[Path],
    Parameter(
        help="A Python file of yours that registers policies; may be given again.", negative=(), show_default=False
    ),
]

Scale = Annotated[
    Literal["full", "small", "smoke"],
    Parameter(help="The paper's; or with less data and smaller networks: small for a CPU, smoke to see that it runs."),
]
Kind = Annotated[
    Literal["latent", "veridical"], Parameter(help="What is stored and rehearsed: latents, or samples as they came.")
]
Memory = Annotated[
    Literal["bounded", "unbounded"], Parameter(help="The preset's bounded buffer, or one that keeps everything.")
]
Settings = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]


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


def refuse(given: Iterable[str], decided: Mapping[str, str]) -> None:
    """Refuse settings that something else decides: `decided` has its name by that of the setting or group.

    >>> refuse(["policy.name"], {"policy": "--policies"})
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: --policy.name would do nothing here: --policies decides
    """
    for name in given:
        for setting, other in decided.items():
            if name == setting or name.startswith(f"{setting}."):
                raise GraspError(f"--{name} would do nothing here: {other} decides")


def resolve(
    command: Callable[..., None],
    what: str,
    settings: Sequence[str],
    scale: Scale = "full",
    rehearsal: Kind | None = None,
    memory: Memory = "bounded",
) -> Config:
    """The settings of a preset, a TOML file or a run's folder, with changes from the command line.

    `command` is who asks: one of its options may have been meant by what is no setting.
    """
    from graspcl.experiment import change, from_plain, preset
    from graspcl.settings.presets import names
    from graspcl.settings.read import read_toml

    path, options = Path(what), parse_settings(settings)
    if what in names() or not (path.suffix == ".toml" or path.exists()):
        data = options.get("data", options.get("data.path"))
        config = preset(what, scale, rehearsal, memory, own_data=data)
    elif path.suffix == ".toml" or path.is_dir():
        if (scale, rehearsal, memory) != ("full", None, "bounded"):
            raise GraspError("--scale, --rehearsal and --memory are of presets; in a file they are written out")
        file = path / "config.toml" if path.is_dir() else path
        config = from_plain({"name": file.stem, **read_toml(file)}, str(file))
    else:
        raise GraspError(f"{what} is neither a preset nor a TOML file")
    own = parameter_names(command)
    for name in options:
        close = difflib.get_close_matches(name, [*vars(config), *own], n=1)
        if name.partition(".")[0] not in vars(config) and close and close[0] in own:
            raise GraspError(f"there is no option --{name}; did you mean --{close[0]}?")
    config = change(config, options)
    if memory == "unbounded" and config.buffer.capacity is not None:
        raise GraspError(f"--memory unbounded keeps everything, a buffer of {config.buffer.capacity} does not")
    return config


def parse_values(given: dict[str, dict[str, str]] | None) -> dict[str, dict[str, Any]]:
    """Parameters by part and name, as written on the command line."""
    from graspcl.settings.read import parse

    return {part: {name: parse(text) for name, text in own.items()} for part, own in (given or {}).items()}


def load_plugins(paths: list[Path]) -> None:
    """Make the parts of users' own files known."""
    from graspcl.registry import load_plugin

    for path in paths:
        load_plugin(path)
