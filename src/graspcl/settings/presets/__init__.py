"""Presets: the paper's experiments, and streams that come by pip, as settings to start from.

Each preset is a TOML file beside this module. `settings` holds its settings. Other sections hold what changes at the
scales `small` and `smoke`, with veridical rehearsal, and with unbounded memory. Below a scale, `without_data` is for
users without data of their own. `extends` names a preset to start from, also in a TOML file of a user.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from graspcl.checks import checked
from graspcl.errors import GraspError, nearest
from graspcl.settings.config import Config
from graspcl.settings.read import flatten, from_file, from_plain, merge, read_toml

_VARIANTS = ("latent", "veridical", "unbounded", "without_data")


def names() -> list[str]:
    """Return the names of all presets."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def about(name: str) -> dict[str, str]:
    """Return the `title` of a preset, and its place in the `paper`."""
    found = _read(name)
    return {"title": found.get("title", name), "paper": found.get("paper", "–")}


@checked
def preset(
    name: str, scale: Literal["full", "small", "smoke"] = "full",
    rehearsal: Literal["latent", "veridical"] | None = None, memory: Literal["bounded", "unbounded"] = "bounded",
    own_data: str | None = None, **changes: Any,
) -> Config:  # fmt: skip
    """Return the settings of a preset.

    Args:
        name: see `names`.
        scale: "full" (the preset itself), "small" (for a CPU) or "smoke" (to see that it runs).
        rehearsal: "latent" or "veridical"; by default the preset's own.
        memory: "bounded" (the preset's buffer) or "unbounded".
        own_data: path or name that replaces the data of a scale.
        changes: other values for whole fields of `Config`.

    >>> config = preset("imagenet-300", seed=1)
    >>> config.budget.updates, config.budget.batch_size, config.seed
    (1251, 512, 1)
    """
    found = _read(name)
    settings = found["settings"]
    own = {"rehearsal": "latent", **settings, **found.get(scale, {})}["rehearsal"]
    rehearsal = rehearsal or own
    sections = [rehearsal, scale, f"{scale}.{rehearsal}"]
    sections += ["data"] if own_data is not None else [f"{scale}.without_data"]
    sections += ["unbounded", f"{scale}.unbounded"] if memory == "unbounded" else []  # last: scales have capacities
    layers = {**found, "data": {"data.path": own_data}}
    settings = functools.reduce(merge, (layers.get(section, {}) for section in sections), settings)
    words = [name, *(word for word in (scale, rehearsal, memory) if word not in ("full", own, "bounded"))]
    config = from_plain({**settings, "name": "-".join(words), "rehearsal": rehearsal}, f"the preset {name}")
    return replace(config, **changes)


def base_preset(config: Config) -> Config | None:
    """Return the settings that train what a stage `weights(preset=NAME)` loads; None without such a stage.

    They do not depend on the run's seed: all seeds start from the same weights.

    >>> base_preset(preset("places-lt")).name
    'imagenet-1k'
    """
    if (stage := config.base.preset) is None:
        return None
    chosen, scale = stage.parameters["preset"], stage.parameters.get("scale", "full")
    return preset(chosen, scale, own_data=config.base.data, execution=config.execution)


def load(
    path: Path, scale: Literal["full", "small", "smoke"] = "full",
    rehearsal: Literal["latent", "veridical"] | None = None, memory: Literal["bounded", "unbounded"] = "bounded",
    own_data: str | None = None,
) -> Config:  # fmt: skip
    """Return the settings of a TOML file or of a run folder.

    With `extends = "imagenet-300"`, a file changes that preset; the other parameters are those of `preset`.
    """
    file, start = path / "config.toml" if path.is_dir() else path, None
    values = read_toml(file)
    if "extends" in values:
        extends, own_data = str(values.pop("extends")), own_data or flatten(values).get("data.path")
        values |= {} if rehearsal is None else {"rehearsal": rehearsal}
        start = preset(extends, scale, values.get("rehearsal"), memory, own_data)
    elif (scale, rehearsal, memory) != ("full", None, "bounded"):
        raise GraspError("--scale, --rehearsal and --memory are for presets; change the settings of a file instead")
    values = {"name": file.stem, **values}
    if (file.parent / "environment.json").exists():  # of a run: earlier versions wrote settings without effect as well
        return from_plain(values, str(file))
    return from_file(values, str(file), start)


@functools.cache
def _read(name: str) -> dict[str, Any]:
    """Return title and paper of a preset, and its sections as flat settings: settings, small, small.veridical, …"""
    if name not in names():
        raise GraspError(f"there is no preset called {name!r}; {nearest(name, names())}")
    given = read_toml(resources.files(__name__) / f"{name}.toml")
    found: dict[str, Any] = dict(_read(given.pop("extends"))) if "extends" in given else {}
    for section, content in given.items():
        if isinstance(content, str):
            found[section] = content
            continue
        inner = {variant: content.pop(variant) for variant in _VARIANTS if variant in content}
        for place, values in {section: content, **{f"{section}.{one}": own for one, own in inner.items()}}.items():
            found[place] = merge(found.get(place, {}), flatten(values))
    return found
