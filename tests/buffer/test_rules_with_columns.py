"""Rules that look at more than labels, each against a plain reference that has no part of its code."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from graspcl.buffer import Buffer, ByClassRule, ClibRule, GDumbRule, GssRule, KMeansRule, Maintenance, MofRule, rules
from graspcl.buffer.scored_rules import herding_order, losses, thinned
from graspcl.errors import GraspError

Array = np.ndarray[Any, Any]
VECTORS = {"embedding", "gradient"}
BY_CLASS = ["clib", "exstream", "grasp", "herding", "kmeans", "mof", "rainbow"]


def made(capacity: int | None, rule: Maintenance | str, rng: Any = 0, dim: int = 2) -> Buffer:
    rule = rules.create(rule) if isinstance(rule, str) else rule
    columns = {name: ((dim,) if name in VECTORS else (), np.float64) for name in rule.columns}
    return Buffer(capacity, maintenance=rule, columns=columns, rng=rng)


def insert(buffer: Buffer, labels: Any, values: Any = None, **options: Any) -> Array:
    given = sorted(buffer.maintenance.columns - buffer.maintenance.fills)
    columns = dict.fromkeys(given, values)
    return buffer.insert_codes(np.zeros((len(labels), 1), np.uint8), labels, columns=columns, **options).slots


def kept(buffer: Buffer) -> set[int]:
    return set(buffer.ids.tolist())


def points(number: int, seed: int = 0, dim: int = 2) -> Array:
    return np.random.default_rng(seed).normal(size=(number, dim)) + 1


# -- the family: how many of each class go ---------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.data())
def test_losses_are_those_of_taking_one_at_a_time_from_the_largest(sizes: list[int], data: st.DataObject) -> None:
    number = data.draw(st.integers(0, sum(sizes)))
    lost = losses(np.array(sizes), number, np.random.default_rng(0))
    left = list(sizes)
    for _ in range(number):
        left[left.index(max(left))] -= 1
    assert lost.sum() == number and (lost >= 0).all()
    assert sorted(np.array(sizes) - lost) == sorted(left)


def test_ties_for_the_largest_class_are_broken_uniformly() -> None:
    rng = np.random.default_rng(0)
    total = sum(losses(np.array([3, 3, 1, 3]), 1, rng) for _ in range(3000))
    assert total[2] == 0 and stats.chisquare(total[[0, 1, 3]]).pvalue > 0.0005


@pytest.mark.parametrize("name", BY_CLASS)
@pytest.mark.parametrize("size", [1, 7, 60])
def test_classes_end_balanced_whatever_the_batches(name: str, size: int) -> None:
    buffer, rng = made(20, name), np.random.default_rng(1)
    labels = np.repeat(np.arange(3), (10, 25, 25))
    dims = (2,) if buffer.maintenance.columns & VECTORS else ()
    for begin in range(0, 60, size):
        part = labels[begin : begin + size]
        insert(buffer, part, rng.random((len(part), *dims)))
    assert sorted(buffer.sizes.tolist()) == [6, 7, 7]


@pytest.mark.parametrize("name", BY_CLASS)
def test_a_batch_with_overflow_keeps_what_the_batch_without_does(name: str) -> None:
    """Where no chance is involved: one class and distinct values."""
    online, offline = made(6, name, rng=1), made(6, name, rng=1)
    values = points(15) if online.maintenance.columns & VECTORS else np.random.default_rng(0).random(15)
    insert(online, [0] * 15, values)
    insert(offline, [0] * 15, values, overflow=True)
    offline.compress()
    assert len(online) == len(offline) == 6
    if name not in ("clib", "kmeans"):
        assert kept(online) == kept(offline)


# -- columns ---------------------------------------------------------------------------------------------------------


def test_a_buffer_without_the_columns_of_its_rule_is_refused() -> None:
    with pytest.raises(
        GraspError, match=r"HerdingRule needs columns .* add columns=\{'embedding': \(shape, np.float32\)\}"
    ):
        Buffer(9, maintenance="herding")
    with pytest.raises(GraspError, match=r"'gradient': \(shape, np.float32\), 'similarity': \(shape"):
        Buffer(9, maintenance=GssRule(), columns={"loss": ((), np.float32)})


def test_an_insertion_without_what_the_rule_reads_is_refused_and_changes_nothing() -> None:
    buffer = made(3, "mof")
    insert(buffer, [0, 0], np.ones((2, 2)))
    nothing = np.zeros((2, 1), np.uint8)
    with pytest.raises(
        GraspError, match=r"MofRule reads the column 'embedding'; insert with columns=\{'embedding': …\}"
    ):
        buffer.insert_codes(nothing, [0, 0])
    with pytest.raises(GraspError, match="1 of 2 values of column 'embedding' are NaN or infinite"):
        insert(buffer, [0, 0], np.array([[1, 1], [np.nan, 1]]))
    assert (len(buffer), buffer.seen, buffer.incoming) == (2, 2, {})
    buffer.insert_codes(nothing[:0], [])  # nothing to know of no samples


def test_columns_of_the_user_may_still_be_left_out() -> None:
    buffer = Buffer(3, maintenance="mof", columns={"embedding": ((2,), np.float32), "loss": ((), np.float32)})
    buffer.insert_codes(np.zeros((1, 1), np.uint8), [0], columns={"embedding": [[1, 2]]})
    assert buffer["loss"].tolist() == [0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MofRule(decay=1.0), "decay must be a number in \\[0, 1\\), got 1.0"),
        (lambda: GssRule(references=0), "references must be a whole number of at least 1"),
        (lambda: KMeansRule(iterations=-1), "iterations must be a whole number of at least 0"),
        (
            lambda: insert(made(1, type("Mine", (ByClassRule,), {"columns": {"x"}})()), [0, 0], [1, 2]),
            "Mine must define",
        ),
    ],
)
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises(GraspError, match=message):
        make()


# -- rule by rule ----------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(0, 10**6))
def test_herding_is_the_exhaustive_greedy_order(number: int, seed: int) -> None:
    z = points(9, seed, dim=3)
    h = [row / np.linalg.norm(row) for row in z]
    mean, chosen = sum(h) / 9, []
    for t in range(number):
        cost = {i: np.linalg.norm(mean - (sum(h[j] for j in chosen) + h[i]) / (t + 1)) for i in {*range(9)} - {*chosen}}
        chosen.append(min(cost, key=cost.__getitem__))
    assert herding_order(z, number).tolist() == chosen


def test_herding_keeps_the_first_of_the_order() -> None:
    z, buffer = points(12), made(5, "herding")
    insert(buffer, [3] * 12, z)
    assert kept(buffer) == set(herding_order(z, 5).tolist())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=25), st.integers(0, 10**6))
def test_mof_one_by_one(labels: list[int], seed: int) -> None:
    """Literally: a mean per class, and the farthest sample of the largest class goes, be it the newcomer."""
    z, buffer = points(len(labels), seed), made(6, MofRule(decay=0.7), rng=seed)
    means: dict[int, Array] = {}
    stored: set[int] = set()
    for i, label in enumerate(labels):
        insert(buffer, [label], z[i : i + 1])
        means[label] = 0.7 * means[label] + 0.3 * z[i] if label in means else z[i]
        stored.add(i)
        if len(stored) > 6:
            sizes = Counter(labels[j] for j in stored)
            (gone,) = stored - kept(buffer)  # ties between classes are the buffer's to break
            assert sizes[labels[gone]] == max(sizes.values())
            peers = [j for j in stored if labels[j] == labels[gone]]
            assert gone == max(peers, key=lambda j: np.linalg.norm(z[j] - means[labels[j]]))
            stored.remove(gone)
        assert kept(buffer) == stored


@pytest.mark.parametrize("decay", [0.0, 0.7, 0.999])
def test_mof_moves_its_means_as_one_by_one(decay: float) -> None:
    z, labels = points(300, dim=3), np.random.default_rng(1).integers(4, size=300)
    buffer, means = made(None, MofRule(decay=decay), dim=3), dict[int, Array]()
    for part in (slice(0, 1), slice(1, 200), slice(200, 300)):
        insert(buffer, labels[part], z[part])
    for label, row in zip(labels.tolist(), z, strict=True):
        means[label] = decay * means.get(label, row) + (1 - decay) * row
    state = buffer.maintenance.state_dict()
    assert sorted(state["labels"].tolist()) == [0, 1, 2, 3]
    expected = [means[label] for label in state["labels"].tolist()]
    np.testing.assert_allclose(state["means"], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["clib", "fifo", "gdumb", "largest_class", "mof", "reservoir"])
def test_no_loop_over_samples_in_python(name: str) -> None:
    """Calls and returns in Python: a loop has at least two for each sample more; making room has 180 in all."""
    events = [0, 0]
    for i, size in enumerate((40, 400)):
        buffer = made(500, name)
        insert(buffer, np.arange(600) % 5, points(600))
        happened: list[str] = []
        profile = sys.getprofile()
        sys.setprofile(lambda frame, event, argument, happened=happened: happened.append(event))
        insert(buffer, np.arange(size) % 5, points(size))
        sys.setprofile(profile)
        events[i] = len(happened)
    assert events[1] - events[0] < 360


def test_kmeans_keeps_one_sample_of_each_cluster() -> None:
    centres = np.array([[0, 0], [100, 0], [0, 100], [100, 100]])
    found = []
    for seed in range(20):
        buffer = made(4, "kmeans", rng=seed)
        z = np.repeat(centres, 5, axis=0) + points(20, seed)
        insert(buffer, [0] * 20, z)
        found.append({i // 5 for i in kept(buffer)})
        nearest = [5 * c + np.linalg.norm(z[5 * c :][:5] - z[5 * c :][:5].mean(0), axis=1).argmin() for c in range(4)]
        assert kept(buffer) == set(nearest)
    assert found == [{0, 1, 2, 3}] * 20


def test_kmeans_keeps_the_same_of_two_samples_of_a_cluster_however_they_are_rounded() -> None:
    """They are as near to their centre, up to rounding: several ranks must not differ in it."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        z = np.repeat(100 * np.eye(4, 6), 2, axis=0) + rng.normal(size=(8, 6))
        for scale in (0, 1e-7):
            buffer = made(4, "kmeans", dim=6)
            insert(buffer, [0] * 8, z * (1 + scale * rng.normal(size=z.shape)))
            assert kept(buffer) == {0, 2, 4, 6}


