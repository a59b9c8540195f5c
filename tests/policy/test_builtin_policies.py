"""What each built-in policy draws: probabilities, balance and how much of the buffer one pass shows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from chi_square import LIKELY, UNLIKELY, count_sequences, p_value, sequence_probabilities

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.policy import Budget, Policy, Session, batches, policies, prototype_distances


def filled(labels: np.ndarray, inputs: np.ndarray | None = None) -> Buffer:
    buffer = Buffer()
    if inputs is None:
        inputs = np.random.default_rng(0).normal(size=(len(labels), 8)) + 1
    buffer.insert(inputs.astype(np.float32), labels)
    return buffer


def draw(policy: Policy | str, buffer: Buffer, budget: Budget, seed: int = 0) -> np.ndarray:
    """Mini-batches [updates, batch_size] of a session whose embeddings are the stored inputs."""
    chosen = policies.create(policy) if isinstance(policy, str) else policy
    session = Session(buffer, budget, np.random.default_rng(seed), network=torch.nn.Identity())
    return np.array(list(batches(chosen, session)))


# -- GRASP -----------------------------------------------------------------------------------------------------------


def test_grasp_draws_as_algorithm_1_from_the_embeddings() -> None:
    """30,000 classes of three samples each, all with the same three directions: as many runs of Algorithm 1."""
    runs, eps = 30_000, 0.05
    angles = np.array([0.0, 0.3, 1.4])
    inputs = np.tile(np.stack([np.cos(angles), np.sin(angles)], 1), (runs, 1))
    buffer = filled(np.repeat(np.arange(runs), 3), inputs)
    drawn = draw(policies.create("grasp", eps=eps), buffer, Budget(5, runs), seed=1)
    d = prototype_distances(inputs[:3].astype(np.float32), np.zeros(3, int))
    counts = count_sequences((drawn % 3).T, 3)
    assert p_value(counts.ravel(), sequence_probabilities(d, 5, eps).ravel()) > LIKELY
    assert p_value(counts.ravel(), sequence_probabilities(d, 5, 1e-7).ravel()) < UNLIKELY


def test_grasp_measures_distances_anew_in_each_session() -> None:
    buffer = filled(np.zeros(40, int))
    policy = policies.create("grasp")
    first, again = (draw(policy, buffer, Budget(2, 20), seed=2) for _ in range(2))
    assert (first == again).all()


# -- uniform ---------------------------------------------------------------------------------------------------------


def test_uniform_mini_batches_are_pairs_without_replacement_all_equally_likely() -> None:
    drawn = draw("uniform", filled(np.array([0, 0, 0, 0, 1])), Budget(10_000, 2), seed=3)
    counts = np.bincount(drawn[:, 0] * 5 + drawn[:, 1], minlength=25).reshape(5, 5)
    assert (np.diag(counts) == 0).all()
    assert p_value(counts[~np.eye(5, dtype=bool)], np.ones(20)) > LIKELY
    across = np.bincount(drawn[:-1:2, 0] * 5 + drawn[1::2, 0], minlength=25)
    assert p_value(across, np.ones(25)) > LIKELY  # mini-batches know nothing of each other


@pytest.mark.parametrize(("stored", "size"), [(5, 5), (5, 13), (1, 4)])
def test_a_uniform_mini_batch_larger_than_the_buffer_repeats_as_little_as_it_can(stored: int, size: int) -> None:
    for batch in draw("uniform", filled(np.zeros(stored, int)), Budget(20, size)):
        counts = np.bincount(batch, minlength=stored)
        assert counts.min() == size // stored and counts.max() == -(-size // stored)


@pytest.mark.parametrize("replace", [True, False])
def test_uniform_balanced_evens_out_classes_and_samples(replace: bool) -> None:
    labels = np.array([4] * 2 + [1] * 10)
    drawn = draw(policies.create("uniform_balanced", replace=replace), filled(labels), Budget(800, 50), seed=4).ravel()
    assert labels[drawn].tolist() == [1, 4] * 20_000
    counts = np.bincount(drawn, minlength=12)
    if replace:
        assert p_value(counts, np.repeat([0.25, 0.05], [2, 10])) > LIKELY
    else:
        assert set(counts[:2]) == {10_000} and set(counts[2:]) == {2000}


# -- near and far ----------------------------------------------------------------------------------------------------

NEAR_AND_FAR = np.random.default_rng(5).normal(size=(9, 4)) + 0.8
TWO_CLASSES = np.array([0, 8, 0, 0, 8, 8, 0, 0, 8])


@pytest.mark.parametrize(
    ("policy", "weights"),
    [
        (policies.create("mof"), lambda d: 1 / (d + 1e-7)),
        (policies.create("mof", eps=0.5), lambda d: 1 / (d + 0.5)),
        (policies.create("easy_biased"), lambda d: 1 / (d + 1e-7)),
        (policies.create("hard_biased"), lambda d: d),
    ],
    ids=["mof", "mof with another eps", "easy_biased", "hard_biased"],
)
def test_draws_are_weighted_by_the_distance_within_each_class(policy: Policy, weights) -> None:  # type: ignore[no-untyped-def]
    d = prototype_distances(NEAR_AND_FAR.astype(np.float32), TWO_CLASSES)
    drawn = draw(policy, filled(TWO_CLASSES, NEAR_AND_FAR), Budget(1000, 40), seed=6).ravel()
    assert TWO_CLASSES[drawn].tolist() == [0, 8] * 20_000
    counts = np.bincount(drawn, minlength=9)
    for k in (0, 8):
        mine = k == TWO_CLASSES
        assert p_value(counts[mine], weights(d[mine])) > LIKELY
        assert p_value(counts[mine], weights(d[mine]) ** 1.2) < UNLIKELY  # the power of the test
    late = np.bincount(drawn[20_000:], minlength=9)  # with replacement and no update: late draws are as early ones
    assert p_value(late[TWO_CLASSES == 0], weights(d[TWO_CLASSES == 0])) > LIKELY


@pytest.mark.parametrize("name", ["grasp", "mof", "hard_biased"])
def test_identical_embeddings_are_drawn_uniformly(name: str) -> None:
    buffer = filled(np.zeros(5, int), np.tile([0.3, 1.7, 0.2], (5, 1)))
    counts = sum(np.bincount(draw(name, buffer, Budget(1, 1), seed=s)[0], minlength=5) for s in range(600))
    assert p_value(np.asarray(counts), np.ones(5)) > LIKELY


@pytest.mark.parametrize("name", ["grasp", "mof"])
@pytest.mark.parametrize("eps", [0.0, -1.0, float("nan"), float("inf")])
def test_eps_is_checked_when_the_policy_is_made(name: str, eps: float) -> None:
    with pytest.raises(GraspError, match="eps must be"):
        policies.create(name, eps=eps)


# -- coverage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "low", "high"),
    [
        (policies.create("uniform"), 0.62, 0.65),  # 1 - (1 - b/N)^(N/b) at b/N = 1/40: 63.7 %
        (policies.create("uniform_balanced"), 0.62, 0.645),  # 1 - 1/e: 63.2 %
        (policies.create("uniform_balanced", replace=False), 1.0, 1.0),
        (policies.create("grasp"), 0.95, 0.99),  # measured: 97 %
        (policies.create("mof"), 0.55, 0.625),  # fewer than uniform: the near ones come again and again
        (policies.create("hard_biased"), 0.55, 0.625),
    ],
    ids=repr,
)
def test_how_much_of_the_buffer_one_pass_shows(policy: Policy, low: float, high: float) -> None:
    """Ten classes of 800 samples, 8000 draws."""
    buffer = filled(np.arange(8000) % 10)
    seen = len(np.unique(draw(policy, buffer, Budget(40, 200), seed=7))) / 8000
    assert low <= seen <= high
