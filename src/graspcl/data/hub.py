"""Data sets of the Hugging Face hub, by the package datasets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graspcl.data.rows import Rows, check_columns
from graspcl.errors import GraspError, require

HUB = "hf:"  # what the path of a data set of the hub begins with
_PATIENCE = 5.0  # seconds to wait for a word from the hub


def hub_name(path: str) -> tuple[str, str | None]:
    """The name and the configuration of a data set of the hub.

    >>> hub_name("hf:fancyzhx/ag_news"), hub_name("hf:clinc/clinc_oos:plus")
    (('fancyzhx/ag_news', None), ('clinc/clinc_oos', 'plus'))
    """
    name, _, config = path.removeprefix(HUB).partition(":")
    if not name:
        raise GraspError(f"{path} names no data set; a data set of the hub is {HUB}NAME or {HUB}NAME:CONFIG")
    return name, config or None


def load_splits(name: str, config: str | None) -> Mapping[str, Any]:
    """The splits of the data set `name`, which may be a folder; without a connection from the cache of datasets."""
    datasets = require("datasets", "hub")
    reached = Path(name).is_dir() or (not datasets.config.HF_HUB_OFFLINE and _reached(name))
    try:
        with _online(datasets, reached):
            splits: Mapping[str, Any] = datasets.load_dataset(name, config)
    except Exception as error:  # it lets errors of several packages through
        told = error.__cause__ if isinstance(error, datasets.exceptions.DatasetGenerationError) else error
        said = " ".join(str(told).split())[:300] or type(told).__name__
        if not reached:
            said = f"there is no connection to it, and the cache of the package datasets does not have it ({said})"
        raise GraspError(f"the data set {name} cannot be had from the hub: {said}") from error
    if "train" not in splits:
        raise GraspError(f"the data set {name} has no split train, only {', '.join(map(str, splits))}")
    return splits


def hub_rows(where: str, split: Any, text: Sequence[str], label: str) -> Rows:
    """The rows of a split. A text is what its columns `text` have, one after the other."""
    for column in text:
        check_columns(where, split.column_names, column, label)
    names = getattr(split.features[label], "names", None)  # of a ClassLabel
    texts: Iterable[Any] = split[text[0]]
    if len(text) > 1:
        texts = map(_joined, zip(*(split[column] for column in text), strict=True))
    rows = Rows(where)
    for number, (each, value) in enumerate(zip(texts, split[label], strict=True), start=1):
        # -1 is what such a column has for a missing label.
        rows.add(number, each, value if names is None or value is None else names[value] if value >= 0 else None)
    return rows.checked()


def _joined(parts: Iterable[Any]) -> str:
    return " ".join(str(part) for part in parts if part)


def _reached(name: str) -> bool:
    """Whether the hub answers: datasets itself would try again and again, for half a minute."""
    hub, errors = require("huggingface_hub", "hub"), require("huggingface_hub.errors", "hub")
    try:
        hub.HfApi().dataset_info(name, timeout=_PATIENCE)
    except errors.HfHubHTTPError:  # an answer, if only that there is no such data set
        return True
    except Exception:  # of the package that makes the connection, which one depends on the version
        return False
    return True


@contextmanager
def _online(datasets: Any, reached: bool) -> Iterator[None]:
    """Within, datasets looks for data sets on the hub, or if that cannot be reached, in its cache alone."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or not reached
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
