"""The stream: indices into a data set that arrive once, in chunks. Also its description and its file format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import Array, Count, check
from graspcl.errors import GraspError
from graspcl.integrity import pack_arrays, read_arrays
from graspcl.registry import Registry
from graspcl.state import write_output

streams: Registry[Stream] = Registry("stream", "graspcl.stream", given=("indices", "labels", "rng"))


@dataclass(frozen=True)
class Chunk:
    """Samples that arrive together.

    `indices` [n] point into the data set, `session` counts from 1, and `ends_session` tells whether rehearsal follows.
    """

    indices: Array
    session: int
    ends_session: bool


class Stream:
    """Base samples, then sessions of new samples, each presented once.

    Iterating yields chunks of at most `chunk` samples. Past samples cannot be read again: only a buffer keeps them.

    Args:
        base: indices [n] known before the stream starts.
        sessions: indices that arrive before each rehearsal session.
        chunk: samples per chunk.
        labels: class of the sample at each index: an array over the whole data set, or a mapping.
        tasks: task number of each session, where sessions are tasks.
        home: the session each class belongs to, 0 for the base; by default that of its first sample.

    With `labels`, the stream knows about its own samples:

    * `labels` [n]: their classes, the base first, then session by session;
    * `arrival`: the first session with a sample of each class, 0 for the base;
    * `home`: the session each class belongs to; it differs from `arrival` only where class boundaries blur;
    * `counts`: the number of training samples of each class.

    >>> stream = Stream(base=[0, 1], sessions=[[2, 3, 4], [5]], chunk=2, labels=np.array([7, 7, 8, 7, 8, 9]))
    >>> [(c.indices.tolist(), c.session, c.ends_session) for c in stream]
    [([2, 3], 1, False), ([4], 1, True), ([5], 2, True)]
    >>> stream.arrival, stream.counts
    ({7: 0, 8: 1, 9: 2}, {7: 3, 8: 2, 9: 1})
    """

    name = ""
    ids: Array | None = None  # names of the samples, in the order of `labels`; only a stream from a file has them

    def __init__(
        self,
        base: Sequence[int] | Array,
        sessions: Sequence[Sequence[int] | Array],
        chunk: int = 512,
        labels: Mapping[int, int] | Sequence[int] | Array | None = None,
        tasks: Sequence[int] | None = None,
        home: Mapping[int, int] | None = None,
    ) -> None:
        check("chunk", chunk, Count)
        self.base = np.asarray(base, np.int64)
        self.sessions = [np.asarray(session, np.int64) for session in sessions]
        self.chunk = int(chunk)
        self.passed = 0  # chunks presented so far
        if len(np.unique(self.samples)) != len(self.samples):
            raise GraspError("a sample is in the stream twice; every index may arrive once")
        if tasks is not None and len(tasks) != len(self.sessions):
            raise GraspError(f"a stream of {len(self.sessions)} sessions cannot have {len(tasks)} tasks")
        self.tasks = None if tasks is None else [int(task) for task in tasks]
        self._know(None if labels is None else _look_up(labels, self.samples), home)

    @property
    def samples(self) -> Array:
        """Return all indices [n]: the base first, then session by session."""
        return np.concatenate([self.base, *self.sessions])

    def _know(self, labels: Array | None, home: Mapping[int, int] | None = None) -> None:
        """Set the classes [n] of `samples`, and derive arrival and counts, in the order of `home` or of arrival."""
        self.labels = labels
        self.arrival: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        if labels is not None:
            session = np.repeat(np.arange(len(self.sessions) + 1), [len(self.base), *map(len, self.sessions)])
            classes, first, counts = np.unique(labels, return_index=True, return_counts=True)
            order = np.argsort(first)
            self.arrival = dict(zip(classes[order].tolist(), session[first[order]].tolist(), strict=True))
            self.counts = dict(zip(classes[order].tolist(), counts[order].tolist(), strict=True))
        self.home = dict(self.arrival if home is None else home)
        if self.home.keys() != self.arrival.keys() or not set(self.home.values()) <= {*range(len(self.sessions) + 1)}:
            raise GraspError("home must give one of the stream's sessions for each class of its samples")
        self.arrival = {label: self.arrival[label] for label in self.home}
        self.counts = {label: self.counts[label] for label in self.home}

    def __len__(self) -> int:
        """Return the number of samples that arrive, without the base."""
        return sum(len(session) for session in self.sessions)

    def __iter__(self) -> Iterator[Chunk]:
        if self.passed:
            raise GraspError("this stream has already started: past samples are only in the buffer")
        return self.resume()

    def resume(self) -> Iterator[Chunk]:
        """Continue after the chunks that have passed, as a resumed run does."""
        for position, chunk in enumerate(self._cut()):
            if position >= self.passed:
                self.passed = position + 1
                yield chunk

    def _cut(self) -> Iterator[Chunk]:
        for number, indices in enumerate(self.sessions, start=1):
            for begin in range(0, max(1, len(indices)), self.chunk):
                end = begin + self.chunk
                yield Chunk(indices[begin:end], number, ends_session=end >= len(indices))

    def state_dict(self) -> dict[str, Any]:
        """Return how far the stream has come."""
        return {"passed": self.passed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.passed = int(state["passed"])


def make_stream(name: str, indices: Array, labels: Array, rng: np.random.Generator, /, **parameters: Any) -> Stream:
    """Make the stream called `name` of the samples at `indices` [N] with classes `labels` [N].

    >>> labels = np.repeat(np.arange(4), 5)
    >>> stream = make_stream("iid", np.arange(20), labels, np.random.default_rng(0), base_classes=1, sessions=3)
    >>> len(stream.base), [len(session) for session in stream.sessions]
    (5, [5, 5, 5])
    """
    streams.validate(name, parameters)  # before: `rng` and the like are no parameters
    return streams.create(name, indices=indices, labels=labels, rng=rng, **parameters)


def _look_up(labels: Mapping[int, int] | Sequence[int] | Array, indices: Array) -> Array:
    """Return the classes [n] of the samples at `indices` [n]."""
    if isinstance(labels, Mapping):
        try:
            return np.array([labels[index] for index in indices.tolist()], np.int64)
        except KeyError as error:
            raise GraspError(f"samples of the stream have no label, for example sample {error}") from error
    if len(indices) and not 0 <= (first := indices.min()) <= (last := indices.max()) < len(labels):
        raise GraspError(f"the stream has samples {first} to {last}, but there are {len(labels)} labels")
    return np.asarray(labels, np.int64)[indices]


def session_table(stream: Stream, class_names: Sequence[str] | None = None, few: int = 3) -> list[dict[str, Any]]:
    """Return one row of plain values for the base (session 0, if any) and for each session.

    A row has `session`, `task` (if sessions are tasks) and `samples`. With labels it also has `classes` and
    `new_classes` (counts), `first_new` (names of the first `few` new classes), and `largest`, `largest_samples`,
    `smallest` and `smallest_samples` of the session. Class k is called `class_names[k]`, by default its number.

    >>> stream = Stream([0, 1], [[2, 3, 4]], labels=[0, 0, 1, 2, 2])
    >>> for row in session_table(stream, ["ant", "bee", "cat"]):
    ...     print(list(row.values()))
    [0, 2, 1, 1, ['ant'], 'ant', 2, 'ant', 2]
    [1, 3, 2, 2, ['bee', 'cat'], 'cat', 2, 'bee', 1]
    """
    names = {label: str(label) for label in stream.counts} if class_names is None else dict(enumerate(class_names))
    if unnamed := stream.counts.keys() - names.keys():
        raise GraspError(f"the stream has a class {min(unnamed)}, but there are {len(names)} class names")
    groups = [stream.base, *stream.sessions]
    labels = None if stream.labels is None else np.split(stream.labels, np.cumsum([len(group) for group in groups]))
    rows = []
    for session, group in enumerate(groups):
        row: dict[str, Any] = {"session": session}
        if stream.tasks is not None:
            row["task"] = stream.tasks[session - 1] if session else None
        row["samples"] = len(group)
        if labels is not None:
            new = [names[label] for label, first in stream.arrival.items() if first == session]
            classes, sizes = np.unique(labels[session], return_counts=True)
            row |= {"classes": len(classes), "new_classes": len(new), "first_new": new[:few]}
            for which, pick in (("largest", np.argmax), ("smallest", np.argmin)):
                at = pick(sizes) if len(sizes) else None  # a session may be empty
                row[which] = None if at is None else names[int(classes[at])]
                row[f"{which}_samples"] = 0 if at is None else int(sizes[at])
        rows.append(row)
    return rows if len(stream.base) else rows[1:]


FORMAT, VERSION = "graspcl stream", 1


def save_stream(
    stream: Stream, path: str | Path, fingerprint: str | None = None, ids: Sequence[str] | Array | None = None
) -> None:
    """Write a stream, from its start, to a file.

    Args:
        stream: the stream; its progress is not stored.
        path: the file, usually .npz.
        fingerprint: identifies the data set, so that `load_stream` can refuse another one.
        ids: names [N] of all samples of the data set.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_stream(Stream([0], [[2, 1]]), f"{folder}/stream.npz", fingerprint="toys")
    ...     load_stream(f"{folder}/stream.npz", fingerprint="toys").sessions
    [array([2, 1])]
    """
    header = {"format": FORMAT, "version": VERSION, "name": stream.name, "chunk": stream.chunk}
    numbers: dict[str, Any] = {
        "base": stream.base,
        "sessions": stream.samples[len(stream.base) :],
        "lengths": [len(session) for session in stream.sessions],
    }
    if stream.labels is not None:
        numbers |= {"labels": stream.labels, "classes": [*stream.home], "home": [*stream.home.values()]}
    if stream.tasks is not None:
        numbers["tasks"] = stream.tasks
    arrays: dict[str, Any] = {"header": np.array(json.dumps({**header, "fingerprint": fingerprint}))}
    arrays |= {name: np.array(values, np.int64) for name, values in numbers.items()}
    if ids is not None:
        names = np.asarray(ids).astype(np.str_)  # as text: objects would be pickled
        if names.ndim != 1 or not np.isin(stream.samples, np.arange(len(names))).all():
            raise GraspError(f"ids must name every sample of the data set; {names.shape} do not reach the stream's")
        arrays["ids"] = names[stream.samples]
    elif stream.ids is not None:
        arrays["ids"] = stream.ids
    try:
        write_output(path, lambda file: file.write(pack_arrays(arrays)))
    except OSError as error:
        raise GraspError(f"the stream cannot be written to {path}: {error.strerror}") from error


def load_stream(path: str | Path, fingerprint: str | None = None) -> Stream:
    """Read a stream from a file, at its start; refuse it if `fingerprint` is given and differs from the file's.

    >>> load_stream("nowhere.npz")
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: there is no saved stream at nowhere.npz
    """
    try:
        arrays = read_arrays(Path(path))
        header = json.loads(str(arrays["header"][()]))
        found, version = header["format"], header.get("version")
        if (found, version) != (FORMAT, VERSION):
            raise ValueError(f"its format is {found!r}, version {version}; this graspcl reads version {VERSION}")
        stream = _rebuilt(header, arrays)
    except FileNotFoundError as error:
        raise GraspError(f"there is no saved stream at {path}") from error
    except Exception as error:  # zip files, arrays, JSON and streams all fail differently
        raise GraspError(f"{path} is damaged, or not a saved stream: {error}") from error
    if fingerprint is not None and header.get("fingerprint") != fingerprint:
        made_for = header.get("fingerprint") or "unnamed data"
        raise GraspError(f"the stream in {path} was made for other data: {made_for}, not {fingerprint}")
    return stream


def _rebuilt(header: dict[str, Any], arrays: dict[str, Array]) -> Stream:
    lengths, sessions = _whole(arrays, "lengths"), _whole(arrays, "sessions")
    if lengths.min(initial=0) < 0 or lengths.sum() != len(sessions):
        raise ValueError("its sessions do not have the lengths it states")
    tasks = _whole(arrays, "tasks").tolist() if "tasks" in arrays else None
    parts = np.split(sessions, np.cumsum(lengths))[:-1]
    stream = Stream(_whole(arrays, "base"), parts, header["chunk"], tasks=tasks)
    stream.name, stream.ids = str(header["name"]), arrays.get("ids")
    for name in {"labels", "ids"} & arrays.keys():
        if arrays[name].shape != stream.samples.shape:
            raise ValueError(f"it has {arrays[name].shape} {name} for {len(stream.samples)} samples")
    if "labels" in arrays:
        home = zip(_whole(arrays, "classes").tolist(), _whole(arrays, "home").tolist(), strict=True)
        stream._know(_whole(arrays, "labels"), dict(home))
    return stream


def _whole(arrays: dict[str, Array], name: str) -> Array:
    if name not in arrays:
        raise ValueError(f"its {name} are missing")
    if arrays[name].dtype.kind != "i" or arrays[name].ndim != 1:
        raise ValueError(f"its {name} are not a list of whole numbers")
    return arrays[name].astype(np.int64)
