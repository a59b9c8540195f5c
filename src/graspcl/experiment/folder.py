"""The run folder: settings, measurements and checkpoints of one run. Nothing is pickled.

config.toml        every setting; `graspcl run config.toml` repeats the run
environment.json   versions, processor, threads, fingerprint of the data
classes.json       names of the classes, by label
stream.npz         which samples arrive when
metrics.jsonl      one line per session, written when it ends
predictions.npz    test labels, and predictions after the base and after each session
plans/             per session: which samples were stored, and which of them each mini-batch used
drift.npz          representation drift after every update, if measured
problems.json      problems of the data, if any
checkpoints/       states to resume from; after the last session, the final state
codes/             codes of stored samples, which checkpoints name (see checkpoints.py). A finished run has them in its
                   final state, unless ranks hold parts of the buffer
progress.json      exists while a process works: which one, and how far it is
summary.json       written last: a folder without it holds an unfinished run
checksums.json     checksums of the texts above; arrays and states carry their own
"""

from __future__ import annotations

import contextlib
import json
import platform
import re
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.cache import lock
from graspcl.checks import Array
from graspcl.distributed import Ranks, text_digest
from graspcl.errors import GraspError
from graspcl.experiment.checkpoints import Segments, Stored
from graspcl.files import cause
from graspcl.integrity import CHECKSUMS, Damaged, list_texts, listed_checksums, pack_arrays, read_arrays, read_text
from graspcl.settings.config import Config, as_plain, identity
from graspcl.settings.read import flatten, from_plain, read_toml, settled
from graspcl.state import drop_unfinished, load_state, save_state, write_whole

# What a run may leave that is killed before it writes its settings.
_EARLY_FILES = re.compile(
    r"\.lock|base|failure\.txt|(progress|checksums)\.json|((progress|checksums)\.json|config\.toml)\.\d+\.part"
)
_MARKS = (".lock", "checksums.json", "base/.locks")  # one of them is beside early files of a run, not of others
_CHECKPOINTS = 2  # kept: if the last one is damaged, the one before it is used


