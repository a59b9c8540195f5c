"""Settings from outside: TOML files and options of the command line become a `Config`, or an error that helps."""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
import types
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from graspcl.errors import GraspError, nearest
from graspcl.settings.config import Config, Part, as_plain
from graspcl.settings.rules import idle_settings

_WORDS = {"true": True, "yes": True, "false": False, "no": False, "none": None}


def from_plain(values: Mapping[str, Any], where: str = "") -> Config:
    """The tree of nested dictionaries, as `as_plain` gives and TOML files have; what is absent has its default.

    `where` they come from is told with what is wrong.

    >>> from_plain({"policy": "uniform", "buffer": {"capacity": "8MB"}}).buffer.capacity
    '8MB'
    >>> from_plain({"bufer": 3})
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: there is no setting 'bufer'; did you mean 'buffer'?
    """
    try:
        config: Config = _build(Config, values, "")
    except GraspError as error:
        raise GraspError(f"{where}: {error}" if where else str(error)) from error
    return config


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as nested dictionaries."""
    try:
        return read_text(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise GraspError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise GraspError(f"{path} is not a TOML file: {error}") from error


def read_text(text: str, where: str) -> dict[str, Any]:
    """TOML text as nested dictionaries."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise GraspError(f"{where} is not a TOML file: {error}") from error


def merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dictionaries with changes; a part that is named anew loses its parameters.

    >>> merge({"a": {"x": 1, "y": 2}, "policy": {"name": "mir", "candidates": 5}}, {"a": {"y": 3}, "policy": "grasp"})
    {'a': {'x': 1, 'y': 3}, 'policy': {'name': 'grasp'}}
    """
    merged = dict(values)
    for key, change in changes.items():
        old, new = _written_out(key, merged.get(key)), _written_out(key, change)
        if not isinstance(old, Mapping) or not isinstance(new, Mapping):
            merged[key] = new
        elif _groups().get(key) is Part:
            merged[key] = dict(new) if "name" in new else {**old, **new}
        else:
            merged[key] = merge(old, new)
    return merged


def _written_out(key: str, value: Any) -> Any:
    """A group that is given by its first setting, with that setting's name."""
    group = _groups().get(key)
    if group is None or value is None or isinstance(value, Mapping):
        return value
    return {_first(group): value}


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by dotted names as nested dictionaries; `patience=3,every=10` gives several settings of a group at once.

    Their order does not matter.

    >>> nested({"policy.candidates": "50", "policy": "mir", "stop": "patience=3,every=10"})
    {'policy': {'candidates': 50, 'name': 'mir'}, 'stop': {'patience': '3', 'every': '10'}}
    """
    found: dict[str, Any] = {}
    for name, value in single(options).items():
        *groups, last = name.split(".")
        inner = found
        for group in groups:
            inner = inner.setdefault(group, {})
            if not isinstance(inner, dict):
                raise GraspError(f"there is no setting {name!r}; {group!r} is not a group")
        inner[last] = value
    return found


def single(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by dotted names, each of one setting: a group's first setting, or several at once, written out.

    >>> single({"buffer": "8MB", "stop": "patience=3,every=10"})
    {'buffer.capacity': '8MB', 'stop.patience': '3', 'stop.every': '10'}
    """
    found: dict[str, Any] = {}
    for given, whole in options.items():
        for name, value in _single(given, whole):
            if name in found:
                raise GraspError(f"--{name} is given twice")
            found[name] = value
    return found


_PAIRS = re.compile(r"\w+=[^=,]*(,\s*\w+=[^=,]*)*")  # not every text with a = in it: a path may have one


