"""Order of arrival. A stream is a list of indices into a data set, told out once, in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graspcl.errors import GraspError
from graspcl.registry import Registry

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

    >>> stream = Stream(base=[0, 1], sessions=[[2, 3, 4], [5]], chunk=2)
    >>> [(c.indices.tolist(), c.session, c.ends_session) for c in stream]
    [([2, 3], 1, False), ([4], 1, True), ([5], 2, True)]
    """

    name = ""

    def __init__(
        self, base: Sequence[int] | Array, sessions: Sequence[Sequence[int] | Array], chunk: int = 512
    ) -> None:
        if chunk < 1:
            raise GraspError(f"a stream's chunk holds at least one sample, not {chunk}")
        self.base = np.asarray(base, np.int64)
        self.sessions = [np.asarray(session, np.int64) for session in sessions]
        self.chunk = chunk
        self.passed = 0  # chunks told out so far
        everything = np.concatenate([self.base, *self.sessions])
        if len(np.unique(everything)) != len(everything):
            raise GraspError("a sample stands twice in the stream; every index may arrive once")

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
