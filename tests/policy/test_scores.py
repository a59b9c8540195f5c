"""Policies by score: what the scores are, how draws follow from them, and how feedback changes both."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chi_square import LIKELY, UNLIKELY, p_value
from hypothesis import given, settings
from hypothesis import strategies as st

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.policy import Budget, Policy, Session, batches, policies
from graspcl.state import load_state, save_state
from graspcl.testing.common import Outputs
from graspcl.testing.policies import check_policy

BY_LOGITS = ["max_loss", "min_margin", "min_logit_distance", "min_confidence"]
LABELS = np.array([40, 7, 7, 900, 40, 7])
COLUMN = {7: 2, 40: 0, 900: 1}
LOGITS = np.array(
    [[2.0, 1.0, 0.0], [0.5, 0.0, 0.4], [-1.0, 3.0, -2.0], [1.0, 0.3, -1.0], [-0.6, -1.0, 0.0], [0.2, 0.1, 5.0]]
)


BROKEN = 12345.0


class Logits(torch.nn.Module):
    """What is stored are the logits themselves; a buffer does not take NaN, so another number stands for it."""

    def forward(self, inputs: torch.Tensor) -> Outputs:
        return Outputs(inputs, inputs.masked_fill(inputs == BROKEN, torch.nan))


def rows(labels: torch.Tensor) -> torch.Tensor:
    return torch.tensor([COLUMN.get(int(label), 0) for label in labels])


def session(logits: np.ndarray = LOGITS, labels: Any = None, budget: Budget | None = None, seed: int = 0) -> Session:
    buffer = Buffer()
    buffer.insert(np.asarray(logits, np.float32), LABELS if labels is None else labels)
    return Session(buffer, budget or Budget(1, 1), np.random.default_rng(seed), Logits(), rows=rows)


def begun(policy: Policy, logits: np.ndarray = LOGITS, labels: Any = None) -> tuple[Any, Session]:
    opened = session(logits, labels)
    opened._serve(policy, started=False)
    policy.begin(opened)
    return policy, opened


def told(logits: Any) -> Outputs:
    """Feedback as training gives it."""
    tensor = torch.tensor(np.asarray(logits, np.float32))
    return Outputs(tensor, tensor)


# -- definitions, written out ----------------------------------------------------------------------------------------


def cross_entropy(f: list[float], y: int) -> float:
    return math.log(sum(math.exp(v) for v in f)) - f[y]


def softmax(f: list[float]) -> list[float]:
    return [math.exp(v) / sum(math.exp(w) for w in f) for v in f]


def margin(f: list[float], y: int) -> float:
    return f[y] - max(v for j, v in enumerate(f) if j != y)


DEFINITIONS: dict[str, Callable[[list[float], int], float]] = {
    "max_loss": cross_entropy,
    "min_margin": lambda f, y: margin(softmax(f), y),
    "min_margin, of logits": margin,
    "min_logit_distance": lambda f, y: abs(f[y]),
    "min_logit_distance, of probabilities": lambda f, y: abs(margin(softmax(f), y)),
    "min_confidence": lambda f, y: softmax(f)[y],
}


def defined(name: str, logits: np.ndarray, labels: Any = LABELS) -> np.ndarray:
    exact = np.asarray(logits, np.float32).astype(float).tolist()
    return np.array([DEFINITIONS[name](f, COLUMN[y]) for f, y in zip(exact, labels, strict=True)])


def by_rank(s: np.ndarray, start: np.ndarray, largest: bool) -> np.ndarray:
    if largest:
        s, start = -s, -start
    return np.array([len(start) + 0.5 - sum(start < v) - 0.5 * sum(start == v) for v in s])


def by_softmax(s: np.ndarray, start: np.ndarray, largest: bool, temperature: float = 1.0) -> np.ndarray:
    return np.exp((1 if largest else -1) * s / start.std() / temperature)


def by_published_transform(s: np.ndarray, start: np.ndarray, largest: bool) -> np.ndarray:
    w = s if largest else 1 / (s + 1e-7)
    return w + (1 - w.min())


WEIGHTINGS = {"rank": by_rank, "softmax": by_softmax, "published": by_published_transform}


def pairs(weights: np.ndarray) -> np.ndarray:
    """Probability of every ordered pair drawn without replacement [N, N]."""
    p = weights / weights.sum()
    table = p[:, None] * p[None, :] / (1 - p[:, None])
    np.fill_diagonal(table, 0)
    return table


def drawn_pairs(policy: Policy, opened: Session, number: int = 6000) -> np.ndarray:
    """How often each ordered pair came [N, N]."""
    counts = np.zeros((len(opened),) * 2, int)
    for _ in range(number):
        counts[tuple(policy.select(opened, 2))] += 1
    return counts


# -- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEFINITIONS)
def test_scores_are_as_defined_and_refreshed_where_drawn(name: str) -> None:
    plain, *of = name.split(", of ")
    policy, _ = begun(policies.create(plain, of=of[0]) if of else policies.create(plain))
    expected = defined(name, LOGITS)
    np.testing.assert_allclose(policy._scores, expected, rtol=1e-12)
    slots, seen = np.array([4, 1]), np.array([[3.0, 0.2, 0.1], [-1.0, 0.0, 2.5]])
    policy.observe(slots, told(seen))
    expected[slots] = defined(name, seen, LABELS[slots])
    np.testing.assert_allclose(policy._scores, expected, rtol=1e-12)


def test_signed_logit_distance_is_the_logit() -> None:
    policy, _ = begun(policies.create("min_logit_distance", signed=True))
    assert policy._scores.tolist() == LOGITS.astype(np.float32)[np.arange(6), [0, 2, 2, 1, 0, 2]].tolist()


def test_a_signed_distance_in_probabilities_is_the_margin() -> None:
    distance, _ = begun(policies.create("min_logit_distance", signed=True, of="probabilities"))
    margins, _ = begun(policies.create("min_margin"))
    assert distance._scores.tolist() == margins._scores.tolist() and min(margins._scores) < 0


def test_margins_of_a_single_class_are_alike() -> None:
    policy, _ = begun(policies.create("min_margin"), np.array([[1.0], [5.0]]), [40, 40])
    assert policy._scores.tolist() == [0, 0]


# -- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("name", BY_LOGITS)
def test_mini_batches_are_as_likely_as_enumerated_and_follow_new_scores(name: str, weighting: str) -> None:
    policy, opened = begun(policies.create(name, weighting=weighting))
    start, largest = defined(name, LOGITS), name == "max_loss"
    counts = drawn_pairs(policy, opened)
    before = WEIGHTINGS[weighting](start, start, largest)
    assert p_value(counts.ravel(), pairs(before).ravel()) > LIKELY
    slots, seen = np.array([0, 5, 3]), np.array([[-2.0, 1.0, 0.0], [0.0, 3.0, 0.2], [0.0, 4.0, -1.0]])
    policy.observe(slots, told(seen))
    s = start.copy()
    s[slots] = defined(name, seen, LABELS[slots])
    counts = drawn_pairs(policy, opened)
    assert p_value(counts.ravel(), pairs(WEIGHTINGS[weighting](s, start, largest)).ravel()) > LIKELY
    assert p_value(counts.ravel(), pairs(before).ravel()) < UNLIKELY


def test_temperature_is_in_units_of_the_spread() -> None:
    policy, opened = begun(policies.create("min_margin", weighting="softmax", temperature=3.0))
    s = defined("min_margin", LOGITS)
    counts = drawn_pairs(policy, opened)
    assert p_value(counts.ravel(), pairs(by_softmax(s, s, False, temperature=3.0)).ravel()) > LIKELY
    assert p_value(counts.ravel(), pairs(by_softmax(s, s, False)).ravel()) < UNLIKELY


@pytest.mark.parametrize("temperature", [1e-300, 1e-3, 1e300])
def test_no_temperature_leaves_the_range_of_numbers(temperature: float) -> None:
    policy, opened = begun(policies.create("min_margin", weighting="softmax", temperature=temperature))
    policy.observe(np.array([0, 1]), told([[-1e6, 1.0, 1e6], [-1e6, 1.0, 1e6]]))
    assert np.isfinite(policy._tree).all() and (policy._tree[1:, 1] > 0).all()
    assert set(policy.select(opened, 6).tolist()) == set(range(6)) == set(policy.select(opened, 7).tolist())
    assert temperature > 1 or policy.select(opened, 2).tolist() == [0, 2]  # margins of -2e6 and -5


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_equal_scores_are_drawn_uniformly(weighting: str) -> None:
    policy, opened = begun(policies.create("max_loss", weighting=weighting), np.tile([1.0, 2.0, 3.0], (5, 1)), [7] * 5)
    assert p_value(drawn_pairs(policy, opened, 4000).ravel(), pairs(np.ones(5)).ravel()) > LIKELY


@pytest.mark.parametrize("name", BY_LOGITS)
def test_top_takes_the_first_by_score_at_every_moment(name: str) -> None:
    rng = np.random.default_rng(1)
    labels = rng.choice(list(COLUMN), 50)
    policy, opened = begun(policies.create(name, mode="top"), rng.normal(size=(50, 3)), labels)
    for _ in range(20):
        s = policy._scores if name != "max_loss" else -policy._scores
        slots = policy.select(opened, 8)
        assert slots.tolist() == np.argsort(s)[:8].tolist()
        policy.observe(slots, told(rng.normal(size=(8, 3))))


def test_top_breaks_ties_at_random() -> None:
    logits = np.array([[0.0, 0, 9]] + [[0, 0, 1.0]] * 4 + [[0, 0, -1.0]])
    policy, opened = begun(policies.create("min_confidence", mode="top"), logits, [7] * 6)
    drawn = np.array([policy.select(opened, 3) for _ in range(4000)])
    assert (drawn[:, 0] == 5).all()
    counts = np.bincount(drawn[:, 1] * 6 + drawn[:, 2], minlength=36).reshape(6, 6)[1:5, 1:5]
    assert counts.sum() == 4000 and p_value(counts.ravel(), pairs(np.ones(4)).ravel()) > LIKELY


# -- monotone or not -------------------------------------------------------------------------------------------------

FINITE = st.floats(-1e4, 1e4, width=32) | st.sampled_from([-1.0, 0.0, 1.0])
ROWS_OF_LOGITS = st.lists(st.tuples(FINITE, FINITE, FINITE), min_size=1, max_size=12)


@pytest.mark.parametrize("weighting", ["rank", "softmax"])
@pytest.mark.parametrize("name", [*BY_LOGITS, "min_logit_distance, signed"])
def test_weights_are_monotone_in_the_score(name: str, weighting: str) -> None:
    @settings(deadline=None, max_examples=60)
    @given(ROWS_OF_LOGITS, ROWS_OF_LOGITS, st.floats(0.05, 20))
    def check(start: list[Any], later: list[Any], temperature: float) -> None:
        name_, *signed = name.split(", ")
        extra = {"signed": True} if signed else {}
        made = policies.create(name_, weighting=weighting, temperature=temperature, **extra)
        policy, _ = begun(made, np.array(start), [7] * len(start))
        for strict in (weighting == "rank", False):  # at session start no two scores share a rank
            order = np.argsort(policy._scores if policy.largest else -policy._scores, kind="stable")
            s, w = policy._scores[order], policy._tree[len(start) :, 1][order]
            assert (w > 0).all() and np.isfinite(w).all() and (np.diff(w) >= 0).all()
            assert (np.diff(w)[np.diff(s) == 0] == 0).all()
            assert not strict or (np.diff(w)[np.diff(s) != 0] > 0).all()
            slots = np.arange(len(start))[: len(later)]
            policy.observe(slots, told(later[: len(slots)]))

    check()


def test_the_published_transform_is_not_monotone() -> None:
    margins = np.array([-5.0, -0.001, 0.001, 5.0])
    logits = np.stack([margins, np.zeros(4)], 1)
    policy, opened = begun(policies.create("min_margin", of="logits", weighting="published"), logits, [40] * 4)
    w = policy.weights(policy._scores)
    np.testing.assert_allclose(w / w.sum(), [0.25, 0.0002, 0.50, 0.25], atol=1e-3)
    counts = np.bincount([policy.select(opened, 1)[0] for _ in range(4000)], minlength=4)
    assert counts[1] < 10 < 900 < counts[0] < counts[2]
    for weighting in ("rank", "softmax"):
        policy, _ = begun(policies.create("min_margin", weighting=weighting), logits, [40] * 4)
        assert (np.diff(policy.weights(policy._scores)) < 0).all()


def test_the_former_name_of_the_published_transform_still_means_it() -> None:
    former = policies.create("max_loss", weighting="reciprocal_shift")
    assert former == policies.create("max_loss", weighting="published")


# -- counts ----------------------------------------------------------------------------------------------------------


def test_min_rehearsal_counts_draws_within_a_session() -> None:
    policy, opened = begun(policies.create("min_rehearsal"))
    policy.observe(np.array([2, 2, 5]), None)
    assert policy._scores.tolist() == [1, 1, 3, 1, 1, 2]
    counts = drawn_pairs(policy, opened)
    assert p_value(counts.ravel(), pairs(1 / np.array([1, 1, 3, 1, 1, 2])).ravel()) > LIKELY
    policy.begin(opened)
    assert policy._scores.tolist() == [1] * 6


def test_published_counts_are_lowered_until_the_smallest_is_one() -> None:
    policy, _ = begun(policies.create("min_rehearsal", weighting="published"), LOGITS[:3], LABELS[:3])
    policy.observe(np.array([0, 1]), None)
    assert policy._scores.tolist() == [2, 2, 1]
    policy.observe(np.array([0, 2]), None)
    assert policy._scores.tolist() == [2, 1, 1]
    assert policy._tree[3:, 1].tolist() == [1 / (2 + 1e-7), 1 / (1 + 1e-7), 1 / (1 + 1e-7)]
    plain, _ = begun(policies.create("min_rehearsal"), LOGITS[:3], LABELS[:3])
    for slots in ([0, 1], [0, 2]):
        plain.observe(np.array(slots), None)
    assert plain._tree[3:, 1].tolist() == [1 / 3, 1 / 2, 1 / 2]


def test_min_rehearsal_by_sequences_of_mini_batches() -> None:
    """Three mini-batches of one, of three samples: 27 sequences, enumerated with w = 1/count."""
    exact = {}
    for sequence in itertools.product(range(3), repeat=3):
        count, p = np.ones(3), 1.0
        for i in sequence:
            p *= 1 / count[i] / sum(1 / count)
            count[i] += 1
        exact[sequence] = p
    opened = session(LOGITS[:3], LABELS[:3])
    policy = policies.create("min_rehearsal")
    counts = dict.fromkeys(exact, 0)
    for _ in range(3000):
        policy.begin(opened)
        sequence = []
        for _ in range(3):
            slots = policy.select(opened, 1)
            policy.observe(slots, None)
            sequence.append(int(slots[0]))
        counts[tuple(sequence)] += 1
    observed = np.array(list(counts.values()))
    assert p_value(observed, np.array(list(exact.values()))) > LIKELY
    assert p_value(observed, np.ones(27)) < UNLIKELY


def test_min_rehearsal_at_the_top_shows_all_before_any_again() -> None:
    labels = np.zeros(30, int)
    opened = session(np.zeros((30, 1)), labels, Budget(12, 10))
    policy, passes = policies.create("min_rehearsal", mode="top"), []
    for slots in batches(policy, opened):
        policy.observe(slots, None)
        passes.append(slots)
    orders = np.reshape(passes, (4, 30))
    assert (np.sort(orders, axis=1) == np.arange(30)).all()
    assert len({tuple(order) for order in orders.tolist()}) == 4


# -- the rest of the contract ----------------------------------------------------------------------------------------


OTHERS = ({"mode": "top"}, {"weighting": "softmax"}, {"weighting": "published"})
ALWAYS = [
    ("min_rehearsal", {"mode": "top"}),
    ("min_rehearsal", {"weighting": "published"}),
    ("min_margin", {"mode": "top"}),
    ("min_margin", {"weighting": "softmax"}),
    ("max_loss", {"weighting": "published"}),
]
# All others run the same code with another formula for the score.
MORE = [one for one in itertools.product(BY_LOGITS, OTHERS) if one not in ALWAYS]
MORE += [("min_logit_distance", {"signed": True})]


@pytest.mark.parametrize(
    ("name", "parameters"), [*ALWAYS, *(pytest.param(*one, marks=pytest.mark.slow) for one in MORE)]
)
@pytest.mark.usefixtures("fewer_sessions")
def test_they_keep_the_contract_with_other_parameters(name: str, parameters: dict[str, Any]) -> None:
    check_policy(policies.create(name, **parameters), random="mode" not in parameters or name == "min_rehearsal")


@pytest.mark.parametrize("mode", ["proportional", "top"])
@pytest.mark.parametrize("name", [*BY_LOGITS, "min_rehearsal"])
def test_budget_and_costs_are_exact(name: str, mode: str) -> None:
    opened = session(budget=Budget(5, 4))
    drawn = list(batches(policies.create(name, mode=mode), opened))
    assert np.shape(drawn) == (5, 4) and all(len(set(slots.tolist())) == 4 for slots in drawn)
    assert opened.costs.selection_forward == (0 if name == "min_rehearsal" else len(LABELS))
    assert opened.costs.selection_backward == 0


@pytest.mark.parametrize("mode", ["proportional", "top"])
@pytest.mark.parametrize("name", ["min_margin", "min_rehearsal"])
def test_a_mini_batch_larger_than_the_buffer_repeats_as_little_as_it_can(name: str, mode: str) -> None:
    for slots in batches(policies.create(name, mode=mode), session(budget=Budget(20, 16))):
        counts = np.bincount(slots, minlength=6)
        assert counts.min() == 2 and counts.max() == 3


def test_no_budget_costs_nothing() -> None:
    for buffer in (session()._buffer, Buffer()):
        opened = Session(buffer, Budget(0, 4), np.random.default_rng(0), Logits(), rows=rows)
        assert list(batches(policies.create("max_loss"), opened)) == [] and opened.costs.selection_forward == 0


@pytest.mark.parametrize("name", BY_LOGITS)
@pytest.mark.parametrize("column", [0, 1, 2])
def test_nan_is_told_with_its_slot(name: str, column: int) -> None:
    broken = LOGITS.copy()
    broken[3, column] = BROKEN
    with pytest.raises(GraspError, match=rf"'{name}': the logits of 1 of 6 samples are NaN .*slots \[3\]"):
        begun(policies.create(name), broken)
    policy, _ = begun(policies.create(name))
    with pytest.raises(GraspError, match=r"1 of 2 samples are NaN .*slots \[5\]"):
        policy.observe(np.array([1, 5]), told(np.where(broken == BROKEN, np.nan, broken)[2:4]))


def test_labels_without_a_column_are_told() -> None:
    opened = session(budget=Budget(1, 2))
    opened._rows_of = lambda labels: labels
    with pytest.raises(GraspError, match=r"columns 7 … 900 of logits that have 3: number classes from 0"):
        list(batches(policies.create("max_loss"), opened))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"mode": "tops"}, "mode must be .*'top'"),
        ({"weighting": "ranks"}, "weighting must be .*'rank'"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
    ],
)
def test_parameters_are_checked_when_the_policy_is_made(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(GraspError, match=message):
        policies.create("min_margin", **parameters)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_a_session_goes_on_from_a_checkpoint(weighting: str, tmp_path: Path) -> None:
    policy, _ = begun(policies.create("min_margin", weighting=weighting))
    save_state(tmp_path / "state", policy.state_dict())
    restored = policy.clone()
    restored.load_state_dict(load_state(tmp_path / "state"))
    first, again = session(seed=3), session(seed=3)
    for _ in range(5):
        slots = policy.select(first, 4)
        assert (restored.select(again, 4) == slots).all()
        for each in (policy, restored):
            each.observe(slots, told(LOGITS[slots] ** 2))


def test_compiled_code_is_loaded_at_first_use() -> None:
    code = "import sys, graspcl.policy.scores; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("parameters", [{}, {"mode": "top"}], ids=str)
def test_feedback_changes_a_few_nodes_of_the_tree_however_many_samples_are_stored(parameters: dict[str, Any]) -> None:
    stored, rng = 30_000, np.random.default_rng(0)
    labels = rng.choice(list(COLUMN), stored)
    policy, opened = begun(policies.create("min_margin", **parameters), rng.normal(size=(stored, 3)), labels)
    tree, before = policy._tree, policy._tree.copy()
    policy.observe(policy.select(opened, 64), told(rng.normal(size=(64, 3))))
    assert policy._tree is tree  # updated in place, where `published` builds a new one in O(N)
    assert 64 <= (tree != before).any(1).sum() <= 64 * math.ceil(math.log2(2 * stored))
