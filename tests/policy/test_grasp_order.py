"""The race draws exactly as Algorithm 1 does, for any number of passes."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from zlib import crc32

import numpy as np
import pytest
from chi_square import LIKELY, UNLIKELY, algorithm_1, count_sequences, p_value, sequence_probabilities
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from graspcl.errors import GraspError
from graspcl.policy import grasp_order, race

RUNS = 100_000


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def race_sequences(d: list[float], draws: int, eps: float, seed: int, runs: int = RUNS) -> np.ndarray:
    """Sequences [runs, draws] of one class; classes are independent, so as many equal classes are as many runs."""
    order = grasp_order(np.tile(d, runs), np.repeat(np.arange(runs), len(d)), runs * draws, seeded(seed), eps)
    rounds = order.reshape(draws, runs)
    assert (rounds // len(d) == np.arange(runs)).all()  # one of each class per round
    return (rounds % len(d)).T


# -- distribution ----------------------------------------------------------------------------------------------------

SEQUENCES = [
    pytest.param([0.2, 0.7], 6, 1e-7, id="two samples, three passes"),
    pytest.param([0.1, 0.5, 1.5], 5, 1e-7, id="three samples"),
    pytest.param([0.0, 0.3, 0.4, 1.9], 5, 0.05, id="four samples, one at distance 0"),
    pytest.param([0.0, 0.3, 0.4, 1.9], 5, 1e-7, id="four samples, one at distance 0, small eps"),
    pytest.param([0.1, 0.5, 1.5], 5, 10.0, id="eps above all distances"),
    pytest.param([0.4, 0.4, 0.4], 6, 1e-7, id="equal distances"),
    pytest.param([0.0, 0.0, 0.0], 5, 1e-7, id="all distances 0"),
    pytest.param([3e300, 1e300, 5e299], 5, 1e-7, id="huge distances"),
    pytest.param([3e-300, 1e-300, 0.0], 5, 1e-300, id="tiny distances and eps"),
    pytest.param([0.0, 0.0, 1.0], 5, 1e-30, id="eps far below the distances"),
    pytest.param([0.0, 1e-300, 1e300], 5, 1e-7, id="distances of all sizes"),
]


@pytest.mark.parametrize(("d", "draws", "eps"), SEQUENCES)
def test_whole_sequences_have_the_probabilities_of_algorithm_1(d: list[float], draws: int, eps: float) -> None:
    counts = count_sequences(race_sequences(d, draws, eps, seed=1), len(d))
    with np.errstate(over="ignore"):
        exact = sequence_probabilities(np.array(d), draws, eps)
    assert p_value(counts.ravel(), exact.ravel()) > LIKELY


WRONG_RULES = {
    "mean instead of max": lambda d, drawn: d.mean(),
    "no bump": lambda d, drawn: 0.0,
    "doubling": lambda d, drawn: d[drawn],
    "largest of the others": lambda d, drawn: np.delete(d, drawn).max(),
    "5 % too little": lambda d, drawn: 0.95 * d.max(),
}


@pytest.mark.parametrize("rule", WRONG_RULES)
def test_the_same_test_rejects_other_rules(rule: str) -> None:
    """Its power: with 100,000 sequences even a bump that is 5 % too small is found (p < 1e-6)."""
    d = [0.1, 0.5, 1.5]
    counts = count_sequences(race_sequences(d, 5, 1e-7, seed=1), 3)
    other = sequence_probabilities(np.array(d), 5, 1e-7, WRONG_RULES[rule])
    assert p_value(counts.ravel(), other.ravel()) < UNLIKELY


def test_the_tree_of_probabilities_agrees_with_the_loop_of_algorithm_1() -> None:
    d = np.array([0.0, 0.3, 0.4, 1.9])
    counts = count_sequences(algorithm_1(d, 5, 0.05, seeded(2), RUNS), 4)
    assert p_value(counts.ravel(), sequence_probabilities(d, 5, 0.05).ravel()) > LIKELY


def test_interleaved_classes_are_independent() -> None:
    near, far, runs = [0.2, 0.9], [1.5, 0.1], RUNS
    distances, labels = np.tile(near + far, runs), np.repeat(np.arange(2 * runs), 2)
    mixed = seeded(3).permutation(len(labels))
    order = mixed[grasp_order(distances[mixed], labels[mixed], 6 * runs, seeded(4))]
    sequences = (order % 2).reshape(3, runs, 2).transpose(1, 2, 0).reshape(runs, 6)
    exact = np.multiply.outer(*(sequence_probabilities(np.array(d), 3, 1e-7) for d in (near, far)))
    assert p_value(count_sequences(sequences, 2).ravel(), exact.ravel()) > LIKELY


def test_the_first_draw_follows_the_closed_form_also_over_separate_calls() -> None:
    d, eps = np.array([0.05, 0.1, 0.4, 1.2]), 1e-3
    counts = np.bincount([grasp_order(d, np.zeros(4, int), 1, seeded(s), eps)[0] for s in range(1500)], minlength=4)
    assert p_value(counts, 1 / (d + eps)) > LIKELY
    assert p_value(counts, 1 / (d + 0.04)) < UNLIKELY


def test_late_passes_still_draw_as_algorithm_1_does() -> None:
    """After 50 passes over 20 samples distances have grown by 10^65; compare where the last 10 draws fall."""
    d, draws, runs = np.linspace(0.05, 1.0, 20), 1000, 3000
    ours, theirs = race_sequences(d.tolist(), draws, 1e-7, 5, runs), algorithm_1(d, draws, 1e-7, seeded(6), runs)
    tails = [np.bincount(s[:, -10:].ravel(), minlength=20) for s in (ours, theirs)]
    assert stats.chi2_contingency(tails).pvalue > LIKELY
    seen = [[len(set(row)) for row in s[:, -20:]] for s in (ours, theirs)]
    assert stats.ttest_ind(*seen).pvalue > LIKELY


def test_rescaling_before_an_overflow_changes_no_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = seeded(7)
    d, first, again = rng.random(30), rng.standard_exponential(30), rng.standard_exponential(900)
    rarely, often = np.empty(900, np.int64), np.empty(900, np.int64)
    race.race_class.py_func(d, 1e-7, first, again, rarely)
    monkeypatch.setattr(race, "_LARGE", 10.0)
    race.race_class.py_func(d, 1e-7, first, again, often)
    assert (rarely == often).all()


# -- many passes, extreme sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "passes", "seen_per_pass"), [(1, 2000, 1.0), (2, 2000, 0.8), (50, 200, 0.85), (1000, 30, 0.91)]
)
def test_many_passes_neither_overflow_nor_lose_samples(size: int, passes: int, seen_per_pass: float) -> None:
    """Coverage of a pass under Algorithm 1: 1000 samples 97 % first and 92 % in late passes, 50 samples 89 and 87 %."""
    d = seeded(8).uniform(0.05, 1.5, size)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        order = grasp_order(d, np.full(size, 3), passes * size, seeded(9))
    assert order.min() == 0 and order.max() == size - 1
    seen = np.array([len(np.unique(one_pass)) for one_pass in order.reshape(passes, size)]) / size
    assert seen.mean() >= seen_per_pass
    assert seen[-len(seen) // 3 :].mean() >= seen_per_pass  # late passes are as good as early ones


def test_one_pass_sweeps_a_class_from_near_to_far_and_covers_almost_all_of_it() -> None:
    """For distances of 0.3 ± 0.1, about 98 % of 1000 samples in one pass; by Algorithm 1 as by the race."""
    d = seeded(10).gamma(9.0, 0.035, 1000)
    order = grasp_order(np.tile(d, 20), np.repeat(np.arange(20), 1000), 20_000, seeded(11)).reshape(1000, 20)
    literal = algorithm_1(d, 1000, 1e-7, seeded(12), runs=20)
    seen = [[len(np.unique(sequence)) for sequence in sequences] for sequences in (order.T, literal)]
    assert np.mean(seen[0]) > 970
    assert stats.ttest_ind(*seen).pvalue > LIKELY
    tenths = d[order % 1000].reshape(10, -1).mean(1)
    assert tenths[-1] > 1.2 * tenths[0]
    assert (np.diff(tenths) > 0).all()


def test_a_budget_far_above_the_buffer_works() -> None:
    order = grasp_order(np.array([0.1, 0.2, 0.3]), np.array([0, 1, 1]), 100_000, seeded())
    assert len(order) == 100_000 and (order[::2] == 0).all() and set(order[1::2]) == {1, 2}


# -- balance and order of classes ------------------------------------------------------------------------------------

LABELS = st.lists(st.sampled_from([-(10**12), -3, 0, 5, 6, 7, 10**6, 10**15]), min_size=1, max_size=30)


@settings(deadline=None, max_examples=200)
@given(labels=LABELS, budget=st.integers(0, 80), seed=st.integers(0, 2**32 - 1))
def test_rounds_go_over_the_sorted_classes_present(labels: list[int], budget: int, seed: int) -> None:
    rng = seeded(seed)
    order = grasp_order(rng.random(len(labels)), np.array(labels), budget, rng)
    assert order.dtype == np.int64
    assert np.array(labels)[order].tolist() == np.resize(sorted(set(labels)), budget).tolist()


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int32, np.uint64])
def test_any_integer_type_labels_classes(dtype: type) -> None:
    labels = np.array([1, 0, 1, 0, 1], dtype)
    assert labels[grasp_order(np.ones(5), labels, 6, seeded())].tolist() == [0, 1] * 3


# -- determinism -----------------------------------------------------------------------------------------------------

PROBLEM = "grasp_order(default_rng(0).random(5000), default_rng(1).integers(0, 37, 5000), 12_000, default_rng(2))"


def test_a_seed_decides_whatever_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"grasp_order": grasp_order, "default_rng": np.random.default_rng}
    reference = eval(PROBLEM, known)
    for threads in (1, 8):
        monkeypatch.setattr(os, "cpu_count", lambda threads=threads: threads)
        assert (eval(PROBLEM, known) == reference).all()
    script = (
        "from numpy.random import default_rng; from graspcl.policy import grasp_order; from zlib import crc32;"
        f"import sys; sys.stdout.write(str(crc32({PROBLEM}.tobytes())))"
    )
    environment = {**os.environ, "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    child = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert int(child.stdout) == crc32(reference.tobytes())


def test_another_seed_draws_otherwise() -> None:
    first, second = (grasp_order(np.ones(50), np.zeros(50, int), 50, seeded(s)) for s in (0, 1))
    assert (first != second).any()


def test_the_inputs_stay_as_they_were() -> None:
    d, labels = seeded().random(20), np.arange(20) % 3
    before = d.copy(), labels.copy()
    grasp_order(d, labels, 100, seeded())
    assert (d == before[0]).all() and (labels == before[1]).all()


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, -0.1, np.inf])
def test_bad_distances_are_named(bad: float) -> None:
    d = np.array([0.1, bad, 0.3, bad])
    with pytest.raises(GraspError, match=r"2 of 4 distances .* \(rows \[1, 3\]\)"):
        grasp_order(d, np.zeros(4, int), 2, seeded())


@pytest.mark.parametrize("eps", [0.0, -1e-7, np.nan, np.inf])
def test_eps_must_be_above_zero_and_finite(eps: float) -> None:
    with pytest.raises(GraspError, match="eps must be"):
        grasp_order(np.ones(2), np.zeros(2, int), 1, seeded(), eps)


def test_other_mistakes_are_told() -> None:
    with pytest.raises(GraspError, match=r"shapes \(3,\) and \(2,\)"):
        grasp_order(np.ones(3), np.zeros(2, int), 1, seeded())
    with pytest.raises(GraspError, match="shapes"):
        grasp_order(np.ones((2, 2)), np.zeros((2, 2), int), 1, seeded())
    with pytest.raises(GraspError, match="labels must be integers, got float64"):
        grasp_order(np.ones(2), np.array([0.0, 1.0]), 1, seeded())
    with pytest.raises(GraspError, match="budget must be a whole number of at least 0, got -1"):
        grasp_order(np.ones(2), np.zeros(2, int), -1, seeded())
    with pytest.raises(GraspError, match="empty buffer"):
        grasp_order(np.empty(0), np.empty(0, int), 1, seeded())


@pytest.mark.parametrize("stored", [0, 3])
def test_a_budget_of_nothing_gives_nothing(stored: int) -> None:
    order = grasp_order(np.ones(stored), np.zeros(stored, int), 0, seeded())
    assert order.dtype == np.int64 and order.shape == (0,)


# -- the sort --------------------------------------------------------------------------------------------------------

POSITIVE = st.one_of(
    st.floats(0, allow_infinity=False),  # of all sizes, down to the smallest
    st.floats(1.0, 1.001),  # close together
    st.sampled_from([0.0, 5e-324, 1e-300, 1.0, 2.0, 1e300]),  # tied
)


@settings(deadline=None, max_examples=300)
@given(st.lists(POSITIVE, min_size=1, max_size=200))
def test_arrivals_are_sorted_stably(times: list[float]) -> None:
    array = np.array(times)
    assert race.argsort_arrivals(array).tolist() == np.argsort(array, kind="stable").tolist()


@pytest.mark.parametrize("size", [1, 7, 1000, 100_000])
def test_many_arrivals_are_sorted(size: int) -> None:
    times = seeded(12).standard_exponential(size) * seeded(13).uniform(1e-7, 2, size)
    assert (race.argsort_arrivals(times) == np.argsort(times, kind="stable")).all()
