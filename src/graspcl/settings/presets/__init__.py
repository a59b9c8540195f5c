"""Presets: the paper's experiments, and two streams that come by pip, as settings to begin from.

Each is a TOML file beside this module: `settings`, and what other scales (`small`, `smoke`), veridical rehearsal and
unbounded memory change in them; below a scale `without_data` is for those who have no data of their own.
"""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any, Literal, get_args

from graspcl.errors import GraspError, nearest
from graspcl.settings.config import Config
from graspcl.settings.read import from_plain, merge, read_text

Scale = Literal["full", "small", "smoke"]
Rehearsal = Literal["latent", "veridical"]
Memory = Literal["bounded", "unbounded"]

_VARIANTS = ("latent", "veridical", "unbounded", "without_data")


def names() -> list[str]:
    """Of all presets.

    >>> "imagenet-300" in names()
    True
    """
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def about(name: str) -> dict[str, str]:
    """A preset's `title`, and where it stands in the `paper`."""
    found = _read(name)
    return {"title": found.get("title", name), "paper": found.get("paper", "–")}


def preset(
    name: str, scale: Scale = "full", rehearsal: Rehearsal | None = None, memory: Memory = "bounded",
    own_data: str | None = None, **changes: Any,
) -> Config:  # fmt: skip
    """The settings of a preset; `changes` are whole fields of `Config`. By default `rehearsal` is the preset's own, and
    `own_data`, a path or a name, stands in for those of a scale's, if it has some.

    >>> from graspcl.settings.config import Part
    >>> config = preset("imagenet-300", policy=Part("uniform"))
    >>> config.budget.updates, config.budget.batch_size, str(config.policy)
    (1251, 512, 'uniform')
    """
    found = _read(name)
    scaled = found.get(scale, {})
    own = scaled.get("rehearsal", found["settings"].get("rehearsal", "latent"))
    rehearsal = rehearsal or own
    for what, kind, given in (("scale", Scale, scale), ("rehearsal", Rehearsal, rehearsal), ("memory", Memory, memory)):
        if given not in get_args(kind):
            raise GraspError(f"{what} cannot be {given!r}; {nearest(given, get_args(kind))}")
    plain = {key: value for key, value in scaled.items() if key not in _VARIANTS}
    layers = [found["settings"], found.get(rehearsal, {}), plain, scaled.get(rehearsal, {})]
    layers += [scaled.get("without_data", {}) if own_data is None else {"data": {"path": own_data}}]
    if memory == "unbounded":  # last: a scale has a capacity of its own
        layers += [found.get("unbounded", {}), scaled.get("unbounded", {})]
    settings = functools.reduce(merge, layers)
    words = [name, *(word for word in (scale, rehearsal, memory) if word not in ("full", own, "bounded"))]
    config = from_plain({**settings, "name": "-".join(words), "rehearsal": rehearsal}, f"the preset {name}")
    return config.with_(**changes)


def _read(name: str) -> dict[str, Any]:
    if name not in names():
        raise GraspError(f"there is no preset called {name!r}; {nearest(name, names())}")
    text = (resources.files(__name__) / f"{name}.toml").read_text(encoding="utf-8")
    found = read_text(text, f"the preset {name}")
    if parent := found.pop("extends", None):
        found = merge(_read(parent), found)
    return found
