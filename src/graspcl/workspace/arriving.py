"""Samples that arrive: read, told apart by their content, and encoded chunk by chunk."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from numpy.typing import ArrayLike
from torch import Tensor

from graspcl.checks import Array, shown
from graspcl.data import Samples, find_columns
from graspcl.data.sources import check_source, data_sources, kind_of_files, source_name
from graspcl.errors import GraspError
from graspcl.experiment.prediction import Inputs
from graspcl.experiment.prepare import EncodedTexts, open_data
from graspcl.progress import Progress
from graspcl.settings.config import Config
from graspcl.settings.read import replaced

_READ = 64  # samples that are decoded at a time
_CHUNK, _BYTES = 1024, 2**24  # samples that are handed on at a time, and what they take, at most
_SHOWN = 60  # characters of a text in a message


@contextlib.contextmanager
def naming_options() -> Iterator[None]:
    """Let errors about data and networks name the arguments and options of a workspace, not those of a run."""
    try:
        yield
    except GraspError as error:
        text = re.sub(r"--data\.(text|label|pixels)", r"--\1", str(error))
        text = re.sub(r"(--)?network\.model\b", "--backbone", text)
        text = re.sub(r"--data (?=\S)", "", text)
        text = text.replace("for a table use `graspcl run texts`", "put images into one folder per class")
        if text == str(error):
            raise
        raise GraspError(text) from error


@naming_options()
def open_labelled(config: Config, path: str, text: str | None = None, label: str | None = None) -> Samples[Any]:
    """Open samples with classes as a workspace with these settings reads them.

    Args:
        path: what `--data` of a run takes: class folders of images, a table of texts, or the name of a source.
        text: column of the texts in a table; by default it is found by its name.
        label: column of the classes.
    """
    settings: dict[str, Any] = {"data.path": path}
    reads = "images" if config.reads == "images" else "texts"
    if path not in data_sources and Path(path).exists() and kind_of_files(path) != reads:
        wanted = "one folder of images per class" if reads == "images" else "a table (CSV, TSV, JSONL or Parquet)"
        raise GraspError(f"the workspace learns {reads}, and {path} has none; give {wanted}")
    check_source(replaced(config, settings).data, config.reads, "the workspace")
    if "text" in data_sources.parameters(source_name(path, config.reads)):
        settings["data.text"], settings["data.label"] = find_columns(path, text, label)
    return open_data(replaced(config, settings))[0]


def check_names(names: Iterable[Any]) -> list[str]:
    """Return names of classes; refuse what is not text."""
    names = list(names)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise GraspError(f"the names of classes are text, got {shown(wrong[0])}; write str(name)")
    return names


class Given(Samples[Tensor]):
    """Samples from Python: inputs as `Workspace.predict` takes them, and a class name for each."""

    def __init__(self, inputs: Inputs, contents: list[Any] | Tensor, names: Sequence[str]) -> None:
        if isinstance(names, str):  # its characters would become classes
            raise GraspError(f"give one class for each sample: [{names!r}, …]")
        names = check_names(names)
        if "" in names:
            raise GraspError("a class needs a name, got ''")
        if len(names) != len(contents):
            raise GraspError(f"there must be one label per sample, got {len(names)} labels and {len(contents)} samples")
        self._inputs, self._contents = inputs, contents
        classes = sorted(set(names))
        row_of = {name: row for row, name in enumerate(classes)}
        labels, everything = np.array([row_of[name] for name in names], np.int64), np.arange(len(names))
        super().__init__("the samples", "", classes, labels, everything, everything, everything[:0])

    def read(self, indices: ArrayLike) -> Tensor:
        found, _, problems = self.read_some(indices)
        if problems:
            raise GraspError(problems[0])
        return found

    def read_some(self, indices: ArrayLike) -> tuple[Tensor, Any, list[str]]:
        rows = self.check(indices)
        part = self._contents[torch.from_numpy(rows)] if isinstance(self._contents, Tensor) else [
            self._contents[row] for row in rows.tolist()
        ]  # fmt: skip
        return self._inputs.read(part)

    def title(self, index: int) -> str:
        content = self._contents[index]
        if isinstance(content, str) and self._inputs.reads == "texts":
            return _short(content)
        return str(content) if isinstance(content, str | Path) else super().title(index)


def content_ids(inputs: Tensor) -> Array:
    """Return a 63-bit hash of what the network sees of each sample [n]: pixels, token ids or numbers.

    >>> one, same, other = content_ids(torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 3.0]])).tolist()
    >>> one == same, one == other
    (True, False)
    """
    if not len(inputs):
        return np.empty(0, np.int64)
    rows = np.ascontiguousarray(inputs.numpy(force=True)).reshape(len(inputs), -1).view(np.uint8)
    return np.array([xxhash.xxh3_64_intdigest(row.data) >> 1 for row in rows], np.int64)


class Chunk(NamedTuple):
    """New samples: their ids [n], the names of their classes, and what the network takes [n, …]."""

    ids: Array
    names: list[str]
    inputs: Tensor


@dataclass
class Arrivals:
    """Reads `rows` [n] of `samples` and yields what is new.

    A sample whose content is in `known`, by id, is counted and not yielded; if it has another class there, it is one of
    the `contradictions`. So are the samples whose ids are `disputed`. If the samples give the same content two classes,
    its id is in `torn` after reading: the first of them was yielded, so read again with these as `disputed`.
    """

    samples: Samples[Any]
    rows: Array
    known: dict[int, str]
    disputed: Set[int] = frozenset()
    torn: set[int] = field(default_factory=set)
    duplicates: int = 0
    contradictions: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # of new samples by class
    arrived: dict[int, str] = field(default_factory=dict)  # the classes of new samples by id
    _left: dict[int, list[tuple[str, str]]] = field(default_factory=dict)  # disputed samples by id: where, and class

    def chunks(self, progress: Progress) -> Iterator[Chunk]:
        """Yield new samples, about 1,024 at a time or fewer."""
        waiting: list[Chunk] = []
        with progress.task(f"reading {self.samples.name}", len(self.rows)) as advance:
            for begin in range(0, len(self.rows), _READ):
                rows = self.rows[begin : begin + _READ]
                waiting.append(self._new(rows))
                number, size = sum(len(one.ids) for one in waiting), sum(one.inputs.nbytes for one in waiting)
                if number >= _CHUNK or size >= _BYTES or begin + _READ >= len(self.rows):
                    found = Chunk(
                        np.concatenate([one.ids for one in waiting]),
                        [name for one in waiting for name in one.names],
                        torch.cat([one.inputs for one in waiting if len(one.ids)] or [waiting[0].inputs]),
                    )
                    waiting = []
                    if len(found.ids):
                        yield found
                advance(len(rows))
        for (where, name), *same in self._left.values():
            other, another = next(one for one in same if one[1] != name)
            told = f"{where} is given as {name!r}, and {other} with the same content as {another!r}"
            left = "both left out" if len(same) == 1 else f"these and {len(same) - 1} more with it are left out"
            self.contradictions.append(f"{told}: {left}")

    def _new(self, rows: Array) -> Chunk:
        inputs, kept, problems = self.samples.read_some(rows)
        self.problems += problems
        names = [self.samples.classes[label] for label in self.samples.labels[rows[kept]].tolist()]
        ids, new = content_ids(inputs), []
        for place, (one, name) in enumerate(zip(ids.tolist(), names, strict=True)):
            there = self.known.get(one, self.arrived.get(one))
            if one in self.disputed:
                self._left.setdefault(one, []).append((self._where(int(rows[kept[place]])), name))
            elif there is None:
                self.arrived[one] = name
                self.counts[name] += 1
                new.append(place)
            elif there == name:
                self.duplicates += 1
            elif one in self.arrived:
                self.torn.add(one)
            else:
                where = self._where(int(rows[kept[place]]))
                self.contradictions.append(f"{where} is given as {name!r}, but was learned as {there!r}: left out")
        return Chunk(ids[new], [names[place] for place in new], inputs[new])

    def _where(self, row: int) -> str:
        """Name a sample for a message: by its file, its text or its number."""
        if isinstance(self.samples, EncodedTexts):
            return _short(self.samples.texts.read([row])[0])
        return self.samples.title(row)


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
