"""What each rule keeps: exactly where it is certain, by chi-square against exact probabilities where it is not.

Chi-square tests use fixed seeds and fail below p = 0.0005. A rule that moves a tenth of the probability from some
outcomes to others adds at least 4 * 0.1² per trial to the statistic: 160 in 4,000 trials and 80 in 2,000, which over
the at most 35 and 21 outcomes here is found with a probability above 0.99.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate, combinations, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from graspcl.buffer import Buffer, FifoRule, LargestClassRule, Maintenance, ReservoirRule, RingRule
from graspcl.codec import Codec
from graspcl.errors import GraspError

TRIALS = 4_000
LABELS = (0, 0, 1, 0, 2, 1, 0)
Cell = tuple[int, ...]
Distribution = dict[Cell, Fraction]


# -- one by one, literally: contents by slot, with their exact probabilities ------------------------------------------


def largest_class_step(contents: Cell, arrival: int, capacity: int) -> Distribution:
    """A random stored sample of a random largest class makes room for the newcomer."""
    if len(contents) < capacity:
        return {(*contents, arrival): Fraction(1)}
    sizes = Counter(LABELS[i] for i in contents)
    largest = [c for c, size in sizes.items() if size == max(sizes.values())]
    outcome: Distribution = {}
    for slot, stored in enumerate(contents):
        if LABELS[stored] in largest:
            chance = Fraction(1, len(largest) * sizes[LABELS[stored]])
            outcome[(*contents[:slot], arrival, *contents[slot + 1 :])] = chance
    return outcome


def reservoir_step(contents: Cell, arrival: int, capacity: int) -> Distribution:
    """The t-th arrival is put into a random one of t slots, of which only the first `capacity` exist."""
    if len(contents) < capacity:
        return {(*contents, arrival): Fraction(1)}
    seen = arrival + 1
    outcome: Distribution = {contents: Fraction(seen - capacity, seen)}
    for slot in range(capacity):
        outcome[(*contents[:slot], arrival, *contents[slot + 1 :])] = Fraction(1, seen)
    return outcome


def one_by_one(step: Callable[[Cell, int, int], Distribution], capacity: int) -> Distribution:
    now: Distribution = {(): Fraction(1)}
    for arrival in range(len(LABELS)):
        then: Distribution = defaultdict(Fraction)
        for contents, probability in now.items():
            for outcome, chance in step(contents, arrival, capacity).items():
                then[outcome] += probability * chance
        now = then
    return now


def as_sets(distribution: Distribution) -> Distribution:
    sets: Distribution = defaultdict(Fraction)
    for contents, probability in distribution.items():
        sets[tuple(sorted(contents))] += probability
    return sets


def assert_fits(observed: Counter[Cell], expected: Distribution) -> None:
    assert sum(expected.values()) == 1
    assert set(observed) <= set(expected), "an outcome that one-by-one insertion cannot have"
    cells = sorted(expected)
    counts = [observed[cell] for cell in cells]
    assert stats.chisquare(counts, [float(expected[cell]) * sum(counts) for cell in cells]).pvalue > 0.0005


def survivors(rule: type[Maintenance], capacity: int, cuts: list[int], trials: int = TRIALS) -> Counter[Cell]:
    """Which ids remain, over many buffers that get LABELS in batches cut at `cuts`."""
    rng, observed = np.random.default_rng(7), Counter[Cell]()
    labels, codes = np.array(LABELS), np.zeros((len(LABELS), 1), np.uint8)
    batches = np.split(np.arange(len(LABELS)), cuts)
    for _ in range(trials):
        buffer = Buffer(capacity, maintenance=rule(), rng=rng)
        for batch in batches:
            buffer.insert_codes(codes[batch], labels[batch])
        observed[tuple(sorted(buffer.ids.tolist()))] += 1
    return observed


@pytest.mark.parametrize(("rule", "step"), [(LargestClassRule, largest_class_step), (ReservoirRule, reservoir_step)])
def test_a_batch_that_fills_the_buffer_on_its_way_is_like_one_by_one(
    rule: type[Maintenance], step: Callable[[Cell, int, int], Distribution]
) -> None:
    assert_fits(survivors(rule, capacity=4, cuts=[]), as_sets(one_by_one(step, 4)))


@pytest.mark.parametrize(("rule", "step"), [(LargestClassRule, largest_class_step), (ReservoirRule, reservoir_step)])
def test_a_slot_may_be_taken_several_times_within_a_batch(
    rule: type[Maintenance], step: Callable[[Cell, int, int], Distribution]
) -> None:
    # Two slots and five arrivals for them: most batches take a slot twice.
    assert_fits(survivors(rule, capacity=2, cuts=[2], trials=TRIALS // 2), as_sets(one_by_one(step, 2)))


def test_the_reference_of_a_reservoir_is_uniform() -> None:
    assert as_sets(one_by_one(reservoir_step, 4)) == dict.fromkeys(combinations(range(7), 4), Fraction(1, 35))


def test_ties_between_largest_classes_are_broken_uniformly() -> None:
    rng, evicted = np.random.default_rng(3), Counter[int]()
    for _ in range(2000):
        buffer = Buffer(8, rng=rng)
        buffer.insert_codes(np.zeros((8, 1), np.uint8), [0, 0, 0, 1, 2, 2, 2, 1])
        (slot,) = buffer.insert_codes(np.zeros((1, 1), np.uint8), [5]).evicted
        evicted[int(slot)] += 1
    assert set(evicted) == {0, 1, 2, 4, 5, 6}, "only samples of the two largest classes may go"
    assert stats.chisquare(list(evicted.values())).pvalue > 0.0005


def test_the_newcomer_itself_is_never_refused_by_largest_class() -> None:
    buffer = Buffer(3)
    buffer.insert_codes(np.zeros((3, 1), np.uint8), [0, 0, 0])
    for i in range(20):
        buffer.insert_codes(np.zeros((1, 1), np.uint8), [0], ids=[100 + i])
        assert 100 + i in buffer.ids


def test_largest_class_ends_balanced_after_classes_that_came_one_after_another() -> None:
    buffer = Buffer(100)
    for c in range(7):
        buffer.insert_codes(np.zeros((300, 1), np.uint8), np.full(300, c))
    assert buffer.sizes.sum() == 100
    # The last class may be one ahead: the newcomer comes on top of a tie for the largest.
    assert buffer.sizes[:-1].max() - buffer.sizes.min() <= 1
    assert buffer.sizes.max() - buffer.sizes.min() <= 2


# -- reservoir ------------------------------------------------------------------------------------------------------


def inclusion(observed: list[list[int]], number: int) -> float:
    """p-value of every arrival being kept equally often."""
    counts = np.bincount(np.concatenate(observed), minlength=number)
    kept, trials = len(observed[0]), len(observed)
    # Of each trial exactly `kept` of `number` remain: counts vary less than a multinomial's.
    share = kept / number
    statistic = ((counts - trials * share) ** 2 / (trials * share * (1 - share))).sum() * (number - 1) / number
    return float(stats.chi2.sf(statistic, number - 1))


def test_a_reservoir_is_uniform_over_a_long_stream() -> None:
    rng, observed = np.random.default_rng(11), []
    for _ in range(1000):
        buffer = Buffer(10, maintenance="reservoir", rng=rng)
        for size in (7, 1, 25, 7):
            buffer.insert_codes(np.zeros((size, 1), np.uint8), np.zeros(size, np.int64))
        observed.append(buffer.ids.tolist())
    assert inclusion(observed, 40) > 0.0005


@pytest.mark.parametrize("before", [0, 2, 6, 20])
def test_a_reservoir_is_uniform_through_overflow_and_compress(before: int) -> None:
    """After none, part of, and more than the capacity was seen; and then online again."""
    rng, observed, later = np.random.default_rng(before), [], []
    for _ in range(1000):
        buffer = Buffer(6, maintenance="reservoir", rng=rng)
        for size, overflow in ((before, False), (9, True), (3, True)):
            buffer.insert_codes(np.zeros((size, 1), np.uint8), np.zeros(size, np.int64), overflow=overflow)
        buffer.compress()
        observed.append(buffer.ids.tolist())
        buffer.insert_codes(np.zeros((8, 1), np.uint8), np.zeros(8, np.int64))
        later.append(buffer.ids.tolist())
    assert inclusion(observed, before + 12) > 0.0005
    assert inclusion(later, before + 20) > 0.0005


def test_a_small_reservoir_through_compress_is_a_uniform_set() -> None:
    """Not only every sample but every pair is equally likely."""
    rng, observed = np.random.default_rng(5), Counter[Cell]()
    for _ in range(2000):
        buffer = Buffer(2, maintenance="reservoir", rng=rng)
        buffer.insert_codes(np.zeros((3, 1), np.uint8), [0, 0, 0])
        buffer.insert_codes(np.zeros((3, 1), np.uint8), [0, 0, 0], overflow=True)
        buffer.compress()
        observed[tuple(sorted(buffer.ids.tolist()))] += 1
    assert_fits(observed, dict.fromkeys(combinations(range(6), 2), Fraction(1, 15)))


class Files(Codec):
    """Stores bytes unmodified."""

    ragged = True

    def encode(self, inputs: list[bytes]) -> list[bytes]:
        return inputs

    def lengths(self, codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.array([len(code) for code in codes])


LENGTHS = (300, 100, 200, 100, 300, 200)
FILES = [bytes(length) for length in LENGTHS]


def by_bytes(samples: int, rng: Any) -> Buffer:
    """A reservoir with room for `samples` of 200 bytes, and the 48 that the buffer keeps of every sample."""
    return Buffer(f"{samples * 248}B", Files(), "reservoir", rng=rng)


def longest_start(order: Cell, limit: int) -> Cell:
    """The samples at the start of `order` that fit."""
    fits = sum(total <= limit for total in accumulate(LENGTHS[i] + 48 for i in order))
    return tuple(sorted(order[:fits]))


def test_a_reservoir_of_bytes_is_the_longest_start_of_a_random_order() -> None:
    """Online and through overflow and compress.

    1,500 trials over 24 outcomes: a tenth of the probability in the wrong place is found with probability 0.97.
    """
    orders = Counter(longest_start(order, 3 * 248) for order in permutations(range(6)))
    rng, observed = np.random.default_rng(13), Counter[Cell]()
    for _ in range(1500):
        buffer = by_bytes(3, rng)
        buffer.insert(FILES[:4], [0] * 4)
        buffer.insert(FILES[4:5], [0])
        buffer.insert(FILES[5:], [0], overflow=True)
        buffer.compress()
        observed[tuple(sorted(buffer.ids.tolist()))] += 1
    assert_fits(observed, {kept: Fraction(number, 720) for kept, number in orders.items()})


def test_a_reservoir_of_bytes_fills_up_again_after_it_was_cleared() -> None:
    buffer = by_bytes(3, 0)
    for _ in range(50):
        buffer.insert(FILES, [0] * 6)
    buffer.clear()
    buffer.insert(FILES[:2], [0, 0])
    assert len(buffer) == 2


def test_a_restored_reservoir_of_bytes_goes_on_as_before() -> None:
    first, second = by_bytes(3, 0), by_bytes(3, 1)
    for _ in range(5):
        first.insert(FILES, [0] * 6)
    second.load_state_dict(first.state_dict())
    for _ in range(20):
        first.insert(FILES, [0] * 6)
        second.insert(FILES, [0] * 6)
        assert first.ids.tolist() == second.ids.tolist()


def test_a_reservoir_of_bytes_of_an_earlier_version_goes_on_uniformly() -> None:
    """Its state does not say how likely the stored samples were kept: 3 of 120, so few newcomers replace them."""
    rng, newcomers = np.random.default_rng(3), 0
    for _ in range(200):
        first, second = by_bytes(3, rng), by_bytes(3, rng)
        for _ in range(20):
            first.insert([bytes(200)] * 6, [0] * 6)
        assert len(first) == 3
        second.load_state_dict({**first.state_dict(), "maintenance": {}})
        assert (second.maintenance._level, second.maintenance._compared) == (3 / 120, 120)
        second.insert([bytes(200)] * 6, [0] * 6)
        newcomers += int((second.ids >= 120).sum())
    assert newcomers / 200 == pytest.approx(3 * 6 / 126, abs=0.1)  # 2 if old and new counted the same


def test_compress_of_largest_class_takes_from_the_largest() -> None:
    buffer = Buffer(10)
    buffer.insert_codes(np.zeros((23, 1), np.uint8), [0] * 15 + [1] * 6 + [2] * 2, overflow=True)
    buffer.compress()
    assert buffer.sizes.tolist() == [4, 4, 2]


# -- first in, first out, and the ring: exact -------------------------------------------------------------------------

batches = st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=15), st.booleans(), st.booleans()), max_size=8)
Batches = list[tuple[list[int], bool, bool]]


def feed(buffer: Buffer, steps: Batches) -> list[int]:
    """Insert batches, some with overflow and then compressed; all labels offered."""
    offered: list[int] = []
    for labels, overflow, again in steps:
        buffer.insert_codes(np.zeros((len(labels), 1), np.uint8), labels, overflow=overflow)
        offered += labels
        if overflow and again:
            buffer.insert_codes(np.zeros((len(labels), 1), np.uint8), labels, overflow=True)
            offered += labels
        buffer.compress()
    return offered


@settings(max_examples=100, deadline=None)
@given(batches, st.integers(1, 9))
def test_fifo_keeps_exactly_the_newest(steps: Batches, capacity: int) -> None:
    buffer = Buffer(capacity, maintenance=FifoRule())
    offered = feed(buffer, steps)
    assert sorted(buffer.ids.tolist()) == list(range(len(offered)))[-capacity:]
    assert [offered[i] for i in buffer.ids] == buffer.labels.tolist()


def test_fifo_evicts_the_oldest_first_also_after_samples_were_removed() -> None:
    buffer = Buffer(6, maintenance=FifoRule())
    buffer.insert_codes(np.zeros((9, 1), np.uint8), np.zeros(9, np.int64))
    buffer.remove(np.flatnonzero(buffer.ids == 5))
    for oldest in (3, 4, 6, 7, 8, 9):
        buffer.insert_codes(np.zeros((1, 1), np.uint8), [0])
        assert buffer.ids.min() == oldest
    assert sorted(buffer.ids.tolist()) == [9, 10, 11, 12, 13, 14]


@settings(max_examples=100, deadline=None)
@given(batches, st.integers(1, 4), st.booleans())
def test_ring_keeps_exactly_the_newest_of_each_class(steps: Batches, per_class: int, bounded: bool) -> None:
    buffer = Buffer(4 * per_class if bounded else None, maintenance=RingRule(per_class))
    offered = feed(buffer, steps)
    expected = [i for c in range(4) for i in [j for j, label in enumerate(offered) if label == c][-per_class:]]
    assert sorted(buffer.ids.tolist()) == sorted(expected)
    assert [offered[i] for i in buffer.ids] == buffer.labels.tolist()


def test_ring_over_capacity_is_refused_and_changes_nothing() -> None:
    buffer = Buffer(5, maintenance=RingRule(per_class=2))
    buffer.insert_codes(np.arange(4, dtype=np.uint8)[:, None], [0, 0, 1, 1])
    before = buffer.state_dict()
    with pytest.raises(GraspError, match=r"RingRule\(per_class=2\) needs more than the buffer's 5 slots for 5 classes"):
        buffer.insert_codes(np.zeros((4, 1), np.uint8), [0, 2, 3, 9])
    after = buffer.state_dict()
    assert after["maintenance"]["written"].tolist() == before["maintenance"]["written"].tolist() == [2, 2]
    for name in ("codes", "labels", "ids", "births"):
        assert after["columns"][name].tolist() == before["columns"][name].tolist()
    assert (after["count"], after["seen"]) == (4, 4)
    buffer.insert_codes(np.zeros((1, 1), np.uint8), [2])
    assert len(buffer) == 5


def test_ring_needs_room_for_at_least_one_of_each() -> None:
    with pytest.raises(GraspError, match="per_class must be a whole number of at least 1, got 0"):
        RingRule(per_class=0)


def test_compress_of_a_ring_beyond_capacity_takes_the_oldest_of_the_fullest_classes() -> None:
    buffer = Buffer(4, maintenance=RingRule(per_class=3))
    buffer.insert_codes(np.zeros((7, 1), np.uint8), [0, 0, 0, 0, 1, 1, 2], overflow=True)
    buffer.compress()
    assert sorted(buffer.ids.tolist()) == [3, 4, 5, 6]


@pytest.mark.parametrize("rule", [LargestClassRule(), ReservoirRule(), FifoRule(), RingRule(2)])
def test_names_make_rules(rule: Maintenance) -> None:
    assert type(Buffer(9, maintenance=rule.name).maintenance) is type(rule)


def test_an_unknown_rule_is_an_error_that_suggests_the_nearest() -> None:
    with pytest.raises(GraspError, match="did you mean 'reservoir'"):
        Buffer(9, maintenance="resevoir")


def test_a_rule_without_replace_says_so() -> None:
    buffer = Buffer(1, maintenance=type("Mine", (Maintenance,), {})())
    with pytest.raises(GraspError, match="Mine must define replace"):
        buffer.insert_codes(np.zeros((2, 1), np.uint8), [0, 0])
