"""The registry of data sources, and how the data settings of a run select one.

`--data` is the name of a source (`groceries`), a source and what it opens (`hf:NAME`), or a file or folder. Files and
folders are opened by the source `images` or `texts`, depending on what the network reads.
"""

from __future__ import annotations

from inspect import Parameter
from pathlib import Path
from typing import Any

from graspcl.data.samples import Samples
from graspcl.errors import GraspError
from graspcl.files import beside
from graspcl.registry import Registry

data_sources: Registry[Samples[Any]] = Registry("data", "graspcl.data")
"""Data sources by name: subclasses of `Samples`, or functions that return one.

A source in a plugin file is used with `--data mydata`:

    @data_sources.register("mydata", gives="images")
    class MyData(Samples[torch.Tensor]):
        def __init__(self, pixels: int = 32) -> None: ...

Its parameters get the data settings of the same name (`pixels`, `per_class`, …) if these are set, and settings of its
own such as `--data.width 3`. What follows the colon in `--data NAME:PATH` is the first parameter, which must be called
`path`. An entry declares:

- `gives`: "images", "texts" or "vectors";
- `check` (optional): a function that refuses impossible data settings before anything is read;
- `usage` (optional): how messages list the source, by default its name.
"""

_FITS = {"images": ("images",), "texts": ("texts",), "vectors": ("vectors", "texts")}  # what a network accepts
_OPENS_FILES = {"images": "images", "texts": "texts", "vectors": "texts"}  # the source for files and folders
_FORMS = {
    "images": "a folder with train/CLASS/… and val/CLASS/…, with train.zip and val.zip, or with WebDataset shards",
    "texts": "a table with a text and a label column, or a folder of such tables",
}
_ONLY_SOME = {  # settings that are refused where a source has no such parameter
    "tasks": "tasks are data sets in a folder of texts, and {} has none: --data.tasks none groups classes into tasks",
    "val_mapping": "this is for folders of images, and {} is not one; remove the setting",
    "test_split": "this is for folders of images, and {} is not one; remove the setting",
    "test_share": "this is for files and folders without test samples, and {} has its own; remove the setting",
}


def open_samples(data: Any, reads: str) -> Samples[Any]:
    """Open the data that the settings of a run name.

    Args:
        data: data settings, with the attributes of `DataConfig` and optionally `parameters`, a dict of further
            parameters of the source.
        reads: what the network reads: "images", "texts" or "vectors". Texts also serve networks that read vectors.

    Returns:
        All samples of the source; `take` reduces them to `data.classes` and `data.per_class`.

    >>> from types import SimpleNamespace
    >>> open_samples(SimpleNamespace(path="groceries", pixels=32), "images")
    <Groceries 0.1.1: 14 classes, 732 train, 661 test>
    """
    name = source_name(data.path, reads)
    return data_sources.create(name, **_parameters(data, name))


def check_source(data: Any, reads: str, label: str) -> None:
    """Refuse data that do not exist or do not fit the other settings, before anything is read.

    `data` and `reads` are those of `open_samples`; `label` is the name of the run, for messages.
    """
    path = data.path
    if not path:
        kind = _OPENS_FILES[reads]
        raise GraspError(f"{label} needs its {kind}: --data PATH, {_FORMS[kind]} ({_names(reads)})")
    name = source_name(path, reads)
    if name != path and not Path(path).exists():
        raise GraspError(f"--data {path}: there is no such folder or file{beside(Path(path)) or f'; {_names(reads)}'}")
    source = name.partition(":")[0]
    if ":" in name and next(iter(data_sources.parameters(source)), None) != "path":
        raise GraspError(f"--data {path}: {source} opens no path; use --data {source}")
    if (gives := data_sources.declared(name, "gives")) not in _FITS[reads]:
        raise GraspError(f"--data {path} gives {gives}, but the network reads {reads}; {_names(reads)}")
    for setting, reason in _ONLY_SOME.items():
        value = getattr(data, setting, None)
        if value is not None and setting not in data_sources.parameters(name):
            raise GraspError(f"--data.{setting} {value}: {reason.format(path)}")
    data_sources.validate(name, _parameters(data, name))
    if (check := data_sources.declared(name, "check")) is not None:
        check(data)


def kind_of_files(path: str) -> str:
    """Return what a file or folder most likely has: "texts" in tables, else "images".

    >>> kind_of_files("mails.csv"), kind_of_files("photos.zip")
    ('texts', 'images')
    """
    from graspcl.data.table_reader import READERS
    from graspcl.data.text_table import table_files

    place = Path(path)
    tables = place.suffix.lower() in READERS or (place.is_dir() and "train" in table_files(place))
    return "texts" if tables else "images"


def source_name(path: str, reads: str) -> str:
    """Return the name of the source to create: `path` itself, or for a file or folder `images:PATH` or `texts:PATH`."""
    # A folder may be called images, but the source images needs a path.
    named = path in data_sources and data_sources.parameters(path).get("path") is not Parameter.empty
    return path if named else f"{_OPENS_FILES[reads]}:{path}"


def _parameters(data: Any, name: str) -> dict[str, Any]:
    """Return the settings that the source takes, as far as they are set."""
    settings = {key: getattr(data, key, None) for key in data_sources.parameters(name) if key != "path"}
    found = {key: value for key, value in settings.items() if value is not None}
    return {**found, **(getattr(data, "parameters", None) or {})}


def _names(reads: str) -> str:
    fit = [name for name in data_sources.names() if data_sources.declared(name, "gives") in _FITS[reads]]
    usages = [usage for name in fit if (usage := data_sources.declared(name, "usage"))]
    others = [name for name in fit if not data_sources.declared(name, "usage") and name not in _OPENS_FILES.values()]
    names = [f"{name}:PATH" if "path" in data_sources.parameters(name) else name for name in others]
    return f"by name there are {', '.join(names)}{''.join(f', and {usage}' for usage in usages)}"
