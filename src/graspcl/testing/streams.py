"""The contract of a stream."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graspcl.errors import GraspError
from graspcl.stream import Chunk, Stream


def check_stream(make: Callable[[], Stream]) -> None:
    """Assert what every stream promises; `make` gives a new one, equal each time (the same seed).

    >>> from graspcl.stream import Stream
    >>> check_stream(lambda: Stream(base=[0, 1], sessions=[[2, 3], [4]]))
    """
    chunks = list(make())
    _check_order(make(), chunks)
    _check_repeatable(make, chunks)
    _check_passes_once(make())
    _check_resumes(make, chunks)


def _check_order(stream: Stream, chunks: list[Chunk]) -> None:
    told = np.concatenate([chunk.indices for chunk in chunks])
    assert np.array_equal(told, np.concatenate(stream.sessions)), (
        "chunks must tell out the sessions, in order, complete"
    )
    assert not np.isin(told, stream.base).any(), "a base sample must not arrive again"
    assert len(np.unique(told)) == len(told) == len(stream), "every sample arrives once, and len() counts them"
    numbers = [chunk.session for chunk in chunks]
    assert numbers == sorted(numbers) and set(numbers) == set(range(1, len(stream.sessions) + 1)), (
        "sessions are 1, 2, …"
    )
    ends = [chunk.session for chunk in chunks if chunk.ends_session]
    assert ends == list(range(1, len(stream.sessions) + 1)), "each session has exactly one last chunk"
    assert all(len(chunk.indices) <= stream.chunk for chunk in chunks), (
        "a chunk must not exceed the stream's chunk size"
    )


def _check_repeatable(make: Callable[[], Stream], chunks: list[Chunk]) -> None:
    again = list(make())
    same = len(again) == len(chunks) and all(
        np.array_equal(a.indices, b.indices) for a, b in zip(again, chunks, strict=True)
    )
    assert same, "two streams made alike must tell out the same"


def _check_passes_once(stream: Stream) -> None:
    for _ in stream:
        break
    try:
        iter(stream)
    except GraspError:
        return
    raise AssertionError("a stream that has begun must refuse to begin again: old samples live in the buffer alone")


def _check_resumes(make: Callable[[], Stream], chunks: list[Chunk]) -> None:
    stream = make()
    told = iter(stream)
    before = [next(told) for _ in range(len(chunks) // 2)]
    restored = make()
    restored.load_state_dict(stream.state_dict())
    after = list(restored.resume())
    assert len(before) + len(after) == len(chunks), "a restored stream must go on where it was"
    for got, expected in zip([*before, *after], chunks, strict=True):
        assert np.array_equal(got.indices, expected.indices), "a restored stream must tell out the same chunks"
