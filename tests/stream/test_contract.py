"""The contract notices what a third party's stream can get wrong."""

import itertools

import numpy as np
import pytest

from graspcl.errors import GraspError
from graspcl.stream import Chunk, Stream, make_stream
from graspcl.stream.stream import streams
from graspcl.testing import check_stream

LABELS = np.array([0, 0, 1, 2, 1, 3, 3])


class Good(Stream):
    """A third party's own order: the samples as they come, two a session."""

    def __init__(self, indices, labels, rng, chunk=2):
        super().__init__([], np.split(np.asarray(indices), range(2, len(indices), 2)), chunk, labels)


class Repeats(Good):
    def _cut(self):
        for chunk in super()._cut():
            yield Chunk(self.sessions[chunk.session - 1][:1], chunk.session, chunk.ends_session)


class EndsEarly(Good):
    def _cut(self):
        return (Chunk(chunk.indices, chunk.session, ends_session=True) for chunk in super()._cut())


class LeavesOut(Good):
    def _cut(self):
        return itertools.islice(super()._cut(), 3)


class Unlabelled(Good):
    def __init__(self, indices, labels, rng, chunk=1):
        super().__init__(indices, None, rng, chunk)


class Mislabelled(Good):
    def __init__(self, indices, labels, rng, chunk=1):
        super().__init__(indices, np.asarray(labels)[::-1], rng, chunk)


class ArrivesLate(Good):
    def __init__(self, indices, labels, rng, chunk=1):
        super().__init__(indices, labels, rng, chunk)
        self.arrival = {label: session + 1 for label, session in self.arrival.items()}


class Homeless(Good):
    def __init__(self, indices, labels, rng, chunk=1):
        super().__init__(indices, labels, rng, chunk)
        self.home = {}


class ForgetsItsPlace(Good):
    def state_dict(self):
        return {"passed": 0}


class Unrepeatable(Good):
    def __init__(self, indices, labels, rng, chunk=1):
        super().__init__(np.random.default_rng().permutation(500), np.zeros(500, int), rng, chunk)


class BeginsAgain(Good):
    def __iter__(self):
        return self._cut()


def make(kind):
    return lambda: kind(np.arange(7), LABELS, np.random.default_rng(0), chunk=1)


def test_a_good_stream_passes_and_is_made_by_name(monkeypatch):
    check_stream(make(Good), LABELS)
    streams.names()
    monkeypatch.setattr(streams, "_parts", dict(streams._parts))
    streams.register("in_turn")(Good)
    stream = make_stream("in_turn", np.arange(7), LABELS, np.random.default_rng(0), chunk=3)
    assert stream.arrival == {0: 1, 1: 2, 2: 2, 3: 3} and stream.name == "in_turn"
    with pytest.raises(GraspError, match="did you mean 'chunk'"):
        make_stream("in_turn", np.arange(7), LABELS, np.random.default_rng(0), chunks=3)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Repeats, "in order, complete"),
        (LeavesOut, "in order, complete"),
        (EndsEarly, "last chunk of each session"),
        (Unlabelled, "must know its labels"),
        (Mislabelled, "labels are those of the samples"),
        (ArrivesLate, "arrival is the first session"),
        (Homeless, "every class of the stream has a home"),
        (ForgetsItsPlace, "continue where it was"),
        (BeginsAgain, "refuse to begin again"),
    ],
)
def test_a_broken_stream_is_noticed(kind, message):
    # chunks of one sample, so that EndsEarly ends where sessions do not
    with pytest.raises(AssertionError, match=message):
        check_stream(make(kind), LABELS)


def test_chance_beside_the_generator_is_noticed():
    with pytest.raises(AssertionError, match="in order"):
        check_stream(make(Unrepeatable))
