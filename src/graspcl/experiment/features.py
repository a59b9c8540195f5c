"""Latents of the frozen part, extracted once and cached."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.experiment.progress import Progress
from graspcl.files import write_whole

Array = np.ndarray[Any, Any]


def cache_folder() -> Path:
    """Where caches lie: $GRASPCL_CACHE, else graspcl in the user's cache folder."""
    given = os.environ.get("GRASPCL_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graspcl"


def cached_latents(key: str, number: int, compute: Callable[[], Iterator[Array]], progress: Progress) -> Array:
    """Latents [number, …] under `key`: read back if they were extracted before, else made by `compute` and stored.

    `compute` gives them in chunks [n, …]. The key must name everything they depend on.
    """
    path = cache_folder() / f"{key}.npy"
    if (found := _read(path, number, progress)) is not None:
        progress.note(f"latents read from the cache ({path})")
        return found
    parts = []
    with progress.task(f"extracting latents: {key.partition('-')[0]}", number) as advance:
        for part in compute():
            parts.append(part)
            advance(len(part))
    latents = np.concatenate(parts)
    _write(path, latents, progress)
    return latents


def _read(path: Path, number: int, progress: Progress) -> Array | None:
    try:
        latents: Array = np.load(path, allow_pickle=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        progress.note(f"the cache file {path} cannot be read ({error}); latents are extracted anew")
        return None
    if len(latents) != number:
        progress.note(f"the cache file {path} has {len(latents)} rows instead of {number}; latents are extracted anew")
        return None
    return latents


def _write(path: Path, latents: Array, progress: Progress) -> None:
    try:
        write_whole(path, lambda file: np.save(file, latents, allow_pickle=False))
    except OSError as error:
        progress.note(f"latents could not be cached in {path.parent} ({error.strerror}); the run goes on without")
