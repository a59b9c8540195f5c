"""The contract that every stream passes."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.stream import Chunk, Stream, load_stream, save_stream
from graspcl.testing.common import same


def check_stream(make: Callable[[], Stream], labels: Sequence[int] | Array | None = None) -> None:
    """Assert what every stream promises.

    Args:
        make: returns a new stream, equal each time (same seed).
        labels: classes of the whole data set, by index; if given, the stream must know them.

    >>> from graspcl.stream import Stream
    >>> check_stream(lambda: Stream(base=[0, 1], sessions=[[2, 3], [4]]))
    """
    chunks = list(make())
    _check_order(make(), chunks)
    _check_classes(make(), None if labels is None else np.asarray(labels))
    _check_alike(make(), make(), "two streams made alike")
    _check_passes_once(make())
    _check_resumes(make, chunks)
    _check_file(make())


def _check_order(stream: Stream, chunks: list[Chunk]) -> None:
    presented = np.concatenate([chunk.indices for chunk in chunks])
    assert same(presented, np.concatenate(stream.sessions)), "chunks must cover the sessions, in order, complete"
    assert len(np.unique(stream.base)) == len(stream.base), "a base sample must occur once"
    assert not np.isin(presented, stream.base).any(), "a base sample must not arrive again"
    assert len(np.unique(presented)) == len(presented) == len(stream), "samples arrive once, and len() counts them"
    numbers = [chunk.session for chunk in chunks]
    assert [*dict.fromkeys(numbers)] == [*range(1, len(stream.sessions) + 1)], "sessions are 1, 2, …"
    ends = [*(one < after for one, after in itertools.pairwise(numbers)), True]
    assert [chunk.ends_session for chunk in chunks] == ends, "ends_session marks the last chunk of each session"
    longest = max(len(chunk.indices) for chunk in chunks)
    assert longest <= stream.chunk, "a chunk must not exceed the stream's chunk size"


def _check_classes(stream: Stream, labels: Array | None) -> None:
    groups = [stream.base, *stream.sessions]
    assert stream.tasks is None or len(stream.tasks) == len(stream.sessions), "each session has one task"
    if stream.labels is None:
        assert labels is None, "the stream must know its labels: give them to Stream.__init__"
        assert stream.arrival == stream.counts == stream.home == {}, "without labels no class can be known"
        return
    if labels is not None:
        expected = labels[np.concatenate(groups)]
        assert same(stream.labels, expected), "labels are those of the samples: the base first, then the sessions"
    assert len(stream.labels) == sum(len(group) for group in groups), "labels must be given for all samples"
    arrival: dict[int, int] = {}
    parts = np.split(stream.labels, np.cumsum([len(group) for group in groups])[:-1])
    for session, part in enumerate(parts):
        for label in np.unique(part).tolist():
            arrival.setdefault(label, session)
    assert stream.arrival == arrival, "arrival is the first session with a sample of the class, 0 for the base"
    assert stream.counts == Counter(stream.labels.tolist()), "counts are the samples of each class"
    assert stream.home.keys() == arrival.keys(), "every class of the stream has a home, and no other class"
    assert set(stream.home.values()) <= set(range(len(groups))), "homes are sessions, or 0 for the base"


def _check_alike(stream: Stream, other: Stream, who: str) -> None:
    found = _content(other)
    for what, value in _content(stream).items():
        assert same(value, found[what]), f"{who} must have the same {what}, in the same order"


def _content(stream: Stream) -> dict[str, Any]:
    known = {what: list(getattr(stream, what).items()) for what in ("arrival", "home", "counts")}
    settings = {"name": stream.name, "chunk": stream.chunk, "tasks": stream.tasks}
    labels = [] if stream.labels is None else stream.labels.tolist()
    return {"samples": [stream.base, *stream.sessions], "labels": labels, **settings, **known}


def _check_passes_once(stream: Stream) -> None:
    for _ in stream:
        break
    try:
        iter(stream)
    except GraspError:
        return
    raise AssertionError("a stream that has started must refuse to begin again: only the buffer keeps old samples")


def _check_resumes(make: Callable[[], Stream], chunks: list[Chunk]) -> None:
    for k in sorted({0, 1, len(chunks) // 2, len(chunks) - 1, len(chunks)}):
        stream = make()
        remaining = iter(stream)
        before = [next(remaining) for _ in range(k)]
        restored = make()
        restored.load_state_dict(stream.state_dict())
        after = list(restored.resume())
        same_chunks = same([astuple(chunk) for chunk in (*before, *after)], [astuple(chunk) for chunk in chunks])
        assert same_chunks, f"a stream restored after {k} chunks must continue where it was"


def _check_file(stream: Stream) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream.npz"
        save_stream(stream, path, fingerprint="this data set")
        _check_alike(stream, load_stream(path, fingerprint="this data set"), "a stream and its copy from a file")
