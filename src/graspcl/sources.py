"""Placeholder for `data_sources`, `check_source` and `open_samples` of `graspcl.data`, which replaces this module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graspcl.errors import GraspError, require
from graspcl.registry import Registry, parameter_names

data_sources: Registry[Any] = Registry("data", None, given=(
    "path", "pixels", "classes", "per_class", "test_per_class", "val_mapping", "test_split", "text", "label", "tasks",
))  # fmt: skip


@data_sources.register("groceries", gives="images")
def groceries(pixels: int = 224) -> Any:
    """Open the grocery photos."""
    from graspcl.data import Groceries

    return Groceries(pixels)


groceries.whole = True  # type: ignore[attr-defined]


@data_sources.register("listings", gives="texts")
def listings() -> Any:
    """Open the marketplace listings."""
    from graspcl.data import Listings

    return Listings()


def check_source(data: Any, reads: str, label: str) -> None:
    """Refuse data that are missing or that the other settings do not fit, before anything is read."""
    from graspcl.data.hub import HUB, hub_name

    path, kind = data.path, "images" if reads == "images" else "texts"
    fits = [name for name in data_sources.names() if data_sources.declared(name, "gives") in (kind, reads)]
    names = f"by name there are {', '.join(fits)}"
    names += f", and {HUB}NAME for a data set of the Hugging Face hub" if kind == "texts" else ""
    if not path:
        what = {
            "texts": "a table with a text and a label column, or a folder of such tables",
            "images": "a folder with train/CLASS/… and val/CLASS/… or such zip files",
        }
        raise GraspError(f"{label} needs its {kind}: --data PATH, {what[kind]} ({names})")
    known = path in data_sources
    if path.startswith(HUB):
        if kind == "images":
            raise GraspError(f"--data {path}: the hub gives texts, and the network reads images")
        if data.tasks is not None and path != HUB:
            raise GraspError(f"--data {path} is one data set: set --data.tasks none, or --data {HUB}")
        if data.tasks is None:
            hub_name(path)
        require("datasets", "hub")
    elif not known and not Path(path).exists():
        raise GraspError(f"--data {path}: there is no such folder or file; {names}")
    if known and (gives := data_sources.declared(path, "gives")) not in (kind, reads):
        raise GraspError(f"--data {path} gives {gives}, and the network reads {kind}")
    if data.tasks is not None and (known or kind == "images"):
        raise GraspError(f"--data.tasks {data.tasks}: {path} has no tables of such names: set --data.tasks none")
    for name, value in (("val_mapping", data.val_mapping), ("test_split", data.test_split)):
        if known and value is not None:
            raise GraspError(f"--data.{name} is for folders of images, not for {path}")


def open_samples(data: Any, reads: str) -> Any:
    """Open what `data.path` names."""
    from graspcl.data import TextTable, TextTasks, open_images

    if data.path in data_sources:
        named = {name: getattr(data, name) for name in ("pixels", "per_class", "test_per_class", "classes")}
        own = parameter_names(data_sources.get(data.path))
        given = {name: value for name, value in named.items() if name in own}
        return data_sources.create(data.path, **given, **data.parameters)
    if reads == "images":
        options = {"val_mapping": data.val_mapping, "test_split": data.test_split}
        return open_images(data.path, data.pixels, **{k: v for k, v in options.items() if v is not None})
    if data.tasks is None:
        return TextTable(data.path, data.text, data.label)
    if data.classes is not None:
        raise GraspError("--data.classes is not for texts in tasks: --data.tasks names them")
    tasks = [name.strip() for name in data.tasks.split(",") if name.strip()]
    # The same texts for every seed, so that tokens and latents are shared.
    return TextTasks(data.path, tasks, data.per_class, data.test_per_class, seed=0, text=data.text, label=data.label)