def test_kmeans_of_identical_samples() -> None:
    buffer = made(4, "kmeans")
    insert(buffer, [0] * 9, np.ones((9, 2)))
    assert len(buffer) == 4


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 8), st.integers(0, 10**6))
def test_exstream_takes_one_of_the_closest_pair(number: int, seed: int) -> None:
    z = points(9, seed)
    left, mean = set(range(9)), z.mean(0)
    for _ in range(number):
        pairs = [(i, j) for i in left for j in left if i < j]
        pair = min(pairs, key=lambda p: np.linalg.norm(z[p[0]] - z[p[1]]))
        left.remove(max(pair, key=lambda i: np.linalg.norm(z[i] - mean)))
    buffer = made(9 - number, "exstream")
    insert(buffer, [0] * 9, z)
    assert kept(buffer) == left


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 7), st.integers(0, 10**6))
def test_thinning_takes_the_one_with_the_closest_neighbours(number: int, seed: int) -> None:
    scores = np.random.default_rng(seed).random(9)
    left = sorted(range(9), key=scores.__getitem__)
    for _ in range(number):
        gaps = {left[k]: scores[left[k + 1]] - scores[left[k - 1]] for k in range(1, len(left) - 1)}
        left.remove(min(gaps, key=gaps.__getitem__))
    assert {*range(9)} - {*thinned(scores, number, np.random.default_rng(0)).tolist()} == set(left)


