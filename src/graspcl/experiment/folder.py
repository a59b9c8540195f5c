"""The run folder: what a run was, what it measured, and where it was stopped; nothing pickled.

config.toml        every setting; `graspcl run config.toml` repeats the run
environment.json   versions, processor, threads, fingerprint of the data
stream.npz         which samples came when
metrics.jsonl      a line per session, written as it goes
predictions.npz    test labels, and predictions after base initialisation and after each session
plans/             per session: what was stored, and which of it each mini-batch showed
drift.npz          representation drift after every update, where it was measured
checkpoints/       the state to go on from; after the last session the state that the run ended in
progress.json      there while a process is at work: which one, and how far it is
summary.json       written last: a folder without it is an unfinished run
"""

from __future__ import annotations

import contextlib
import io
import json
import platform
import re
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.settings.config import Config, as_plain, identity
from graspcl.settings.read import read_toml
from graspcl.state import drop_unfinished, load_state, save_state, write_whole

# What a run may have left that was killed before it wrote its settings.
_BEFORE = re.compile(r"\.lock|base|failure\.txt|progress\.json|(progress\.json|config\.toml)\.\d+\.part")
_CHECKPOINTS = 2  # kept: if the last one is damaged, the one before it serves


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

    def summary(self) -> dict[str, Any]:
        """What a finished run came to."""
        try:
            found: dict[str, Any] = json.loads((self.path / "summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise GraspError(f"{self.path / 'summary.json'} cannot be read: {error}") from error
        return found

    def clear(self) -> None:
        """Forget an earlier run in this folder; progress.json is of the one that is at work now."""
        with _disk_errors(self.path):
            for name in ("summary.json", "metrics.jsonl", "predictions.npz", "drift.npz", "failure.txt"):
                (self.path / name).unlink(missing_ok=True)
            for file in (*self._checkpoints(), *self.path.glob("plans/session-*.npz")):
                file.unlink()

    def write_config(self, config: dict[str, Any]) -> None:
        """config.toml"""
        import tomli_w

        self._write("config.toml", tomli_w.dumps(config).encode())

    def write_json(self, name: str, value: Any) -> None:
        """`name`.json"""
        self._write(f"{name}.json", json.dumps(value, indent=2).encode())

    def write_metrics(self, records: list[dict[str, Any]]) -> None:
        """metrics.jsonl with just these lines, where a run goes on from a checkpoint."""
        self._write("metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records).encode())

    def append_metrics(self, record: dict[str, Any]) -> None:
        """One more line of metrics.jsonl."""
        with _disk_errors(self.path), open(self.path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def write_arrays(self, name: str, **arrays: Array) -> None:
        """`name`.npz, compressed."""
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
        self._write(f"{name}.npz", content.getvalue())

    def _write(self, name: str, content: bytes) -> None:
        with _disk_errors(self.path):
            write_whole(self.path / name, lambda file: file.write(content))

    # -- checkpoints ---------------------------------------------------------------------------------------------------

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """The state to go on from, in one step; the one before it is kept too."""
        found = self._checkpoints()
        number = int(found[-1].stem) + 1 if found else 1
        save_state(self.path / "checkpoints" / f"{number:06d}.safetensors", state)
        with contextlib.suppress(OSError):
            for old in found[: 1 - _CHECKPOINTS]:
                old.unlink()

    def load_checkpoint(self, tell: Callable[[str], None]) -> dict[str, Any] | None:
        """The newest state that can be read; a damaged one is told of, and the one before it taken."""
        for folder in (self.path, self.path / "checkpoints", self.path / "plans"):
            drop_unfinished(folder)
        for path in reversed(self._checkpoints()):
            try:
                state = load_state(path)
                if "stream" not in state:
                    raise GraspError(f"the checkpoint {path} is not of a run")
                return state
            except GraspError as error:
                tell(f"{error}; the one before it is used, if there is one")
        return None

    def drop_checkpoints(self, all_but: int = 0) -> None:
        """Delete checkpoints, but for the last few."""
        found = self._checkpoints()
        with _disk_errors(self.path):
            for path in found[: len(found) - all_but]:
                path.unlink()

    def _checkpoints(self) -> list[Path]:
        return sorted(path for path in self.path.glob("checkpoints/*.safetensors") if path.stem.isdecimal())


def held(folder: Path, config: Config) -> bool:
    """Whether the folder has a run of these settings; one of others, or other files, are never overwritten."""
    file = folder / "config.toml"
    if not file.exists():
        if folder.is_dir() and not all(_BEFORE.fullmatch(path.name) for path in folder.iterdir()):
            raise GraspError(f"{folder} has files that are not of a run; choose another folder")
        return False
    found, own = identity(read_toml(file)), identity(as_plain(config))
    if found != own:
        other = sorted(key for key in {*found, *own} if found.get(key) != own.get(key))
        raise GraspError(f"{folder} holds a run with other settings ({', '.join(other)}); choose another folder")
    return True


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
