"""The run folder: what a run was, what it measured, nothing pickled.

config.toml        every setting
environment.json   versions, processor, threads
metrics.jsonl      a line per session, written as it goes
predictions.npz    test labels, and predictions after base initialisation and after each session
summary.json       written last: a folder without it is an unfinished run
"""

from __future__ import annotations

import contextlib
import io
import json
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.errors import GraspError
from graspcl.files import write_whole

Array = np.ndarray[Any, Any]


class RunFolder:
    """Writes one run's files; each is replaced in one step, but for metrics.jsonl, which grows by lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with _disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "summary.json").exists()

    def clear(self) -> None:
        """Forget an earlier run in this folder."""
        with _disk_errors(self.path):
            for name in ("summary.json", "metrics.jsonl", "predictions.npz"):
                (self.path / name).unlink(missing_ok=True)

    def write_config(self, config: dict[str, Any]) -> None:
        """config.toml"""
        import tomli_w

        self._write("config.toml", tomli_w.dumps(config).encode())

    def write_json(self, name: str, value: Any) -> None:
        """`name`.json"""
        self._write(f"{name}.json", json.dumps(value, indent=2).encode())

    def append_metrics(self, record: dict[str, Any]) -> None:
        """One more line of metrics.jsonl."""
        with _disk_errors(self.path), open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def write_predictions(self, labels: Array, predictions: list[Array]) -> None:
        """predictions.npz"""
        content = io.BytesIO()
        np.savez_compressed(content, labels=labels, predictions=np.stack(predictions))
        self._write("predictions.npz", content.getvalue())

    def _write(self, name: str, content: bytes) -> None:
        with _disk_errors(self.path):
            write_whole(self.path / name, lambda file: file.write(content))


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Turns a full disk or a missing folder into an error for people."""
    try:
        yield
    except OSError as error:
        raise GraspError(f"the run folder {path} cannot be written: {error.strerror}") from error


def environment() -> dict[str, Any]:
    """What a result depends on beside the settings."""
    import torch

    packages = ("graspcl", "numpy", "torch", "numba", "faiss-cpu")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "packages": {name: _version(name) for name in packages},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
