"""Order of arrival. A stream is a list of indices into a data set, told out once, in chunks."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError, nearest
from graspcl.registry import Registry, parameter_names
from graspcl.state import write_whole

streams: Registry[Stream] = Registry("stream", "graspcl.stream")


@dataclass(frozen=True)
class Chunk:
    """Samples that arrive together: indices [n] into the data set, the session they belong to (1, 2, …), and whether
    a rehearsal session follows."""

    indices: Array
    session: int
    ends_session: bool


class Stream:
    """Base samples, then sessions of new samples, passing by once.

    `base` [n] are the indices known before the stream begins; `sessions` the indices that arrive before each rehearsal
    session. Iterating gives chunks of at most `chunk` samples. What has passed cannot be read again: old samples are
    to be had only from a buffer.

    `labels` gives the class of the sample at each index: an array over the whole data set, or a mapping. With it the
    stream knows, for its own samples,

    * `labels` [n]: their classes, the base first, then session by session;
    * `arrival`: for each class the first session that has a sample of it, 0 for the base;
    * `home`: for each class the session it belongs to; other than `arrival` only where class boundaries are blurred;
    * `counts`: for each class the number of its training samples.

    `tasks` numbers the task of each session, where the sessions are tasks.

    >>> stream = Stream(base=[0, 1], sessions=[[2, 3, 4], [5]], chunk=2, labels=np.array([7, 7, 8, 7, 8, 9]))
    >>> [(c.indices.tolist(), c.session, c.ends_session) for c in stream]
    [([2, 3], 1, False), ([4], 1, True), ([5], 2, True)]
    >>> stream.arrival, stream.counts
    ({7: 0, 8: 1, 9: 2}, {7: 3, 8: 2, 9: 1})
    """

    name = ""
    ids: Array | None = None  # names of the samples, in the order of `labels`; known to a stream read from a file

    def __init__(
        self,
        base: Sequence[int] | Array,
        sessions: Sequence[Sequence[int] | Array],
        chunk: int = 512,
        labels: Mapping[int, int] | Sequence[int] | Array | None = None,
        tasks: Sequence[int] | None = None,
    ) -> None:
        if whole("chunk", chunk) < 1:
            raise GraspError(f"a stream's chunk holds at least one sample, not {chunk}")
        self.base = np.asarray(base, np.int64)
        self.sessions = [np.asarray(session, np.int64) for session in sessions]
        self.chunk = int(chunk)
        self.passed = 0  # chunks told out so far
        if len(np.unique(self.samples)) != len(self.samples):
            raise GraspError("a sample stands twice in the stream; every index may arrive once")
        if tasks is not None and len(tasks) != len(self.sessions):
            raise GraspError(f"a stream of {len(self.sessions)} sessions cannot have {len(tasks)} tasks")
        self.tasks = None if tasks is None else [int(task) for task in tasks]
        self._know(None if labels is None else _look_up(labels, self.samples))

    @property
    def samples(self) -> Array:
        """All indices [n]: the base first, then session by session."""
        return np.concatenate([self.base, *self.sessions])

    def _know(self, labels: Array | None) -> None:
        """Take in the classes [n] of `samples`, and what follows from them."""
        self.labels = labels
        self.arrival: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        if labels is not None:
            session = np.repeat(np.arange(len(self.sessions) + 1), [len(self.base), *map(len, self.sessions)])
            classes, first, counts = np.unique(labels, return_index=True, return_counts=True)
            for position in np.argsort(first):  # classes in the order in which they come
                self.arrival[int(classes[position])] = int(session[first[position]])
                self.counts[int(classes[position])] = int(counts[position])
        self.home = dict(self.arrival)

    def _settle(self, home: Mapping[int, int]) -> None:
        """Take in the session each class belongs to, in class order."""
        self.home = dict(home)
        self.arrival = {label: self.arrival[label] for label in home}
        self.counts = {label: self.counts[label] for label in home}

    def __len__(self) -> int:
        """Samples that arrive, without the base."""
        return sum(len(session) for session in self.sessions)

    def __iter__(self) -> Iterator[Chunk]:
        if self.passed:
            raise GraspError("this stream has passed: old samples are to be had only from the buffer")
        return self._chunks()

    def _chunks(self) -> Iterator[Chunk]:
        for position, chunk in enumerate(self._cut()):
            if position >= self.passed:
                self.passed = position + 1
                yield chunk

    def _cut(self) -> Iterator[Chunk]:
        for number, indices in enumerate(self.sessions, start=1):
            for begin in range(0, max(1, len(indices)), self.chunk):
                end = begin + self.chunk
                yield Chunk(indices[begin:end], number, ends_session=end >= len(indices))

    def resume(self) -> Iterator[Chunk]:
        """Go on after the chunks that have passed, as a restored run does."""
        return self._chunks()

    def state_dict(self) -> dict[str, Any]:
        """How far the stream has come."""
        return {"passed": self.passed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.passed = int(state["passed"])


def make_stream(name: str, indices: Array, labels: Array, rng: np.random.Generator, /, **parameters: Any) -> Stream:
    """The stream called `name` of the samples at `indices` [N] with classes `labels` [N]; chance comes from `rng`.

    >>> labels = np.repeat(np.arange(4), 5)
    >>> stream = make_stream("iid", np.arange(20), labels, np.random.default_rng(0), base_classes=1, sessions=3)
    >>> len(stream.base), [len(session) for session in stream.sessions]
    (5, [5, 5, 5])
    >>> make_stream("iid", np.arange(20), labels, np.random.default_rng(0), base_clases=1)
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: stream 'iid' has no parameter 'base_clases'; did you mean 'base_classes'?
    """
    given = {"indices": indices, "labels": labels, "rng": rng}
    part = streams.get(name)
    own = [parameter for parameter in parameter_names(part) if parameter not in given]
    for parameter in parameters:
        if parameter not in own:
            hint = nearest(parameter, own) if own else "it takes none"
            raise GraspError(f"stream {name!r} has no parameter {parameter!r}; {hint}")
    defaults = {parameter.name: parameter.default for parameter in inspect.signature(part).parameters.values()}
    missing = [p for p in own if p not in parameters and defaults[p] is inspect.Parameter.empty]
    if missing:
        raise GraspError(f"stream {name!r} needs a value for {' and '.join(missing)}")
    return streams.create(name, **given, **parameters)


def whole(name: str, value: object) -> int:
    """A setting that must be a whole number.

    >>> whole("sessions", 2.5)
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: sessions must be a whole number, not 2.5
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise GraspError(f"{name} must be a whole number, not {value!r}")
    return int(value)


