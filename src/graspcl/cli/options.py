"""What several commands share: kinds of options, settings on the command line, and their help."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

from graspcl.errors import GraspError
from graspcl.registry import load_plugin, parameter_names
from graspcl.settings import change, preset
from graspcl.settings.config import Config, as_plain
from graspcl.settings.presets import load, names
from graspcl.settings.read import all_settings, flatten

AtLeastOne = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Runs = Annotated[int, Parameter(validator=validators.Number(gte=1, lte=10_000))]  # all are listed before the first one
What = Annotated[str, Parameter(help="A preset (`graspcl list presets`) or a TOML file.")]
Scale = Annotated[
    Literal["full", "small", "smoke"],
    Parameter(help="Size of a preset: full (its own), small for a CPU, or smoke to see that it runs."),
]
Kind = Annotated[
    Literal["latent", "veridical"], Parameter(help="What is stored and rehearsed: latents or raw samples.")
]
Memory = Annotated[
    Literal["bounded", "unbounded"], Parameter(help="The preset's buffer, or one that stores everything.")
]
Workers = Annotated[
    AtLeastOne | None, Parameter(help="Processes that run at the same time, at most 32; by default one per core.")
]
Timeout = Annotated[
    float,
    Parameter(
        validator=validators.Number(gt=0),
        help="With torchrun: seconds after which a process that waits for another one fails.",
    ),
]
Out = Annotated[Path, Parameter(help="Folder of all runs; each run gets its own folder below it.")]
Plugins = Annotated[
    Sequence[Path],
    Parameter(help="Python file with parts of your own; its code is run.", negative=(), show_default=False),
]
Settings = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]


def parse_settings(tokens: Sequence[str]) -> dict[str, str]:
    """Parse settings by dotted names: `--a.b value`, `--a.b=value`, and `--a.b` alone for true.

    >>> parse_settings(["--policy", "grasp", "--budget.times=0.5", "--execution.compile"])
    {'policy': 'grasp', 'budget.times': '0.5', 'execution.compile': 'true'}
    """
    found: dict[str, str] = {}
    rest = list(tokens)
    while rest:
        token = rest.pop(0)
        if not token.startswith("--") or token == "--":
            raise GraspError(f"{token!r} is not an option; write settings as --name value")
        name, equals, value = token[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        name = name.replace("-", "_")
        if name in found:
            raise GraspError(f"--{name} is given twice")
        found[name] = value
    return found


def resolve(
    command: Callable[..., None], what: str, settings: Sequence[str], scale: Scale = "full",
    rehearsal: Kind | None = None, memory: Memory = "bounded", plugins: Sequence[Path] = (),
) -> Config:  # fmt: skip
    """Return the settings of a preset, a TOML file or a run folder, with changes from the command line.

    `plugins` are loaded first: settings may name their parts. `command` is the calling one: a setting that does not
    exist may be a misspelt option of it.
    """
    load_plugins(plugins)
    path, options = Path(what), parse_settings(settings)
    data = options.get("data", options.get("data.path"))
    if what in names() or not (path.suffix == ".toml" or path.exists()):
        config = preset(what, scale, rehearsal, memory, own_data=data)
    elif path.is_dir() or path.suffix == ".toml":
        config = load(path, scale, rehearsal, memory, data)
    else:
        raise GraspError(f"{what} is neither a preset nor a TOML file")
    own = parameter_names(command)
    for name in options:
        close = difflib.get_close_matches(name, [*vars(config), *own], n=1)
        if name.partition(".")[0] not in vars(config) and close and close[0] in own:
            raise GraspError(f"there is no option --{name}; did you mean --{close[0]}?")
    config = change(config, options)
    if memory == "unbounded" and config.buffer.capacity is not None:
        raise GraspError(f"--memory unbounded contradicts a buffer of {config.buffer.capacity}")
    return config


def settings_help() -> str:
    """Return all settings by group, with their defaults."""
    defaults, groups = flatten(as_plain(Config())), dict[str, list[str]]()
    for name, _ in all_settings():
        group, _, key = name.partition(".")
        value = defaults.get(name, defaults.get(f"{name}.name", "none"))
        if not name.startswith("base.optimiser.") or key == "optimiser.name":  # it is like --optimiser
            own = groups.setdefault(f"--{group}.*" if key else "--*", [])
            own.append(f"{key or name}={'none' if value == [] else value}")
    intro = (
        "Settings and their defaults; presets set their own (graspcl show PRESET). Write --data.pixels 64, or --buffer "
        "8MB for the first of a group. Parts take parameters: --policy mir --policy.candidates 50."
    )
    return "\n\n".join([intro, *(f"{group} {', '.join(own)}" for group, own in groups.items())])


def load_plugins(paths: Sequence[Path]) -> None:
    """Load the files of --plugin."""
    for path in paths:
        load_plugin(path)
