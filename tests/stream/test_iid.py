"""IID arrival: base classes first, then every sample is as likely in one session as in another."""

import numpy as np
import pytest

from graspcl.stream import IID

LABELS = np.repeat(np.arange(6), [40, 10, 20, 30, 25, 15])


def stream(seed=0, **changes):
    parameters = {"base_classes": 2, "sessions": 4, "order": [4, 1, 0, 2, 3, 5], **changes}
    return IID(np.arange(140), LABELS, rng=np.random.default_rng(seed), **parameters)


def test_base_classes_first_then_equal_sessions():
    iid = stream()
    assert set(LABELS[iid.base].tolist()) == {4, 1}
    assert [len(session) for session in iid.sessions] == [27, 26, 26, 26]
    assert iid.arrival == {4: 0, 1: 0, 0: 1, 2: 1, 3: 1, 5: 1}


def test_without_a_base_all_samples_are_shuffled():
    iid = stream(base_classes=0, sessions=7)
    assert len(iid.base) == 0 and [len(session) for session in iid.sessions] == [20] * 7


def test_the_order_names_the_base_only():
    one, two = stream(order=[4, 1, 0, 2, 3, 5]), stream(order=[1, 4, 5, 3, 2, 0])
    assert all(np.array_equal(a, b) for a, b in zip(one.sessions, two.sessions, strict=True))


def test_classes_and_sessions_are_independent():
    stats = pytest.importorskip("scipy.stats")
    table = np.zeros((4, 4))
    places = np.zeros((105, 5))
    rest = np.flatnonzero(~np.isin(LABELS, [4, 1]))
    for seed in range(400):
        iid = stream(seed)
        session = np.repeat(np.arange(4), [len(part) for part in iid.sessions])
        told = np.concatenate(iid.sessions)
        np.add.at(table, (session, np.searchsorted([0, 2, 3, 5], LABELS[told])), 1)
        np.add.at(places, (np.searchsorted(rest, told), np.arange(105) // 21), 1)
    # drawn without replacement, the table is closer to its expectation than independence needs
    assert stats.chi2_contingency(table).pvalue > 0.01
    assert table.min() > 1000
    # each sample in each fifth of the stream equally often
    statistic = ((places - 80) ** 2 / 80).sum()
    assert stats.chi2(105 * 4 - 4).sf(statistic) > 0.01
    # and shuffled truly, not dealt out in turn
    assert stats.chi2(105 * 4 - 4).cdf(statistic) > 0.001