class RunFolder:
    """The files of one run. Each is replaced in one step, and verified when it is read."""

    writable = True

    def __init__(self, path: Path) -> None:
        self.path, self.segments = path, Segments(path / "codes")

    @contextlib.contextmanager
    def claim(self, config: Config) -> Iterator[None]:
        """Hold the folder for a run of `config`; create it, and remove it again if the run writes nothing.

        Raises:
            GraspError: another process holds it, or it has a run of other settings or other files.
        """
        self.holds(config)
        created = [place for place in (self.path, *self.path.parents) if not place.exists()]
        with _disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with lock(self.path / ".lock", wait=False):
            try:
                yield
            finally:
                if created and not (self.path / "config.toml").exists():
                    with contextlib.suppress(OSError):  # not empty
                        (self.path / ".lock").unlink(missing_ok=True)
                        for place in created:
                            place.rmdir()

    def holds(self, config: Config) -> bool:
        """Whether the folder has a run of these settings; refuse one with other settings or other files."""
        if not (self.path / "config.toml").exists():
            names = [path.name for path in self.path.iterdir()] if self.path.is_dir() else []
            marked = any((self.path / mark).exists() for mark in _MARKS)
            if names and not (marked and all(map(_EARLY_FILES.fullmatch, names))):
                raise GraspError(f"{self.path} contains files that do not belong to a run; choose another folder")
            return False
        found, own = (identity(as_plain(settled(one))) for one in (self.config(), config))
        if found != own:
            other = sorted(key for key in {*found, *own} if found.get(key) != own.get(key))
            raise GraspError(f"{self.path} has a run with other settings ({', '.join(other)}); choose another folder")
        return True

    @property
    def finished(self) -> bool:
        """Whether the run has finished."""
        return (self.path / "summary.json").exists()

    def config(self) -> Config:
        """Read config.toml."""
        if not (file := self.path / "config.toml").is_file():
            raise GraspError(f"{self.path} is not a run folder: it has no config.toml")
        found = flatten(read_toml(file))
        found.setdefault("measure.coded", found.get("rehearsal") != "veridical")  # so did all runs of earlier versions
        return from_plain(found, str(file))

    def class_names(self) -> list[str]:
        """Read classes.json: the names of the classes, by label."""
        names = self._read_json("classes.json")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise GraspError(f"{self.path / 'classes.json'} must be a list of class names")
        return names

    def summary(self) -> dict[str, Any]:
        """Read summary.json of a finished run."""
        if not isinstance(summary := self._read_json("summary.json"), dict):
            raise GraspError(f"{self.path / 'summary.json'} must be an object")
        return summary

    def _read_json(self, name: str) -> Any:
        try:
            return json.loads(read_text(self.path / name))
        except (OSError, ValueError, RecursionError) as error:
            raise GraspError(f"{self.path / name} cannot be read: {error}") from error

    def fault(self, name: str) -> str:
        """Return what is wrong with a text or arrays that were written; empty if they are as they were."""
        try:
            if name.endswith(".npz"):
                read_arrays(self.path / name)
                return ""
            read_text(self.path / name)
            return "" if name in listed_checksums(self.path) else "it has no checksum"
        except (OSError, ValueError) as error:
            return getattr(error, "strerror", None) or str(error)

    def drop_damaged(self, name: str, note: Callable[[str], None]) -> bool:
        """Delete what is left of a file that is missing or damaged, and tell; return whether it is gone."""
        if fault := self.fault(name):
            note(f"{self.path / name} is written again: {fault}")
            with _disk_errors(self.path):
                (self.path / name).unlink(missing_ok=True)
        return bool(fault)

    def clear(self) -> None:
        """Delete the files of an earlier run; progress.json belongs to the current one."""
        with _disk_errors(self.path):
            for name in ("summary.json", "metrics.jsonl", "predictions.npz", "drift.npz", "stream.npz", "failure.txt"):
                (self.path / name).unlink(missing_ok=True)
            for file in self._checkpoints():
                self._drop(file)
            self.segments.clear()
            for file in self.path.glob("plans/session-*.npz"):
                file.unlink()

    def write_config(self, config: dict[str, Any]) -> None:
        """Write config.toml."""
        import tomli_w

        self.write_texts({"config.toml": tomli_w.dumps(config)})

    def write_json(self, name: str, value: Any) -> None:
        """Write NAME.json."""
        self.write_texts({f"{name}.json": json.dumps(value, indent=2)})

    def write_metrics(self, records: list[dict[str, Any]]) -> None:
        """Write metrics.jsonl, one line per session."""
        self.write_texts({"metrics.jsonl": "".join(json.dumps(record) + "\n" for record in records)})

    def write_arrays(self, name: str, **arrays: Array) -> None:
        """Write NAME.npz, compressed."""
        self._write(f"{name}.npz", pack_arrays(arrays))

    def write_texts(self, texts: dict[str, str]) -> None:
        """Write texts by name; their checksums come first, so that a killed run leaves no text unlisted."""
        contents = {name: text.encode() for name, text in texts.items()}
        with _disk_errors(self.path):
            listed = list_texts(self.path, contents)
        for name, content in {CHECKSUMS: listed, **contents}.items():
            self._write(name, content)

    def _write(self, name: str, content: bytes) -> None:
        with _disk_errors(self.path):
            write_whole(self.path / name, lambda file: file.write(content))

    def save_checkpoint(
        self, state: dict[str, Any], stored: Stored | None = None, read: Callable[[], None] = lambda: None,
        ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        """Save a state to resume from, in one step; the previous one is kept too.

        Args:
            state: the state.
            stored: codes of the buffer, if the state has none. Only those that no earlier checkpoint has are written.
            read: called when all codes have been read, and may change.
            ranks: all call this at the same time, and each writes the codes it has.
        """
        found = self._checkpoints()
        if stored is not None:
            with _disk_errors(self.path):
                if ranks is not None:
                    state = {**state, "segments": self.segments.write_shares(stored, ranks)}
                else:
                    state = {**state, "segments": self.segments.write(stored)}
                    read()
                    self.segments.settle()
        number = int(found[-1].stem) + 1 if found else 1
        save_state(self.path / "checkpoints" / f"{number:06d}.safetensors", state)
        with contextlib.suppress(OSError):
            for old in found[: 1 - _CHECKPOINTS]:
                self._drop(old)
            self.segments.keep(self._checkpoints())

    def load_checkpoint(
        self, note: Callable[[str], None], ranks: Ranks | None = None, codes: Callable[[Array], Any] | None = None
    ) -> dict[str, Any] | None:
        """Return the newest readable state.

        Args:
            note: called about damaged files.
            ranks: they use the newest state that all can read.
            codes: returns the codes [m, …] of samples with given ids [m]; it replaces damaged segments.
        """
        if self.writable:
            for folder in (self.path, self.path / "checkpoints", self.path / "plans"):
                drop_unfinished(folder)
            self.segments.objects.drop_unfinished()
        found = self._checkpoints()
        if ranks is not None:
            names = text_digest([path.name for path in found])
            ranks.agree({"the checkpoints they find": names}, f"all must see the folder {self.path}")
        for path in reversed(found):
            state, fault = None, ""
            try:
                state = self._read_checkpoint(path, note, ranks, codes)
            except GraspError as error:
                fault = str(error) if str(path) in str(error) else f"the checkpoint {path} cannot be used: {error}"
            if not (fault if ranks is None else ranks.any(bool(fault))[0]):
                if ranks is not None:
                    known = text_digest(self.segments.names)
                    ranks.agree({"the codes they can read": known}, f"all must see the folder {self.path}")
                return state
            self.segments.forget()
            note(f"{fault or f'another rank cannot read the checkpoint {path}'}; trying the previous one")
        return None

    def _read_checkpoint(
        self, path: Path, note: Callable[[str], None], ranks: Ranks | None, codes: Callable[[Array], Any] | None
    ) -> dict[str, Any]:
        state = load_state(path, note)
        if "stream" not in state:
            raise GraspError(f"the checkpoint {path} does not belong to a run")
        shards, segments = state.pop("shards", None), state.pop("segments", None)
        columns = state["learner"]["buffer"]["columns"] if shards or segments else {}
        if shards is not None and columns:
            columns["codes"] = files = ShardFiles(path, shards["number"], shards["shape"], shards["dtype"])
            files.verify(slice(None) if ranks is None else slice(ranks.rank, None, ranks.world))
        if segments is not None:
            again = None if codes is None else lambda rows: codes(columns["ids"][rows])
            stored = self.segments.open(segments, columns["births"], again, note)
            state["learner"]["buffer"]["columns"] = {"codes": stored, **columns}  # the order of a new buffer
        return state

    def drop_checkpoints(self, all_but: int = 0) -> None:
        """Delete all checkpoints except the last `all_but`."""
        with _disk_errors(self.path):
            for path in self._checkpoints()[::-1][all_but:]:
                self._drop(path)
            self.segments.finish(self._checkpoints())

    def _drop(self, path: Path) -> None:
        """Delete a checkpoint: the state first, so that it is never there without its shards."""
        path.unlink()
        for shard in path.parent.glob(f"{path.stem}.shard-*"):
            shard.unlink()

    def _checkpoints(self) -> list[Path]:
        return sorted(path for path in self.path.glob("checkpoints/*.safetensors") if path.stem.isdecimal())


class ShardFiles:
    """The codes [N, …] of a divided buffer in a checkpoint of an earlier version, with a file per rank.

    Indexing reads them file by file.
    """

    def __init__(self, state: Path, number: int, shape: list[int], dtype: str) -> None:
        names = [f"{state.stem}.shard-{rank}-of-{number}.safetensors" for rank in range(number)]
        self._files = [state.with_name(name) for name in names]
        if missing := [file for file in self._files if not file.is_file()]:
            raise GraspError(f"the checkpoint {state} lacks its shard {missing[0].name}")
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)

    def verify(self, which: slice) -> None:
        """Read some of the files; raise an error if one of them is damaged."""
        for file in self._files[which]:
            load_state(file)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> Array:
        slots = np.arange(len(self))[which]
        found, place = np.empty((len(slots), *self.shape[1:]), self.dtype), np.full(len(self), -1)
        place[slots] = np.arange(len(slots))
        for file in self._files if len(slots) else ():
            shard = load_state(file)
            rows = place[shard["slots"]]
            found[rows[rows >= 0]] = shard["codes"][rows >= 0]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or self.dtype, copy=False)