def _single(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    group = _group_at(name)
    if isinstance(value, str) and group is not None and _PAIRS.fullmatch(value):
        value = dict(pair.strip().split("=") for pair in value.split(","))
    if group is None:
        of_part = _group_at(name.rpartition(".")[0]) is Part and not name.endswith(".name")
        yield name, parse(value) if of_part else value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _single(f"{name}.{key}", inner)
    else:
        yield f"{name}.{_first(group)}", value


def change(config: Config, options: Mapping[str, Any]) -> Config:
    """`config` with settings by dotted names, as on the command line; texts are converted to what a setting takes.

    A setting that would do nothing is refused.

    >>> change(Config(), {"buffer": "0.2GB", "optimiser.lr": "0.5", "policy.eps": "1e-6"}).policy
    Part(name='grasp', parameters={'eps': 1e-06})
    >>> change(Config(), {"stop.every": 10})
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: --stop.every would do nothing: without stop.patience no session ends early
    """
    changed = from_plain(merge(as_plain(config), nested(options)))
    for idle, reason in idle_settings(changed).items():
        for name in single(options):
            if name == idle or name.startswith(f"{idle}."):
                raise GraspError(f"--{name} would do nothing: {reason}")
    return changed


# -- one value --------------------------------------------------------------------------------------------------------


def _build(kind: type, values: Any, name: str) -> Any:
    if not isinstance(values, Mapping):
        values = {_first(kind): values}
    if kind is Part:
        return _part(values, name)
    kinds = _kinds(kind)
    for key in values:
        if key not in kinds:
            raise GraspError(f"there is no setting {name + key!r}; {_hint(key, kinds)}")
    built = {key: _convert(kinds[key], value, name + key) for key, value in values.items()}
    try:
        return kind(**built)
    except GraspError as error:
        raise GraspError(f"{name.rstrip('.')}: {error}") from error


def _hint(key: str, kinds: Mapping[str, Any]) -> str:
    """What was meant: a setting that is called so in another group, or one with a name like it."""
    elsewhere = [name for name, _ in all_settings() if name.endswith(f".{key}")]
    return f"did you mean {' or '.join(map(repr, elsewhere))}?" if elsewhere else nearest(key, kinds)


def _part(values: Mapping[str, Any], name: str) -> Part:
    if not isinstance(called := values.get("name"), str):
        raise GraspError(f"{name}name must be a text, not {called!r}")
    return Part(called, {key: None if value == "none" else value for key, value in values.items() if key != "name"})


def _convert(kind: Any, value: Any, name: str) -> Any:
    """`value` as what a setting takes, or an error that says what that is."""
    if inner := _dataclass(kind):
        alone = value.get(_first(inner), value) if isinstance(value, Mapping) else value
        if (alone is None or alone == "none") and type(None) in get_args(kind):
            return None
        return _build(inner, value, f"{name}.")
    choices = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        raise GraspError(f"{name} must be one of {', '.join(map(str, get_args(kind)))}, not {value!r}")
    parsed = parse(value)
    if parsed is None and type(None) in choices:
        return None
    for choice in (bool, int, float):
        if choice in choices and (found := _number(choice, parsed)) is not None:
            return found
    if str in choices and isinstance(value, str):
        return value
    wanted = " or ".join(_SAID[choice] for choice in choices)
    raise GraspError(f"{name} must be {wanted}, not {value!r}")


_SAID = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", type(None): "none"}


def _number(kind: type, value: Any) -> Any:
    if kind is bool or isinstance(value, bool):
        return value if kind is bool and isinstance(value, bool) else None
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if kind is int:
        return int(value) if value == int(value) else None
    return float(value)


def parse(value: Any) -> Any:
    """A text as written on the command line: a number, true or yes, false or no, none, or text."""
    if not isinstance(value, str):
        return value
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _dataclass(kind: Any) -> type | None:
    candidates = (kind, *get_args(kind))
    return next((one for one in candidates if dataclasses.is_dataclass(one) and isinstance(one, type)), None)


def _first(group: type) -> str:
    """The setting that stands for a group."""
    return next(iter(_kinds(group)))


def _group_at(name: str) -> type | None:
    """The group with a dotted name, None for what is none."""
    kind: type | None = Config
    for key in name.split("."):
        if kind is None or kind is Part:
            return None
        kind = _dataclass(_kinds(kind).get(key))
    return kind


@cache
def _groups(kind: type = Config) -> dict[str, type]:
    """All groups by their own names, which say which group it is at any depth."""
    found: dict[str, type] = {}
    for name, inner in _kinds(kind).items():
        if group := _dataclass(inner):
            found |= {name: group} if group is Part else {name: group, **_groups(group)}
    return found


@cache
def _kinds(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {item.name: hints[item.name] for item in dataclasses.fields(kind)}


def all_settings(kind: type = Config, prefix: str = "") -> list[tuple[str, Any]]:
    """Dotted names of all settings, with their types."""
    found: list[tuple[str, Any]] = []
    for name, inner in _kinds(kind).items():
        group = _dataclass(inner)
        if group is None or group is Part:
            found.append((prefix + name, inner))
        else:
            found += all_settings(group, f"{prefix}{name}.")
    return found
