"""Read settings: TOML files, presets and options of the command line become a `Config`, or an error that helps.

All of them pass one conversion. `flatten` writes settings out by their full dotted names, `merge` lays changes over
them, and `_build` makes the tree.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import tomllib
import types
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from graspcl.checks import check, is_finite, shown
from graspcl.errors import GraspError, nearest
from graspcl.former import MARK, with_former
from graspcl.integrity import Damaged, read_text
from graspcl.settings.config import Config, DataConfig, Part, StreamConfig, as_plain
from graspcl.settings.rules import idle_reason, registries

_DEEPEST = 10  # tables within tables that a file may have
_LONGEST = 4096  # characters of a setting
_WORDS = {"true": True, "yes": True, "false": False, "no": False, "none": None}


def from_plain(values: Mapping[str, Any], where: str = "") -> Config:
    """Make a `Config` of nested dictionaries from `where`, as `as_plain` returns and TOML files contain.

    >>> from_plain({"policy": "uniform", "buffer": {"capacity": "8MB"}}).buffer.capacity
    '8MB'
    """
    try:
        return cast(Config, _build(Config, modern(flatten(values))))
    except GraspError as error:
        raise GraspError(f"{where}: {error}" if where else str(error)) from error


def from_file(values: Mapping[str, Any], where: str, start: Config | None = None) -> Config:
    """Make a `Config` of a user's TOML file, possibly on top of `start`; refuse a setting that would do nothing.

    A setting that has the value it would have without the file is not refused: `graspcl show` prints all settings.
    """
    try:
        before, given = flatten(as_plain(start or Config())), modern(flatten(values))
        config: Config = _build(Config, given if start is None else merge(before, given))
        after = flatten(as_plain(config))
        for name in given:
            if after.get(name) != before.get(name) and (reason := idle_reason(config, name)):
                raise GraspError(f"{name} would do nothing: {reason}; remove it")
        return config
    except GraspError as error:
        raise GraspError(f"{where}: {error}") from error


def settled(config: Config) -> Config:
    """Return `config` with the default in place of each setting that has no effect.

    >>> settled(from_plain({"rehearsal": "veridical", "codec": "half"})).codec.name
    'opq'
    """
    own, usual = flatten(as_plain(config)), flatten(as_plain(Config()))
    idle = {name for name in own if own[name] != usual.get(name) and idle_reason(config, name)}
    return _build(Config, {name: value for name, value in own.items() if name not in idle}) if idle else config


def change(config: Config, options: Mapping[str, Any]) -> Config:
    """Return `config` with options by dotted names, as on the command line; refuse one that would do nothing.

    >>> change(Config(), {"buffer": "0.2GB", "optimiser.lr": "0.5", "policy.eps": "1e-6"}).policy
    Part(name='grasp', parameters={'eps': 1e-06})
    """
    changes = flatten(options)
    changed: Config = _build(Config, merge(flatten(as_plain(config)), changes))
    for name in changes:
        if reason := idle_reason(changed, name):
            raise GraspError(f"--{name} would do nothing: {reason}")
    return changed


def replaced(config: Config, values: Mapping[str, Any]) -> Config:
    """Return `config` with other values of settings, by their full dotted names, whether they have an effect or not.

    >>> replaced(Config(), {"data.pixels": 64}).data.pixels
    64
    """
    return cast(Config, _build(Config, {**flatten(as_plain(config)), **values}))


def read_toml(path: Traversable) -> dict[str, Any]:
    """Read a TOML file, a `Path` or a resource, as nested dictionaries."""
    try:
        values = tomllib.loads(read_text(path) if isinstance(path, Path) else path.read_text(encoding="utf-8"))
        level: list[Any] = [values]
        for _ in range(_DEEPEST):
            level = [one for outer in level for one in (outer.values() if isinstance(outer, dict) else outer)]
            level = [one for one in level if isinstance(one, dict | list)]
        if level:
            raise GraspError(f"{path} has tables within tables, more than {_DEEPEST} deep; no setting is")
        return values
    except OSError as error:
        raise GraspError(f"{path} cannot be read: {error.strerror}") from error
    except Damaged as error:
        raise GraspError(f"{path} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise GraspError(f"{path} is not a TOML file: {error}") from error


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their full dotted names, with the shorthands of groups written out.

    >>> flatten({"buffer": "8MB", "stop": "patience=3,every=10", "policy": {"name": "mir", "candidates": 50}})
    {'buffer.capacity': '8MB', 'stop.patience': '3', 'stop.every': '10', 'policy.name': 'mir', 'policy.candidates': 50}
    """
    found: dict[str, Any] = {}
    for given, value in values.items():
        for name, one in _written_out(given, value):
            if name in found:
                raise GraspError(f"--{name} is given twice")
            found[name] = one
    return found


_PAIRS = re.compile(r"\w+=[^=,]*(,\s*\w+=[^=,]*)*")  # not every text with a = in it: a path may have one