def _look_up(labels: Mapping[int, int] | Sequence[int] | Array, indices: Array) -> Array:
    """Classes [n] of the samples at `indices` [n]."""
    if isinstance(labels, Mapping):
        lacking = [int(index) for index in indices if int(index) not in labels]
        if lacking:
            raise GraspError(f"{len(lacking)} samples of the stream have no label, among them sample {lacking[0]}")
        return np.array([labels[int(index)] for index in indices], np.int64)
    if len(indices) and not 0 <= indices.min() <= indices.max() < len(labels):
        raise GraspError(
            f"the stream has samples {indices.min()} to {indices.max()}, but there are {len(labels)} labels"
        )
    return np.asarray(labels, np.int64)[indices]


def describe(stream: Stream, class_names: Sequence[str] | None = None, few: int = 3) -> list[dict[str, Any]]:
    """One row for the base (session 0, if there is one) and for each session, as plain values.

    A row has `session`, `task` (if sessions are tasks), `samples`, and, if labels are known, `classes` and
    `new_classes` (how many), `first_new` (the names of the first `few` of the new ones), and `largest`,
    `largest_samples`, `smallest`, `smallest_samples`: the names and sizes of two classes within the session. Class k
    is called `class_names[k]`, or else by its number.

    >>> stream = Stream([0, 1], [[2, 3, 4]], labels=[0, 0, 1, 2, 2])
    >>> for row in describe(stream, ["ant", "bee", "cat"]):
    ...     print(list(row.values()))
    [0, 2, 1, 1, ['ant'], 'ant', 2, 'ant', 2]
    [1, 3, 2, 2, ['bee', 'cat'], 'cat', 2, 'bee', 1]
    """
    names = _names(stream, class_names)
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
            row |= _classes(labels[session], names) | {"new_classes": len(new), "first_new": new[:few]}
        rows.append(row)
    return rows if len(stream.base) else rows[1:]


def _names(stream: Stream, class_names: Sequence[str] | None) -> dict[int, str]:
    if class_names is None:
        return {label: str(label) for label in stream.counts}
    for label in stream.counts:
        if not 0 <= label < len(class_names):
            raise GraspError(f"the stream has a class {label}, but there are {len(class_names)} class names")
    return {label: class_names[label] for label in stream.counts}


def _classes(labels: Array, names: dict[int, str]) -> dict[str, Any]:
    """Columns in the order of the docstring above; those of new classes are to be filled in."""
    classes, sizes = np.unique(labels, return_counts=True)
    row: dict[str, Any] = {"classes": len(classes), "new_classes": 0, "first_new": []}
    for which, pick in (("largest", np.argmax), ("smallest", np.argmin)):
        at = int(pick(sizes)) if len(sizes) else None  # a session may be empty
        row[which] = None if at is None else names[int(classes[at])]
        row[f"{which}_samples"] = 0 if at is None else int(sizes[at])
    return row


FORMAT, VERSION = "graspcl stream", 1


