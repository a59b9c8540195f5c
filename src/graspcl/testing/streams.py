"""The contract that every stream passes."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.stream import Chunk, Stream, load_stream, save_stream


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
    complete = np.array_equal(presented, np.concatenate(stream.sessions))
    assert complete, "chunks must cover the sessions, in order, complete"
    assert len(np.unique(stream.samples)) == len(stream.samples), "a sample, base or not, must occur once"
    assert len(presented) == len(stream), "len() counts the samples that arrive"
    numbers = [chunk.session for chunk in chunks]
    assert list(dict.fromkeys(numbers)) == [*range(1, len(stream.sessions) + 1)], "sessions are 1, 2, …"
    ends = [*(chunk.session < after.session for chunk, after in itertools.pairwise(chunks)), True]
    assert [chunk.ends_session for chunk in chunks] == ends, "ends_session marks the last chunk of each session"
    assert max(len(chunk.indices) for chunk in chunks) <= stream.chunk, "a chunk must not exceed the chunk size"


def _check_classes(stream: Stream, labels: Array | None) -> None:
    assert stream.tasks is None or len(stream.tasks) == len(stream.sessions), "each session has one task"
    if stream.labels is None:
        assert labels is None, "the stream must know its labels: give them to Stream.__init__"
        assert stream.arrival == stream.counts == stream.home == {}, "without labels no class can be known"
        return
    if labels is not None:
        same = np.array_equal(stream.labels, labels[stream.samples])
        assert same, "labels are those of the samples: the base first, then session by session"
    assert len(stream.labels) == len(stream.samples), "labels must be given for all samples"
    sessions = np.repeat(np.arange(len(stream.sessions) + 1), [len(stream.base), *map(len, stream.sessions)])
    arrival: dict[int, int] = {}
    for label, session in zip(stream.labels.tolist(), sessions.tolist(), strict=True):
        arrival.setdefault(label, session)
    assert stream.arrival == arrival, "arrival is the first session with a sample of the class, 0 for the base"
    assert stream.counts == Counter(stream.labels.tolist()), "counts are the samples of each class"
    assert stream.home.keys() == arrival.keys(), "every class of the stream has a home, and no other class"
    assert set(stream.home.values()) <= {*range(len(stream.sessions) + 1)}, "homes are sessions, or 0 for the base"


def _check_alike(stream: Stream, other: Stream, who: str) -> None:
    for what in ("base", "sessions", "labels", "name", "chunk", "tasks", "arrival", "home", "counts"):
        one, two = (_plain(getattr(each, what)) for each in (stream, other))
        assert one == two, f"{who} must have the same {what}, in the same order"


def _plain(value: Any) -> Any:
    """Return a value of a stream as something to compare, order included."""
    if isinstance(value, dict):
        return list(value.items())
    return [_plain(each) for each in value] if isinstance(value, list) else np.asarray(value).tolist()


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
        assert len(before) + len(after) == len(chunks), f"a stream restored after {k} chunks must continue where it was"
        for got, expected in zip([*before, *after], chunks, strict=True):
            same = np.array_equal(got.indices, expected.indices) and got.session == expected.session
            assert same and got.ends_session == expected.ends_session, (
                f"a stream restored after {k} chunks must yield the same chunks"
            )


def _check_file(stream: Stream) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream.npz"
        save_stream(stream, path, fingerprint="this data set")
        _check_alike(stream, load_stream(path, fingerprint="this data set"), "a stream and its copy from a file")
