"""Long-tailed streams: exact profiles, and the profile of a real data set."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graspcl.stream import ClassIncremental, LongTailed
from graspcl.stream.kinds import long_tail, thinned

# Training images of the 100 classes of MiniPlaces-LT.
MINIPLACES = (
    "78 7 690 28 12 5 126 14 29 5 30 5 10 146 226 64 98 90 56 214 42 21 420 16 40 36 241 5 8 12 23 10 6 17 32 76 "
    "115 27 20 13 765 22 44 44 334 132 120 46 48 283 5 24 900 52 74 36 167 52 93 31 184 60 18 26 10 7 58 8 142 6 "
    "112 69 36 5 5 17 108 5 14 11 86 49 9 39 47 20 24 158 6 16 6 50 104 8 194 5 18 20 37 41"
)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_exact_profile():
    assert long_tail(np.full(5, 1000), 10_000).tolist() == [1000, 100, 10, 1, 1]
    assert long_tail(np.full(3, 500), 100).tolist() == [500, 50, 5]
    assert long_tail(np.array([8]), 100).tolist() == [8]
    assert long_tail(np.full(4, 7), 1).tolist() == [7, 7, 7, 7]
    assert long_tail(np.array([3, 900, 900]), 9).tolist() == [3, 300, 100]  # the first has no more


@given(st.lists(st.integers(1, 500), min_size=1, max_size=30), st.floats(1, 1000))
def test_a_profile_falls_and_keeps_every_class(sizes, imbalance):
    sizes = np.array(sizes)
    kept = long_tail(sizes, imbalance)
    assert (kept >= 1).all() and (kept <= sizes).all()
    full = long_tail(np.full(len(sizes), sizes.max()), imbalance)
    assert (np.diff(full) <= 0).all() and (kept == np.minimum(full, sizes)).all()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.floats(1, 200), st.integers(0, 10))
def test_thinning_keeps_what_the_profile_says(sizes, imbalance, seed):
    classes = 3 * np.arange(len(sizes)) + 1
    labels = rng(seed).permutation(np.repeat(classes, sizes))
    order = rng(seed + 1).permutation(classes)
    kept = thinned(labels, imbalance, rng(seed), order)
    assert (np.diff(kept) > 0).all()
    expected = long_tail(np.array(sizes)[(order - 1) // 3], imbalance)
    assert [(labels[kept] == label).sum() for label in order] == expected.tolist()


def test_which_samples_stay_is_chance():
    labels = np.repeat([0, 1], 100)
    stays = np.zeros(200)
    for seed in range(500):
        stays[thinned(labels, 4, rng(seed), [1, 0])] += 1
    assert (stays[100:] == 500).all()
    assert stays[:100].sum() == 25 * 500
    assert np.abs(stays[:100] - 125).max() < 4.5 * np.sqrt(500 * 0.25 * 0.75)


def test_given_orders_are_kept_apart():
    labels = np.repeat(np.arange(3), 100)
    stream = LongTailed(
        np.arange(300), labels, 1, 2, rng(), order=[0, 1, 2], imbalance=100, largest_first=[2, 0, 1]
    )  # fmt: skip
    assert list(stream.counts.items()) == [(0, 10), (1, 1), (2, 100)]
    assert stream.home == {0: 0, 1: 1, 2: 2}
    assert len(stream.base) == 10 and [len(session) for session in stream.sessions] == [1, 100]


def test_which_class_is_large_is_chance_and_apart_from_the_order_of_arrival():
    labels = np.repeat(np.arange(5), 20)
    largest, position = np.zeros(5), np.zeros(5)
    for seed in range(400):
        counts = LongTailed(np.arange(100), labels, 0, 5, rng(seed), imbalance=20).counts
        largest[max(counts, key=counts.__getitem__)] += 1
        position[list(counts.values()).index(20)] += 1
    for frequency in (largest, position):
        assert np.abs(frequency - 80).max() < 4 * np.sqrt(400 * 0.2 * 0.8)


def test_without_imbalance_the_samples_are_as_they_are():
    labels = np.repeat(np.arange(6), [50, 20, 10, 5, 3, 2])
    plain = ClassIncremental(np.arange(90), labels, 2, 2, rng(7), blurry=0.2, chunk=8)
    tailed = LongTailed(np.arange(90), labels, 2, 2, rng(7), blurry=0.2, chunk=8)
    assert plain.samples.tolist() == tailed.samples.tolist() and plain.counts == tailed.counts


def test_a_real_long_tail():
    sizes = np.array(MINIPLACES.split(), int)
    labels = np.repeat(np.arange(100), sizes)
    stream = LongTailed(np.arange(len(labels)), labels, 0, 5, rng())
    assert [stream.counts[label] for label in range(100)] == sizes.tolist()
    assert sum(len(session) for session in stream.sessions) == 8223 and max(stream.counts.values()) == 900
    assert sorted(stream.home.values()) == sorted([1, 2, 3, 4, 5] * 20)
    # the same ratio by thinning: 900 down to 5, and a tail that is as long
    thin = LongTailed(np.arange(90_000), np.repeat(np.arange(100), 900), 0, 5, rng(), imbalance=180)
    assert max(thin.counts.values()) == 900 and min(thin.counts.values()) == 5 == sizes.min()
    # thinned by the profile, the real one loses where it has more and nothing where it has less
    both = LongTailed(np.arange(len(labels)), labels, 0, 5, rng(), imbalance=180, largest_first=np.argsort(-sizes))
    profile = np.sort(list(thin.counts.values()))[::-1]
    assert [both.counts[k] for k in np.argsort(-sizes).tolist()] == np.minimum(profile, np.sort(sizes)[::-1]).tolist()
