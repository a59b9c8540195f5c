"""Parts by name: one registry for each kind of part (policy, learner, codec, maintenance rule, stream, data, network).

A built-in part is found because its file lies in the package of its kind. A part from elsewhere is found through an
entry point of the group `graspcl.<kind>`, or by loading its file with `load_plugin`. Adding a part edits no other file.
"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.metadata
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from graspcl.checks import check_parameters
from graspcl.errors import GraspError, nearest

Part = TypeVar("Part")
Made = TypeVar("Made", bound=Callable[..., Any])


class Registry(Generic[Part]):
    """The parts of one kind: classes, or functions that make one.

    Args:
        kind: what error messages call such a part.
        package: the package whose modules register the built-in parts; loaded when first asked for a name.
        given: parameters that the caller supplies when a part is made, so that they are no settings of its own.

    >>> import dataclasses
    >>> fruits: Registry[object] = Registry("fruit")
    >>> @fruits.register("apple", colour="red")
    ... @dataclasses.dataclass
    ... class Apple:
    ...     weight: int = 100
    >>> fruits.create("apple", weight=120)
    Apple(weight=120)
    >>> fruits.names("a*"), fruits.parameters("apple"), fruits.declared("apple", "colour")
    (['apple'], {'weight': 100}, 'red')
    """

    def __init__(self, kind: str, package: str | None = None, given: tuple[str, ...] = ()) -> None:
        self.kind, self.given, self._package = kind, given, package
        self._parts: dict[str, Any] = {}
        self._aliases: dict[str, str] = {}
        self._declared: dict[str, dict[str, Any]] = {}
        self._loaded = False

    def register(self, name: str, *aliases: str, **declares: Any) -> Callable[[Made], Made]:
        """Decorator that makes a part known as `name`, and by other names of the literature as `aliases`.

        `declares` is what other parts may ask about it, for example `reads="images"`.
        """

        def add(part: Made) -> Made:
            known = self._parts.get(name)
            if known is not None and (known.__module__, known.__qualname__) != (part.__module__, part.__qualname__):
                raise GraspError(f"{known.__module__} and {part.__module__} both register the {self.kind} {name!r}")
            for alias in aliases:
                if alias in self._parts or self._aliases.get(alias, name) != name:
                    raise GraspError(f"{part.__module__}: the alias {alias!r} of {self.kind} {name!r} is taken")
            part.name = name  # type: ignore[attr-defined]
            self._parts[name] = part
            self._declared[name] = declares
            self._aliases.update(dict.fromkeys(aliases, name))
            return part

        return add

    def names(self, pattern: str = "*") -> list[str]:
        """All names that match a shell pattern, sorted, without aliases."""
        self._load()
        return sorted(fnmatch.filter(self._parts, pattern))

    def aliases(self, name: str) -> list[str]:
        """Other names of the part called `name`."""
        return sorted(alias for alias, own in self._aliases.items() if own == name)

    def __contains__(self, name: str) -> bool:
        self._load()
        return self._split(name)[0] in self._parts

    def get(self, name: str) -> type[Part]:
        """The class or function called `name`; an unknown name raises an error that suggests the nearest valid one."""
        self._load()
        found = self._split(name)[0]
        if found not in self._parts:
            hint = nearest(name, [*self._parts, *self._aliases])
            raise GraspError(f"there is no {self.kind} called {name!r}; {hint}")
        return cast("type[Part]", self._parts[found])

    def declared(self, name: str, what: str) -> Any:
        """What the part called `name` declares about itself; None where it declares nothing of the sort."""
        self.get(name)
        return self._declared[self._split(name)[0]].get(what)

    def parameters(self, name: str) -> dict[str, Any]:
        """The settings of a part with their defaults; a setting without one has `inspect.Parameter.empty`."""
        part, (_, variant) = self.get(name), self._split(name)
        own = parameter_names(part)[1 if variant else 0 :]
        return {key: inspect.signature(part).parameters[key].default for key in own if key not in self.given}

    def validate(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Refuse an unknown name, an unknown or missing parameter, or a value it cannot have; makes nothing."""
        valid = self.parameters(name)
        for parameter in parameters:
            if parameter not in valid:
                hint = nearest(parameter, valid) if valid else "it takes none"
                raise GraspError(f"{self.kind} {name!r} has no parameter {parameter!r}; {hint}")
        missing = [p for p, default in valid.items() if default is inspect.Parameter.empty and p not in parameters]
        if missing:
            raise GraspError(f"{self.kind} {name!r} needs a value for {' and '.join(missing)}")
        try:
            check_parameters(self.get(name), parameters)
        except GraspError as error:
            raise GraspError(f"{self.kind} {name!r}: {error}") from error

    def create(self, name: str, *given: Any, **parameters: Any) -> Part:
        """Make the part called `name`, from what the caller gives and the part's own parameters."""
        self.validate(name, {key: value for key, value in parameters.items() if key not in self.given})
        _, variant = self._split(name)
        try:
            return self.get(name)(*([variant] if variant else []), *given, **parameters)
        except TypeError as error:
            raise GraspError(f"{self.kind} {name!r} cannot be made: {error}") from error

    def _split(self, name: str) -> tuple[str, str]:
        """A name as the part's own and the variant behind a colon: `timm:resnet18` is `timm` of 'resnet18'."""
        name = self._aliases.get(name, name)
        base, _, variant = name.partition(":")
        return (base, variant) if base in self._parts and variant else (name, "")

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        try:
            if self._package is not None:
                for module in pkgutil.iter_modules(importlib.import_module(self._package).__path__):
                    importlib.import_module(f"{self._package}.{module.name}")
            for entry in importlib.metadata.entry_points(group=f"graspcl.{self.kind}"):
                try:
                    entry.load()
                except Exception as error:
                    plugin = f"the installed plugin {entry.name!r} ({entry.value})"
                    raise GraspError(f"{plugin} cannot be loaded: {error}") from error
        except BaseException:
            self._loaded = False  # half a registry must not pass for a whole one
            raise


def parameter_names(part: Callable[..., Any]) -> list[str]:
    """The named parameters of a class or function."""
    parameters = inspect.signature(part).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


def load_plugin(path: str | Path) -> None:
    """Run a Python file, so that the parts it registers are known by name. The file's code is executed.

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