def save_stream(
    stream: Stream, path: str | Path, fingerprint: str | None = None, ids: Sequence[str] | Array | None = None
) -> None:
    """Write what a stream will tell out, from its beginning, to a file; how far it has come is not part of it.

    `fingerprint` names the data set, and `ids` [N] the samples of the whole of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_stream(Stream([0], [[2, 1]]), f"{folder}/stream.npz", fingerprint="toys")
    ...     load_stream(f"{folder}/stream.npz", fingerprint="toys").sessions
    [array([2, 1])]
    """
    header = {"format": FORMAT, "version": VERSION, "name": stream.name, "chunk": stream.chunk}
    arrays: dict[str, Any] = {
        "header": np.array(json.dumps({**header, "fingerprint": fingerprint})),
        "base": stream.base,
        "sessions": np.concatenate([np.empty(0, np.int64), *stream.sessions]),
        "lengths": np.array([len(session) for session in stream.sessions], np.int64),
    }
    if stream.labels is not None:
        arrays["labels"] = stream.labels
        arrays["classes"] = np.array(list(stream.home), np.int64)
        arrays["home"] = np.array(list(stream.home.values()), np.int64)
    if stream.tasks is not None:
        arrays["tasks"] = np.array(stream.tasks, np.int64)
    names = stream.ids if ids is None else _ids(ids, stream.samples)
    if names is not None:
        arrays["ids"] = names
    try:
        write_whole(Path(path), lambda file: np.savez_compressed(file, **arrays))
    except OSError as error:
        raise GraspError(f"the stream cannot be written to {path}: {error.strerror}") from error


def load_stream(path: str | Path, fingerprint: str | None = None) -> Stream:
    """The stream in a file, at its beginning; refused where `fingerprint` is given and the file's is another.

    >>> load_stream("nowhere.npz")
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: there is no saved stream at nowhere.npz
    """
    try:
        arrays = _read(Path(path))
        header = json.loads(str(arrays["header"][()]))
        foreign = header["format"] != FORMAT
    except FileNotFoundError as error:
        raise GraspError(f"there is no saved stream at {path}") from error
    except Exception as error:  # zip files, arrays and JSON each fail in their own ways
        raise GraspError(f"{path} is damaged, or not a saved stream: {error}") from error
    if foreign:
        raise GraspError(f"{path} is not a saved stream")
    if header.get("version") != VERSION:
        raise GraspError(f"{path} has version {header.get('version')} of the format; this graspcl reads {VERSION}")
    if fingerprint is not None and header.get("fingerprint") != fingerprint:
        made_for = header.get("fingerprint") or "data that it does not name"
        raise GraspError(f"the stream in {path} belongs to other data: it was made for {made_for}, not {fingerprint}")
    try:
        return _rebuilt(header, arrays)
    except Exception as error:  # whatever is wrong with the content, the file is to blame
        raise GraspError(f"{path} is damaged: {error}") from error


def _read(path: Path) -> dict[str, Array]:
    # not np.load, which takes any file for a pickle and says so
    with open(path, "rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as content:
        return {name: content[name] for name in content.files}


def _rebuilt(header: dict[str, Any], arrays: dict[str, Array]) -> Stream:
    lengths, sessions = _whole(arrays, "lengths"), _whole(arrays, "sessions")
    if lengths.min(initial=0) < 0 or lengths.sum() != len(sessions):
        raise ValueError("its sessions are not as long as it says")
    parts = np.split(sessions, np.cumsum(lengths))[:-1]
    tasks = _whole(arrays, "tasks").tolist() if "tasks" in arrays else None
    stream = Stream(_whole(arrays, "base"), parts, header["chunk"], tasks=tasks)
    stream.name = str(header["name"])
    for name in {"labels", "ids"} & arrays.keys():
        if arrays[name].shape != stream.samples.shape:
            raise ValueError(f"it has {arrays[name].shape} {name} for {len(stream.samples)} samples")
    if "labels" in arrays:
        stream._know(_whole(arrays, "labels"))
        home = dict(zip(_whole(arrays, "classes").tolist(), _whole(arrays, "home").tolist(), strict=True))
        if home.keys() != stream.arrival.keys() or not set(home.values()) <= set(range(len(parts) + 1)):
            raise ValueError("its classes are not those of its samples")
        stream._settle(home)
    stream.ids = arrays.get("ids")
    return stream


def _whole(arrays: dict[str, Array], name: str) -> Array:
    if name not in arrays:
        raise ValueError(f"its {name} are missing")
    if arrays[name].dtype.kind != "i" or arrays[name].ndim != 1:
        raise ValueError(f"its {name} are not a list of whole numbers")
    return arrays[name].astype(np.int64)


def _ids(ids: Sequence[str] | Array, samples: Array) -> Array:
    names = np.asarray(ids).astype(np.str_)  # as text: objects would be pickled
    if names.ndim != 1 or (len(samples) and not 0 <= samples.min() <= samples.max() < len(names)):
        raise GraspError(f"ids must name every sample of the data set; {names.shape} do not reach all of the stream's")
    return names[samples]