def test_rainbow_keeps_an_even_spread_and_reads_the_current_uncertainties() -> None:
    rng, buffer = np.random.default_rng(0), made(11, "rainbow")
    for _ in range(40):
        insert(buffer, [0] * 10, rng.random(10) ** 4)  # most of them certain
    spread = np.sort(buffer["uncertainty"])
    assert spread[0] < 0.01 and spread[-1] > 0.95
    assert np.diff(spread).max() < 0.2  # a random choice would leave more than half of 0 … 1 to a few
    buffer["uncertainty"][:] = np.linspace(0, 1, 11)
    buffer["uncertainty"][4] = 0.301  # now next to that in slot 3: one of the two stands closest
    insert(buffer, [1], [0.5])
    assert set(np.flatnonzero(buffer.labels == 1).tolist()) <= {3, 4}


def test_grasp_keeps_an_even_spread_from_prototypical_to_atypical() -> None:
    rng, buffer = np.random.default_rng(0), made(12, "grasp")
    for _ in range(30):
        angle = rng.normal(size=10) * 0.3  # most samples are prototypical
        insert(buffer, [0] * 10, np.stack([np.cos(angle), np.sin(angle)], axis=1))
    z = buffer["embedding"]
    d = np.sort(1 - z @ z.mean(0) / np.linalg.norm(z.mean(0)))
    assert d[0] < 0.05 and d[-1] > 0.25  # a random dozen has its median distance at 0.02
    assert np.diff(d).max() < 0.15 and np.median(d) > 0.06


def test_clib_takes_the_least_important_and_newcomers_start_at_the_mean_of_their_class() -> None:
    buffer = made(6, ClibRule())
    insert(buffer, [0, 0, 0, 0, 1, 1])
    assert buffer["importance"].tolist() == [0] * 6
    buffer["importance"][:] = [4, 1, 2, 5, 0, 8]
    assert insert(buffer, [1]).tolist() == [1]  # the least of class 0, though 0 is less in class 1
    assert buffer["importance"][1] == 4  # (0 + 8) / 2
    assert insert(buffer, [2]).tolist()[0] in (2, 4)  # three each: the least of either
    assert buffer["importance"][buffer.labels == 2] == pytest.approx(np.mean([4, 4, 2, 5, 0, 8]))


