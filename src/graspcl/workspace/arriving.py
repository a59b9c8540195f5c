"""Samples that arrive: read, told apart by their content, and encoded chunk by chunk."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
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
from graspcl.workspace.known import Known

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
    """New samples: their ids [n], the names of their classes, what the network takes [n, …], and which come again [n].

    One that comes again was trained before, but the sums do not know it any more.
    """

    ids: Array
    names: list[str]
    inputs: Tensor
    again: Array


@dataclass
class Arrivals:
    """Reads `rows` [n] of `samples` and yields what is new.

    A sample whose content is `known`, by id, is counted and not yielded. One that is `lost` is yielded as one that
    comes again. If either has another class there, by the `names` of labels, it is one of the `contradictions`. So are
    the samples whose ids are `disputed`. If the samples give the same content two classes, its id is in `torn` after
    reading: the first of them was yielded, so read again with these as `disputed`.
    """

    samples: Samples[Any]
    rows: Array
    known: Known
    lost: Known
    names: dict[int, str]
    disputed: Set[int] = frozenset()
    torn: set[int] = field(default_factory=set)
    duplicates: int = 0
    contradictions: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # of new samples by class
    _arrived: Known = field(default_factory=Known)  # the classes of new samples, by their place in those of `samples`
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
                        np.concatenate([one.again for one in waiting]),
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
        taken, ids, classes = rows[kept], content_ids(inputs), self.samples.classes
        given = self.samples.labels[taken]
        known, lost = self.known.labels_of(ids), self.lost.labels_of(ids)
        learned, disputed = np.where(known >= 0, known, lost), np.isin(ids, [*self.disputed])
        same = given == self._places[learned]
        free = np.flatnonzero(~disputed & (known < 0) & ((learned < 0) | same))  # new, or again in the same class
        waiting = free[self._arrived.labels_of(ids[free]) < 0]
        new = np.sort(waiting[np.unique(ids[waiting], return_index=True)[1]])
        self._arrived.add(ids[new], given[new])
        torn = ids[free[self._arrived.labels_of(ids[free]) != given[free]]]
        self.torn.update(torn.tolist())
        self.duplicates += int((~disputed & (known >= 0) & same).sum()) + len(free) - len(new) - len(torn)
        names = [classes[place] for place in given[new].tolist()]
        self.counts.update(names)
        for place in np.flatnonzero(disputed).tolist():
            self._left.setdefault(int(ids[place]), []).append((self._where(int(taken[place])), classes[given[place]]))
        for place in np.flatnonzero(~disputed & (learned >= 0) & ~same).tolist():
            told = f"{self._where(int(taken[place]))} is given as {classes[given[place]]!r}"
            name = self.names[int(learned[place])]
            self.contradictions.append(f"{told}, but was learned as {name!r} (id {ids[place]:016x}): left out")
        return Chunk(ids[new], names, inputs[new], lost[new] >= 0)

    @cached_property
    def _places(self) -> Array:
        """The place in the classes of `samples` of each label; -1 of one that is not there, and of the label -1."""
        place_of = {name: place for place, name in enumerate(self.samples.classes)}
        found = np.full(max(self.names, default=-1) + 2, -1)
        for label, name in self.names.items():
            found[label] = place_of.get(name, -1)
        return found

    def _where(self, row: int) -> str:
        """Name a sample for a message: by its file, its text or its number."""
        if isinstance(self.samples, EncodedTexts):
            return _short(self.samples.texts.read([row])[0])
        return self.samples.title(row)


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
