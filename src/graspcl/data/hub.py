"""Text data sets of the Hugging Face hub, loaded with the package datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

from graspcl.data.records import Record, check_columns, wanted_columns
from graspcl.data.table_reader import Rows, collect
from graspcl.errors import GraspError, require

HUB = "hf:"  # prefix of data sets of the hub


def hub_name(path: str) -> tuple[str, str | None]:
    """Return the name and the configuration of a data set of the hub: hf:NAME or hf:NAME:CONFIG."""
    name, _, config = path.removeprefix(HUB).partition(":")
    if not name:
        raise GraspError(f"{path} names no data set; a data set of the hub is {HUB}NAME or {HUB}NAME:CONFIG")
    return name, config or None


def load_splits(name: str, config: str | None) -> Mapping[str, Any]:
    """Load the splits of a data set, or of a local folder. Without a connection, use the cache of datasets."""
    datasets = require("datasets", "hub")
    reachable = Path(name).is_dir() or (not datasets.config.HF_HUB_OFFLINE and _is_reachable(name))
    offline = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = offline or not reachable
    try:
        splits: Mapping[str, Any] = datasets.load_dataset(name, config)
    except Exception as error:  # datasets passes on errors of several packages
        cause = error.__cause__ if isinstance(error, datasets.exceptions.DatasetGenerationError) else error
        reason = " ".join(str(cause).split())[:300] or type(cause).__name__
        if not reachable:
            reason = f"there is no connection, and the cache of the package datasets does not have it ({reason})"
        raise GraspError(f"the data set {name} cannot be loaded from the hub: {reason}") from error
    finally:
        datasets.config.HF_HUB_OFFLINE = offline
    if "train" not in splits:
        raise GraspError(f"the data set {name} has no split train, only {', '.join(map(str, splits))}")
    return splits


def hub_rows(where: str, split: Any, text: str | Sequence[str], label: str) -> Rows:
    """Read the rows of a split."""
    wanted = wanted_columns(text, label)
    check_columns(where, split.column_names, wanted)
    names = getattr(split.features[label], "names", None)  # of a ClassLabel
    *texts, labels = (split[column] for _, column in wanted)
    if names is not None:  # a ClassLabel column contains -1 for a missing label
        labels = [None if label is None or label < 0 else names[label] for label in labels]
    return collect(where, starmap(Record, enumerate(zip(*texts, labels, strict=True), start=1)))


def _is_reachable(name: str) -> bool:
    """Return whether the hub answers. Without this test, datasets would retry for half a minute."""
    hub, errors = require("huggingface_hub", "hub"), require("huggingface_hub.errors", "hub")
    try:
        hub.HfApi().dataset_info(name, timeout=5.0)  # seconds
    except errors.HfHubHTTPError:  # an answer, even if there is no such data set
        return True
    except Exception:  # the connection package, and thus the error, depends on the version
        return False
    return True