def test_clib_may_refuse_the_newcomer() -> None:
    refused = 0
    for seed in range(300):
        buffer = made(2, ClibRule(), rng=seed)
        insert(buffer, [0, 0])
        refused += insert(buffer, [0])[0] < 0
    assert 60 < refused < 140  # one in three, within 5 standard errors


# -- GDumb: exact -----------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 9))
def test_gdumb_counts_are_those_of_the_greedy_sampler(labels: list[int], capacity: int) -> None:
    """Literally, one by one; that a batch is the same is part of the contract."""
    buffer = made(capacity, GDumbRule())
    for i, label in enumerate(labels):
        counts = Counter(buffer.labels.tolist())
        (slot,) = insert(buffer, [label])
        after = Counter(buffer.labels.tolist())
        if counts.total() < capacity:
            assert after == counts + Counter([label])
        elif counts[label] < capacity / len(set(labels[: i + 1])):
            largest = [c for c in counts if counts[c] == max(counts.values())]
            assert after in [counts + Counter([label]) - Counter([c]) for c in largest]
            assert buffer.ids[slot] == i
        else:
            assert slot == -1 and after == counts


def test_gdumb_after_classes_that_came_one_after_another() -> None:
    buffer = made(12, GDumbRule())
    for label, sizes in enumerate(([12], [6, 6], [4, 4, 4], [3, 3, 3, 3])):
        insert(buffer, [label] * 30)
        assert buffer.sizes.tolist() == sizes
    assert insert(buffer, [0, 1, 2, 3] * 5).max() == -1  # all have their share


def test_gdumb_victims_are_random_and_of_the_largest_class() -> None:
    gone = Counter[int]()
    for seed in range(2000):
        buffer = made(6, GDumbRule(), rng=seed)
        insert(buffer, [0, 0, 0, 0, 1, 1])
        gone[int(insert(buffer, [2])[0])] += 1
    assert set(gone) == {0, 1, 2, 3} and stats.chisquare(list(gone.values())).pvalue > 0.0005


# -- GSS: by simulation ------------------------------------------------------------------------------------------------


def test_gss_scores_are_the_largest_cosine() -> None:
    buffer, z = made(20, GssRule(references=20)), points(9)
    insert(buffer, [0] * 4, z[:4])
    assert buffer["similarity"].tolist() == [0.1] * 4
    insert(buffer, [1] * 5, z[4:])
    cosines = [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in z[:4]] for a in z[4:]]
    np.testing.assert_allclose(buffer["similarity"][4:], np.max(cosines, axis=1))


def test_gss_victims_and_newcomers_have_the_papers_probabilities() -> None:
    """4,000 trials: a probability that is off by 0.05 adds 40 and more to a statistic of 3 degrees of freedom."""
    stored, references = np.array([0.9, 0.1, -0.3, 0.5]), np.array([[1.0, 0.0]] * 4)
    newcomer = np.array([[0.6, 0.8]])  # its cosine with every reference is 0.6
    buffer = made(4, GssRule(), rng=5)
    insert(buffer, [0] * 4, references)
    taken = Counter[int]()
    for _ in range(4000):
        buffer["similarity"][:], buffer["gradient"][:] = stored, references
        taken[int(insert(buffer, [0], newcomer)[0])] += 1
    drawn = (stored - stored.min()) / (stored.max() - stored.min() + 0.01)
    enters = drawn / drawn.sum() * (stored + 1) / ((0.6 + 1) + (stored + 1))
    expected = {0: enters[0], 1: enters[1], 3: enters[3], -1: 1 - enters.sum()}
    assert set(taken) == set(expected)
    assert stats.chisquare([taken[k] for k in expected], 4000 * np.array(list(expected.values()))).pvalue > 0.0005


def test_gss_keeps_directions_that_are_rare() -> None:
    rng, rare = np.random.default_rng(0), []
    for _ in range(20):
        buffer = made(20, GssRule(), rng, dim=8)
        for _ in range(20):
            common = np.eye(8)[np.zeros(9, int)] + 0.01 * rng.normal(size=(9, 8))
            insert(buffer, [0] * 9 + [1], np.concatenate([common, rng.normal(size=(1, 8))]))
        rare.append((buffer.labels == 1).mean())
    assert np.mean(rare) > 0.18  # one in ten of what came; of a uniform sample this mean is 0.1 ± 0.015


def test_gss_with_the_originals_threshold_passes_over_batches_that_bring_nothing_new() -> None:
    buffer = made(4, GssRule(threshold=0.0))
    insert(buffer, [0] * 4, np.array([[1.0, 0.0]] * 4))
    assert insert(buffer, [1] * 3, np.array([[1.0, 0.5]] * 3)).tolist() == [-1] * 3
    assert insert(buffer, [1] * 30, np.array([[-1.0, 0.5]] * 30)).max() >= 0
