"""The contract that every stream passes."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

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
    assert np.array_equal(presented, np.concatenate(stream.sessions)), (
        "chunks must cover the sessions, in order, complete"
    )
    assert len(np.unique(stream.base)) == len(stream.base), "a base sample must occur once"
    assert not np.isin(presented, stream.base).any(), "a base sample must not arrive again"
    assert len(np.unique(presented)) == len(presented) == len(stream), "samples arrive once, and len() counts them"
    numbers = [chunk.session for chunk in chunks]
    assert numbers == sorted(numbers) and set(numbers) == set(range(1, len(stream.sessions) + 1)), (
        "sessions are 1, 2, …"
    )
    ends = [*(chunk.session < after.session for chunk, after in itertools.pairwise(chunks)), True]
    assert [chunk.ends_session for chunk in chunks] == ends, "ends_session marks the last chunk of each session"
    assert all(len(chunk.indices) <= stream.chunk for chunk in chunks), (
        "a chunk must not exceed the stream's chunk size"
    )


def _check_classes(stream: Stream, labels: Array | None) -> None:
    groups = [stream.base, *stream.sessions]
    assert stream.tasks is None or len(stream.tasks) == len(stream.sessions), "each session has one task"
    if stream.labels is None:
        assert labels is None, "the stream must know its labels: give them to Stream.__init__"
        assert stream.arrival == stream.counts == stream.home == {}, "without labels no class can be known"
        return
    if labels is not None:
        assert np.array_equal(stream.labels, labels[np.concatenate(groups)]), (
            "labels are those of the samples: the base first, then session by session"
        )
    assert len(stream.labels) == sum(len(group) for group in groups), "labels must be given for all samples"
    arrival: dict[int, int] = {}
    counts: dict[int, int] = {}
    parts = np.split(stream.labels, np.cumsum([len(group) for group in groups])[:-1])
    for session, part in enumerate(parts):
        for label, count in zip(*np.unique(part, return_counts=True), strict=True):
            arrival.setdefault(int(label), session)
            counts[int(label)] = counts.get(int(label), 0) + int(count)
    assert stream.arrival == arrival, "arrival is the first session with a sample of the class, 0 for the base"
    assert stream.counts == counts, "counts are the samples of each class"
    assert stream.home.keys() == arrival.keys(), "every class of the stream has a home, and no other class"
    assert set(stream.home.values()) <= set(range(len(groups))), "homes are sessions, or 0 for the base"


def _check_alike(stream: Stream, other: Stream, who: str) -> None:
    for one, two in zip(_lists(stream), _lists(other), strict=True):
        assert np.array_equal(one, two), f"{who} must hold the same samples in the same order"
    assert (stream.name, stream.chunk, stream.tasks) == (other.name, other.chunk, other.tasks), (
        f"{who} must have the same name, chunk and tasks"
    )
    for what in ("arrival", "home", "counts"):
        assert list(getattr(stream, what).items()) == list(getattr(other, what).items()), (
            f"{who} must have the same {what}, in the same order"
        )


def _lists(stream: Stream) -> Iterator[Array]:
    yield np.array([len(stream.base), *map(len, stream.sessions)])
    yield from (stream.base, *stream.sessions)
    yield np.empty(0) if stream.labels is None else stream.labels


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
            same = np.array_equal(got.indices, expected.indices)
            assert same and (got.session, got.ends_session) == (expected.session, expected.ends_session), (
                f"a stream restored after {k} chunks must yield the same chunks"
            )


def _check_file(stream: Stream) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream.npz"
        save_stream(stream, path, fingerprint="this data set")
        _check_alike(stream, load_stream(path, fingerprint="this data set"), "a stream and its copy from a file")
