"""Settings from outside: TOML files and options of the command line become a `Config`, or an error that helps."""

from __future__ import annotations

import dataclasses
import tomllib
import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from graspcl.errors import GraspError, nearest
from graspcl.experiment.config import Config, Part, as_plain

_WORDS = {"true": True, "yes": True, "false": False, "no": False, "none": None}


def from_plain(values: Mapping[str, Any], where: str = "the settings") -> Config:
    """The tree of nested dictionaries, as `as_plain` gives and TOML files have; what is absent has its default.

    >>> from_plain({"policy": "uniform", "buffer": {"capacity": "8MB"}}).buffer.capacity
    '8MB'
    >>> from_plain({"bufer": 3})
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: the settings have no 'bufer'; did you mean 'buffer'?
    """
    config: Config = _build(Config, values, "", where)
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
    """Nested dictionaries with changes; a part that is named anew loses the parameters of the one before.

    >>> merge({"a": {"x": 1, "y": 2}, "policy": {"name": "mir", "candidates": 5}}, {"a": {"y": 3}, "policy": "grasp"})
    {'a': {'x': 1, 'y': 3}, 'policy': 'grasp'}
    """
    merged = dict(values)
    for key, change in changes.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(change, Mapping):
            renamed = "name" in change and change["name"] != old.get("name")
            merged[key] = dict(change) if renamed else merge(old, change)
        elif isinstance(old, str) and isinstance(change, Mapping) and "name" not in change:
            merged[key] = {"name": old, **change}  # parameters for a part that was only named
        elif isinstance(old, Mapping) and (first := first_setting(key)) and not isinstance(change, Mapping):
            merged[key] = change if first == "name" else {**old, first: change}
        else:
            merged[key] = change
    return merged


def nested(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options by dotted names as nested dictionaries; `patience=3,every=10` gives several settings of a group at once.

    >>> nested({"policy": "mir", "policy.candidates": "50", "stop": "patience=3,every=10"})
    {'policy': {'name': 'mir', 'candidates': '50'}, 'stop': {'patience': '3', 'every': '10'}}
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        *groups, last = name.split(".")
        if not groups and isinstance(value, str) and "=" in value and first_setting(last):
            pairs = [pair.partition("=") for pair in value.split(",")]
            value = {key.strip(): text.strip() for key, _, text in pairs}
        inner: Any = value
        for key in reversed([*groups, last][1:]):
            inner = {key: inner}
        top = (groups or [last])[0]
        found = merge(_named(found, top), {top: inner})
    return found


def _named(found: dict[str, Any], top: str) -> dict[str, Any]:
    """A group that was given by its first setting, written out."""
    if isinstance(found.get(top), str) and (first := first_setting(top)):
        return {**found, top: {first: found[top]}}
    return found


def first_setting(group: str) -> str | None:
    """The setting that stands for a group of `Config`, None for what is no group."""
    kind = _kinds(Config).get(group)
    inner = _dataclass(kind) if kind is not None else None
    return next(iter(_kinds(inner))) if inner is not None else None


def change(config: Config, options: Mapping[str, Any], where: str = "the settings") -> Config:
    """`config` with settings by dotted names, as on the command line; texts are converted to what a setting takes.

    >>> change(Config(), {"buffer": "0.2GB", "optimiser.lr": "0.5", "policy.eps": "1e-6"}).policy
    Part(name='grasp', parameters={'eps': 1e-06})
    """
    plain = as_plain(config)
    return from_plain(merge(plain, nested(options)), where)


# -- one value --------------------------------------------------------------------------------------------------------


def _build(kind: type, values: Any, name: str, where: str) -> Any:
    if kind is Part:
        return _part(values, name)
    if not isinstance(values, Mapping):
        values = {next(iter(_kinds(kind))): values}
    kinds = _kinds(kind)
    for key in values:
        if key not in kinds:
            place = f"{where} have no {name + key!r}"
            raise GraspError(f"{place}; {nearest(key, kinds)}")
    built = {key: _convert(kinds[key], value, name + key, where) for key, value in values.items()}
    try:
        return kind(**built)
    except GraspError as error:
        raise GraspError(f"{name.rstrip('.') or where}: {error}") from error


def _part(values: Any, name: str) -> Part:
    if isinstance(values, Mapping):
        given = dict(values)
        if not isinstance(given.get("name"), str):
            raise GraspError(f"{name.rstrip('.')} has parameters but no name")
        return Part(given.pop("name"), {key: parse(value) for key, value in given.items()})
    if isinstance(values, str):
        return Part(values)
    raise GraspError(f"{name.rstrip('.')} is named by a text, not {values!r}")


def _convert(kind: Any, value: Any, name: str, where: str) -> Any:
    """`value` as what a setting takes, or an error that says what that is."""
    if inner := _dataclass(kind):
        if (value is None or value == "none") and type(None) in get_args(kind):
            return None
        return _build(inner, value, f"{name}.", where)
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
    if kind is int:
        return int(value) if isinstance(value, (int, float)) and value == int(value) else None
    return float(value) if isinstance(value, (int, float)) else None


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