class ReadOnlyFolder(RunFolder):
    """The same files for a rank that writes only the codes it has: what it would write beside them, rank 0 writes."""

    writable = False

    @contextlib.contextmanager
    def claim(self, config: Config) -> Iterator[None]:
        yield

    def clear(self) -> None:
        pass

    def write_texts(self, texts: dict[str, str]) -> None:
        pass

    def _write(self, name: str, content: bytes) -> None:
        pass

    def save_checkpoint(
        self, state: dict[str, Any], stored: Stored | None = None, read: Callable[[], None] = lambda: None,
        ranks: Ranks | None = None,
    ) -> None:  # fmt: skip
        if stored is not None and ranks is not None:
            with _disk_errors(self.path):
                self.segments.write_shares(stored, ranks)

    def drop_checkpoints(self, all_but: int = 0) -> None:
        pass


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, a missing folder or damaged checksums into a readable error."""
    try:
        yield
    except Damaged as error:
        raise GraspError(f"the run folder {path} cannot be written: {error}") from error
    except OSError as error:
        raise GraspError(f"the run folder {path} cannot be written: {cause(error)}") from error


def environment() -> dict[str, Any]:
    """Return what a result depends on beside the settings."""
    import torch

    versions = dict.fromkeys(("graspcl", "numpy", "torch", "numba", "faiss-cpu"), "not installed")
    for name in versions:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    processor = platform.processor() or platform.machine()
    return {
        "python": platform.python_version(), "platform": platform.platform(), "processor": processor,
        "threads": torch.get_num_threads(), "packages": versions,
    }  # fmt: skip
