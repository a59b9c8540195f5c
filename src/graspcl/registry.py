"""Names for parts: one registry per kind (policy, codec, maintenance, learner, stream, data, network).

A built-in part is found because its file lies in the package of its kind; a third party's part is found through an
entry point of the group `graspcl.<kind>`, or by naming its file (`load_plugin`). Nothing is edited to add one.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from graspcl.errors import GraspError, nearest

Part = TypeVar("Part")
Class = TypeVar("Class", bound=type)


class Registry(Generic[Part]):
    """The parts of one kind, by name.

    >>> import dataclasses
    >>> fruits: Registry[object] = Registry("fruit")
    >>> @fruits.register("apple")
    ... @dataclasses.dataclass
    ... class Apple:
    ...     weight: int = 100
    >>> fruits.create("apple", weight=120)
    Apple(weight=120)
    >>> fruits.names("a*")
    ['apple']
    """

    def __init__(self, kind: str, package: str | None = None) -> None:
        self.kind = kind
        self._package = package
        self._parts: dict[str, type[Part]] = {}
        self._aliases: dict[str, str] = {}
        self._loaded = False

    def register(self, name: str, *aliases: str) -> Callable[[Class], Class]:
        """Class decorator that makes a part known as `name`, and under older names of the literature as `aliases`."""

        def add(part: Class) -> Class:
            known = self._parts.get(name)
            if known is not None and (known.__module__, known.__qualname__) != (part.__module__, part.__qualname__):
                raise GraspError(
                    f"two {self.kind} classes are called {name!r}: {known.__module__} and {part.__module__}"
                )
            for alias in aliases:
                if alias in self._parts or self._aliases.get(alias, name) != name:
                    raise GraspError(f"{part.__module__} calls its {self.kind} {name!r} also {alias!r}, which is taken")
            part.name = name  # type: ignore[attr-defined]
            self._parts[name] = part
            self._aliases.update(dict.fromkeys(aliases, name))
            return part

        return add

    def aliases(self, name: str) -> list[str]:
        """Other names of the part called `name`."""
        return sorted(alias for alias, own in self._aliases.items() if own == name)

    def names(self, pattern: str = "*") -> list[str]:
        """All names that match a shell pattern, sorted; aliases are left out."""
        self._load()
        return sorted(fnmatch.filter(self._parts, pattern))

    def get(self, name: str) -> type[Part]:
        """The class called `name`; an unknown name is an error that suggests the nearest valid one."""
        self._load()
        name = self._aliases.get(name, name)
        if name not in self._parts:
            raise GraspError(
                f"there is no {self.kind} called {name!r}; {nearest(name, [*self._parts, *self._aliases])}"
            )
        return self._parts[name]

    def create(self, name: str, **parameters: Any) -> Part:
        """Make the part called `name`; an unknown parameter is an error that suggests the nearest valid one."""
        part = self.get(name)
        valid = parameter_names(part)
        for parameter in parameters:
            if parameter not in valid:
                hint = nearest(parameter, valid) if valid else "it takes none"
                raise GraspError(f"{self.kind} {name!r} has no parameter {parameter!r}; {hint}")
        try:
            return part(**parameters)
        except TypeError as error:
            raise GraspError(f"{self.kind} {name!r} cannot be made: {error}; parameters need a default") from error

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        try:
            if self._package is not None:
                for module in pkgutil.iter_modules(importlib.import_module(self._package).__path__):
                    importlib.import_module(f"{self._package}.{module.name}")
            for entry in importlib.metadata.entry_points(group=f"graspcl.{self.kind}"):
                _load_entry(entry)
        except BaseException:
            self._loaded = False  # half a registry must not pass for a whole one
            raise


def _load_entry(entry: importlib.metadata.EntryPoint) -> None:
    try:
        entry.load()
    except Exception as error:
        raise GraspError(f"the installed plugin {entry.name!r} ({entry.value}) cannot be loaded: {error}") from error


def parameter_names(part: type) -> list[str]:
    """The keyword parameters a part is made with.

    >>> import dataclasses
    >>> parameter_names(dataclasses.make_dataclass("P", ["a", "b"]))
    ['a', 'b']
    """
    parameters = inspect.signature(part).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


def parameters(part: type) -> dict[str, Any]:
    """The keyword parameters a part is made with, and their defaults.

    >>> import dataclasses
    >>> parameters(dataclasses.make_dataclass("P", [("a", int, 1)]))
    {'a': 1}
    """
    return {p.name: p.default for p in inspect.signature(part).parameters.values() if p.default is not p.empty}


def load_plugin(path: str | Path) -> None:
    """Run a user's own Python file, so that the parts it registers are known by name.

    >>> load_plugin("nowhere.py")
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: no plugin file at nowhere.py
    """
    file = Path(path)
    if not file.is_file():
        raise GraspError(f"no plugin file at {path}")
    name = f"graspcl_plugin_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise GraspError(f"{path} is not a Python file; a plugin's name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, GraspError):
            raise
        raise GraspError(f"plugin {path} could not be loaded: {type(error).__name__}: {error}") from error
