"""Blurred class boundaries: how much is exchanged, and what is not touched."""

import numpy as np
import pytest

from graspcl.stream import ClassIncremental
from graspcl.stream.kinds import exchanged

SIZES = [30, 90, 40, 10, 120, 60, 20, 130]
LABELS = np.repeat(np.arange(8), SIZES)


def stream(blurry, seed=0, sessions=3):
    rng = np.random.default_rng(seed)
    return ClassIncremental(np.arange(500), LABELS, 2, sessions, rng, blurry=blurry)


def homes(stream):
    """For every arriving sample, the session it is in and the session its class belongs to."""
    arrived = np.repeat(np.arange(1, len(stream.sessions) + 1), [len(session) for session in stream.sessions])
    return arrived, np.array([stream.home[label] for label in LABELS[np.concatenate(stream.sessions)].tolist()])


def test_without_blur_the_stream_is_as_it_ever_was():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        order = rng.permutation(8)
        groups = [order[:2], order[2:4], order[4:6], order[6:]]
        expected = [rng.permutation(np.flatnonzero(np.isin(LABELS, group))) for group in groups]
        got = stream(0.0, seed)
        for one, two in zip([got.base, *got.sessions], expected, strict=True):
            assert np.array_equal(one, two)
        assert got.home == got.arrival
    labels = np.repeat([5, 2, 9, 4, 7, 0, 1], [3, 9, 4, 1, 12, 6, 2])
    told = ClassIncremental(100 + np.arange(37), labels, 2, 3, np.random.default_rng(0))
    assert told.base.tolist() == [102, 110, 103, 106, 100, 104, 107, 105, 101, 109, 108, 111]
    assert told.sessions[0].tolist() == [112, 116, 114, 113, 115] and told.sessions[2].tolist() == [135, 136]


def test_sizes_base_and_homes_stay():
    sharp, blurred = stream(0.0), stream(0.5)
    assert np.array_equal(sharp.base, blurred.base)
    assert [len(session) for session in sharp.sessions] == [len(session) for session in blurred.sessions]
    assert list(sharp.home.items()) == list(blurred.home.items())
    assert np.array_equal(np.sort(sharp.samples), np.sort(blurred.samples))


def test_classes_arrive_early_but_have_their_home():
    blurred = stream(0.5)
    assert set(blurred.arrival.values()) == {0, 1}
    assert sorted(blurred.home.values()) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_the_exact_number_of_places_is_dealt_out_anew():
    sessions = [np.arange(0, 10), np.arange(10, 35), np.arange(35, 36)]
    moved = np.zeros(36, bool)
    for seed in range(200):
        result = exchanged(sessions, 0.2, np.random.default_rng(seed))
        assert [len(session) for session in result] == [10, 25, 1]
        changed = np.concatenate(result) != np.arange(36)
        assert changed[:10].sum() <= 2 and changed[10:35].sum() <= 5 and not changed[35]  # rounded: 2, 5 and 0
        moved |= changed
    assert moved[:35].all()
    assert sessions[0].tolist() == list(range(10))  # what is given stays as it is


@pytest.mark.parametrize("blurry", [0.1, 0.5, 0.9])
def test_the_share_of_strangers(blurry):
    shares, expected = [], []
    for seed in range(60):
        blurred = stream(blurry, seed)
        arrived, home = homes(blurred)
        shares.append(np.mean(arrived != home))
        n = np.array([len(session) for session in blurred.sessions])
        given = np.round(blurry * n)
        expected.append((given * (1 - given / given.sum())).sum() / n.sum())
    error = np.std(np.subtract(shares, expected)) / np.sqrt(60)
    assert abs(np.mean(shares) - np.mean(expected)) < 4 * error
    assert abs(np.mean(expected) - blurry * 0.63) < 0.06 * blurry  # two thirds at most, for three sessions


def test_strangers_stand_anywhere_in_a_session():
    places = np.concatenate(
        [
            np.flatnonzero((home != arrived)[arrived == 1]) / (arrived == 1).sum()
            for arrived, home in (homes(stream(0.3, seed)) for seed in range(100))
        ]
    )
    counts = np.histogram(places, 10, (0, 1))[0]
    assert len(places) > 1000 and np.abs(counts / counts.mean() - 1).max() < 0.2


def test_one_session_has_nobody_to_exchange_with():
    one = stream(0.5, sessions=1)
    assert len(one.sessions) == 1 and one.home == one.arrival