def _written_out(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    group = _group_at(name)
    if isinstance(value, str) and group is not None and _PAIRS.fullmatch(value):
        value = dict(pair.strip().split("=") for pair in value.split(","))
    elif isinstance(value, str) and group is Part and value.endswith(")"):
        parts = parse_parts(value)
        if len(parts) != 1:
            raise GraspError(f"--{name} {value}: give one; `graspcl sweep` compares several")
        value = {"name": parts[0].name, **parts[0].parameters}
    if group is None:
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _written_out(f"{name}.{key}", inner)
    else:
        yield f"{name}.{_first(group)}", value


def parse_parts(text: str) -> list[Part]:
    """Parse a list of parts, with parameters in brackets.

    >>> parse_parts("grasp, mir(candidates=5, mode=top)")
    [Part(name='grasp', parameters={}), Part(name='mir', parameters={'candidates': 5, 'mode': 'top'})]
    """
    found = []
    for word in re.findall(r"[^,(\s][^,(]*(?:\([^)]*\))?", text):
        name, _, inner = word.strip().partition("(")
        pairs = [pair.partition("=") for pair in inner.rstrip(")").split(",") if pair.strip()]
        if wrong := [key for key, equals, _ in pairs if not equals]:
            raise GraspError(f"{word.strip()}: write a parameter as name=value, got {wrong[0]!r}")
        found.append(Part(name.strip(), {key.strip(): parse(value.strip()) for key, _, value in pairs}))
    return found


def merge(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Lay flat `changes` over flat `settings`; a part that is chosen again loses its earlier parameters.

    >>> merge({"seed": 1, "policy.name": "mir", "policy.candidates": 5}, {"policy.name": "grasp", "seed": 2})
    {'seed': 2, 'policy.name': 'grasp'}
    """
    chosen = {place for place, key, group in map(_place, changes) if key == _first(group)}
    places = {name: _place(name) for name in settings}
    kept = [name for name, (place, key, group) in places.items() if place not in chosen or key in _kinds(group)]
    return {**{name: settings[name] for name in kept}, **changes}


def _place(name: str) -> tuple[str, str, type]:
    """Return the name of the group that a setting is in, its key there, and the group; the tree itself for others."""
    place, _, key = name.rpartition(".")
    group = _group_at(place)
    chooses = group is not None and any(item.name == "parameters" for item in dataclasses.fields(group))
    return (place, key, group) if group is not None and chooses else ("", "", Config)


# Settings of before there were stages.
_BEFORE_STAGES = (f"base.{MARK}", "base.weights", "base.epochs", "base.batch_size", "base.lr")


def modern(settings: dict[str, Any]) -> dict[str, Any]:
    """Return flat settings of an earlier version as they are written now; others are returned unchanged.

    >>> modern({"base.method": "supervised", "base.epochs": 3})
    {'base.stages': [{'name': 'supervised', 'epochs': 3, 'batch_size': 256, 'lr': 0.2}]}
    """
    if f"base.{MARK}" not in settings or "base.stages" in settings:
        return settings
    old = {name.removeprefix("base."): settings[name] for name in _BEFORE_STAGES if name in settings}
    stages: list[dict[str, Any]] = []
    if parse(weights := old.pop("weights", None)) is not None:
        stages.append({"name": "weights", "file": weights, "seen": "report"})
    if (method := old.pop(MARK)) not in ("none", "weights"):
        stages.append({"name": method, "epochs": 50, "batch_size": 256, "lr": 0.2, **old})
    found = {name: value for name, value in settings.items() if name not in _BEFORE_STAGES}
    for kind in ("policy", "network"):
        if (chosen := found.get(f"{kind}.name")) is not None:
            found = {f"{kind}.{key}": value for key, value in with_former(kind, {"name": chosen}).items()} | found
    return {**found, "base.stages": stages}


def _build(group: type, values: Mapping[str, Any], prefix: str = "", usual: Any = None) -> Any:
    """Make a group of flat settings, whose names all start with `prefix`; those not given are as in `usual`, if any."""
    left, built = dict(values), dict[str, Any]()
    for key, kind in _kinds(group).items():
        name = prefix + key
        if inner := _group_in(kind):
            own = {given: left.pop(given) for given in [*left] if given.startswith(f"{name}.")}
            if own and type(None) in get_args(kind) and parse(own.get(f"{name}.{_first(inner)}", "")) is None:
                built[key] = None
            elif own:
                # The optimiser of a run has other defaults than optimisers elsewhere.
                built[key] = _build(inner, own, f"{name}.", None if inner is Part else getattr(group, key, None))
        elif get_origin(kind) is tuple and name in left:
            built[key] = _parts(left.pop(name), name)
        elif name in left:
            built[key] = _convert(kind, left.pop(name), name)
    if group is Part and "name" not in built:
        raise GraspError(f"{prefix}name must be a string, got none")
    parameters = {name.removeprefix(prefix): parse(value) for name, value in left.items()}
    if parameters and group is not Part:  # those of a Part are checked by its registry (`graspcl.settings.rules`)
        taken = _further_settings(group, built)
        if wrong := [key for key in parameters if key not in taken]:
            raise _unknown(prefix + wrong[0], prefix, {*_kinds(group), *taken})
    if parameters:
        built["parameters"] = parameters
    return group(**built) if usual is None else dataclasses.replace(usual, **built)


def _parts(value: Any, name: str) -> tuple[Part, ...]:
    """Convert a list of parts: texts as on the command line, or tables of a TOML file."""
    if isinstance(value, str):
        value = [] if parse(value) is None else [value]
    parts: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
    parts = [part for one in parts for part in (parse_parts(one) if isinstance(one, str) else [one])]
    if wrong := [one for one in parts if not isinstance(one, Mapping | Part)]:
        raise GraspError(f"{name} must be a list such as swav(epochs=400),supervised, got {shown(wrong[0])}")
    tables = [as_plain(one) if isinstance(one, Part) else one for one in parts]
    return tuple(_build(Part, {str(key): each for key, each in table.items()}) for table in tables)


def _further_settings(group: type, built: dict[str, Any]) -> set[str]:
    """Return the parameters of the registered stream or data that a group chooses."""
    chooses = {StreamConfig: ("streams", "kind"), DataConfig: ("data", "path")}
    if group not in chooses:
        return set()
    kind, key = chooses[group]
    registry, part = registries()[kind], built.get(key, getattr(group, key))
    return set(registry.parameters(part)) - {"task_of"} if part in registry else set()


def _unknown(name: str, prefix: str, valid: set[str]) -> GraspError:
    """Make the error for an unknown setting; suggest one of that name in another group, or one with a similar name."""
    key, _, rest = name.removeprefix(prefix).partition(".")
    if name in _BEFORE_STAGES:
        stage = "weights(file=FILE)" if key == "weights" else "supervised(epochs=50)"
        return GraspError(f"there is no setting {name!r}; write --base.stages '{stage}'")
    if rest and key in valid:
        return GraspError(f"there is no setting {name!r}; {prefix + key!r} is not a group")
    elsewhere = [other for other, _ in all_settings() if other.endswith(f".{key}")]
    hint = f"did you mean {' or '.join(map(repr, elsewhere))}?" if elsewhere else nearest(key, valid)
    return GraspError(f"there is no setting {name!r}; {hint}")


def _convert(kind: Any, value: Any, name: str) -> Any:
    """Convert a value to what a setting takes, or refuse it."""
    taken, parsed = _types(kind), parse(value)
    if parsed is None and type(None) in taken:
        return None
    if isinstance(parsed, bool):
        value = parsed if bool in taken else value
    elif isinstance(parsed, int | float) and is_finite(parsed):
        if int in taken and parsed == int(parsed):
            value = int(parsed)
        elif float in taken:
            value = float(parsed)
    check(name, value, kind)
    return value


def _types(kind: Any) -> list[Any]:
    """Return the plain types that an annotation admits."""
    choices = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else [kind]
    return [get_args(choice)[0] if get_origin(choice) is Annotated else choice for choice in choices]


def parse(value: Any) -> Any:
    """Parse a text as on the command line: a number, true or yes, false or no, none, or the text itself.

    >>> [parse(text) for text in ("5", "1e-6", "yes", "none", "top")]
    [5, 1e-06, True, None, 'top']
    """
    if not isinstance(value, str):
        return value
    if "\0" in value or len(value) > _LONGEST:
        raise GraspError(f"a setting has at most {_LONGEST:,} characters, and no NUL among them, got {shown(value)}")
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


def all_settings(group: type = Config, prefix: str = "") -> list[tuple[str, Any]]:
    """Return the dotted names of all settings, with their types; a part is one setting."""
    found: list[tuple[str, Any]] = []
    for key, kind in _kinds(group).items():
        inner = _group_in(kind)
        own = inner is None or inner is Part
        found += [(prefix + key, kind)] if own else all_settings(inner or Config, f"{prefix}{key}.")
    return found


def _group_at(name: str) -> type | None:
    """Return the group with a dotted name; None if it is none."""
    group: type | None = Config
    for key in name.split("."):
        group = None if group is None else _group_in(_kinds(group).get(key))
    return group


def _group_in(kind: Any) -> type | None:
    if get_origin(kind) is tuple:
        return None  # a list of parts is one setting
    candidates = (kind, *get_args(kind))
    return next((one for one in candidates if dataclasses.is_dataclass(one) and isinstance(one, type)), None)


def _first(group: type) -> str:
    """Return the setting that stands for a group."""
    return next(iter(_kinds(group)))


@cache
def _kinds(group: type) -> dict[str, Any]:
    """Return the types of a group's settings; `parameters` is none of them."""
    hints = get_type_hints(group, include_extras=True)
    return {item.name: hints[item.name] for item in dataclasses.fields(group) if item.name != "parameters"}
