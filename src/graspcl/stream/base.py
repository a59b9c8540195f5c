"""Order of arrival. A stream is a list of indices into a data set, told out once, in chunks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graspcl.errors import GraspError, nearest
from graspcl.registry import Registry, parameter_names

Array = np.ndarray[Any, Any]
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
